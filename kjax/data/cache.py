"""The cache folder and decoded patch sets in it, which get their final name when complete."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from kjax.errors import InputError
from kjax.files.atomic import explain_write_errors
from kjax.files.npz import read_npy

CACHE_VERSION = 3
PATCHES_FILE, POINTS_FILE, MARKER_FILE = "patches.npy", "point_ids.npy", "whole.json"


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return `cache_dir`, else $KJAX_CACHE, else `kjax` in $XDG_CACHE_HOME or ~/.cache."""
    if own := cache_dir or os.environ.get("KJAX_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kjax")


def cache_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turn a failed write below `folder` into one line that says how to fix it."""
    return explain_write_errors(
        f"to the cache folder {folder}",
        "set KJAX_CACHE, or pass cache_dir, to a folder that you may write to",
    )


@contextlib.contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` if the block succeeds, else is deleted.

    `target` must not exist or be empty, unless it is to be replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    partial.mkdir()
    old = partial.with_name(f"{partial.name}-old")
    try:
        yield partial
        if replace and target.exists():
            target.rename(old)
        partial.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def cache_entry(kind: str, folder: Path, cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the cache folder for data decoded from `folder`; it depends on the whole path."""
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return cache_root(cache_dir) / kind / f"{folder.name}-{digest}"


def open_decoded(
    entry: Path,
    sources: Sequence[Path],
    decode: Callable[[Path], Int64[np.ndarray, " P"]],
) -> tuple[UInt8[np.ndarray, "P 64 64"], Int64[np.ndarray, " P"]]:
    """Return memory-mapped patches and their point ids; decode them if the sources have changed.

    `decode` writes `PATCHES_FILE` into the folder it gets, and returns each patch's 3-D point.
    """
    found = [[path.name, *_size_and_time(path)] for path in sources]
    if (cached := _open_entry(entry, found)) is not None:
        return cached
    with cache_errors(entry.parent):
        try:
            with new_folder(entry) as partial:
                np.save(partial / POINTS_FILE, decode(partial))
                files = {path.name: _size_and_time(path) for path in partial.glob("*.npy")}
                marker = {"version": CACHE_VERSION, "sources": found, "files": files}
                (partial / MARKER_FILE).write_text(json.dumps(marker))
                # An entry that another process has just completed is kept: it may be in use.
                if _open_entry(entry, found) is None:
                    shutil.rmtree(entry, ignore_errors=True)
        except OSError:
            if not entry.exists():
                raise
    if (cached := _open_entry(entry, found)) is None:
        raise InputError(f"cannot use the cache {entry}: delete that folder and try again")
    return cached


def _size_and_time(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _open_entry(entry: Path, sources: list[list[Any]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the cached arrays, or None if they are absent, damaged or out of date."""
    try:
        marker = json.loads((entry / MARKER_FILE).read_bytes())
        if marker["version"] != CACHE_VERSION or marker["sources"] != sources:
            return None
        if any(_size_and_time(entry / name) != known for name, known in marker["files"].items()):
            return None
        return np.load(entry / PATCHES_FILE, mmap_mode="r"), read_npy(entry / POINTS_FILE)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
