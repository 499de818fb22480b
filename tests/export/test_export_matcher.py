import dataclasses

import cv2
import jax
import numpy as np
import pytest
from matcher_slots import colmap_inputs, run_colmap, run_opencv
from refusals import assert_refused, refused_command

from kjax.cli import main
from kjax.export import matcher as export
from kjax.export.files import read_onnx
from kjax.export.matcher import export_matcher, load_exported_matcher, stack_photographs, undecided
from kjax.export.matcher_slots import SIDE, slot_inputs
from kjax.images.exchange.colmap_bytes import colmap_bytes, from_colmap_bytes, write_colmap_text
from kjax.images.features import NO_SCALE, Features, unit_rows
from kjax.images.learned import Matcher
from kjax.images.sift import ROOT_SIFT
from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.weights import MatcherWeights, save_matcher
from kjax.model.quantization import rotation
from kjax.weights.info import Provenance

MODEL = MatcherConfig(layers=2, width=32, heads=2, dimension=8, head_size=20, self_every=2)
SUFFIXES = (".stablehlo", ".onnx")
ROUNDING = 5e-5
"""Scores sum three numbers up to 2·20²/√32 = 142, each in steps of 1.5e-5."""


@pytest.fixture(autouse=True)
def need_packages():
    for package in ("flatbuffers", "onnx", "onnxruntime"):
        pytest.importorskip(package)


def random_weights(model, described_with):
    """Random, except that likeness is mostly that of descriptors: there are matches."""
    params = jax.tree.map(np.array, init_params(model, jax.random.key(0)))
    kernel = params["embedding"]["input"]["kernel"]
    kernel += 20 * np.eye(*kernel.shape) * (np.arange(len(kernel)) < model.dimension)[:, None]
    params["layers"]["likeness"]["kernel"][:] = np.eye(32)
    params["layers"]["matchability"]["bias"][:] = 3.0
    return MatcherWeights(model, described_with, {"seed": "0"}, params)


@pytest.fixture(scope="module")
def weights():
    return random_weights(MODEL, Provenance("mine", "", 8))


def photograph(rng, rows) -> Features:
    count = len(rows)
    return Features(
        np.sort(rng.uniform(0, 100, (count, 2)), axis=0).astype(np.float32),
        rows.astype(np.float32),
        (100, 80),
        scales=rng.uniform(1, 9, count).astype(np.float32),
        angles=rng.choice([-1.0, 30.0, 200.0], count).astype(np.float32),
    )


def assert_same(partners, scores, expected):
    rows = np.flatnonzero(np.asarray(partners) != -1)
    np.testing.assert_array_equal(np.stack([rows, partners[rows]], axis=1), expected.indices)
    np.testing.assert_allclose(scores[rows], 1 - expected.ratios, atol=ROUNDING)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("keypoints", [None, 64])
def test_it_gives_the_same_matches(weights, tmp_path, rng, keypoints, suffix, capsys):
    save_matcher(tmp_path / "matcher.npz", weights)
    path = tmp_path / f"matcher{suffix}"
    words = ["export", str(tmp_path / "matcher.npz"), "--out", str(path)]
    assert main([*words, *(["--keypoints", str(keypoints)] if keypoints else [])]) == 0
    assert "matcher of mine" in capsys.readouterr().out
    rows = rng.normal(size=(40, 8))
    first, second = photograph(rng, rows), photograph(rng, 9 * rows[rng.permutation(40)[:25]])
    expected = Matcher(weights).match(first, second, early=False)
    assert len(expected) > 10
    pair = stack_photographs(first, second, keypoints or 40)
    assert_same(*load_exported_matcher(path)(pair), expected)
    assert main(["info", str(path)]) == 0
    assert "descriptors of mine, 8 numbers" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_padding_has_no_say(weights, tmp_path, rng, suffix):
    path = tmp_path / f"matcher{suffix}"
    export_matcher(path, weights)
    match = load_exported_matcher(path)
    rows = rng.normal(size=(20, 8))
    many, few = photograph(rng, rows), photograph(rng, rows[:13])
    expected = Matcher(weights).match(few, many, early=False)
    assert len(expected) > 5
    pair = stack_photographs(few, many, 20)
    # The same keypoints on both sides: nothing matches better.
    filled = {name: np.array(getattr(pair, name)) for name in pair._fields[:4]}
    for column in filled.values():
        column[0, 13:] = column[1, 13:]
    pair = pair._replace(**filled)
    assert_same(*match(pair), expected)
    for counts in ([13, 0], [0, 20], [0, 0]):
        partners, scores = match(pair._replace(counts=np.array(counts, np.int32)))
        assert (np.asarray(partners) == -1).all()
        assert (np.asarray(scores) == 0).all()


