"""Which of the two input pipelines feeds a run, where its config leaves that open."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from kjax.data.phototour import PatchSet
from kjax.data.resident import SHARE, room_for_set
from kjax.errors import InputError
from kjax.runs.processes import any_process, failing_together
from kjax.train.parallel import Program, local_devices

AUTO = "auto"


class Choice(NamedTuple):
    """A pipeline, and why it was taken."""

    pipeline: str
    why: str


def choose_pipeline(
    wanted: str,
    program: Program,
    patch_set: PatchSet,
    *,
    before: str | None = None,
    room_for_set: Callable[[Sequence[jax.Device]], int] = room_for_set,
) -> Choice:
    """Resident if the set fits the devices beside the step, else tf.data; alike in all processes.

    Both yield the same pairs, but XLA may round differently around them. So a run that began with
    tf.data goes on with it, also where the set would fit.

    Args:
        wanted: `AUTO`, or the pipeline to take.
        program: what is trained.
        patch_set: what it is trained on.
        before: the pipeline that the run had so far, if it goes on.
        room_for_set: bytes that a set may take on each of some devices.

    Raises:
        InputError: the set does not fit, and TensorFlow is not installed.
    """
    if wanted != AUTO:
        return Choice(wanted, "the config says so")
    if program.several_seeds:
        return Choice("resident", "several seeds side by side need it")
    devices = local_devices(program)
    size, room = patch_set.patches.nbytes, room_for_set(devices)
    fits = not any_process(size > room)
    if any_process(before == "tfdata"):
        return Choice("tfdata", "the run began with it")
    why = (
        f"the set takes {_readable(size)}, and {SHARE:.0%} of the memory that is free for each "
        f"{devices[0].device_kind} is {_readable(room)}"
    )
    if fits:
        return Choice("resident", why)
    with failing_together():
        if importlib.util.find_spec("tensorflow") is None:
            raise InputError(
                f"{why}: its pairs must come through tf.data, which needs TensorFlow: "
                "pip install tensorflow, or choose a smaller set"
            )
    return Choice("tfdata", why)


def _readable(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
