"""Files that are written whole or not at all: a kill or a full disk leaves the old content."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kjax.errors import InputError


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Lets `write` fill a file under a temporary name beside `path`, then gives it its name.

    The temporary name keeps the suffix, which some writers look at.
    """
    partial = path.with_name(f"{partial_prefix(path)}{secrets.token_hex(4)}{path.suffix}")
    try:
        write(partial)
        with open(partial, "rb+") as file:
            # The new content must be on the disk before the old one goes.
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Sees the names in a folder to the disk: until then, a power cut can undo a renaming."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(opened)


def sync_tree(folder: Path) -> None:
    """Sees all files in a folder, and their names, to the disk."""
    for inner, _, names in os.walk(folder):
        for name in names:
            with open(Path(inner, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_folder(Path(inner))


def partial_prefix(path: Path) -> str:
    """How the temporary names of a file begin; a kill can leave such a file behind."""
    return f".{path.stem}.partial-"


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8."""
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file that a person can read."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def mendable_writes(what: str, remedy: str) -> Iterator[None]:
    """Turns a failed write into one line: what could not be written, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {what} ({error.strerror or error}): {remedy}") from error
