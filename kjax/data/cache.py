"""Where derived files are kept, and how folders are written so that half of one is never seen."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from kjax.errors import InputError


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder for derived files: `cache_dir`, else $KJAX_CACHE, else ~/.cache/kjax.

    `~/.cache` is $XDG_CACHE_HOME where that is set.
    """
    if cache_dir is not None:
        return Path(cache_dir)
    if override := os.environ.get("KJAX_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kjax"


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `target` if the block ends well, else vanishes.

    The caller makes sure that `target` does not exist, or is an empty folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    partial.mkdir()
    try:
        yield partial
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextlib.contextmanager
def mendable_cache_errors(folder: Path) -> Iterator[None]:
    """Turns a failed write below `folder` into one line that says how to mend it."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write to the cache folder {folder} ({error.strerror or error}): "
            "set KJAX_CACHE, or pass cache_dir, to a folder that you may write to"
        ) from error
