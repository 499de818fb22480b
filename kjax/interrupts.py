"""Ctrl-C at any moment of a program: one line, and the exit code that shells expect."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

INTERRUPTED = 130


def run_program(main: Callable[[Sequence[str]], int], line: str) -> NoReturn:
    """Runs a program to its end and leaves; after Ctrl-C with a line on stderr."""
    try:
        code = main(sys.argv)
    except KeyboardInterrupt:
        # At once: threads that go on, or another Ctrl-C, would add their tracebacks.
        _end(line)
    sys.exit(code)


@contextlib.contextmanager
def ending_on_interrupt(line: str) -> Iterator[None]:
    """For imports that take seconds: Ctrl-C in this block prints the line and ends the process.

    An exception would come out of the middle of other people's modules, some of which are not
    Python's: they may change it, drop it, or die of it.
    """

    def end(number: int, frame: Any) -> None:
        _end(line)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(line: str) -> NoReturn:
    with contextlib.suppress(RuntimeError, OSError):  # it may be printing just now
        sys.stdout.flush()
    os.write(2, f"{line}\n".encode())
    os._exit(INTERRUPTED)
