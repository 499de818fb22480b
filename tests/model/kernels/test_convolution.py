"""Convolutions and their gradients against autodiff; the CPU's against the plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, narrow, random_patches

import kjax
from kjax.model.kernels import cpu_convolution
from kjax.model.kernels.convolution import convolve, kernel_gradient


@pytest.mark.parametrize("stride", [1, 2])
def test_values_and_gradients(rng, stride):
    x, kernel = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 8, 8, 3), (3, 3, 3, 5)))
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))

    def expected(padded, kernel):
        layout = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return jax.lax.conv_general_dilated(padded, kernel, (stride, stride), "VALID", **layout)

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


# On CPUs


def test_it_is_the_same_convolution(rng):
    for side, inputs, outputs, stride in (
        *[(8, 1, 5, 1), (8, 3, 32, 1), (4, 2, 33, 1), (6, 3, 32, 1), (8, 3, 32, 2)],
        # Two or four columns together; one, as six have no four; all eight; and with stride 2.
        *[(8, 3, 16, 1), (8, 3, 8, 1), (6, 3, 17, 1), (8, 3, 2, 1), (8, 3, 8, 2), (12, 3, 12, 2)],
    ):
        x = jnp.asarray(rng.normal(size=(16, side, side, inputs)), jnp.float32)
        kernel = jnp.asarray(rng.normal(size=(3, 3, inputs, outputs)), jnp.float32)
        found = cpu_convolution.convolve(x, kernel, stride=stride)
        np.testing.assert_allclose(found, convolve(x, kernel, stride=stride), atol=2e-5)


def convolutions(model, variables, platform: str, batch: int = 16) -> int:
    patches = np.zeros((batch, 32, 32), np.float32)
    lowered = jax.jit(model.apply).trace(variables, patches).lower(lowering_platforms=(platform,))
    return lowered.as_text().count("stablehlo.convolution")


def test_only_folded_models_in_full_precision_on_cpus_change():
    model, variables = make_model("sum")
    folded, weights = kjax.fold(model, variables)
    # Three layers of stride 1 with six products each, two of stride 2; the first is a sum.
    assert convolutions(folded, weights, "cpu") == 3 * 6 + 2
    assert convolutions(folded, weights, "cuda") == 6
    # What takes long to compile is left out of small batches.
    assert convolutions(folded, weights, "cpu", batch=8) == 5
    assert convolutions(folded.clone(dtype=jnp.dtype("bfloat16")), weights, "cpu") == 6
    assert convolutions(model, variables, "cpu") == 6


def test_descriptors_do_not_depend_on_it(rng):
    folded, weights = kjax.fold(*make_model("cat", patch_size=16, **narrow("cat")))
    patches = random_patches(rng, 64, 16)
    apply = jax.jit(folded.apply)
    whole, part = apply(weights, patches), apply(weights, patches[:2])
    np.testing.assert_allclose(whole[:2], part, atol=1e-6, rtol=0)
