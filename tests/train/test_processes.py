"""Two real processes with two devices each, on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from programmes import make_programme, synthetic_set

from kjax.train.feeding import make_run
from kjax.train.parallel import initial_state

HERE = Path(__file__).parent


@pytest.mark.usefixtures("double_precision")
def test_two_processes_train_as_one_device(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    out = tmp_path / "leaves.npz"
    flags = "--xla_force_host_platform_device_count=2"
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / "two_processes.py", coordinator, "2", str(number), out],
            env={**os.environ, "XLA_FLAGS": flags},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    programme = make_programme(dtype="float64", learning_rate=10.0)
    run = make_run(programme, synthetic_set(), pipeline="resident", first_step=0)
    state, metrics = run(initial_state(programme), 5)
    expected = jax.tree.leaves((metrics["loss"], state.params))
    with np.load(out) as found:
        for leaf, other in zip(expected, found.values(), strict=True):
            np.testing.assert_allclose(
                np.linalg.norm(np.asarray(leaf) - other), 0, atol=1e-6 * np.linalg.norm(leaf)
            )
