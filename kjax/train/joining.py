"""How a process joins the others that train with it, and how it ends when one of them is gone.

JAX notices by itself: the processes tell the first one every few seconds that they are alive. What
it does then is to abort, with pages of its own log. Here that becomes one line. A process that is
left alone has nothing to save: the last checkpoint is as new as what all of them agreed on.
"""

import contextlib
import ctypes
import os
import re
import signal
import threading
from collections.abc import Iterator

from kjax.errors import InputError, one_line

HEARTBEAT_SECONDS = 40
"""Seconds without a sign of life after which a process counts as gone."""
ALONE = (
    "another process of this training is gone or cannot be reached: what was saved is intact; "
    "start all of them again, and the training goes on from the last checkpoint "
    "(TF_CPP_MIN_LOG_LEVEL=0 shows JAX's log)"
)
EXIT_CODE = 2
_FAILED_TOGETHER = re.compile(
    r"(UNKNOWN|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL): "
)
"""Beginnings of messages about work of all processes that fails through no fault of this one."""
_ENDING = threading.Lock()


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Joins the other processes; must come before anything else that has to do with JAX.

    Args:
        coordinator: HOST:PORT of the first process; None to have JAX find out, like the rest.
        processes: how many there are.
        process: which of them this is.

    Raises:
        InputError: these do not make sense, or the others are not to be found.
    """
    _check(coordinator, processes, process)
    # `ALONE` says what JAX's log would: beyond its highest level, that keeps even last words to
    # itself. JAX sets the variable too, for itself and what it starts, but never to 0.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "4"
    import jax

    ctypes.pythonapi.PyOS_setsig(signal.SIGABRT, _end_aborted)
    # Used only where the processes' devices are CPUs.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot join the other processes ({one_line(error)}): start all of them "
            "within minutes of each other, and give --coordinator, --processes and --process where "
            "they are not found out"
        ) from error


def _check(coordinator: str | None, processes: int | None, process: int | None) -> None:
    if coordinator is not None and not re.fullmatch(r".+:\d+", coordinator):
        raise InputError(f"--coordinator must be HOST:PORT of process 0, not {coordinator!r}")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise InputError(
            f"--process must be from 0 to {processes - 1} with --processes={processes}, "
            f"not {process}"
        )


@contextlib.contextmanager
def ending_when_alone() -> Iterator[None]:
    """Ends the process where work with others fails because they are gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # JAX raises either for what its library returns
        import jax

        if jax.process_count() == 1 or not _FAILED_TOGETHER.match(str(error)):
            raise
        _end()


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _end_aborted(number: int) -> None:
    """The handler of SIGABRT. It is not one of Python's, which the aborting thread would not run.

    That thread is one of JAX's, and the main one may be waiting for the others for ever.
    """
    _end()


def _end() -> None:
    """Ends the process at once: what Python and JAX do at an end would wait for the others."""
    # Two threads may come here, JAX's that aborts and the main one: the second waits for the end.
    with _ENDING:
        os.write(2, f"run_train: {ALONE}\n".encode())
        os._exit(EXIT_CODE)
