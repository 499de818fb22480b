"""Two real processes with two devices each, on this machine."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from programs import PAPERS_RATE, ROOT, environment, make_program, synthetic_set

from kjax.errors import InputError
from kjax.runs.checkpoint import read_latest
from kjax.train.command_line import ending_when_alone
from kjax.train.input import make_run
from kjax.train.parallel import initial_state

HERE = Path(__file__).parent


def run_two(make_command) -> list[tuple[int, str]]:
    """Start `make_command(coordinator, process)` twice; return exit codes and stderr."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    options = {"env": environment(devices=2), "stderr": subprocess.PIPE, "text": True}
    commands = [[sys.executable, *make_command(coordinator, number)] for number in "01"]
    processes = [subprocess.Popen(command, **options) for command in commands]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    return [(p.returncode, error) for p, error in zip(processes, errors, strict=True)]


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_two_processes_train_as_one_device_and_save_and_resume(tmp_path):
    program = make_program(**PAPERS_RATE)
    run = make_run(program, synthetic_set(), pipeline="resident", first_step=0)
    state, metrics = run(initial_state(program), 5)
    expected = jax.tree.leaves((metrics["loss"], state.params))
    ended = run_two(lambda *which: [HERE / "two_processes.py", *which, tmp_path])
    assert ended == [(0, ""), (0, "")]
    with np.load(tmp_path / "leaves.npz") as archive:
        found = list(archive.values())
    for leaf, other in zip(expected, found, strict=True):
        difference = np.linalg.norm(np.asarray(leaf) - other)
        np.testing.assert_allclose(difference, 0, atol=1e-6 * np.linalg.norm(leaf))
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["5", "6"]
    plain = ocp.CheckpointManager(folder).restore(6)
    assert plain.keys() == {"step", "params", "batch_stats", "opt_state"}
    for saved in (read_latest(folder, {"params": state.params}), plain):
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(saved["params"]), found[1:])


@pytest.mark.slow
def test_a_workdir_that_the_first_process_refuses_stops_both(tmp_path, set_folder):
    """Otherwise the other one would wait forever."""
    (tmp_path / "thesis.tex").write_text("years of work")

    def command(coordinator, process):
        return [
            ROOT / "run_train.py",
            f"--config={ROOT / 'configs' / 'smoke.py'}",
            f"--config.data.train=('{set_folder}',)",
            "--config.data.test=()",
            f"--workdir={tmp_path}",
            f"--coordinator={coordinator}",
            "--processes=2",
            f"--process={process}",
        ]

    (code, line), (other_code, other_line) = run_two(command)
    assert (code, other_code) == (2, 2), (line, other_line)
    assert "thesis.tex" in line
    assert "process 0 stopped: " in other_line
    assert "thesis.tex" in other_line
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["0", "1"])
def test_the_survivor_of_a_kill_ends_with_one_line(victim):
    """The first process is JAX's coordinator; the loss of either must be noticed."""
    ended = run_two(lambda *which: [HERE / "left_alone.py", *which, victim])
    (killed, _), (code, line) = (ended[int(victim)], ended[1 - int(victim)])
    assert killed == -signal.SIGKILL
    assert code == 2, line
    assert line.startswith("kjax train: another process of this training is gone")
    assert line.count("\n") == 1, line


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_a_failing_collective_ends_the_process_with_one_line(kind, monkeypatch, capfd):
    """JAX 0.11 raises ValueError, other versions RuntimeError."""
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(kind, match="UNKNOWN"), ending_when_alone():
        raise kind("UNKNOWN: something, in a single process")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(SystemExit) as ended, ending_when_alone():
        raise kind("UNKNOWN: Gloo AllGather failed: Connection reset by peer")
    assert ended.value.code == 2
    line = capfd.readouterr().err
    assert line.startswith("kjax train: another process of this training is gone")
    assert line.count("\n") == 1
    for other in (kind("not a collective"), InputError("a user's error")):
        with pytest.raises(type(other), match=str(other)), ending_when_alone():
            raise other
