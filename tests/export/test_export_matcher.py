import dataclasses

import jax
import numpy as np
import pytest
from refusals import assert_refused, refused_command

from kjax.cli import main
from kjax.export import matcher as export
from kjax.export.matcher import export_matcher, load_exported_matcher, stack_photographs, undecided
from kjax.images.features import Features
from kjax.images.learned import Matcher
from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.weights import MatcherWeights, save_matcher
from kjax.weights.info import Provenance

MODEL = MatcherConfig(layers=2, width=32, heads=2, dimension=8, head_size=20, self_every=2)
SUFFIXES = (".stablehlo", ".onnx")
ROUNDING = 5e-5
"""Scores sum three numbers up to 2·20²/√32 = 142, each in steps of 1.5e-5."""


@pytest.fixture(autouse=True)
def need_packages():
    for package in ("flatbuffers", "onnx", "onnxruntime"):
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def weights():
    """Random, except that likeness is mostly that of descriptors: there are matches."""
    params = jax.tree.map(np.array, init_params(MODEL, jax.random.key(0)))
    params["embedding"]["input"]["kernel"][:8, :8] += 20 * np.eye(8)
    params["layers"]["likeness"]["kernel"][:] = np.eye(32)
    params["layers"]["matchability"]["bias"][:] = 3.0
    return MatcherWeights(MODEL, Provenance("mine", "", 8), {"seed": "0"}, params)


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
