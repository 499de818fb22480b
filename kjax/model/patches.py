"""Patches as the network takes them: checked, floating, each normalised by its own statistics."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from kjax.errors import InputError
from kjax.model.precision import at_least_float32


def as_images(patches: ArrayLike) -> Float[Array, "batch n n 1"]:
    """Accepts uint8 or floating patches `[B,N,N]` or `[B,N,N,1]`; refuses anything else by name."""
    if not isinstance(patches, jax.Array | np.ndarray):
        patches = np.asarray(patches)
    if patches.dtype != np.uint8 and not jnp.issubdtype(patches.dtype, jnp.floating):
        raise InputError(
            f"patches must be uint8 or floating point, not {patches.dtype}: "
            "convert them, e.g. with patches.astype('float32')"
        )
    shape = patches.shape
    if len(shape) == 3:
        shape = (*shape, 1)
    if len(shape) != 4 or shape[1] != shape[2] or shape[3] != 1:
        raise InputError(
            f"patches must be grey squares of shape [B,N,N] or [B,N,N,1], not {list(patches.shape)}"
        )
    images = jnp.asarray(patches).reshape(shape)
    return images.astype(at_least_float32(images.dtype))


def normalize_patches(
    images: Float[Array, "batch n n 1"], *, epsilon: float = 1e-7
) -> Float[Array, "batch n n 1"]:
    """(x − mean) / (std + ε) per patch, with the unbiased std and no gradient through either.

    One pixel is subtracted first: it changes nothing but the rounding, and makes a constant patch
    exactly zero whatever its grey value and range.
    """
    shifted = images - jax.lax.stop_gradient(images[:, :1, :1, :])
    mean = shifted.mean(axis=(1, 2, 3), keepdims=True)
    std = shifted.std(axis=(1, 2, 3), keepdims=True, ddof=1)
    return (shifted - jax.lax.stop_gradient(mean)) / (jax.lax.stop_gradient(std) + epsilon)
