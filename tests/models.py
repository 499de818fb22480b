"""Models with weights for the tests, without paying for a compiled initialisation each."""

import functools

import jax
import numpy as np

import kjax
from kjax.model.descriptor import Descriptor

ENCODED = ("xy", "polar", "combined", "combined_star")
CHANNELS = (4, 4, 8, 8, 16, 16)
UNUSUAL = {"kappa_xy": 2.0, "scale_rho": 2.0, "corner_radius": 1.5, "head_bias": False}


def narrow(head: str) -> dict:
    """Options of a small model, for claims that do not depend on the width."""
    return {"channels": CHANNELS} | ({} if head in ("sum", "cat") else {"dimension": 16})


@functools.cache
def make_model(head: str, *, s=1, patch_size=32, **options) -> tuple[Descriptor, dict]:
    """A model with random weights, and running statistics as training might leave them."""
    model = kjax.build(head, s=s, patch_size=patch_size, **options)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, *model.patch_shape)))
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        name = path[-1].key
        if name == "kernel":
            fan_in = leaf.size / leaf.shape[-1]
            return rng.normal(0, fan_in**-0.5, leaf.shape).astype(np.float32)
        if name == "var":
            return rng.uniform(0.3, 1.5, leaf.shape).astype(np.float32)
        return rng.normal(0, 0.1, leaf.shape).astype(np.float32)

    variables = jax.tree_util.tree_map_with_path(fill, shapes)
    return model, jax.tree.map(jax.numpy.asarray, variables)


def without_means(variables: dict) -> dict:
    """Running means of zero: without biases, a patch without structure has no descriptor."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: 0 * leaf if path[-1].key == "mean" else leaf, variables
    )


def random_patches(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """uint8 patches with some structure: noise magnified fourfold, plus fine noise."""
    coarse = rng.integers(0, 200, (count, size // 4, size // 4))
    fine = rng.integers(0, 56, (count, size, size))
    return (np.kron(coarse, np.ones((1, 4, 4), int)) + fine).astype(np.uint8)
