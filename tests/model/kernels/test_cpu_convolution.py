import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, random_patches

import kjax
from kjax.model.kernels import convolution, cpu_convolution


@pytest.mark.parametrize(
    ("side", "inputs", "outputs", "stride"),
    [
        *[(8, 1, 5, 1), (8, 3, 32, 1), (4, 2, 33, 1), (6, 3, 32, 1), (8, 3, 32, 2)],
        # Two or four columns together; one, as six have no four; all eight; and with stride 2.
        *[(8, 3, 16, 1), (8, 3, 8, 1), (6, 3, 17, 1), (8, 3, 2, 1), (8, 3, 8, 2), (12, 3, 12, 2)],
    ],
)
def test_it_is_the_same_convolution(rng, side, inputs, outputs, stride):
    x = jnp.asarray(rng.normal(size=(16, side, side, inputs)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(3, 3, inputs, outputs)), jnp.float32)
    np.testing.assert_allclose(
        cpu_convolution.convolve(x, kernel, stride=stride),
        convolution.convolve(x, kernel, stride=stride),
        atol=2e-5,
    )


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
    folded, weights = kjax.fold(*make_model("cat", patch_size=16))
    patches = random_patches(rng, 64, 16)
    apply = jax.jit(folded.apply)
    np.testing.assert_allclose(
        apply(weights, patches)[:2], apply(weights, patches[:2]), atol=1e-6, rtol=0
    )