def test_partners_that_rounding_decides():
    tiny = 1e-5
    scores = np.array(
        [
            [0.9, 0.3, 0.0, 0.0],
            [0.0, 0.5, 0.5 + tiny, 0.0],
            [0.0, 0.0, 0.0, 0.1 - tiny],
            [tiny, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.4, 0.0],
        ],
        np.float32,
    )
    assert undecided(scores).tolist() == [False, True, True, False, False]
    scores[4, 2] = 0.5
    assert undecided(scores).tolist() == [False, True, True, False, True]
    assert undecided(scores[:, :1]).tolist() == [False] * 5


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_that_differ_are_not_kept(suffix, weights, tmp_path, monkeypatch):
    params = jax.tree.map(np.copy, weights.params)
    params["layers"]["matchability"]["bias"][:] = 1.0
    wrong = export.matching_function(dataclasses.replace(weights, params=params))
    monkeypatch.setattr(export, "matching_function", lambda _: wrong)
    monkeypatch.setattr("kjax.export.matcher_graph.LEAST_SCORE", 0.99)
    path = tmp_path / f"matcher{suffix}"
    assert_refused("would differ from JAX", export_matcher, path, weights, keypoints=48)
    assert not list(tmp_path.iterdir())


def test_the_matcher_that_ships_is_exported_by_its_name(tmp_path, capsys, monkeypatch):
    def write(path, weights, *, keypoints, program):
        path.write_text(weights.described_with.name)
        return 0.0

    monkeypatch.setattr(export, "export_matcher", write)
    path = tmp_path / "matcher.onnx"
    for name in ("best", "fast-context"):
        assert main(["export", name, "--part", "matcher", "--out", str(path)]) == 0
        assert path.read_text() == name
        assert f"matcher of {name}" in capsys.readouterr().out
    words = ("export", "nobody", "--part", "matcher", "--out", path)
    assert "unknown pretrained model 'nobody'" in refused_command(capsys, *words)


def shuffled(rng, features):
    order = rng.permutation(len(features))
    columns = ("xy", "descriptors", "scales", "angles")
    return dataclasses.replace(
        features, **{name: getattr(features, name)[order] for name in columns}
    )


@pytest.fixture(scope="module")
def slots(weights, tmp_path_factory):
    """Sessions of the files for COLMAP and OpenCV."""
    folder = tmp_path_factory.mktemp("slots")
    paths = {program: folder / f"{program}.onnx" for program in ("colmap", "opencv")}
    for program, path in paths.items():
        assert export_matcher(path, weights, program=program) < 1e-4
    return {program: read_onnx(path) for program, path in paths.items()}


def texts_of(folder, *images):
    paths = [folder / f"{number}.txt" for number in range(len(images))]
    for path, features in zip(paths, images, strict=True):
        write_colmap_text(path, features)
    return [path.read_text() for path in paths]


@pytest.mark.parametrize("counts", [(41, 25), (9, 40), (1, 30), (30, 1), (1, 1)])
def test_colmap_finds_the_same_matches(weights, slots, tmp_path, rng, counts):
    rows = rng.normal(size=(41, 8))
    kinds = (rows[: counts[0]], rows[rng.permutation(counts[1])])
    first, second = (shuffled(rng, photograph(rng, one)) for one in kinds)
    inputs = colmap_inputs(texts_of(tmp_path, first, second), [(100, 80)] * 2)
    expected = Matcher(weights).match(first, second, early=False)
    assert len(expected) >= min(counts) // 2
    np.testing.assert_array_equal(run_colmap(slots["colmap"], inputs), expected.indices)


def test_colmap_matches_its_own_descriptors(rng, tmp_path):
    weights = random_weights(dataclasses.replace(MODEL, dimension=128), ROOT_SIFT)
    path = tmp_path / "sift.onnx"
    assert export_matcher(path, weights, program="colmap") < 1e-4
    rows = unit_rows(rng.gamma(0.3, size=(20, 128)).astype(np.float32))
    pair = photograph(rng, rows), photograph(rng, rows[rng.permutation(20)])
    inputs = colmap_inputs(texts_of(tmp_path, *pair), [(100, 80)] * 2)
    expected = Matcher(weights).match(*pair, early=False)
    assert len(expected) > 10
    np.testing.assert_array_equal(run_colmap(read_onnx(path), inputs), expected.indices)


