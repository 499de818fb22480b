"""Ctrl-C at any moment of a program: one line, and the exit code that shells expect."""

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

INTERRUPTED = 130


class Stopped(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A training was asked to stop, and has saved its state."""


def run_program(main: Callable[[Sequence[str]], int], line: str) -> NoReturn:
    """Runs a program to its end and leaves; after Ctrl-C with a line on stderr."""
    hear_lost_interrupts()
    try:
        code = main(sys.argv)
    except KeyboardInterrupt:
        end_interrupted(line)
    sys.exit(code)


def run_script(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """The same for a script, whose `main` takes the words after its name."""
    run_program(lambda argv: main(argv[1:]), f"{Path(sys.argv[0]).stem}: interrupted")


@functools.cache
def hear_lost_interrupts() -> None:
    """Repeats a Ctrl-C that Python dropped.

    JAX has the garbage collector call it. What is raised there goes nowhere but here, and that is
    where a Ctrl-C during a compilation often arrives.
    """
    usual = sys.unraisablehook

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            # A moment later: at once would be inside this hook.
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            usual(lost)

    sys.unraisablehook = hook


@contextlib.contextmanager
def ending_on_interrupt(line: str) -> Iterator[None]:
    """Makes Ctrl-C print a line and end the process, for imports that take seconds.

    An exception would come out of the middle of other people's modules, some of which are not
    Python's: they may change it, drop it, or die of it.
    """

    def end(number: int, frame: Any) -> None:
        end_interrupted(line)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_interrupted(line: str) -> NoReturn:
    """Ends the process at once, with a line on stderr.

    In an orderly exit threads that go on, or another Ctrl-C, would add their tracebacks, and XLA's
    threads at work may crash it.
    """
    with contextlib.suppress(RuntimeError, OSError):  # it may be printing just now
        sys.stdout.flush()
    os.write(2, f"{line}\n".encode())
    os._exit(INTERRUPTED)
