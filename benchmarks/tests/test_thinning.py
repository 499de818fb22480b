"""Matchers of fewer heads: what goes must be what adds least."""

import jax
import numpy as np
import pytest
from matcher_points import points, said_by
from scripts import BENCHMARKS, load_script

from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.weights import MatcherWeights, read_matcher, save_matcher
from kjax.weights.info import Provenance

MODEL = MatcherConfig(layers=3, width=48, heads=3, dimension=16)
IDLE = 1
"""The head that adds nothing."""


@pytest.fixture(scope="module")
def script():
    return load_script(BENCHMARKS / "tools" / "thin_matcher.py")


@pytest.fixture(scope="module")
def weights():
    params = jax.tree.map(np.array, init_params(MODEL, jax.random.key(0)))
    rows = slice(MODEL.size * IDLE, MODEL.size * (IDLE + 1))
    for name in ("self_out", "cross_out"):
        params["layers"][name]["kernel"][:, rows] = 0
    return MatcherWeights(MODEL, Provenance("mine", "abc", 16), {}, params)


def test_heads_that_add_nothing_go(script, weights, rng):
    fewer = script.thinned(weights, heads=2, layers=2)
    assert fewer.model == MatcherConfig(2, 48, 2, 16, head_size=16)
    given = points(rng)

    def said(one):
        return said_by(one.model, one.params, given, layers=2)

    expected, found = said(weights), said(fewer)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), expected, found)
    # A head that adds something is missed.
    lacking = said(script.thinned(weights, heads=1, layers=2))
    assert np.abs(lacking.projected - expected.projected).max() > 1e-2


def test_the_command_writes_a_file_that_trains_on(script, weights, tmp_path, capsys):
    save_matcher(tmp_path / "all.npz", weights)
    given = [str(tmp_path / "all.npz"), "--out", str(tmp_path / "thin.npz")]
    assert script.main([*given, "--heads", "2", "--layers", "1", "--self-every", "2"]) == 0
    assert "2 heads of 16, 1 layers" in capsys.readouterr().out
    about = read_matcher(tmp_path / "thin.npz")
    assert about.remarks["thinned"] == "from 3 heads and 3 layers, not trained since"
    assert about.model == MatcherConfig(1, 48, 2, 16, head_size=16, self_every=2)
    assert script.main([*given, "--heads", "4"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "thin_matcher: the matcher has 1 to 3 heads and 3 layers"
    ]
    assert script.main([given[0], "--out", str(tmp_path / "thin"), "--heads", "2"]) == 2
    assert capsys.readouterr().err.endswith("thin: let it end with .npz\n")
