import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kjax.model import aggregation, position_encoding
from kjax.model.aggregation import aggregate, dense, encode_each, l2_normalize, project
from kjax.model.position_encoding import PositionKernel, position_matrix, von_mises_coefficients


def random_inputs(rng, *, n=8, d=128, s=2, system="xy", batch=3):
    descriptors = jnp.asarray(rng.normal(size=(batch, n * n, d)), jnp.float32)
    positions = position_matrix(n, PositionKernel(s=s), system)
    return descriptors, jnp.asarray(positions, jnp.float32)


@pytest.mark.parametrize("system", ["xy", "polar"])
@pytest.mark.parametrize("s", [1, 2, 3])
def test_equals_the_sum_of_kronecker_products(rng, s, system):
    """Entry (c·(2s+1) + i)·(2s+1) + j belongs to channel c, first map's i, second map's j."""
    descriptors, positions = random_inputs(rng, s=s, system=system, d=16)
    naive = sum(
        np.kron(np.asarray(descriptors[1, p], np.float64), np.asarray(positions[p], np.float64))
        for p in range(64)
    )
    for function in (aggregate, jax.jit(aggregate), jax.vmap(aggregate, in_axes=(0, None))):
        np.testing.assert_allclose(function(descriptors, positions)[1], naive, atol=1e-5)
    np.testing.assert_allclose(encode_each(descriptors, positions).sum(1)[1], naive, atol=1e-5)


def test_projecting_a_large_batch_equals_projecting_a_small_one(rng):
    """The small one is encoded and multiplied; for the large one both make one matrix."""
    descriptors, positions = random_inputs(rng, d=8, batch=64)
    matrix = jnp.asarray(rng.normal(size=(8 * 25, 5)), jnp.float32)
    weights = jnp.asarray(rng.normal(size=(64, 5)), jnp.float32)

    def large(descriptors, matrix):
        return jnp.sum(weights * project(descriptors, positions, matrix))

    def small(descriptors, matrix):
        halves = [project(half, positions, matrix) for half in jnp.split(descriptors, 2)]
        return jnp.sum(weights * jnp.concatenate(halves))

    found, expected = (jax.value_and_grad(f, (0, 1))(descriptors, matrix) for f in (large, small))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_dense_sums_in_float32_and_keeps_the_precision_of_its_arguments(rng):
    x = jnp.asarray(rng.normal(size=(4, 512)), jnp.bfloat16)
    weights = jnp.asarray(rng.normal(size=(512, 3)), jnp.float32)
    found, back = jax.vjp(dense, x, weights)
    rounded = np.asarray(weights.astype(jnp.bfloat16), np.float64)
    np.testing.assert_allclose(found, np.asarray(x, np.float64) @ rounded, atol=1e-4)
    by_x, by_weights = back(jnp.ones_like(found))
    assert (by_x.dtype, by_weights.dtype) == (jnp.bfloat16, jnp.float32)
    sums = np.asarray(x, np.float64).sum(axis=0)
    np.testing.assert_allclose(by_weights, np.tile(sums[:, None], 3), atol=1e-4)


def test_temporary_memory_is_a_fifteenth_of_the_naive_one():
    """Of ψ = Σ_p M g(φ^p, p), at the paper's d=128, s=2, n=8, by XLA's own memory analysis."""
    shapes = [(16, 64, 128), (64, 25), (128 * 25, 128)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    def naive(descriptors, positions, projection):
        return (encode_each(descriptors, positions) @ projection).sum(1)

    def efficient(descriptors, positions, projection):
        return aggregate(descriptors, positions) @ projection

    def temporary_bytes(function):
        memory = jax.jit(function).lower(*arguments).compile().memory_analysis()
        return memory.temp_size_in_bytes

    assert temporary_bytes(naive) >= 16 * 64 * 128 * 25 * 4, "XLA found a better way by itself"
    assert 15 * temporary_bytes(efficient) <= temporary_bytes(naive)


def test_similarity_of_encodings_factorises(rng):
    """The paper's Eq. 9, for the polar grid: φᵀφ′ · k(ρ−ρ′) · k(θ−θ′)."""
    n, kernel = 8, PositionKernel(s=2)
    positions = position_matrix(n, kernel, "polar", weighted=False)
    phi_a, phi_b = rng.normal(size=(2, n * n, 16))
    encode = lambda phi: np.einsum("pc,pk->pck", phi, positions).reshape(n * n, -1)  # noqa: E731
    rho, theta = position_encoding.polar_grid(n)
    p, q = rng.integers(0, n * n, (2, 100))
    expected = np.sum(phi_a[p] * phi_b[q], axis=-1)
    angles = kernel.scale_rho * (rho[p] - rho[q]), theta[p] - theta[q]
    for angle, kappa in zip(angles, (kernel.kappa_rho, kernel.kappa_theta), strict=True):
        expected *= np.cos(np.arange(3) * angle[:, None]) @ von_mises_coefficients(kappa, 2)
    found = np.sum(encode(phi_a)[p] * encode(phi_b)[q], axis=-1)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_turning_the_feature_map_turns_only_theta(rng):
    """A quarter turn of the patch mixes each frequency's cos and sin of θ, and nothing else."""
    n, d, s = 8, 6, 2
    kernel = PositionKernel(s=s)
    positions = jnp.asarray(position_matrix(n, kernel, "polar"), jnp.float32)
    phi = jnp.asarray(rng.normal(size=(n, n, d)), jnp.float32)

    def encoded(feature_map):
        flat = aggregate(aggregation.flatten_positions(feature_map), positions)
        return np.asarray(flat).reshape(d, 2 * s + 1, 2 * s + 1)

    before, after = encoded(phi), encoded(jnp.rot90(phi))
    expected = before.copy()
    for i in range(1, s + 1):
        c, sn = np.cos(-i * np.pi / 2), np.sin(-i * np.pi / 2)
        expected[..., i] = c * before[..., i] - sn * before[..., s + i]
        expected[..., s + i] = sn * before[..., i] + c * before[..., s + i]
    np.testing.assert_allclose(after, expected, atol=1e-4)


def test_l2_normalize_gives_unit_norm_also_to_zero_and_keeps_nan():
    vectors = jnp.asarray([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(l2_normalize(vectors), [[0.6, 0.8], [0.5**0.5, 0.5**0.5]])
    assert jnp.isfinite(jax.grad(lambda v: l2_normalize(v).sum())(vectors)).all()
    assert np.isnan(l2_normalize(jnp.array([[np.nan, 1.0], [np.inf, 1.0]]))).any(axis=1).all()
