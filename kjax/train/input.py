"""The two input pipelines behind one function, and the evaluation during training.

`resident` keeps the dataset on the devices; `tfdata` streams batches to them. Both yield the same
pairs.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kjax.data.photo_points import ResidentPhotos
from kjax.data.phototour import PatchSet
from kjax.data.pipelines import (
    SHARE,
    make_resident,
    pair_dataset,
    prefetch_to_device,
    room_for_set,
)
from kjax.data.sampler import check_streams, make_point_tables
from kjax.errors import InputError
from kjax.metrics import fpr_at_recall, pair_distances
from kjax.model.describe import describe
from kjax.model.descriptor import Descriptor
from kjax.runs.processes import any_process, failing_together
from kjax.train.loop import Run
from kjax.train.parallel import (
    DescriptorProgram,
    local_devices,
    make_batch_step,
    make_resident_run,
    repeat,
    replicated,
)
from kjax.train.step import TrainState


def choose_pipeline(
    wanted: str,
    program: DescriptorProgram,
    patch_set: PatchSet | ResidentPhotos,
    *,
    before: str | None = None,
) -> tuple[str, str]:
    """Choose `resident` if the dataset fits on the devices beside the step, otherwise `tfdata`.

    All processes choose the same. XLA may round differently in the two pipelines, so a run that
    began with tf.data continues with it.

    Returns the pipeline and the reason for it. `wanted` is "auto" or the pipeline to use, `before`
    that of the run so far, if it is resumed.

    Raises:
        InputError: the dataset does not fit, and TensorFlow is not installed.
    """
    if wanted != "auto":
        return wanted, "set in the config"
    if program.several_seeds:
        return "resident", "several seeds side by side need it"
    if isinstance(patch_set, ResidentPhotos):
        return "resident", "photographs lie on the device"
    devices = local_devices(program)
    size, room = patch_set.patches.nbytes, room_for_set(devices)
    fits = not any_process(size > room)
    if any_process(before == "tfdata"):
        return "tfdata", "the run began with it"
    why = (
        f"the dataset takes {_readable(size)}, and {SHARE:.0%} of the free memory of each "
        f"{devices[0].device_kind} is {_readable(room)}"
    )
    if fits:
        return "resident", why
    with failing_together():
        if importlib.util.find_spec("tensorflow") is None:
            raise InputError(
                f"{why}: its pairs must be streamed by tf.data, which needs TensorFlow: "
                "pip install 'kjax[tfds]', or choose a smaller dataset"
            )
    return "tfdata", why


def _readable(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def make_run(
    program: DescriptorProgram,
    patch_set: PatchSet | ResidentPhotos,
    *,
    pipeline: str,
    first_step: int,
) -> Run:
    """Return the function that advances a state by some steps, beginning at `first_step`."""
    if isinstance(patch_set, ResidentPhotos):
        photos, run = jax.device_put(patch_set, replicated(program)), make_resident_run(program)
        return lambda state, steps: run(state, photos, steps)
    tables = make_point_tables(patch_set.point_ids, patch_set.parts)
    for seed in program.seeds:
        check_streams(tables, program.pairs, program.shares, seed=seed, group=program.group)
    if pipeline == "resident":
        data = make_resident(patch_set, device=replicated(program))
        run = make_resident_run(program)
        return lambda state, steps: run(state, data, steps)

    step = make_batch_step(program)
    devices = local_devices(program)
    dataset = pair_dataset(
        patch_set,
        seed=program.seeds[0],
        pairs=program.pairs,
        group=program.group,
        shares=program.shares,
        start_step=first_step,
        devices=len(devices),
        process=jax.process_index(),
        processes=jax.process_count(),
    )
    batches = prefetch_to_device(dataset.as_numpy_iterator(), devices=devices)
    return lambda state, steps: repeat(lambda s: step(s, next(batches)), state, steps)


def make_evaluation(
    model: Descriptor, test_sets: Sequence[PatchSet], *, several_seeds: bool
) -> Callable[[TrainState], dict[str, float]]:
    """Return a function that computes FPR at 95 % recall on every test set, and their mean `fpr95`.

    With several seeds, each value is the mean over them, and `…_std` their standard deviation.
    """
    apply = jax.jit(model.apply)

    def evaluate_one(variables: Any) -> dict[str, float]:
        scores = {}
        for test in test_sets:
            descriptors = describe(
                lambda batch: apply(variables, batch),
                test.patches,
                size=model.patch_size,
                progress=False,
            )
            distances = pair_distances(descriptors, test.pairs.first, test.pairs.second)
            scores[f"fpr95/{test.name}"] = fpr_at_recall(distances, test.pairs.matching)
        if scores:
            scores["fpr95"] = float(np.mean(list(scores.values())))
        return scores

    def evaluate(state: TrainState) -> dict[str, float]:
        variables = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
        if not several_seeds:
            return evaluate_one(variables)
        count = len(jax.tree.leaves(variables)[0])
        rows = [
            evaluate_one(jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), variables))
            for i in range(count)
        ]
        scores = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            scores[name] = float(np.mean(values))
            scores[f"{name}_std"] = float(np.std(values, ddof=1))
        return scores

    return evaluate
