"""One of two processes that save and resume: `two_processes_saving.py COORDINATOR PROCESS FOLDER`.

The state is whole on all four devices; but until step 2, one array is spread over them.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kjax.runs.checkpoint import Checkpoints
from kjax.train.step import TrainState

jax.config.update("jax_cpu_collectives_implementation", "gloo")
coordinator, process, folder = sys.argv[1:]
jax.distributed.initialize(coordinator, 2, int(process))

mesh = Mesh(np.asarray(jax.devices()), ("devices",))
whole, spread = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("devices",)))


def place(value, sharding):
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def make_state(step: int) -> TrainState:
    return TrainState(
        step=place(np.asarray(step, np.int32), whole),
        params={"w": place(np.arange(6.0, dtype=jnp.bfloat16) + step, whole)},
        batch_stats={
            "mean": place(np.arange(8, dtype=np.float32) + step, spread if step < 3 else whole)
        },
        opt_state={},
    )


for steps in ((1, 2), (3,)):
    checkpoints = Checkpoints(Path(folder), keep=2, best_metric=None)
    restored = checkpoints.restore_latest(make_state(0))
    assert (restored is None) == (steps[0] == 1)
    if restored is not None:
        for found, saved in zip(*map(jax.tree.leaves, (restored, make_state(2))), strict=True):
            assert found.sharding == saved.sharding
            for ours, theirs in zip(
                found.addressable_shards, saved.addressable_shards, strict=True
            ):
                np.testing.assert_array_equal(ours.data, theirs.data)
    for step in steps:
        checkpoints.save(step, make_state(step))
    checkpoints.close()
