"""Matchers of fewer heads: what goes must be what adds least."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import BENCHMARKS, load_script

from kjax.matcher.network import Embedding, Layer, MatcherConfig, Points, init_params, layer_of
from kjax.matcher.view_set import DescribedWith
from kjax.matcher.weights import FORMAT, About, MatcherWeights, read_matcher, save_matcher

MODEL = MatcherConfig(layers=3, width=48, heads=3, dimension=8)
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
    return MatcherWeights(About(FORMAT, MODEL, DescribedWith("mine", "abc", 8), {}), params)


def said_by(weights, points, layers):
    model, params = weights.about.model, weights.params
    tokens, rotation = Embedding(model).apply({"params": params["embedding"]}, points)
    for number in range(layers):
        layer = {"params": layer_of(params, number)}
        tokens, said = Layer(model).apply(layer, tokens, rotation, points.counts)
    return said


def test_heads_that_add_nothing_go(script, weights, rng):
    fewer = script.thinned(weights, heads=2, layers=2)
    assert fewer.about.model == MatcherConfig(2, 48, 2, 8, head_size=16)
    shape = (1, 2, 10)
    sizes = [(*shape, 2), shape, shape, (*shape, 8)]
    columns = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in sizes)
    points = Points(*columns, jnp.array([[10, 8]], jnp.int32))
    expected, found = (said_by(one, points, 2) for one in (weights, fewer))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), expected, found)
    # A head that adds something is missed.
    lacking = said_by(script.thinned(weights, heads=1, layers=2), points, 2)
    assert np.abs(lacking.projected - expected.projected).max() > 1e-2


def test_the_command_writes_a_file_that_trains_on(script, weights, tmp_path, capsys):
    save_matcher(tmp_path / "all.npz", weights)
    given = [str(tmp_path / "all.npz"), "--out", str(tmp_path / "thin.npz")]
    assert script.main([*given, "--heads", "2", "--layers", "1"]) == 0
    assert "2 heads of 16, 1 layers" in capsys.readouterr().out
    model = read_matcher(tmp_path / "thin.npz").about.model
    assert model == MatcherConfig(1, 48, 2, 8, head_size=16)
    assert script.main([*given, "--heads", "4"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "thin_matcher: the matcher has 1 to 3 heads and 3 layers"
    ]
