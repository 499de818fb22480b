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
"""Exit code after Ctrl-C."""


class Stopped(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A training was asked to stop, and has saved its state."""


def run_script(main: Callable[[Sequence[str]], int], hint: str = "") -> NoReturn:
    """Run a script, whose `main` takes the arguments without the script's name, and exit.

    After Ctrl-C, print a line on stderr that ends with the hint.
    """
    hear_lost_interrupts()
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        end_interrupted(f"{Path(sys.argv[0]).stem}: interrupted{hint}")
    sys.exit(code)


@functools.cache
def hear_lost_interrupts() -> None:
    """Repeat a Ctrl-C that Python dropped.

    A Ctrl-C during compilation often arrives in a callback of the garbage collector that JAX
    installs, where exceptions are ignored.
    """
    usual = sys.unraisablehook

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            # A moment later: an immediate signal would arrive inside this hook.
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            usual(lost)

    sys.unraisablehook = hook


@contextlib.contextmanager
def ending_on_interrupt(line: str) -> Iterator[None]:
    """Make Ctrl-C print a line and end the process, during imports that take seconds.

    An exception would arise inside other people's modules, which may change it, drop it or crash.
    """

    def end(number: int, frame: Any) -> None:
        end_interrupted(line)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_interrupted(line: str) -> NoReturn:
    """End the process at once, with a line on stderr.

    In an orderly exit, other threads or another Ctrl-C would add tracebacks, and XLA's threads may
    crash.
    """
    with contextlib.suppress(RuntimeError, OSError):  # it may be printing at this moment
        sys.stdout.flush()
    os.write(2, f"{line}\n".encode())
    os._exit(INTERRUPTED)
