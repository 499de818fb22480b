"""Photometric augmentation: effects of light, lens, sensor and file format on grey values.

There are five effects, in the order of a camera's pipeline: blur, tone curve, saturation, noise,
compression. Each is a function of one patch and a strength, does not depend on the scale of grey
values, and leaves the patch unchanged at strength zero (a tone curve: one). `distort_pair` draws
the strengths. Filters and transforms are products with small matrices: under `vmap` each becomes
one batched product over all patches, in full float32.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, Key

from kjax.runs.config import AugmentConfig

BLOCK = 8
LUMINANCE_TABLE = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
"""Example quantisation table of JPEG (ITU-T T.81, table K.1): quality 50 of most encoders."""
_EXACT = jax.lax.Precision.HIGHEST
"""Precision of matrix products: by default, GPUs round grey values to ten bits."""


class Strengths(NamedTuple):
    """Strengths of the effects on one patch."""

    blur: Float[Array, "..."]
    """σ in pixels."""
    gamma: Float[Array, "..."]
    dark: Float[Array, "..."]
    """Share of the range that is clipped at the dark end."""
    bright: Float[Array, "..."]
    noise: Float[Array, "..."]
    """σ in standard deviations of the patch."""
    step: Float[Array, "..."]
    """Quantisation step, in standard deviations of the patch."""
    phase: Int[Array, "... 2"]
    """Row and column of the patch's first pixel within its block."""


_EFFECTS = 5
_NUMBERS = _EFFECTS + len(Strengths._fields) + 1  # one decides on each effect; phase has two


def distort_pair(
    key: Key[Array, ""], pair: Float[Array, "2 size size"], config: AugmentConfig
) -> Float[Array, "2 size size"]:
    """Apply independent effects to the two patches of a pair.

    Effects that are off cost nothing and do not change what is drawn for the others.
    """
    numbers_key, noise_key = jax.random.split(key)
    strengths = random_strengths(numbers_key, config)
    noise = jax.random.normal(noise_key, pair.shape) if config.max_noise else None

    def distort(patch: Array, own: Strengths, noise: Array | None) -> Array:
        if config.max_blur:
            patch = blur(patch, own.blur, radius=math.ceil(3 * config.max_blur))
        if config.max_gamma > 1:
            patch = tone_curve(patch, own.gamma)
        if config.saturation:
            patch = saturate(patch, own.dark, own.bright)
        deviation = patch.std()
        if noise is not None:
            patch = patch + own.noise * deviation * noise
        if config.compression:
            patch = compress(patch, own.step * deviation, own.phase)
        return patch

    return jax.vmap(distort)(pair, strengths, noise)


def random_strengths(key: Key[Array, ""], config: AugmentConfig) -> Strengths:
    """Draw the strengths that `distort_pair` applies to the two patches of a pair."""
    # One draw for all numbers: on a GPU, launches cost more than bits.
    draws = jax.random.uniform(key, (_NUMBERS, 2))
    happens = draws[:_EFFECTS] < config.photometric_probability
    draws = draws[_EFFECTS:]
    blurred, curved, saturated, noisy, compressed = happens.astype(jnp.float32)
    return Strengths(
        blur=blurred * draws[0] * config.max_blur,
        gamma=jnp.exp(curved * (2 * draws[1] - 1) * math.log(config.max_gamma)),
        dark=saturated * draws[2] * config.saturation,
        bright=saturated * draws[3] * config.saturation,
        noise=noisy * draws[4] * config.max_noise,
        step=compressed * draws[5] * config.compression,
        phase=jnp.floor(draws[6:8].T * BLOCK).astype(jnp.int32),
    )


def blur(
    patch: Float[Array, "size size"], sigma: Float[Array, ""], *, radius: int
) -> Float[Array, "size size"]:
    """Blur with a Gaussian of 2·radius + 1 taps; the border is repeated."""
    size = patch.shape[0]
    offset = np.arange(size + 2 * radius)[None, :] - np.arange(size)[:, None] - radius
    # The floor avoids 0/0; far below a pixel, all weight is on the centre.
    exponent = offset.astype(np.float32) / jnp.maximum(sigma, 1e-3)
    weights = jnp.where(np.abs(offset) <= radius, jnp.exp(-0.5 * exponent**2), 0.0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return _both_sides(weights, jnp.pad(patch, radius, mode="edge"))


def tone_curve(
    patch: Float[Array, "size size"], gamma: Float[Array, ""]
) -> Float[Array, "size size"]:
    """Raise grey values to a power, between the darkest and the brightest, which stay."""
    low, extent = patch.min(), jnp.ptp(patch)
    share = (patch - low) / jnp.where(extent > 0, extent, 1.0)
    return jnp.where(gamma == 1, patch, low + extent * share**gamma)


def saturate(
    patch: Float[Array, "size size"], dark: Float[Array, ""], bright: Float[Array, ""]
) -> Float[Array, "size size"]:
    """Clip shares of the range of grey values at both ends."""
    low, high = patch.min(), patch.max()
    return jnp.clip(patch, low + dark * (high - low), high - bright * (high - low))


def compress(
    patch: Float[Array, "size size"], step: Float[Array, ""], phase: Int[Array, "2"]
) -> Float[Array, "size size"]:
    """Round the cosine transform of 8×8 blocks to multiples of JPEG's steps.

    Args:
        patch: its border is repeated to whole blocks.
        step: quantisation step of a block's first coefficient, eight times its mean; 0 for none.
        phase: see `Strengths`.
    """
    size = patch.shape[0]
    side = BLOCK * math.ceil((size + BLOCK - 1) / BLOCK)
    padded = jnp.pad(patch, (BLOCK - 1, side - size), mode="edge")
    blocks = jax.lax.dynamic_slice(padded, BLOCK - 1 - phase, (side, side))
    transform = np.kron(np.eye(side // BLOCK), cosine_basis()).astype(np.float32)
    table = np.tile(LUMINANCE_TABLE / LUMINANCE_TABLE[0, 0], (side // BLOCK, side // BLOCK))
    steps = jnp.where(step > 0, step, 1.0) * table.astype(np.float32)
    rounded = jnp.round(_both_sides(transform, blocks) / steps) * steps
    restored = jax.lax.dynamic_slice(_both_sides(transform.T, rounded), phase, (size, size))
    return jnp.where(step > 0, restored, patch)


def cosine_basis() -> Float64[np.ndarray, "8 8"]:
    """Return the orthonormal DCT-II of a block's side, one frequency per row."""
    frequency, index = np.arange(BLOCK)[:, None], np.arange(BLOCK)[None, :]
    waves = np.cos(math.pi * (2 * index + 1) * frequency / (2 * BLOCK))
    return waves * np.where(frequency == 0, math.sqrt(1 / BLOCK), math.sqrt(2 / BLOCK))


def _both_sides(
    matrix: Float[Array | np.ndarray, "rows columns"], patch: Float[Array, "columns columns"]
) -> Float[Array, "rows rows"]:
    """Apply a matrix to a patch's columns and to its rows."""
    half = jnp.matmul(matrix, patch, precision=_EXACT)
    return jnp.matmul(half, matrix.T, precision=_EXACT)
