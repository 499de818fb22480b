"""The search that photographs and HPatches share; what is found is tested where it is used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kjax.model.kernels import group_minima


def test_sizes_are_few_and_have_few_groups():
    for count in (1, 255, 256, 257, 329, 1000, 1025, 2000, 5000, 70_000, 1_000_000):
        for block in (64, 512, 8192):
            size = group_minima.padded_size(count, block)
            assert 0 <= size - count < max(256, count / 4, block)
            group = group_minima.group_size(size)
            assert size % group == 0
            assert 64 <= size // group <= 512
            assert size <= block or size % block == 0


@pytest.mark.parametrize("magnitude", [1e-3, 1.0])
@pytest.mark.parametrize(
    ("metric", "product"), [("L2", "single"), ("L2", "split"), ("L2", "whole"), ("L1", "single")]
)
def test_bounds_are_below_the_distances_and_close(rng, metric, product, magnitude):
    rows = [rng.normal(size=(256, 128)), 1 + magnitude * rng.normal(size=(256, 128))]
    if product == "whole":
        rows = [rng.integers(0, 256, (256, 128)) for _ in range(2)]
    first, second = (one.astype(np.float32) for one in rows)
    differences = first[:, None].astype(np.float64) - second
    exact = np.abs(differences).sum(-1) if metric == "L1" else (differences**2).sum(-1)
    power = 1 if metric == "L1" else 2
    sizes = [(np.abs(one.astype(np.float64)) ** power).sum(1) for one in (first, second)]
    share = group_minima.share(128, metric, product)
    find = jax.jit(group_minima.group_minima, static_argnames=("metric", "block", "both"))
    by_row, by_column = find(
        group_minima.operands(jnp.asarray(first), jnp.asarray(second), product),
        tuple(jnp.asarray(share * one, jnp.float32) for one in sizes),
        jnp.array([256, 256], jnp.int32),
        **{"metric": metric, "block": 64, "both": True},
    )
    largest = sizes[0].max() + sizes[1].max()
    slack = 2 * ((metric == "L2") - share) * largest
    for found, distances in ((by_row, exact), (np.asarray(by_column).T, exact.T)):
        expected = distances.reshape(256, -1, 4).min(axis=2)
        assert (found <= expected).all()
        assert (found >= expected - slack).all()
