"""Where derived files are kept, how damage to them is noticed, and how folders are written whole.

Half of a folder is never seen: it gets its name last.
"""

import contextlib
import os
import random
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kjax.files.atomic import mendable_writes

BLOCK_BYTES = 1 << 20
SAMPLED_BLOCKS = 64
"""Blocks compared of a large file that was not written to, in hundredths of a second."""


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


def fingerprint(path: Path, *, block_bytes: int = BLOCK_BYTES) -> dict[str, Any]:
    """What `is_intact` will compare a file with: its size, time, and checksums of its blocks."""
    status = path.stat()
    with path.open("rb") as file:
        blocks = [zlib.crc32(block) for block in iter(lambda: file.read(block_bytes), b"")]
    return {"size": status.st_size, "modified": status.st_mtime_ns, "blocks": blocks}


def is_intact(
    path: Path,
    known: Mapping[str, Any],
    *,
    block_bytes: int = BLOCK_BYTES,
    sampled_blocks: int = SAMPLED_BLOCKS,
) -> bool:
    """Whether a file is what it was when `fingerprint` looked at it, with the same `block_bytes`.

    Of a file that nobody has written to since, by its time, no more than `sampled_blocks` are
    compared, others at every call: disks rot, but seldom, and reading gigabytes takes seconds.
    Otherwise, and of smaller files, every byte is.
    """
    status, blocks = path.stat(), known["blocks"]
    if status.st_size != known["size"] or len(blocks) != -(-status.st_size // block_bytes):
        return False
    chosen = list(range(len(blocks)))
    if status.st_mtime_ns == known["modified"] and len(chosen) > sampled_blocks:
        chosen = sorted(random.sample(chosen, sampled_blocks))
    with path.open("rb") as file:
        for number in chosen:
            file.seek(number * block_bytes)
            if zlib.crc32(file.read(block_bytes)) != blocks[number]:
                return False
    return True


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


def mendable_cache_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turns a failed write below `folder` into one line that says how to mend it."""
    return mendable_writes(
        f"to the cache folder {folder}",
        "set KJAX_CACHE, or pass cache_dir, to a folder that you may write to",
    )
