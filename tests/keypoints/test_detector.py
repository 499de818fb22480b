"""A learned detector: how keypoints are chosen, the views it learns from, its training and use."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from refusals import assert_refused, refused_command

import kjax
from kjax.cli import main
from kjax.data.photo_points import read_photos
from kjax.export.files import read_onnx
from kjax.images.features import unit_rows
from kjax.keypoints import find_detector, selection, training
from kjax.keypoints.config import DetectorRunConfig
from kjax.keypoints.detect import LearnedDetector, Prepared, detect
from kjax.keypoints.network import (
    DetectorConfig,
    DetectorNetwork,
    ScoreMaps,
    init_params,
    score_images,
)
from kjax.keypoints.views import PairConfig, draw_pairs, project, square_to_quadrilateral
from kjax.keypoints.weights import DetectorWeights, find_file, read_detector, save_detector
from kjax.matcher.view_set import read_view_set
from kjax.runs.checkpoint import saved_steps
from kjax.runs.config import load_config, validate_as
from kjax.weights import shipped

MODEL = DetectorConfig(widths=(4, 4), octaves=2)
PLAIN = PairConfig(side=64, perspective=0.1, appearance=0.0, appearance_probability=0.0)
SMALL = {
    **{"model.widths": (4, 4), "model.octaves": 2, "draw.side": 64},
    **{"reward.keypoints": 16, "reward.descriptor": "", "optimizer.warmup_steps": 2},
    **{"train.pairs": 2, "train.steps": 4, "train.dtype": "float32", "train.eval_batches": 1},
    **{"train.steps_per_dispatch": 2, "train.log_every": 2, "train.checkpoint_every": 2},
    **{"train.eval_every": 0, "progress": False, "tensorboard": False},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        coarse = Image.fromarray(rng.integers(0, 256, (20, 26, 3), np.uint8))
        coarse.resize((208, 160), Image.Resampling.BICUBIC).save(folder / name)
    return folder


def score_maps(peaks, side=32):
    """Maps of two octaves that are low but at (octave, row, column)."""
    rng = np.random.default_rng(0)
    maps = []
    for octave in range(2):
        own = side >> octave
        frames = rng.normal(size=(1, own // 2, own // 2, 3))
        maps.append(ScoreMaps(np.zeros((1, own, own), "f4"), frames.astype("f4")))
    for octave, row, column in peaks:
        maps[octave].scores[0, row, column] = 8
        maps[octave].scores[0, row, column + 1] = 7
    return maps


@pytest.mark.parametrize("xp", [np, jnp])
def test_peaks_become_keypoints(xp):
    peaks = [(0, 10, 20), (1, 9, 5), (0, 1, 12)]  # the last one is on the border
    maps = [ScoreMaps(*map(xp.asarray, one)) for one in score_maps(peaks)]
    scores, frames = selection.flatten(maps)
    grid = selection.Grid.of([one.scores for one in maps])
    marked = selection.maxima([one.scores for one in maps])[0] & (scores[0] > 0)
    marked &= selection.allowed(grid, xp.ones((1, 32, 32), bool), (32, 32))[0]
    index = xp.asarray(np.flatnonzero(np.asarray(marked)))
    found = selection.locate(grid, scores[0], frames[0], index, smallest=3.0)
    weight = np.exp([0, -1, -8])
    shift = weight[1] / (weight[:2].sum() + 7 * weight[2])
    expected = np.array([[20 + shift, 10], [2 * (5 + shift), 18]])
    np.testing.assert_allclose(found.xy, expected, atol=1e-2)
    # Frames are in the middle of four pixels, and change linearly from one to the next.
    corners = maps[0].frames[0, 4:6, 9:11], maps[1].frames[0, 4:6, 2:4]
    shares = np.array([1, 3]) / 4, np.array([3, 1]) / 4
    own = np.stack(
        [np.einsum("i,j,ijk->k", w, w, four) for w, four in zip(shares, corners, strict=True)]
    )
    np.testing.assert_allclose(found.sizes, 3 * 2 ** (own[:, 0] + [0, 1]), rtol=1e-5)
    np.testing.assert_allclose(found.directions, own[:, 1:], rtol=1e-5)


@pytest.mark.parametrize("other", [(0, 13, 20), (0, 9, 18), (1, 6, 10)])
def test_a_place_is_found_once(other):
    """Near a peak, and in the coarser octave."""
    maps = score_maps([(0, 10, 20)])
    maps[other[0]].scores[(0, *other[1:])] = 7.5
    scores = np.concatenate([one.scores.ravel() for one in maps])
    marked = selection.maxima([one.scores for one in maps])[0] & (scores > 0)
    assert scores[marked].tolist() == [8]


def test_photographs_keep_their_keypoints_whatever_their_padding(photos, monkeypatch):
    params = init_params(MODEL, jax.random.key(1))
    detector = LearnedDetector(DetectorWeights(MODEL, {}, params), "")
    grey = np.asarray(Image.open(photos / "a.png").convert("L"))[:150, :201]
    found = detector(grey, max_keypoints=50)
    assert len(found.xy) == 50
    assert (np.diff(found.scores) <= 0).all()
    assert ((found.xy > 1) & (found.xy < (199, 148))).all()
    monkeypatch.setattr("kjax.keypoints.detect.padded_sides", lambda *sides: (320, 224))
    padded = detector(grey, max_keypoints=50)
    inner = (padded.xy < (180, 130)).all(axis=1)
    known = {tuple(xy) for xy in np.round(found.xy, 2).tolist()}
    assert {tuple(xy) for xy in np.round(padded.xy[inner], 2).tolist()} <= known
    mask = np.broadcast_to(np.arange(201) < 100, grey.shape)
    assert_refused("give a mask of the image's size", detector, grey, mask=mask[1:])
    left = detector(grey, max_keypoints=50, mask=mask, upright=True)
    assert left.xy[:, 0].max() < 102
    assert (left.angles == -1).all()


def test_homographies_of_squares():
    corners = jnp.array([[10.0, 20], [90, 25], [80, 110], [5, 95]])
    own = jnp.array([[0.0, 0], [64, 0], [64, 64], [0, 64]]) - 0.5
    np.testing.assert_allclose(
        project(square_to_quadrilateral(corners, 64), own), corners, atol=1e-3
    )
    # A similarity: twice the size, turned by 90 degrees.
    square = jnp.array([[200.0, 0], [200, 128], [72, 128], [72, 0]])
    _, zooms, turns = training.to_photo(square_to_quadrilateral(square, 64), own)
    np.testing.assert_allclose(zooms, 2, rtol=1e-5)
    np.testing.assert_allclose(turns, np.pi / 2, rtol=1e-5)


def test_views_show_the_photograph(photos):
    resident = jax.device_put(read_photos(photos, extent=None, progress=False))
    draw = jax.jit(lambda indices: draw_pairs(resident, jax.random.key(0), indices, PLAIN))
    pairs, again = draw(jnp.arange(4)), draw(jnp.array([7, 6, 3, 4]))
    np.testing.assert_allclose(again.grey[2], pairs.grey[3], atol=1e-5)
    # What both views show has the same brightness, up to the tone curve of each.
    likeness = []
    for grey, inside, (first, second) in zip(*map(np.asarray, pairs), strict=True):
        xy = np.stack(np.meshgrid(np.arange(64.0), np.arange(64.0)), axis=-1).reshape(-1, 2)
        there = np.asarray(project(np.linalg.inv(second) @ first, xy)).round().astype(int)
        seen = ((there >= 0) & (there < 64)).all(axis=1) & inside[0].ravel()
        values = grey[0].ravel()[seen], grey[1][there[seen, 1], there[seen, 0]]
        likeness.append(np.corrcoef(*values)[0, 1])
    assert np.median(likeness) > 0.9


def test_views_are_of_all_photographs_of_a_place(photos, tmp_path):
    for name, value in (("dark.png", 0), ("light.png", 255)):
        (tmp_path / "place").mkdir(exist_ok=True)
        picture = np.full((128, 160, 3), value, np.uint8)
        picture[:, ::32] = 128
        Image.fromarray(picture).save(tmp_path / "place" / name)
    resident = jax.device_put(read_photos(photos, tmp_path, extent=None, progress=False))
    draw = jax.jit(lambda indices: draw_pairs(resident, jax.random.key(0), indices, PLAIN))
    medians = np.median(np.asarray(draw(jnp.arange(64)).grey), axis=(2, 3)) > 0.5
    assert (medians[:, 0] != medians[:, 1]).sum() > 8


def make_found(rng, program, shift=0.0):
    count = program.reward.keypoints
    directions = rng.normal(size=(count, 2))
    return training.Found(
        xy=jnp.asarray(rng.permutation(3600)[:count, None] / [60, 1] % 60 + 2 + shift),
        sizes=jnp.full(count, 5.0),
        directions=jnp.asarray(unit_rows(directions.astype(np.float32))),
        zooms=jnp.ones(count),
        scores=jnp.zeros(count),
        descriptors=jnp.asarray(unit_rows(rng.normal(size=(count, 8)).astype(np.float32))),
    )


def test_repeated_keypoints_are_rewarded():
    config = load_config("detector", [f"--config.{k}={v}" for k, v in SMALL.items()])
    program = training.make_program(validate_as(DetectorRunConfig, config))
    program = dataclasses.replace(program, describe=abs)
    whole = jnp.stack([jnp.eye(3)] * 2)
    first = make_found(np.random.default_rng(0), program)
    order = np.random.default_rng(1).permutation(16)
    same = jax.tree.map(lambda column: column[order], first)

    def metrics(second):
        both = jax.tree.map(lambda *views: jnp.stack(views), first, second)
        return training.pair_loss(program, both, whole)[1]

    good = metrics(same)
    assert good["reward"] > 0.99
    assert good["repeated"] == good["matched"] == 1
    assert good["turn"] < 1e-4
    elsewhere = metrics(same._replace(xy=same.xy[::-1]))
    assert elsewhere["matched"] < 0.3
    other_scale = metrics(same._replace(sizes=2 * same.sizes))
    assert (other_scale["reward"], other_scale["repeated"]) == (0, 0)
    unlike = metrics(same._replace(descriptors=same.descriptors[::-1]))
    assert unlike["repeated"] == 1
    assert unlike["reward"] < 0.5

    def loss(scores, second, homographies=whole):
        both = jax.tree.map(lambda *v: jnp.stack(v), first._replace(scores=scores), second)
        return training.pair_loss(program, both, homographies)[0]

    # Directions have to agree between views that are turned against each other.
    upside_down = jnp.stack([whole[0], jnp.array([[-1.0, 0, 63], [0, -1, 63], [0, 0, 1]])])
    other_way = same._replace(directions=-same.directions)
    right, wrong = (loss(first.scores, one, upside_down) for one in (same, other_way))
    np.testing.assert_allclose(wrong - right, program.reward.direction, rtol=1e-3)
    assert loss(first.scores, other_way) == loss(first.scores, same)
    larger = loss(first.scores, same._replace(sizes=2**0.25 * same.sizes))
    assert larger > loss(first.scores, same) + program.reward.size / 5

    # Repeated keypoints rise, the others fall; without any, nothing happens.
    moved = same._replace(xy=jnp.where((order < 8)[:, None], same.xy, same.xy + 20))
    slopes = np.asarray(jax.grad(loss)(first.scores, moved))
    assert slopes[:8].max() < 0 < slopes[8:].min()
    outside = same._replace(xy=same.xy + 1000)
    np.testing.assert_array_equal(jax.grad(loss)(first.scores, outside), 0)


def command(photos, workdir, **changes):
    settings = {"data.photos": photos, "data.validation": photos, **SMALL, **changes}
    words = [f"--config.{name}={value}" for name, value in settings.items()]
    return ["train-detector", "--config=detector", f"--out={workdir}", *words]


def test_a_training_resumes_exactly_and_is_used(photos, tmp_path, capsys):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(command(photos, whole)) == 0
    assert "the detector is" in capsys.readouterr().out
    shutil.copytree(whole, stopped)
    for step in saved_steps(stopped / "checkpoints"):
        if step > 2:
            shutil.rmtree(stopped / "checkpoints" / str(step))
    (stopped / "detector.npz").unlink()
    assert main(command(photos, stopped)) == 0
    finished, resumed = (read_detector(folder / "detector.npz") for folder in (whole, stopped))
    assert finished.remarks == resumed.remarks
    jax.tree.map(np.testing.assert_array_equal, finished.params, resumed.params)
    assert main(["info", str(whole)]) == 0
    assert "keypoints in 2 octaves" in capsys.readouterr().out
    # Wherever a detector is asked for.
    describer = kjax.load("hardnet", detector=str(whole), max_keypoints=40)
    features = describer.describe_image(photos / "a.png")
    assert len(features) == len(describer.detect(photos / "a.png")) == 40
    assert "train-detector" in describer.feature_settings()["detector"]
    words = ["describe", str(photos / "a.png"), "--detector", str(whole / "detector.npz")]
    words += ["--weights", "hardnet", "--keypoints", "40", "--out", str(tmp_path / "a.npz")]
    assert main(words) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "a.npz")["xy"], features.xy)


def test_the_shipped_detector(photos, tmp_path, capsys):
    assert main(["info", "kjax", "--part", "detector"]) == 0
    assert "Apache-2.0" in capsys.readouterr().out
    assert shipped.detector_file("kjax").with_suffix(".md").is_file()
    describer = kjax.load("tiny", detector="kjax", max_keypoints=30, upright=True)
    found = describer.describe_image(photos / "a.png")
    assert len(found) == 30
    assert (found.angles == -1).all()
    assert_refused("kjax, a file of kjax train-detector", find_detector, "kjaxx")
    words = ["build-views", photos, "--weights", "rootsift", "--detector", "kjax", "--views", 1]
    words += ["--keypoints", 30, "--out", tmp_path / "views.npz", "--quiet"]
    assert main(list(map(str, words))) == 0
    views = read_view_set(tmp_path / "views.npz")
    plain = describer.detector(np.asarray(Image.open(photos / "a.png").convert("L")))
    np.testing.assert_allclose(views.xy[0, 0], plain.xy[:30], atol=0.01)


@pytest.mark.parametrize("weights", ["tiny", "fast-context"])
def test_one_program_finds_and_describes_the_same(photos, monkeypatch, weights):
    describer = kjax.load(weights, detector="kjax", max_keypoints=70, backend="jax")
    left = np.broadcast_to(np.arange(208) < 150, (160, 208))
    apart = describer.describe_image(photos / "a.png", mask=left)
    monkeypatch.setattr(describer, "_at_once", lambda grey, count: True)
    together = describer.describe_image(photos / "a.png", mask=left)
    for name in ("xy", "scales", "angles", "scores"):
        np.testing.assert_allclose(getattr(together, name), getattr(apart, name), atol=1e-3)
    assert len(together) == 70
    assert together.xy[:, 0].max() < 155
    cosines = (together.descriptors * apart.descriptors).sum(axis=1)
    assert cosines.min() > 0.9999
    upright = describer.describe_image(photos / "a.png", max_keypoints=9, upright=True)
    assert (upright.angles == -1).all()
    assert len(upright) == 9


def test_damaged_and_unsuitable_files(photos, tmp_path, capsys):
    path = tmp_path / "detector.npz"
    assert_refused("no such detector", find_detector, str(tmp_path))
    params = init_params(MODEL, jax.random.key(0))
    save_detector(path, DetectorWeights(MODEL, {}, {**params, "more": params["Conv_0"]}))
    assert_refused("more.bias is missing or unexpected", read_detector, path)
    path.write_bytes(path.read_bytes()[:-100])
    assert_refused("damaged or not a detector's file", read_detector, path)
    words = command(photos, tmp_path / "out", **{"reward.descriptor": "best-context"})
    assert "does not describe one patch" in refused_command(capsys, *words)


def test_scores_move_with_the_photograph():
    grey = np.random.default_rng(0).random((1, 64, 64)).astype(np.float32)
    params = init_params(MODEL, jax.random.key(0))
    apply = jax.jit(lambda x: DetectorNetwork(MODEL).apply({"params": params}, x).scores)
    moved = apply(np.roll(grey, (4, 8), axis=(1, 2)))
    np.testing.assert_allclose(
        np.roll(apply(grey), (4, 8), axis=(1, 2))[:, 30:42, 34:42],
        moved[:, 30:42, 34:42],
        atol=1e-4,
    )


def test_images_on_one_canvas_have_their_own_scores():
    rng = np.random.default_rng(0)
    params, network = init_params(MODEL, jax.random.key(0)), DetectorNetwork(MODEL)
    images = [jnp.asarray(rng.random((2, side, side + 16), np.float32)) for side in (32, 16, 8)]
    together = score_images(network, params, images)
    for image, maps in zip(images, together, strict=True):
        alone = network.apply({"params": params}, image)
        for found, expected in zip(maps, alone, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_exported_file_finds_the_same(tmp_path, capsys):
    path = tmp_path / "detector.onnx"
    words = ["export", "kjax", "--part", "detector", "--size", "101", "66", "--keypoints", "40"]
    assert main([*words, "--out", str(path)]) == 0
    assert "detector of 40 keypoints in 101×66 pixels" in capsys.readouterr().out
    grey = np.random.default_rng(1).random((66, 101), np.float32)
    xy, sizes, scores, directions = read_onnx(path).run(None, {"grey": grey})
    weights = read_detector(find_file("kjax"))
    size = np.array([101, 66], np.int32)
    photo = Prepared(grey, np.float32(0), np.float32(1), None, size)
    best = detect(weights.model, 40, weights.params, photo)[0]
    for found, expected in zip((xy, sizes, scores, directions), best, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3)
    assert "only for detectors" in refused_command(
        capsys, "export", "tiny", "--out", str(path), "--size", "64", "64"
    )
    assert "exported to .onnx" in refused_command(
        capsys, *words, "--out", str(tmp_path / "a.stablehlo")
    )
