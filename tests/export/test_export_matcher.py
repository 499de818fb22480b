"""An exported matcher against kjax's own."""

import dataclasses

import jax
import numpy as np
import pytest

from kjax.cli import main
from kjax.errors import InputError
from kjax.export import matcher as export
from kjax.export.matcher import export_matcher, load_exported_matcher, stack_pair
from kjax.images.features import Features
from kjax.images.learned_matching import Matcher
from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.view_set import DescribedWith
from kjax.matcher.weights import FORMAT, About, MatcherWeights, save_matcher

pytest.importorskip("flatbuffers")
MODEL = MatcherConfig(layers=2, width=32, heads=2, dimension=8)


@pytest.fixture(scope="module")
def weights():
    """By chance, but that likeness is mostly that of descriptors: so there are matches."""
    params = jax.tree.map(np.array, init_params(MODEL, jax.random.key(0)))
    params["embedding"]["input"]["kernel"][:8, :8] += 20 * np.eye(8)
    params["layers"]["likeness"]["kernel"][:] = np.eye(32)
    params["layers"]["matchability"]["bias"][:] = 3.0
    about = About(FORMAT, MODEL, DescribedWith("mine", "", 8), {"seed": "0"})
    return MatcherWeights(about, params)


def photograph(rng, rows) -> Features:
    count = len(rows)
    return Features(
        rng.uniform(0, 100, (count, 2)).astype(np.float32),
        rows.astype(np.float32),
        (100, 80),
        scales=rng.uniform(1, 9, count).astype(np.float32),
        angles=rng.choice([-1.0, 30.0, 200.0], count).astype(np.float32),
    )


@pytest.mark.parametrize("keypoints", [None, 64])
def test_it_gives_the_same_matches(weights, tmp_path, rng, keypoints, capsys):
    save_matcher(tmp_path / "matcher.npz", weights)
    path = tmp_path / "matcher.stablehlo"
    words = ["export", str(tmp_path / "matcher.npz"), "--to", str(path)]
    assert main([*words, *(["--keypoints", str(keypoints)] if keypoints else [])]) == 0
    assert "a matcher of mine" in capsys.readouterr().out
    rows = rng.normal(size=(40, 8))
    first, second = photograph(rng, rows), photograph(rng, 9 * rows[rng.permutation(40)[:25]])
    expected = Matcher(weights).match(first, second, early=False)
    assert len(expected) > 10
    partners, scores = load_exported_matcher(path)(stack_pair(first, second, keypoints or 40))
    rows = np.flatnonzero(np.asarray(partners) != -1)
    np.testing.assert_array_equal(np.stack([rows, partners[rows]], axis=1), expected.indices)
    np.testing.assert_allclose(scores[rows], 1 - expected.ratios, atol=1e-5)
    assert main(["info", str(path)]) == 0
    assert "descriptors of mine, 8 numbers" in capsys.readouterr().out


def test_what_differs_is_not_kept(weights, tmp_path, monkeypatch):
    params = jax.tree.map(np.copy, weights.params)
    params["layers"]["matchability"]["bias"][:] = 1.0
    other = dataclasses.replace(weights, params=params)
    program = export._export(other, 48)
    monkeypatch.setattr(export, "_export", lambda *_: program)
    with pytest.raises(InputError, match="would differ from kjax"):
        export_matcher(tmp_path / "matcher.stablehlo", weights, keypoints=48)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["matcher.npz", "--to", "m.onnx"], "matchers are exported to .stablehlo alone"),
        (["matcher.npz", "--to", "m.stablehlo", "--batch", "2"], "--batch is for descriptors"),
        (["hardnet", "--to", "h.stablehlo", "--keypoints", "2"], "--keypoints is for matchers"),
        (["hardnet", "--to", "h.stablehlo", "--keypoints", "0"], "give at least 1"),
    ],
)
def test_words_that_do_not_go_together(weights, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    save_matcher(tmp_path / "matcher.npz", weights)
    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err
