"""What the processes of one run have to agree on."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from kjax.errors import InputError

MESSAGE_BYTES = 2000
"""Room for an error's message: what processes exchange has one size."""


def any_process(flag: bool) -> bool:
    """Whether the flag is up in any process. All of them must ask at the same point."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """Stops all processes after this block if any of them met an error that a user can mend.

    Otherwise the others would wait for ever where they next need the one that stopped. So the block
    must contain nothing that waits for other processes.

    Raises:
        InputError: as in the block, or with the message of the first process that met one.
        OSError: as in the block.
    """
    error: InputError | OSError | None = None
    try:
        yield
    except (InputError, OSError) as own:
        error = own
    messages = _all_messages("" if error is None else str(error) or type(error).__name__)
    if error:
        raise error
    for process, message in enumerate(messages):
        if message:
            raise InputError(f"process {process} stopped: {message}")


def _all_messages(message: str) -> list[str]:
    """The messages of all processes."""
    if jax.process_count() == 1:
        return [message]
    padded = message.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0")
    gathered = multihost_utils.process_allgather(np.frombuffer(padded, np.uint8))
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in np.asarray(gathered)]
