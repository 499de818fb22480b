"""Photometric augmentation: what light, lens, sensor and file do to the grey values of a patch.

Five effects in the order in which a photograph suffers them: blur, tone curve, saturation, noise,
compression. Each is a function of one patch and its strength, free of the grey values' scale, and
returns the patch bit for bit where the strength is zero (a tone curve's: one). `distort_pair` draws
the strengths. Filters and transforms are products with small matrices: under `vmap` each becomes
one batched product over all patches, in full float32.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, Key

from kjax.errors import InputError

LARGEST_BLUR = 4.0
"""The largest σ in pixels: of a patch of 32×32, no more than blobs are left."""
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
"""JPEG's example of quantisation steps (ITU-T T.81, table K.1): quality 50 of most encoders."""
_LIMITS = {
    "max_blur": (0.0, LARGEST_BLUR),
    "max_gamma": (1.0, 10.0),
    "saturation": (0.0, 0.45),
    "max_noise": (0.0, 1.0),
    "compression": (0.0, 10.0),
    "photometric_probability": (0.0, 1.0),
}
_EXACT = jax.lax.Precision.HIGHEST
"""The precision of matrix products: GPUs would else round the grey values to ten bits."""


@dataclasses.dataclass(frozen=True)
class PhotometryConfig:
    """How grey values vary in training; all off by default, as in the paper.

    Attributes:
        max_blur: σ of a Gaussian blur, uniform in 0…this, in pixels of the result.
        max_gamma: exponent of a tone curve between the patch's own darkest and brightest value,
            log-uniform in 1/this…this.
        saturation: share of the patch's range of grey values that is cut off, uniform in 0…this,
            drawn apart for the dark and for the bright end.
        max_noise: σ of white noise, uniform in 0…this, in standard deviations of the patch.
        compression: quantisation as JPEG's, in 8×8 blocks that begin anywhere: the step of a
            block's mean coefficient, uniform in 0…this, in standard deviations of the patch. The
            other coefficients' steps follow JPEG's table.
        photometric_probability: of each effect, for each patch; otherwise that effect is left out.
    """

    max_blur: float = 0.0
    max_gamma: float = 1.0
    saturation: float = 0.0
    max_noise: float = 0.0
    compression: float = 0.0
    photometric_probability: float = 1.0

    def __post_init__(self) -> None:
        """Refuses strengths that would leave nothing of a patch."""
        for name, (lowest, highest) in _LIMITS.items():
            if not lowest <= getattr(self, name) <= highest:
                raise InputError(
                    f"{name} must lie in {lowest:g}…{highest:g}, not {getattr(self, name)}"
                )

    @property
    def changes_grey_values(self) -> bool:
        """Whether any effect is on."""
        strengths = (self.max_blur, self.max_gamma - 1, self.saturation, self.max_noise)
        return self.photometric_probability > 0 and any((*strengths, self.compression))


class Strengths(NamedTuple):
    """What happens to one patch."""

    blur: Float[Array, "..."]
    """σ in pixels."""
    gamma: Float[Array, "..."]
    dark: Float[Array, "..."]
    """Share of the range that is cut off at the dark end."""
    bright: Float[Array, "..."]
    noise: Float[Array, "..."]
    """σ in standard deviations of the patch."""
    step: Float[Array, "..."]
    """Step of the quantisation, in standard deviations of the patch."""
    phase: Int[Array, "... 2"]
    """Row and column, in the block that it belongs to, of the patch's first pixel."""


_EFFECTS = 5
_NUMBERS = _EFFECTS + len(Strengths._fields) + 1  # one to decide on each effect; phase has two


