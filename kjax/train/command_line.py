"""The command line of training programs, and how a process joins the others of a training.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from kjax.errors import InputError, exit_code, one_line, unknown_name
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


def run_training(
    program: str,
    argv: Sequence[str],
    train: Callable[[argparse.Namespace], tuple[Mapping[str, float], str]],
    *,
    description: str | None,
) -> int:
    """Run a training program and return its exit code: 0 (also after Ctrl-C), or 2 for bad input.

    `train` takes the options and returns scores, and a line that says where the results are.
    """

    def run() -> None:
        try:
            scores, result = train(parse_command_line(argv, description=description))
        except Stopped as stopped:
            print(f"{program}: {stopped}", file=sys.stderr)
            return
        for name, value in scores.items():
            print(f"{name:30s} {100 * value:7.2f} %")
        print(result)

    return exit_code(program, run)


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def parse_command_line(
    argv: Sequence[str], *, description: str | None = None
) -> argparse.Namespace:
    """Parse the program's name and arguments; `overrides` are those for `read_config`.

    Raises:
        InputError: an option is unknown, missing or malformed.
    """
    parser = _Parser(
        prog=Path(argv[0]).name,
        usage="%(prog)s --config=FILE[:ARGUMENT] --workdir=FOLDER [--config.group.field=value …]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="config file, or its name in configs/")
    parser.add_argument(
        "--workdir", metavar="FOLDER", help="folder of the run; an existing run is resumed"
    )
    add = parser.add_argument_group("several machines, the same command on each").add_argument
    add("--coordinator", metavar="ADDRESS", help="HOST:PORT of process 0, any free port")
    add("--processes", metavar="N", type=int, help="number of processes")
    add("--process", metavar="I", type=int, help="index of this process, from 0")
    add("--distributed", action="store_true", help="detect these: SLURM, TPUs, Kubernetes")
    args, overrides = parser.parse_known_args(argv[1:])
    args.overrides = overrides
    for argument in overrides:
        option = argument.partition("=")[0]
        if re.match(r"-+[a-zA-Z]", option) and not option.startswith("--config."):
            options = [action.option_strings[-1] for action in parser._actions]
            raise unknown_name("option", option, options)
    if not args.config:
        raise InputError("no config: give --config=FILE, e.g. --config=configs/quickstart.py")
    if not args.workdir:
        raise InputError("no workdir: give --workdir=FOLDER, e.g. --workdir=out/first")
    args.workdir = Path(args.workdir)
    joining = (args.coordinator, args.processes, args.process)
    if not args.distributed and None in joining and joining != (None, None, None):
        raise InputError("--coordinator, --processes and --process go together")
    if args.coordinator is not None and not re.fullmatch(r".+:\d+", args.coordinator):
        raise InputError(f"--coordinator must be HOST:PORT of process 0, not {args.coordinator!r}")
    if None not in joining[1:] and not 0 <= args.process < args.processes:
        raise InputError(
            f"--process must be from 0 to {args.processes - 1} with --processes={args.processes}, "
            f"not {args.process}"
        )
    return args


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
        os.write(2, f"run_train: {ALONE}\n".encode())
        os._exit(2)
