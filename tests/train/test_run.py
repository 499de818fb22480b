"""Whole runs: what they leave behind, and that stopping and resuming changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from programmes import synthetic_set

from kjax.config import load_config
from kjax.data.photos import sample_test_pairs
from kjax.data.phototour import write_phototour
from kjax.errors import InputError
from kjax.train import feeding
from kjax.train import run as run_module
from kjax.train.loop import Stopped
from kjax.train.metrics_log import read_metrics

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def set_folder(tmp_path_factory):
    patches = synthetic_set()
    pairs = sample_test_pairs(patches.point_ids, matching=100, non_matching=100, seed=0)
    folder = tmp_path_factory.mktemp("sets") / "synthetic"
    return write_phototour(folder, patches.patches, patches.point_ids, pairs=pairs)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def make_config(set_folder, **train):
    config = load_config(ROOT / "configs" / "smoke.py")
    config.data.train = (str(set_folder),)
    config.data.test = (str(set_folder),)
    config.train.update(
        {"steps": 6, "log_every": 2, "eval_every": 3, "checkpoint_every": 2, **train}
    )
    return config


def weights(workdir):
    with np.load(workdir / "weights.npz") as archive:
        return dict(archive)


def assert_same_weights(first, second):
    for name, array in weights(first).items():
        np.testing.assert_array_equal(array, weights(second)[name], err_msg=name)


def run_until_stopped(monkeypatch, config, workdir, *, after):
    """SIGTERM comes while the dispatch that reaches step `after` is being computed."""
    plain = feeding.make_run

    def make_run(*args, **options):
        run = plain(*args, **options)

        def interrupted(state, steps):
            state, metrics = run(state, steps)
            if int(state.step) >= after:
                signal.raise_signal(signal.SIGTERM)
            return state, metrics

        return interrupted

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "make_run", make_run)
        with pytest.raises(Stopped, match=f"stopped after step {after}"):
            run_module.run(config, workdir)


@pytest.mark.parametrize("pipeline", ["resident", "tfdata"])
def test_stopped_and_resumed_equals_uninterrupted(set_folder, tmp_path, monkeypatch, pipeline):
    config = make_config(set_folder)
    config.data.pipeline = pipeline
    scores = run_module.run(config, tmp_path / "whole")
    assert 0 <= scores["fpr95"] <= 1
    run_until_stopped(monkeypatch, config, tmp_path / "halves", after=3)
    assert not (tmp_path / "halves" / "weights.npz").exists()
    run_module.run(config, tmp_path / "halves")
    assert_same_weights(tmp_path / "whole", tmp_path / "halves")
    steps = [row["step"] for row in read_metrics(tmp_path / "halves") if "loss" in row]
    assert steps == [2, 3, 4, 6]


def test_what_a_run_leaves_behind(set_folder, tmp_path):
    config = make_config(set_folder)
    scores = run_module.run(config, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == scores
    assert json.loads((tmp_path / "config.json").read_text())["model"]["head"] == "polar"
    rows = read_metrics(tmp_path)
    assert {"loss", "positive_distance", "negative_distance", "active_triplets", "gradient_norm",
            "parameter_norm", "update_norm", "learning_rate"} <= rows[1].keys()  # fmt: skip
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    np.testing.assert_allclose(rates, [1 - 1 / 6, 1 - 3 / 6, 1 - 5 / 6], rtol=1e-6)
    assert [row["step"] for row in rows if "fpr95" in row] == [0, 3, 6]
    again = run_module.run(config, tmp_path)  # nothing left to do
    assert again == pytest.approx(scores)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(
    set_folder, tmp_path, monkeypatch
):
    plain = feeding.make_run

    def make_run(*args, **options):
        run = plain(*args, **options)

        def poisoned(state, steps):
            state, metrics = run(state, steps)
            nan = float("nan") if int(state.step) > 3 else 1.0
            return state, {**metrics, "loss": metrics["loss"] * nan}

        return poisoned

    monkeypatch.setattr(run_module, "make_run", make_run)
    with pytest.raises(
        InputError, match=r"not finite at step 4 \(the checkpoint of step 2 is kept"
    ):
        run_module.run(make_config(set_folder), tmp_path)


def test_another_config_is_refused_and_nothing_overwritten(set_folder, tmp_path):
    config = make_config(set_folder, steps=2)
    run_module.run(config, tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    config.model.head = "xy"
    with pytest.raises(InputError, match=r'model\.head was "polar" and is "xy"'):
        run_module.run(config, tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def command(set_folder, workdir, *overrides):
    return [
        sys.executable,
        str(ROOT / "run_train.py"),
        f"--config={ROOT / 'configs' / 'smoke.py'}",
        f"--workdir={workdir}",
        f"--config.data.train=('{set_folder}',)",
        f"--config.data.test=('{set_folder}',)",
        *overrides,
    ]


def test_killed_and_resumed_equals_uninterrupted(set_folder, tmp_path):
    """kill -9 at whatever moment follows the first checkpoint."""
    environment = {**os.environ, "XLA_FLAGS": ""}
    options = ("--config.train.steps=400", "--config.train.eval_every=0")
    killed = tmp_path / "killed"
    process = subprocess.Popen(command(set_folder, killed, *options), env=environment)
    deadline = time.monotonic() + 120
    while not any(killed.glob("checkpoints/[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    process.wait()
    for workdir in (killed, tmp_path / "whole"):
        subprocess.run(command(set_folder, workdir, *options), env=environment, check=True)
    assert_same_weights(killed, tmp_path / "whole")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--config.model.haed=polar"], "did you mean 'model.head'"),
        (["--config.model.head=polr"], "did you mean 'polar'"),
        (["--config.train.pairs=41"], "a batch of 41 pairs"),
        (["--process=1"], "go together"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(set_folder, tmp_path, overrides, message):
    done = subprocess.run(
        command(set_folder, tmp_path / "run", *overrides),
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
