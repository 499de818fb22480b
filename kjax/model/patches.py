"""Patches: checking, normalising, and bilinear resampling for resizing and augmentation.

Pixel centres are integers. A patch of side N covers [−½, N−½]; pixels beyond it repeat its border.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Num

from kjax.errors import InputError
from kjax.extras import is_jax_array, jax, jnp


def as_images(patches: Any) -> Float[Any, "batch n n 1"]:
    """Convert uint8 or floating patches `[B,N,N]` or `[B,N,N,1]` to JAX's floating images."""
    from kjax.model.kernels.convolution import at_least_float32  # brings JAX

    if not is_jax_array(patches):
        patches = np.asarray(patches)
    if patches.dtype != np.uint8 and "float" not in patches.dtype.name:
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
    images: Float[Any, "batch n n 1"], *, epsilon: float = 1e-7
) -> Float[Any, "batch n n 1"]:
    """Compute (x − mean) / (std + ε) per patch, with the unbiased std and no gradient through it.

    One pixel is subtracted first. That changes only the rounding, and makes a constant patch
    exactly zero.
    """
    shifted = images - jax.lax.stop_gradient(images[:, :1, :1, :])
    mean = shifted.mean(axis=(1, 2, 3), keepdims=True)
    std = shifted.std(axis=(1, 2, 3), keepdims=True, ddof=1)
    return (shifted - jax.lax.stop_gradient(mean)) / (jax.lax.stop_gradient(std) + epsilon)


def warp_patch(
    patch: Num[Any, "height width"], matrix: Float[Any, "2 3"], *, size: int
) -> Float[Any, "{size} {size}"]:
    """Warp a patch: output pixel (u, v) reads it at `matrix @ (u, v, 1)` = (x, y), bilinearly.

    Same as OpenCV's `warpAffine` with `WARP_INVERSE_MAP`, `INTER_LINEAR` and `BORDER_REPLICATE` on
    floating-point pixels.
    """
    height, width = patch.shape
    grid = jnp.arange(size, dtype=jnp.float32)
    column, row = grid[None, :], grid[:, None]
    x = jnp.clip(matrix[0, 0] * column + matrix[0, 1] * row + matrix[0, 2], 0, width - 1)
    y = jnp.clip(matrix[1, 0] * column + matrix[1, 1] * row + matrix[1, 2], 0, height - 1)
    # The last cell is closed on the right, so that all four neighbours exist on the border too.
    left = jnp.minimum(jnp.floor(x), max(width - 2, 0)).astype(jnp.int32)
    top = jnp.minimum(jnp.floor(y), max(height - 2, 0)).astype(jnp.int32)
    right, bottom = jnp.minimum(left + 1, width - 1), jnp.minimum(top + 1, height - 1)
    along_x, along_y = x - left, y - top

    def read(rows: Any, columns: Any) -> Any:
        flat = patch.reshape(-1).at[rows * width + columns]
        values = flat.get(mode="promise_in_bounds", wrap_negative_indices=False)
        return values.astype(jnp.float32)

    upper = read(top, left) * (1 - along_x) + read(top, right) * along_x
    lower = read(bottom, left) * (1 - along_x) + read(bottom, right) * along_x
    return upper * (1 - along_y) + lower * along_y


def resize_patches(
    patches: Num[Any, "*batch height width"],
    size: int,
    *,
    rounded: bool = False,
) -> Float[Any, "*batch {size} {size}"]:
    """Resize bilinearly with half-pixel centres and no anti-aliasing, as HardNet's `cv2.resize`.

    Args:
        patches: uint8 or floating patches.
        size: side of the result.
        rounded: round to integers, halves up, as OpenCV does when it halves uint8 patches: from 64
            to 32 that is HardNet's test input, bit for bit.
    """
    xp, resized = patches.__array_namespace__(), patches
    for axis in (-1, -2):
        side, step = patches.shape[axis], np.float32(patches.shape[axis] / size)
        shift = np.float32((side - 1) / 2) - step * np.float32((size - 1) / 2)
        position = np.clip(step * np.arange(size, dtype=np.float32) + shift, 0, side - 1)
        before = np.minimum(np.floor(position), np.float32(max(side - 2, 0)))
        shape = [size if one == axis else 1 for one in range(-patches.ndim, 0)]
        share = (position - before).reshape(shape)
        ends: Any = before.astype(np.int32), np.minimum(before + 1, side - 1).astype(np.int32)
        if side == 2 * size:  # the same, with quicker reads
            ends = slice(0, None, 2), slice(1, None, 2)
        rest = (slice(None),) * (-1 - axis)
        lower, upper = (resized[(..., at, *rest)].astype(np.float32) for at in ends)
        resized = lower * (1 - share) + upper * share
    return xp.floor(resized + 0.5) if rounded else resized


def to_pixels(matrix: Float[Any, "2 3"], shape: tuple[int, int], size: int) -> Float[Any, "2 3"]:
    """Convert an affine map of centred coordinates, in units of the side, to pixel coordinates."""
    sides = np.array([shape[1], shape[0]], np.float32)
    linear = matrix[:, :2] * (sides / size)[:, None]
    centre = np.float32((size - 1) / 2)
    shift = sides * matrix[:, 2] + (sides - 1) / 2 - (linear[:, 0] + linear[:, 1]) * centre
    return matrix.__array_namespace__().concatenate([linear, shift[:, None]], axis=1)
