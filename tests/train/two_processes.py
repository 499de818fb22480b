"""One of two processes of a training: `two_processes.py COORDINATOR PROCESS FOLDER`.

Both train on a mesh and by `pmap`, bit-equal, and save and restore a replicated state. The first
one writes loss and parameters to leaves.npz.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from programs import PAPERS_RATE, make_program, synthetic_set

from kjax.runs.checkpoint import Checkpoints
from kjax.train.input import make_run
from kjax.train.parallel import initial_state

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
coordinator, process, folder = sys.argv[1:]
jax.distributed.initialize(coordinator, 2, int(process))

assert jax.device_count() == 4
assert jax.local_device_count() == 2
ends = []
for parallel in ("mesh", "pmap"):
    program = make_program(devices=None, parallel=parallel, **PAPERS_RATE)
    run = make_run(program, synthetic_set(), pipeline="resident", first_step=0)
    state, metrics = run(initial_state(program), 5)
    ends.append(jax.tree.leaves((metrics["loss"], state.params)))
for mine, other in zip(*ends, strict=True):
    assert mine.sharding == other.sharding
    np.testing.assert_array_equal(mine, other)
leaves = jax.device_get(ends[1])
if process == "0":
    np.savez(Path(folder, "leaves.npz"), *leaves)
for step in (5, 6):
    checkpoints = Checkpoints(Path(folder, "checkpoints"), keep=2, best_metric=None)
    assert (checkpoints.latest_step() is None) == (step == 5)
    restored = checkpoints.restore_latest(state) or state
    for found, saved in zip(*map(jax.tree.leaves, (restored, state)), strict=True):
        assert found.sharding == saved.sharding
        np.testing.assert_array_equal(found, saved)
    checkpoints.save(step, restored)
    checkpoints.close()
