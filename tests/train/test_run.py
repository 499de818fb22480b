"""Whole runs: the files they write, and that stopping and resuming changes nothing."""

import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from programs import ROOT, SMALL_MODEL, contents, filling_disk, make_config, refusal
from refusals import refused_command

from kjax.errors import InputError
from kjax.interrupts import Stopped
from kjax.runs.checkpoint import saved_steps
from kjax.train import input as feeding
from kjax.train import run as run_module
from kjax.train.metrics_log import read_metrics
from kjax.train.parallel import initial_state
from kjax.weights.source import facts, load_run, load_source, load_sources


def assert_same_weights(first, second):
    with np.load(first / "weights.npz") as own, np.load(second / "weights.npz") as other:
        for name, array in own.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)


@contextmanager
def after_each_dispatch(act):
    """Call `act(state, metrics)` after every dispatch; it may return other metrics."""
    plain = feeding.make_run

    def make_run(*args, **options):
        run = plain(*args, **options)

        def acting(state, steps):
            state, metrics = run(state, steps)
            return state, act(state, metrics) or metrics

        return acting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "make_run", make_run)
        yield


def run_until_stopped(config, workdir, *, after):
    """Run; SIGTERM comes while the dispatch that reaches step `after` is being computed."""

    def stop(state, metrics):
        if np.max(state.step) >= after:
            signal.raise_signal(signal.SIGTERM)

    with after_each_dispatch(stop), pytest.raises(Stopped, match=f"stopped after step {after}"):
        run_module.run(config, workdir)


@pytest.fixture(scope="module")
def finished(set_folder, tmp_path_factory):
    """A finished run and its scores; tests that write to the folder take a copy."""
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    return workdir, run_module.run(make_config(set_folder), workdir)


@pytest.mark.parametrize(
    "pipeline",
    ["resident", *(pytest.param(one, marks=pytest.mark.slow) for one in ("tfdata", "photos"))],
)
def test_stopped_and_resumed(set_folder, photo_folder, finished, tmp_path, pipeline):
    settings = (f"data.pipeline={pipeline}",)
    if pipeline == "photos":
        settings = ("data.train=()", "data.test=()", f"data.photos={photo_folder}")
        settings += ("augment.appearance=1", "model.context=(1,4)", "data.extent=9.0")
    config = make_config(set_folder, *settings)
    whole, halves = finished[0], tmp_path / "halves"
    if pipeline != "resident":
        if pipeline == "tfdata":
            pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
        whole = tmp_path / "whole"
        run_module.run(config, whole)
    run_until_stopped(config, halves, after=3)
    assert not (halves / "weights.npz").exists()
    run_module.run(config, halves)
    assert_same_weights(whole, halves)
    steps = [row["step"] for row in read_metrics(halves) if "loss" in row]
    assert steps == [2, 3, 4, 6]
    if pipeline == "photos":
        info = load_source(str(halves)).info
        assert (info.extent, info.train_sets) == (9.0, (photo_folder.name,))


def test_files_of_a_run(set_folder, finished, tmp_path):
    workdir, scores = finished
    assert 0 <= scores["fpr95"] <= 1
    assert json.loads((workdir / "results.json").read_text()) == scores
    assert json.loads((workdir / "config.json").read_text())["model"]["head"] == "polar"
    rows = read_metrics(workdir)
    assert {"loss", "positive_distance", "negative_distance", "active_triplets", "gradient_norm",
            "parameter_norm", "update_norm", "learning_rate"} <= rows[1].keys()  # fmt: skip
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    np.testing.assert_allclose(rates, [1 - 1 / 6, 1 - 3 / 6, 1 - 5 / 6], rtol=1e-6)
    assert [row["step"] for row in rows if "fpr95" in row] == [0, 3, 6]
    (trained,) = load_run(workdir)
    found = (trained.path.name, trained.seed, trained.info.train_sets)
    assert found == ("finished", 0, ("synthetic",))
    again = shutil.copytree(workdir, tmp_path / "again")
    assert run_module.run(make_config(set_folder), again) == pytest.approx(scores)
    assert read_metrics(again) == rows, "nothing was left to do"


def test_a_run_on_tfds_is_that_on_the_folder(finished, tfds_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    config = make_config("tfds:phototour/liberty", "progress=True")
    assert config.data.pipeline == "auto"
    scores = run_module.run(config, tmp_path)
    assert_same_weights(finished[0], tmp_path)
    assert scores["fpr95"] == finished[1]["fpr95"]
    assert load_run(tmp_path)[0].info.train_sets == ("liberty",)
    assert "resident pipeline: the dataset takes 0.5 MiB" in capfd.readouterr().err
    (versions,) = json.loads((tmp_path / "versions.json").read_text())
    assert versions["pipeline"].startswith("resident: the dataset takes 0.5 MiB")
    assert json.loads((tmp_path / "config.json").read_text())["data"]["pipeline"] == "resident"


def test_a_second_run_is_refused_and_nan_keeps_the_last_checkpoint(set_folder, tmp_path):
    config, messages = make_config(set_folder), []

    def poison(state, metrics):
        if not messages:
            before = contents(tmp_path)
            messages.append(refusal(run_module.run, config, tmp_path))
            assert contents(tmp_path) == before
        return {**metrics, "loss": metrics["loss"] * (np.nan if int(state.step) > 3 else 1.0)}

    message = r"not finite at step 4 \(the checkpoint of step 2 is kept"
    with after_each_dispatch(poison), pytest.raises(InputError, match=message):
        run_module.run(config, tmp_path)
    assert f"another run is using the workdir {tmp_path}" in messages[0]


# Runs that start from other weights


def test_every_seed_starts_from_the_weights(set_folder, finished):
    config = make_config(set_folder, f"init={finished[0]}", "seeds=(3,5)")
    expected = load_sources(str(finished[0]))[0].variables
    state = jax.device_get(initial_state(run_module.make_program(config)))
    own = {"params": state.params, "batch_stats": state.batch_stats}
    twice = jax.tree.map(lambda leaf: np.stack([leaf] * 2), expected)
    jax.tree.map(np.testing.assert_array_equal, own, twice)
    assert not state.step.any()
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state[1].buffer))


