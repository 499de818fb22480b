"""From a set of patches to steps taken: the two input pipelines behind one function."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kjax.data.phototour import PatchSet
from kjax.data.resident import make_resident
from kjax.data.sampler import check_streams, make_point_tables
from kjax.metrics import fpr_at_recall, pair_distances
from kjax.model.describe import describe
from kjax.model.descriptor import Descriptor
from kjax.train.loop import Run
from kjax.train.parallel import (
    Program,
    local_devices,
    make_batch_step,
    make_resident_run,
    repeat,
    replicated,
)
from kjax.train.step import TrainState


def make_run(program: Program, patch_set: PatchSet, *, pipeline: str, first_step: int) -> Run:
    """The function that takes a state some steps on, fed by one of the pipelines.

    "resident" keeps the set on the devices; "tfdata" brings batches to them. The stream of pairs
    goes on at `first_step`.
    """
    tables = make_point_tables(patch_set.point_ids, patch_set.parts)
    for seed in program.seeds:
        check_streams(tables, program.pairs, program.shares, seed=seed, group=program.group)
    if pipeline == "resident":
        data = make_resident(patch_set, device=replicated(program))
        run = _compiled(make_resident_run, program)
        return lambda state, steps: run(state, data, steps)
    return _tfdata_run(program, patch_set, first_step)


@functools.lru_cache(maxsize=4)
def _compiled(make: Callable[[Program], Any], program: Program) -> Any:
    """Kept, as a program that is fed from several sets takes seconds to trace and to compile."""
    return make(program)


def _tfdata_run(program: Program, patch_set: PatchSet, first_step: int) -> Run:
    from kjax.data.tfdata import pair_dataset, prefetch_to_device

    step = _compiled(make_batch_step, program)
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
    """FPR at 95 % recall on every test set, by name, and their mean as `fpr95`.

    With several seeds, each figure is the mean over them, and `…_std` their standard deviation.
    """
    apply = jax.jit(model.apply)

    def of_one(variables: Any) -> dict[str, float]:
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
            return of_one(variables)
        count = len(jax.tree.leaves(variables)[0])
        rows = [
            of_one(jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), variables))
            for i in range(count)
        ]
        scores = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            scores[name] = float(np.mean(values))
            scores[f"{name}_std"] = float(np.std(values, ddof=1))
        return scores

    return evaluate