def distort_pair(
    key: Key[Array, ""], pair: Float[Array, "2 size size"], config: PhotometryConfig
) -> Float[Array, "2 size size"]:
    """Applies to each patch of a pair effects of its own.

    Args:
        key: the pair's own.
        pair: any scale of grey values, which stays.
        config: the ranges of everything random. What is off costs nothing and leaves the other
            effects' draws as they are.
    """
    numbers_key, noise_key = jax.random.split(key)
    strengths = random_strengths(numbers_key, config)
    noise = jax.random.normal(noise_key, pair.shape) if config.max_noise else None
    return jax.vmap(functools.partial(_distort, config))(pair, strengths, noise)


def random_strengths(key: Key[Array, ""], config: PhotometryConfig) -> Strengths:
    """The strengths that `distort_pair` applies to the two patches of a pair."""
    # One draw for all numbers: on a GPU the launches would cost more than the bits.
    draws = jax.random.uniform(key, (_NUMBERS, 2))
    happens = draws[:_EFFECTS] < config.photometric_probability
    return _scaled(happens, draws[_EFFECTS:], config)


def _scaled(
    happens: Bool[Array, "effects 2"], draws: Float[Array, "numbers 2"], config: PhotometryConfig
) -> Strengths:
    """Scales numbers uniform in 0…1 to strengths."""
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


def _distort(
    config: PhotometryConfig,
    patch: Float[Array, "size size"],
    own: Strengths,
    noise: Float[Array, "size size"] | None,
) -> Float[Array, "size size"]:
    """The effects that are on."""
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


def blur(
    patch: Float[Array, "size size"], sigma: Float[Array, ""], *, radius: int
) -> Float[Array, "size size"]:
    """Blurs by a Gaussian of 2·radius + 1 taps; beyond its border the patch repeats it."""
    size = patch.shape[0]
    offset = np.arange(size + 2 * radius)[None, :] - np.arange(size)[:, None] - radius
    # The floor keeps 0/0 out; far below a pixel, all weight is on the centre anyway.
    exponent = offset.astype(np.float32) / jnp.maximum(sigma, 1e-3)
    weights = jnp.where(np.abs(offset) <= radius, jnp.exp(-0.5 * exponent**2), 0.0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return _both_sides(weights, jnp.pad(patch, radius, mode="edge"))


def tone_curve(
    patch: Float[Array, "size size"], gamma: Float[Array, ""]
) -> Float[Array, "size size"]:
    """Raises grey values to a power, between the darkest and the brightest, which stay."""
    low, extent = patch.min(), jnp.ptp(patch)
    share = (patch - low) / jnp.where(extent > 0, extent, 1.0)
    return jnp.where(gamma == 1, patch, low + extent * share**gamma)


def saturate(
    patch: Float[Array, "size size"], dark: Float[Array, ""], bright: Float[Array, ""]
) -> Float[Array, "size size"]:
    """Cuts shares of the range of grey values off its two ends."""
    low, high = patch.min(), patch.max()
    return jnp.clip(patch, low + dark * (high - low), high - bright * (high - low))


def compress(
    patch: Float[Array, "size size"], step: Float[Array, ""], phase: Int[Array, "2"]
) -> Float[Array, "size size"]:
    """Rounds the cosine transform of 8×8 blocks to multiples of JPEG's steps.

    Args:
        patch: beyond its border it is repeated to whole blocks.
        step: of a block's first coefficient, which is eight times its mean; 0 rounds nothing.
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
    """The orthonormal cosine transform of a block's side (DCT-II), one frequency a row."""
    frequency, place = np.arange(BLOCK)[:, None], np.arange(BLOCK)[None, :]
    waves = np.cos(math.pi * (2 * place + 1) * frequency / (2 * BLOCK))
    return waves * np.where(frequency == 0, math.sqrt(1 / BLOCK), math.sqrt(2 / BLOCK))


def _both_sides(
    matrix: Float[Array | np.ndarray, "rows columns"], patch: Float[Array, "columns columns"]
) -> Float[Array, "rows rows"]:
    """Applies a matrix to a patch's columns and to its rows."""
    half = jnp.matmul(matrix, patch, precision=_EXACT)
    return jnp.matmul(half, matrix.T, precision=_EXACT)
