"""Disks that are full."""

import re
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


def without_late_callbacks(printed: str) -> str:
    """What was printed, but for what Orbax leaves behind when several arrays cannot be written.

    It closes its event loop at the first that fails. TensorStore may tell of another one after
    that, from a thread of its own, and prints that it could not. The disk is full for what is
    captured, too, so that this may end anywhere.
    """
    begun = r"Traceback \(most recent call last\):\n(  .*\n)*"
    late = begun + r"(RuntimeError: Event loop is closed\n|(  .*)?\Z)"
    return re.sub(late, "", printed)
