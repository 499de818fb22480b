"""Agreement between the processes of one run."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from kjax.errors import InputError

MESSAGE_BYTES = 2000
"""Length to which error messages are padded or cut when processes exchange them."""


def any_process(flag: bool) -> bool:
    """Return whether the flag is set in any process. All must call this at the same point."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """Stop all processes after this block if one of them raised an InputError or OSError in it.

    Otherwise the others would wait for it forever. The block itself must not wait for other
    processes.

    Raises:
        InputError: as in the block, or with the message of the first process that raised one.
        OSError: as in the block.
    """
    error: InputError | OSError | None = None
    try:
        yield
    except (InputError, OSError) as own:
        error = own
    if jax.process_count() > 1:
        message = "" if error is None else str(error) or type(error).__name__
        padded = message.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0")
        gathered = multihost_utils.process_allgather(np.frombuffer(padded, np.uint8))
        for process, row in enumerate(np.asarray(gathered)):
            other = bytes(row).rstrip(b"\0").decode(errors="ignore")
            if other and error is None:
                raise InputError(f"process {process} stopped: {other}")
    if error:
        raise error
