"""Disks that are full."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def filling_disk() -> Iterator[Callable[[int], None]]:
    """Yields a function after whose call no file can grow beyond so many bytes.

    Python ignores the signal that comes with it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda room: resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full_disk(*, room: int) -> Iterator[None]:
    """No file can grow beyond so many bytes."""
    with filling_disk() as fill:
        fill(room)
        yield
