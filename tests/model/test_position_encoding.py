import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from kjax.model import position_encoding as encoding
from kjax.model.position_encoding import PositionKernel, feature_map, von_mises_coefficients


@pytest.mark.parametrize(
    ("kappa", "gamma"),
    [(1.0, [0.38214156, 0.48090413]), (8.0, [0.14343168, 0.268285, 0.21979234, 0.15838885])],
)
def test_coefficients_published_by_mkd(kappa, gamma):
    np.testing.assert_allclose(von_mises_coefficients(kappa, len(gamma) - 1), gamma, atol=1e-6)
    bessel = special.ive(np.arange(5), encoding.SHARPEST)
    sharpest = von_mises_coefficients(encoding.SHARPEST, 4)
    np.testing.assert_allclose(sharpest[1:], 2 * bessel[1:], rtol=1e-12)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 8.0, 30.0])
def test_coefficients_are_the_fourier_series_of_the_von_mises_kernel(kappa):
    def kernel(angle):
        low = math.exp(-kappa)
        return (math.exp(kappa * math.cos(angle)) - low) / (math.exp(kappa) - low)

    for i, gamma in enumerate(von_mises_coefficients(kappa, 3)):
        area, _ = integrate.quad(lambda a, i=i: kernel(a) * math.cos(i * a), -math.pi, math.pi)
        assert gamma == pytest.approx(area / math.pi / (2 if i == 0 else 1), abs=1e-9)


@pytest.mark.parametrize("s", [1, 2, 5])
@pytest.mark.parametrize("kappa", [0.5, 8.0])
def test_inner_products_are_the_kernel(rng, kappa, s):
    alpha, beta = rng.uniform(-4, 4, (2, 50))
    product = np.sum(feature_map(alpha, kappa=kappa, s=s) * feature_map(beta, kappa=kappa, s=s), -1)
    waves = np.cos(np.arange(s + 1) * (alpha - beta)[:, None])
    np.testing.assert_allclose(product, waves @ von_mises_coefficients(kappa, s), atol=1e-12)


def test_feature_map_by_hand(rng):
    """So a shift of the angle turns each frequency's pair of a cosine and a sine."""
    gamma, angle = von_mises_coefficients(8.0, 2), rng.uniform(-4, 4, 20)
    waves = [angle**0, np.cos(angle), np.cos(2 * angle), np.sin(angle), np.sin(2 * angle)]
    expected = np.sqrt(gamma[[0, 1, 2, 1, 2]]) * np.stack(waves, axis=-1)
    np.testing.assert_allclose(feature_map(angle, kappa=8.0, s=2), expected, atol=1e-12)


def test_feature_map_numpy_eager_jit_and_vmap_agree(rng):
    angles = rng.uniform(-3, 3, (4, 7)).astype(np.float32)
    expected = feature_map(angles, kappa=8.0, s=3)
    mapped = lambda a: feature_map(a, kappa=8.0, s=3)  # noqa: E731
    for function in (mapped, jax.jit(mapped), jax.vmap(mapped)):
        np.testing.assert_allclose(function(jnp.asarray(angles)), expected, atol=2e-6)


def test_grids_are_row_major_with_x_along_the_columns_and_weigh_the_centre():
    x, y = encoding.cartesian_grid(3)
    np.testing.assert_array_equal(x.reshape(3, 3)[0], [-1, 0, 1])
    np.testing.assert_array_equal(y.reshape(3, 3)[:, 0], [-1, 0, 1])
    rho, theta = encoding.polar_grid(3)
    assert rho.reshape(3, 3)[0, 0] == pytest.approx(1)
    assert rho.reshape(3, 3)[1, 1] == 0
    assert theta.reshape(3, 3)[2, 1] == pytest.approx(math.pi / 2), "downwards is +90°"
    weights = encoding.centre_weights(3).reshape(3, 3)
    assert weights[1, 1] == 1
    assert weights[0, 0] == pytest.approx(math.exp(-1))
    assert encoding.centre_weights(3, corner_radius=math.sqrt(2))[0] == pytest.approx(math.exp(-2))


@pytest.mark.parametrize("n", [8, 9, 16])
def test_turning_the_grid_is_a_shift_in_theta(n):
    rho, theta = (grid.reshape(n, n) for grid in encoding.polar_grid(n))
    turned = np.rot90(theta)  # counter-clockwise on screen, with y pointing down
    off_centre = rho > 0
    shift = np.angle(np.exp(1j * (turned - theta)))[off_centre]
    np.testing.assert_allclose(shift, math.pi / 2, atol=1e-12)
    np.testing.assert_allclose(np.rot90(rho), rho, atol=1e-12)


@pytest.mark.parametrize("system", ["xy", "polar"])
def test_position_matrix_by_its_definition(system):
    kernel = PositionKernel(s=2, kappa_xy=2.0, kappa_rho=3.0, kappa_theta=4.0, scale_theta=1.0)
    n, p = 5, 7
    matrix = encoding.position_matrix(n, kernel, system)
    assert matrix.shape == (25, 25)
    x, y = encoding.cartesian_grid(n)
    rho, theta = encoding.polar_grid(n)
    first, second, kappas = {
        "xy": (kernel.scale_xy * x, kernel.scale_xy * y, (2.0, 2.0)),
        "polar": (kernel.scale_rho * rho, theta, (3.0, 4.0)),
    }[system]
    row = np.kron(
        feature_map(first[p : p + 1], kappa=kappas[0], s=2)[0],
        feature_map(second[p : p + 1], kappa=kappas[1], s=2)[0],
    )
    np.testing.assert_allclose(matrix[p], math.exp(-(rho[p] ** 2)) * row)
    np.testing.assert_allclose(encoding.position_matrix(n, kernel, system, weighted=False)[p], row)


def test_every_constant_has_an_effect():
    default = PositionKernel(s=2)
    for field in dataclasses.fields(default)[1:]:
        name, system = field.name, "polar" if "rho" in field.name or "theta" in field.name else "xy"
        changed = dataclasses.replace(default, **{name: 1.3 * getattr(default, name)})
        own, other = (encoding.position_matrix(8, one, system) for one in (changed, default))
        assert not np.allclose(own, other), name


@pytest.mark.parametrize("bad", [{"s": 0}, {"kappa_xy": 0.0}, {"kappa_rho": math.inf}])
def test_impossible_constants_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        PositionKernel(**bad)
