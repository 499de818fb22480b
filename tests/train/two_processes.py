"""One of several processes of a training run: `two_processes.py COORDINATOR PROCESS OUT`.

The first one leaves loss and parameters in OUT.
"""

import sys

import jax
import numpy as np
from programs import PAPERS_RATE, make_program, synthetic_set

from kjax.train.input import make_run
from kjax.train.parallel import initial_state

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
coordinator, process, out = sys.argv[1:]
jax.distributed.initialize(coordinator, 2, int(process))

program = make_program(devices=None, **PAPERS_RATE)
assert jax.device_count() == 4
assert jax.local_device_count() == 2
run = make_run(program, synthetic_set(), pipeline="resident", first_step=0)
state, metrics = run(initial_state(program), 5)
leaves = jax.device_get(jax.tree.leaves((metrics["loss"], state.params)))
if process == "0":
    np.savez(out, *leaves)
