"""The options of training commands, and how a process joins the others of a training.

JAX must not be imported before the processes have joined, so nothing here imports it at the top.
JAX notices within seconds when another process is gone and aborts with pages of log; here that
becomes one line. The remaining process has nothing to save: the last checkpoint is as recent as
anything that all processes agreed on.
"""

import argparse
import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kjax.errors import InputError, one_line
from kjax.interrupts import Stopped

INTERRUPTED = "interrupted: run the same command to resume from the last checkpoint, if any"
HEARTBEAT_SECONDS = 40
"""Seconds without a heartbeat after which a process counts as gone."""
ALONE = (
    "another process of this training is gone or cannot be reached. Saved checkpoints are intact: "
    "start all processes again to resume from the last one "
    "(TF_CPP_MIN_LOG_LEVEL=0 shows JAX's log)"
)
_COLLECTIVE_ERROR = re.compile(
    r"(UNKNOWN|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL): "
)
"""Start of the messages of failed collective operations."""
_ENDING = threading.Lock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a training command; overrides of config fields come as `overrides`."""
    parser.usage = "%(prog)s --config NAME --out DIR [--config.group.field=value …]"
    text = "config file, or the name of one in configs/: base, quickstart, …"
    parser.add_argument("--config", required=True, metavar="NAME", help=text)
    text = "folder of the run; an existing run is resumed"
    parser.add_argument("--out", "--workdir", required=True, type=Path, metavar="DIR", help=text)


def run_training(command: str, train: Callable[[], Mapping[str, float]], result: str) -> int:
    """Train, and print the scores and a line that says where the results are.

    Returns the exit code, which is 0 after Ctrl-C, too.
    """
    try:
        scores = train()
    except Stopped as stopped:
        print(f"{command}: {stopped}", file=sys.stderr)
        return 0
    for name, value in scores.items():
        print(f"{name:30s} {100 * value:7.2f} %")
    print(result)
    return 0


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Join the other processes, before any other use of JAX; None to have JAX detect a value.

    Raises:
        InputError: the others cannot be reached.
    """
    # `ALONE` replaces JAX's log. This level is beyond its highest and silences even fatal errors.
    # JAX sets the variable, too, but never to 0.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "4"
    import jax

    ctypes.pythonapi.PyOS_setsig(signal.SIGABRT, _end_aborted)
    # Used only if the processes' devices are CPUs.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot join the other processes ({one_line(error)}): start all of them within "
            "minutes of each other, and give --coordinator, --processes and --process if they "
            "cannot be detected"
        ) from error


@contextlib.contextmanager
def ending_when_alone() -> Iterator[None]:
    """End the process if a collective operation fails because other processes are gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # JAX raises either
        import jax

        if jax.process_count() == 1 or not _COLLECTIVE_ERROR.match(str(error)):
            raise
        _end()


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _end_aborted(number: int) -> None:
    """Handle SIGABRT, on the aborting thread of JAX, which would not run a Python handler."""
    _end()


def _end() -> None:
    """End the process at once: an orderly exit would wait for the other processes."""
    # JAX's aborting thread and the main thread may both come here: the second one waits.
    with _ENDING:
        os.write(2, f"kjax train: {ALONE}\n".encode())
        os._exit(2)
