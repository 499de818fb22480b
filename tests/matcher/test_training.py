"""Pairs that a training draws, the training itself, and its command."""

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from plane import DIMENSION, plane_views
from refusals import assert_refused, refused_command

from kjax.cli import main
from kjax.matcher.assignment import NONE
from kjax.matcher.batches import DrawConfig, draw_batch, to_device
from kjax.matcher.training import split
from kjax.matcher.view_set import read_view_set, read_view_sets, write_view_set
from kjax.matcher.weights import read_matcher
from kjax.runs.checkpoint import saved_steps
from kjax.train.metrics_log import read_metrics

DRAW = DrawConfig(keypoints=32, least_keypoints=24)
SMALL = {
    **{"data.validation_every": 5, "draw.keypoints": 16, "draw.least_keypoints": 12},
    **{"model.layers": 1, "model.width": 16, "model.heads": 1, "model.dimension": DIMENSION},
    **{"optimizer.learning_rate": 0.01, "optimizer.warmup_steps": 5, "train.pairs": 4},
    **{"train.steps": 40, "train.dtype": "float32", "train.steps_per_dispatch": 10},
    **{"train.log_every": 20, "train.checkpoint_every": 20, "train.eval_batches": 1},
    **{"progress": False, "tensorboard": False},
}


@pytest.fixture(scope="module")
def views_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("views") / "views.npz"
    write_view_set(path, plane_views())
    return path


def command(views: Path, workdir: Path, **changes: object) -> list[str]:
    settings = {"data.train": repr((str(views),)), **SMALL, **changes}
    words = [f"--config.{name}={value}" for name, value in settings.items()]
    return ["train-matcher", "--config=matcher", f"--workdir={workdir}", *words]


def draw(views, config):
    return _draw(jax.random.key(0), views, pairs=16, config=config)


_draw = jax.jit(draw_batch, static_argnames=("pairs", "config"))


def test_drawn_pairs():
    views = to_device(plane_views())
    points, truth = draw(views, DRAW)
    counts, partners = np.asarray(points.counts), np.asarray(truth.partners)
    assert counts.min() >= 1
    assert counts.max() <= 32
    assert (partners != NONE).sum() > 50
    # Matches look alike, as the plane's own keypoints do.
    pair, first = np.nonzero(partners != NONE)
    second = partners[pair, first]
    assert (np.stack([first, second], axis=1) < counts[pair]).all()
    rows = np.asarray(points.descriptors)
    assert np.median((rows[pair, 0, first] * rows[pair, 1, second]).sum(axis=1)) > 0.8
    # Crops are within half a side, but for the noise of the zoom, rotated uniformly.
    there = np.arange(32)[None, None] < counts[:, :, None]
    assert np.abs(np.asarray(points.positions))[there].max() < 2**0.5 * 1.4
    np.testing.assert_array_equal(draw(views, DRAW).truth.partners, partners)


def test_groups_are_drawn_by_their_chances():
    views = plane_views()
    chances = np.zeros(len(views), np.float32)
    chances[2] = 0.3  # of what is left after some were held out
    drawn = draw(to_device(dataclasses.replace(views, chances=chances)), DRAW)
    alone = draw(to_device(views.keep(np.array([2]))), DRAW)
    jax.tree.map(np.testing.assert_array_equal, drawn, alone)


def test_shares_are_of_files(views_file, tmp_path, capsys):
    views = read_view_sets([views_file, views_file], (0.75, 0.25))
    half = len(views) // 2
    np.testing.assert_allclose(views.chances[:half].sum(), 0.75, rtol=1e-6)
    np.testing.assert_allclose(views.chances[half:].sum(), 0.25, rtol=1e-6)
    words = command(views_file, tmp_path / "run", **{"data.shares": "(0.5,0.5)"})
    assert "for each of the 1 sets of data.train" in refused_command(capsys, *words)


def test_upright_pairs_are_turned_back():
    views = to_device(plane_views())
    upright = dataclasses.replace(DRAW, upright_share=1.0, tilt_degrees=0.0)
    # All keypoints of a view of the plane have the view's own turn as their angle.
    most = [np.abs(np.sin(draw(views, one).points.angles)).max() for one in (upright, DRAW)]
    assert most[0] < 1e-3
    assert most[1] > 0.8


@pytest.mark.slow
def test_a_training_learns_and_resumes_exactly(views_file, tmp_path, capsys):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(command(views_file, whole)) == 0
    assert "the matcher is" in capsys.readouterr().out
    lines = read_metrics(whole)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert lines[-1]["error"] < lines[0]["error"]
    # As if it had been killed after the checkpoint of step 20.
    shutil.copytree(whole, stopped)
    (stopped / "matcher.npz").unlink()
    shutil.rmtree(stopped / "checkpoints" / "40")
    assert saved_steps(stopped / "checkpoints")[-1] == 20
    assert main(command(views_file, stopped)) == 0
    finished, resumed = (read_matcher(folder / "matcher.npz") for folder in (whole, stopped))
    assert finished.remarks == resumed.remarks
    jax.tree.map(np.testing.assert_array_equal, finished.params, resumed.params)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draw.keypoints": 64}, "lower it, or build views with more"),
        ({"model.dimension": 128}, "set --config.model.dimension=16"),
        ({"data.validation_every": 6}, "5 groups of views are too few"),
        ({"data.only_open": True}, "is not in the ledger of photographs"),
        ({"train.dtype": "float8"}, "unknown train.dtype"),
        ({"data.train": "('absent.npz',)"}, "no such file of views: absent.npz"),
        ({"init": "absent.npz"}, "no such matcher: absent.npz"),
        ({"train.stepz": 3}, "train.steps"),
    ],
)
def test_refused_settings(views_file, tmp_path, capsys, changes, said):
    assert said in refused_command(capsys, *command(views_file, tmp_path / "run", **changes))


def test_view_sets_come_back_and_go_together(views_file, tmp_path):
    views, back = plane_views(), read_view_set(views_file)
    assert back.described_with == views.described_with
    assert back.photographs == views.photographs
    for name in ("xy", "descriptors", "places", "cameras", "counts"):
        np.testing.assert_array_equal(getattr(back, name), getattr(views, name))
    assert len(read_view_sets([views_file, views_file])) == 2 * len(views)
    other = tmp_path / "other.npz"
    write_view_set(other, plane_views(views=2))
    assert_refused("differ in their weights", read_view_sets, [views_file, other])
    learning, held_out = split(views, 2)
    np.testing.assert_array_equal(learning.xy, views.xy[[0, 2, 4]])
    np.testing.assert_array_equal(held_out.descriptors, views.descriptors[[1, 3]])
    other.write_bytes(views_file.read_bytes()[:-100])
    assert_refused(r"damaged or not a file of views.*kjax build-views", read_view_set, other)


def test_views_without_angles_are_not_turned():
    views = plane_views()
    none = {"angles": np.zeros_like(views.angles), "turns": np.full_like(views.turns, np.nan)}
    upright = dataclasses.replace(views, **none)
    still = draw(to_device(upright), DRAW).points
    turned = draw(to_device(dataclasses.replace(upright, turns=views.turns)), DRAW).points
    there = np.arange(still.angles.shape[-1]) < np.asarray(still.counts)[..., None]
    assert not np.asarray(still.angles)[there].any()
    assert np.asarray(turned.angles)[there].any()
