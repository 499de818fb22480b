"""Atomic writes: a kill or a full disk leaves the old content. Checksums of files."""

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kjax.errors import InputError

CHECKSUMS = "SHA256SUMS"
"""Name of a file as `sha256sum` writes it."""


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it.

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
    """Fsync a directory: until then, a power cut can undo a renaming."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(opened)


def sync_tree(folder: Path) -> None:
    """Fsync all files and directories in a folder."""
    for inner, _, names in os.walk(folder):
        for name in names:
            with open(Path(inner, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_folder(Path(inner))


def partial_prefix(path: Path) -> str:
    """Prefix of a file's temporary names; a kill can leave such a file behind."""
    return f".{path.stem}.partial-"


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8."""
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that a person can read."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def explain_write_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn a failed write into one line: what could not be written, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {what} ({error.strerror or error}): {remedy}") from error


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_lines(folder: Path, paths: Iterable[Path]) -> Iterator[str]:
    """Lines of `CHECKSUMS` for files in a folder."""
    for path in paths:
        yield f"{sha256(path)}  {path.relative_to(folder)}\n"