def test_the_inputs_in_the_check_are_colmaps(tmp_path, rng):
    pair = [photograph(rng, rng.normal(size=(count, 8))) for count in (5, 3)]
    checked = slot_inputs("colmap", *pair)
    expected = colmap_inputs(texts_of(tmp_path, *pair), [(100, 80)] * 2)
    assert checked.keys() == expected.keys()
    for name, array in expected.items():
        turns = 2 * np.pi if name.startswith("oris") else np.inf
        apart = np.abs(checked[name] - array)
        assert np.minimum(apart, np.abs(apart - turns)).max() < 1e-5


def test_bytes_for_colmap_are_read_back(rng):
    rows = rng.normal(size=(50, 128)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    features = photograph(rng, rows)
    read = from_colmap_bytes(colmap_bytes(features))
    cosines = (read * rows).sum(axis=1)
    # One of 128 dimensions is lost; one entry in a hundred is clipped.
    assert cosines.mean() > 0.993
    lost = rotation(128).sum(axis=1) / np.sqrt(128)
    without = rows - (rows @ lost)[:, None] * lost
    without /= np.linalg.norm(without, axis=1, keepdims=True)
    assert (read * without).sum(axis=1).mean() > 0.998
    assert from_colmap_bytes(colmap_bytes(features), 64).shape == (50, 64)


@pytest.mark.parametrize("counts", [(41, 25), (1, 30), (30, 1)])
def test_opencv_finds_the_same_matches(weights, slots, rng, counts):
    rows = rng.normal(size=(41, 8))
    kinds = (rows[: counts[0]], rows[rng.permutation(counts[1])])
    first, second = (shuffled(rng, photograph(rng, one)) for one in kinds)
    pair = [(one.xy, one.descriptors) for one in (first, second)]
    sizes = [(100, 100)] * 2
    scales = np.full(41, NO_SCALE * 100 / SIDE, np.float32)
    square = [
        dataclasses.replace(one, image_size=(100, 100), scales=scales[: len(one)], angles=None)
        for one in (first, second)
    ]
    expected = Matcher(weights).match(*square, early=False)
    assert len(expected) >= min(counts) // 2
    found = run_opencv(slots["opencv"], *pair, sizes)
    np.testing.assert_array_equal(found, expected.indices)


def test_opencv_itself_finds_the_same_matches(weights, slots, tmp_path, rng):
    if not hasattr(cv2, "LightGlueMatcher"):
        pytest.skip("OpenCV has no LightGlueMatcher before version 5")
    path = tmp_path / "opencv.onnx"
    export_matcher(path, weights, program="opencv")
    rows = rng.normal(size=(30, 8))
    first, second = (shuffled(rng, photograph(rng, rows[:count])) for count in (30, 21))
    matcher = cv2.LightGlueMatcher.create(str(path))
    matcher.setPairInfo(first.xy, second.xy, first.image_size, second.image_size)
    found = matcher.match(first.descriptors, second.descriptors)
    pair = [(one.xy, one.descriptors) for one in (first, second)]
    expected = run_opencv(slots["opencv"], *pair, [(100, 80)] * 2)
    assert len(expected) > 10
    assert sorted((one.queryIdx, one.trainIdx) for one in found) == list(map(tuple, expected))


def test_files_for_programs_that_differ_are_not_kept(weights, tmp_path, monkeypatch):
    monkeypatch.setattr("kjax.export.matcher_graph.LEAST_SCORE", 0.99)
    path = tmp_path / "colmap.onnx"
    assert_refused("would differ from JAX", export_matcher, path, weights, program="colmap")
    assert not list(tmp_path.iterdir())


def test_what_programs_cannot_take_is_refused(weights, tmp_path):
    path = tmp_path / "colmap.onnx"
    words = {"program": "colmap", "keypoints": 5}
    assert_refused("for any number of keypoints", export_matcher, path, weights, **words)
    model = dataclasses.replace(MODEL, dimension=256)
    large = dataclasses.replace(weights, model=model)
    assert_refused("descriptors of 128 numbers", export_matcher, path, large, program="colmap")
