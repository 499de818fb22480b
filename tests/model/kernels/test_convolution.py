"""The convolution's own gradients against autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kjax.model.kernels.convolution import convolve, kernel_gradient


@pytest.mark.parametrize("stride", [1, 2])
def test_values_and_gradients(rng, stride):
    x, kernel = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 8, 8, 3), (3, 3, 3, 5)))
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))

    def expected(padded, kernel):
        return jax.lax.conv_general_dilated(
            padded, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    y, back = jax.vjp(lambda x, kernel: convolve(x, kernel, stride=stride), x, kernel)
    wanted, wanted_back = jax.vjp(expected, padded, kernel)
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    dy = jnp.asarray(rng.normal(size=y.shape), jnp.float32)
    by_x, by_kernel = back(dy)
    by_padded, wanted_by_kernel = wanted_back(dy)
    np.testing.assert_allclose(by_x, by_padded[:, 1:-1, 1:-1], atol=1e-5)
    np.testing.assert_allclose(by_kernel, wanted_by_kernel, rtol=1e-5, atol=1e-5)


def test_reduced_precision_is_summed_in_float32(rng):
    x, dy = (jnp.asarray(rng.normal(size=(64, 8, 8, c)), jnp.bfloat16) for c in (1, 2))
    found = kernel_gradient(x, dy, stride=1)
    assert found.dtype == jnp.float32
    exact = kernel_gradient(x.astype(jnp.float32), dy.astype(jnp.float32), stride=1)
    np.testing.assert_allclose(found, exact, atol=1e-3)
    kernel = jnp.zeros((3, 3, 1, 2), jnp.bfloat16)
    by_kernel = jax.vjp(lambda kernel: convolve(x, kernel, stride=1), kernel)[1](dy)[0]
    assert by_kernel.dtype == jnp.bfloat16
