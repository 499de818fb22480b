"""Ctrl-C in a process that is the command's own."""

import os
import signal
import sys
import threading
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit code that shells expect."""


def hear_lost_interrupts() -> None:
    """Repeats a Ctrl-C that Python dropped.

    JAX has the garbage collector call it. What is raised there goes nowhere but here, and that is
    where a Ctrl-C during a compilation often arrives.
    """

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            # A moment later: at once would be inside this hook.
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            sys.__unraisablehook__(lost)

    sys.unraisablehook = hook


def leave_at_once() -> NoReturn:
    """Ends the process; in an orderly exit, XLA's threads at work may crash it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
