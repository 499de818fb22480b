import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kjax.model.initialization import orthogonal


@pytest.mark.parametrize("shape", [(3, 3, 1, 32), (3, 3, 32, 64), (40, 8), (8, 40), (16, 16)])
def test_values_are_those_of_the_general_method(shape):
    key = jax.random.key(3)
    ours = orthogonal(key, shape, scale=0.6)
    general = jax.nn.initializers.orthogonal(scale=0.6)(key, shape, jnp.float32)
    np.testing.assert_allclose(ours, general, atol=2e-5)


@pytest.mark.parametrize("shape", [(8, 8, 128, 128), (3, 3, 1, 32)])
def test_the_shorter_side_is_orthonormal(shape):
    matrix = np.asarray(orthogonal(jax.random.key(0), shape)).reshape(-1, shape[-1])
    short = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(short.T @ short, np.eye(short.shape[1]), atol=2e-6)