def test_a_started_run_resumes_without_the_weights_it_started_from(set_folder, finished, tmp_path):
    start = shutil.copytree(finished[0], tmp_path / "start")
    config = make_config(set_folder, f"init={start}")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run_module.run(config, whole)
    run_until_stopped(config, halves, after=3)
    assert facts([load_source(str(halves))])["started from"] == str(start)
    shutil.rmtree(start)
    run_module.run(config, halves)
    assert_same_weights(whole, halves)
    before = contents(halves)
    assert json.loads(before["config.json"])["init"] == str(start)
    assert "init was" in refusal(run_module.run, dataclasses.replace(config, init=""), halves)
    assert contents(halves) == before


# Failing disks and killed processes


@contextmanager
def nothing_cached():
    """Keep JAX from leaving half a cache entry for the other tests."""
    cached_from = "jax_persistent_cache_min_compile_time_secs"
    jax.config.update(cached_from, 1e9)
    try:
        yield
    finally:
        jax.config.update(cached_from, float(os.environ[cached_from.upper()]))


def run_on_a_full_disk(config, workdir, monkeypatch, *, room, at):
    """Return the error of a run whose disk is full from a step on, or at its final weights."""
    save_weights = run_module.save_weights
    with monkeypatch.context() as patch, nothing_cached(), filling_disk() as fill:
        if at == "the end":
            filling = lambda *args: [fill(room), save_weights(*args)]  # noqa: E731
            patch.setattr(run_module, "save_weights", filling)

        def act(state, metrics):
            if int(state.step) == at:
                while not (workdir / "checkpoints" / "2").exists():  # written in the background
                    time.sleep(0.01)
                fill(room)

        with after_each_dispatch(act):
            return refusal(run_module.run, config, workdir)


def test_a_full_disk_is_one_line(set_folder, finished, tmp_path, monkeypatch, capfd):
    """Three times in a run, which resumes: at a line of metrics, a checkpoint and the weights."""
    config = make_config(set_folder)
    fail = functools.partial(run_on_a_full_disk, config, tmp_path, monkeypatch)
    assert "metrics.jsonl (File too large)" in fail(room=100, at=4)
    assert os.listdir(tmp_path / "checkpoints") == ["2"]
    message = fail(room=4_000, at=4)
    assert "cannot save a checkpoint" in message
    assert "run the same command again" in message
    assert [name for name in os.listdir(tmp_path / "checkpoints") if name.isdecimal()] == ["2"]
    message = fail(room=4_000, at="the end")
    assert f"cannot write to the workdir {tmp_path} (File too large)" in message
    assert not list(tmp_path.glob("*weights*")), "half a file was left"
    run_module.run(config, tmp_path)
    assert_same_weights(finished[0], tmp_path)
    assert capfd.readouterr().err == ""


def arguments(set_folder, workdir, *settings):
    every = (*SMALL_MODEL, f"data.train={set_folder}", f"data.test={set_folder}", *settings)
    config = f"--config={ROOT / 'configs' / 'smoke.py'}"
    return [config, f"--workdir={workdir}", *(f"--config.{setting}" for setting in every)]


KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
from kjax.cli import main

rename = os.rename

def killed_at_step_4(source, target, *args, **options):
    if Path(target).name == "4":  # all of it is written, and only lacks its name
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target, *args, **options)

os.rename = killed_at_step_4
sys.exit(main(["train", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_killed_while_saving_and_bad_input_of_a_process(set_folder, finished, tmp_path):
    cadence = ("train.steps=6", "train.eval_every=3", "train.checkpoint_every=2")
    command = [str(ROOT / "run_train.py"), *arguments(set_folder, tmp_path, *cadence)]
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_SAVING, *command], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    assert saved_steps(tmp_path / "checkpoints") == [2]
    assert len(os.listdir(tmp_path / "checkpoints")) == 2
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert "fpr95/synthetic" in done.stdout
    assert done.stderr == "", "the lock of the killed run is no obstacle"
    assert_same_weights(finished[0], tmp_path)
    assert all(name.isdecimal() for name in os.listdir(tmp_path / "checkpoints"))
    wrong = [sys.executable, *command, "--config.model.head=polr"]
    done = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (["--config.model.head=polr"], "did you mean 'polar'"),
        (["--config.train.pairs=44"], "a batch of 44 pairs"),
        (["--process=1"], "go together"),
        (["--processes=two"], "invalid int value: 'two'"),
        (["--coordinator=here", "--processes=2", "--process=0"], "must be HOST:PORT"),
        (["--coordinator=h:1", "--processes=2", "--process=2"], "must be from 0 to 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(set_folder, tmp_path, added, message, capfd):
    words = (*arguments(set_folder, tmp_path / "run"), *added)
    assert message in refused_command(capfd, "train", *words)
