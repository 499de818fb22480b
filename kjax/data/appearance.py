"""Appearance: what weather, light, lens, sensor and file format do to grey values.

There are two ways to change patches on the device, each drawn for every patch on its own:

* `distort_pair`: blur, tone curve, saturation, noise and compression, each up to its own maximum.
* `change_views`: the effects of `KINDS`. They also reorder grey values (other channels, tone
  curves, inversion), move light across the patch and hide a part of it.

`change_photo` does both to whole photographs on the host. The effects of `KINDS` are written for
NumPy and JAX alike. Filters and transforms of patches are products with small matrices: under
`vmap` each becomes one batched product over all patches, in full float32. JAX is imported where it
is needed: beside it, OpenCV's SIFT takes twice the time, and sets of patches need no JAX.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int, Key, UInt8

from kjax.data.cutting.photographs import REC_601
from kjax.extras import require

if TYPE_CHECKING:
    from kjax.runs.config import AugmentConfig

# Changed appearance

KINDS = {
    "channels": 1.0,
    "occluder": 0.35,
    "light": 0.7,
    "shadow": 0.35,
    "blur": 0.4,
    "gamma": 1.0,
    "curve": 0.5,
    "inverted": 0.12,
    "folded": 0.08,
    "saturation": 0.5,
    "noise": 1.0,
}
"""Effects, with their probabilities in a patch that changes, in the order of a camera."""
SEGMENTS = 6
"""Linear segments of a tone curve."""
DRAWS = 48
"""Number of uniform numbers that define a change."""
MILD_GAMMA, MILD_NOISE = 0.15, 0.05
"""Effects on patches that do not change otherwise: σ of log γ; of noise, in standard deviations."""
MOST = 2.5
"""Maximum of random numbers, and contrast of the sensor, in standard deviations."""
BLUR_SIDE = 32
"""Side of a patch or photograph whose pixels are the unit of blur."""
FIELD, FIELD_EDGE = (5, 5), 0.1
"""Grid of random values that divide a photograph in two parts, and the width of their border."""


class Change(NamedTuple):
    """Numbers that define one change of appearance."""

    weights: Any  # [3]: shares of red, green and blue
    occluder: Any  # [4]: share of the side that is hidden, direction, distance, 1 for a disc
    light: Any  # [7]: slopes along x, y and xy; amplitude, two frequencies and phase of a wave
    shadow: Any  # [4]: darkness, direction, offset and width of its edge
    blur: Any
    gamma: Any
    curve: Any  # [SEGMENTS]: rises of the tone curve
    folds: Any  # periods of a cosine from black to white, or 0
    inverted: Any
    clipped: Any  # [2]: shares of the range at the dark and the bright end
    noise: Any  # σ in standard deviations


def change_views(
    key: Key[Any, ""], views: Float[Any, "2 widths channels N N"], config: "AugmentConfig"
) -> Float[Any, "2 widths N N"]:
    """Return both views of a pair in grey, each patch after a change of its own."""
    import jax

    *shape, _, size, _ = views.shape
    draws = jax.random.uniform(key, (*shape, DRAWS))
    noise = jax.random.normal(jax.random.fold_in(key, 1), (*shape, size, size))

    def change(channels: Any, draws: Any, noise: Any) -> Any:
        own = draw_change(
            draws,
            strength=config.appearance,
            probability=config.appearance_probability,
            without=config.appearance_without,
        )
        radius = math.ceil(3 * 1.8 * config.appearance * size / BLUR_SIDE)
        seen = see(channels, own)
        return respond(blur(seen, own.blur * size / BLUR_SIDE, radius=radius), own, noise)

    return jax.vmap(jax.vmap(change))(views, draws, noise)


def draw_change(
    draws: Any, *, strength: float, probability: float, without: tuple[str, ...] = ()
) -> Change:
    """Return the change that `DRAWS` uniform numbers from 0 to 1 stand for.

    It has a `probability`; otherwise γ and noise change mildly. `without` names kinds to omit.
    """
    xp = draws.__array_namespace__()
    dtype = draws.dtype
    on = {
        kind: ((draws[0] < probability) & (draws[1 + i] < chance)).astype(dtype)
        * float(kind not in without)
        for i, (kind, chance) in enumerate(KINDS.items())
    }
    even = draws[1 + len(KINDS) :]
    inner = xp.clip(even, 1e-4, 1 - 1e-4)
    # Logistic numbers, with the variance of normal ones; exponential ones, whose shares are even.
    normal = xp.clip(xp.log(inner / (1 - inner)) * (math.sqrt(3) / math.pi), -MOST, MOST)
    amounts = -xp.log(inner)
    signed = (even[6] < KINDS["inverted"]) & ("inverted" not in without)
    signs = xp.where(signed & (even[3:6] < 0.5), -1.0, 1.0).astype(dtype)
    mixed = signs * amounts[:3] / amounts[:3].sum()
    usual = xp.asarray(REC_601, dtype=dtype)
    rises = amounts[20:26] / amounts[20:26].sum() + 0.03
    disc = (even[10] < 0.5).astype(dtype)
    hidden = on["occluder"] * (0.15 + 0.35 * even[7])
    darkness = on["shadow"] * (0.3 + 0.6 * even[18])
    slopes, wave = (
        on["light"] * strength * each for each in (0.5 * normal[11:14], 0.4 * normal[14])
    )
    turn = 2 * math.pi
    return Change(
        weights=usual + on["channels"] * (mixed - usual),
        occluder=xp.stack([hidden, turn * even[8], 0.7 * even[9], disc]),
        light=xp.concat([slopes, wave[None], 8 * even[15:17] - 4, turn * even[17:18]]),
        shadow=xp.stack([darkness, turn * even[19], 1.2 * even[26] - 0.6, 0.02 + 0.15 * even[27]]),
        blur=on["blur"] * strength * (0.3 + 1.5 * even[28]),
        gamma=xp.exp(normal[29] * xp.where(on["gamma"] > 0, 0.6 * strength, MILD_GAMMA)),
        curve=1 / SEGMENTS + on["curve"] * (rises / rises.sum() - 1 / SEGMENTS),
        folds=on["folded"] * (0.6 + 0.9 * even[30]),
        inverted=on["inverted"],
        clipped=on["saturation"] * strength * 0.2 * even[31:33],
        noise=xp.where(on["noise"] > 0, 0.25 * strength * even[33], MILD_NOISE),
    )


def see(channels: Any, change: Change) -> Any:
    """Mix channels `[1 or 3, H, W]` to grey, hide a part and cast light: what the lens sees."""
    xp = channels.__array_namespace__()
    height, width = channels.shape[-2:]
    x, y = (xp.linspace(-1, 1, side, dtype=channels.dtype) for side in (width, height))
    x, y = x[None, :], y[:, None]
    grey = scale_to_range(mix_channels(channels, change.weights))
    share, direction, distance, is_disc = (change.occluder[i] for i in range(4))
    cosine, sine = xp.cos(direction), xp.sin(direction)
    disc = (x - distance * cosine) ** 2 + (y - distance * sine) ** 2 < share
    edge = x * cosine + y * sine > 1 - 2 * share
    hidden = xp.where(is_disc > 0, disc, edge) & (share > 0)
    grey = xp.where(hidden, grey[::-1, ::-1], grey)
    light = change.light
    wave = xp.sin(light[4] * x + light[5] * y + light[6])
    field = light[0] * x + light[1] * y + light[2] * x * y + light[3] * wave
    darkness, direction, offset, softness = (change.shadow[i] for i in range(4))
    depth = (x * xp.cos(direction) + y * xp.sin(direction) - offset) / softness
    return grey * xp.exp(field) * (1 - darkness / (1 + xp.exp(-xp.clip(depth, -30, 30))))


def mix_channels(channels: Any, weights: Any) -> Any:
    """Return the weighted sum of red, green and blue, or the only channel: axis 0."""
    if channels.shape[0] == 1:
        return channels[0]
    return channels[0] * weights[0] + channels[1] * weights[1] + channels[2] * weights[2]


def respond(light: Any, change: Change, noise: Any) -> Any:
    """Return a sensor's grey values, about 0 to 1; `noise` has standard deviation 1."""
    xp = light.__array_namespace__()
    x = xp.clip(scale_to_range(light), 1e-4, 1) ** change.gamma
    x = sum(change.curve[i] * xp.clip(SEGMENTS * x - i, 0, 1) for i in range(SEGMENTS))
    folded = 0.5 - 0.5 * xp.cos(2 * math.pi * change.folds * x)
    x = xp.where(change.folds > 0, folded, x)
    x = x + change.inverted * (1 - 2 * x)
    x = xp.clip(x, change.clipped[0], 1 - change.clipped[1])
    return x + change.noise * x.std() * noise


def scale_to_range(x: Any) -> Any:
    """Scale `grey_range` to 0–1; clip the rest."""
    low, width = grey_range(x)
    return ((x - low) / width).clip(0, 1)


def grey_range(x: Any) -> tuple[Any, Any]:
    """Return the lowest value and the range: of all, at most `MOST` σ from the mean."""
    xp, mean, reach = x.__array_namespace__(), x.mean(), MOST * x.std()
    low, high = xp.maximum(x.min(), mean - reach), xp.minimum(x.max(), mean + reach)
    return low, high - low + 1e-6


def change_photo(
    rng: np.random.Generator, pixels: UInt8[np.ndarray, "h w *rgb"], config: Any
) -> UInt8[np.ndarray, "h w"]:
    """Apply random blur, gamma, contrast, brightness and noise, and before that `KINDS`.

    `config` has the limits: see `kjax.data.selfsupervised.ViewConfig`. Colour needs `KINDS`.
    """
    cv2 = require("cv2", "cutting patches")
    if config.appearance:
        channels = np.moveaxis(np.atleast_3d(pixels), -1, 0).astype(np.float32)
        one, other = (_changed(rng, channels, config.appearance) for _ in range(2))
        # Light and sensors change one part of a scene otherwise than another.
        field = cv2.resize(
            rng.random(FIELD, np.float32), one.shape[::-1], interpolation=cv2.INTER_CUBIC
        )
        share = np.clip((field - 0.5) / FIELD_EDGE + 0.5, 0, 1) * (rng.random() < 0.5)
        pixels = (255 * np.clip(one + share * (other - one), 0, 1)).astype(np.uint8)
    sigma = rng.uniform(0, config.max_blur)
    if sigma > MIN_BLUR:
        pixels = cv2.GaussianBlur(pixels, (0, 0), sigma)
    ranges = [config.max_gamma, config.max_contrast]
    gamma, contrast = np.exp(rng.uniform(-1, 1, 2) * np.log(ranges))
    brightness = rng.uniform(-1, 1) * config.max_brightness
    levels = 255 * (np.arange(256) / 255) ** gamma
    curve = contrast * (levels - 127.5) + 127.5 + brightness
    grain = rng.normal(0, rng.uniform(0, config.max_noise), pixels.shape)
    return np.clip(np.rint(curve[pixels] + grain), 0, 255).astype(np.uint8)


def _changed(
    rng: np.random.Generator, channels: Float[np.ndarray, "c h w"], strength: float
) -> Float[np.ndarray, "h w"]:
    """Return the grey values of a photograph after one change, about 0 to 1."""
    draws = rng.random(DRAWS, np.float32)
    draws[[1 + list(KINDS).index(kind) for kind in ("inverted", "folded")]] /= 2  # twice as often
    change = draw_change(draws, strength=strength, probability=0.75)
    seen = see(channels, change)
    if change.blur > 0:
        seen = require("cv2", "blur").GaussianBlur(seen, (0, 0), float(change.blur))
    return respond(seen, change, rng.standard_normal(seen.shape, np.float32))


# Distortions of patches

MIN_BLUR = 0.1
"""Minimum σ of a blur: OpenCV takes 0 for "automatic", and less than this has no effect."""
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


class Strengths(NamedTuple):
    """Strengths of the effects on one patch."""

    blur: Float[Any, "..."]
    """σ in pixels."""
    gamma: Float[Any, "..."]
    dark: Float[Any, "..."]
    """Share of the range that is clipped at the dark end."""
    bright: Float[Any, "..."]
    noise: Float[Any, "..."]
    """σ in standard deviations of the patch."""
    step: Float[Any, "..."]
    """Quantisation step, in standard deviations of the patch."""
    phase: Int[Any, "... 2"]
    """Row and column of the patch's first pixel within its block."""


_EFFECTS = 5
_NUMBERS = _EFFECTS + len(Strengths._fields) + 1  # one decides on each effect; phase has two


def distort_pair(
    key: Key[Any, ""], pair: Float[Any, "2 size size"], config: "AugmentConfig"
) -> Float[Any, "2 size size"]:
    """Apply independent effects to the two patches of a pair.

    Effects that are off cost nothing and do not change what is drawn for the others.
    """
    import jax

    numbers_key, noise_key = jax.random.split(key)
    strengths = random_strengths(numbers_key, config)
    noise = jax.random.normal(noise_key, pair.shape) if config.max_noise else None

    def distort(patch: Any, own: Strengths, noise: Any | None) -> Any:
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


def random_strengths(key: Key[Any, ""], config: "AugmentConfig") -> Strengths:
    """Draw the strengths that `distort_pair` applies to the two patches of a pair."""
    import jax

    # One draw for all numbers: on a GPU, launches cost more than bits.
    draws = jax.random.uniform(key, (_NUMBERS, 2))
    xp = draws.__array_namespace__()
    happens = draws[:_EFFECTS] < config.photometric_probability
    draws = draws[_EFFECTS:]
    blurred, curved, saturated, noisy, compressed = happens.astype(draws.dtype)
    return Strengths(
        blur=blurred * draws[0] * config.max_blur,
        gamma=xp.exp(curved * (2 * draws[1] - 1) * math.log(config.max_gamma)),
        dark=saturated * draws[2] * config.saturation,
        bright=saturated * draws[3] * config.saturation,
        noise=noisy * draws[4] * config.max_noise,
        step=compressed * draws[5] * config.compression,
        phase=xp.floor(draws[6:8].T * BLOCK).astype(np.int32),
    )


def blur(
    patch: Float[Any, "size size"], sigma: Float[Any, ""], *, radius: int
) -> Float[Any, "size size"]:
    """Blur with a Gaussian of 2·radius + 1 taps; the border is repeated."""
    xp = patch.__array_namespace__()
    size = patch.shape[0]
    offset = np.arange(size + 2 * radius)[None, :] - np.arange(size)[:, None] - radius
    # The floor avoids 0/0; far below a pixel, all weight is on the centre.
    exponent = offset.astype(np.float32) / xp.maximum(sigma, 1e-3)
    weights = xp.where(np.abs(offset) <= radius, xp.exp(-0.5 * exponent**2), 0.0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return _both_sides(weights, xp.pad(patch, radius, mode="edge"))


def tone_curve(patch: Float[Any, "size size"], gamma: Float[Any, ""]) -> Float[Any, "size size"]:
    """Raise grey values to a power, between the darkest and the brightest, which stay."""
    xp = patch.__array_namespace__()
    low, extent = patch.min(), patch.max() - patch.min()
    share = (patch - low) / xp.where(extent > 0, extent, 1.0)
    return xp.where(gamma == 1, patch, low + extent * share**gamma)


def saturate(
    patch: Float[Any, "size size"], dark: Float[Any, ""], bright: Float[Any, ""]
) -> Float[Any, "size size"]:
    """Clip shares of the range of grey values at both ends."""
    xp = patch.__array_namespace__()
    low, high = patch.min(), patch.max()
    return xp.clip(patch, low + dark * (high - low), high - bright * (high - low))


def compress(
    patch: Float[Any, "size size"], step: Float[Any, ""], phase: Int[Any, "2"]
) -> Float[Any, "size size"]:
    """Round the cosine transform of 8×8 blocks to multiples of JPEG's steps.

    Args:
        patch: its border is repeated to whole blocks.
        step: quantisation step of a block's first coefficient, eight times its mean; 0 for none.
        phase: see `Strengths`.
    """
    import jax
    import jax.numpy as jnp

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
    matrix: Float[Any, "rows columns"], patch: Float[Any, "columns columns"]
) -> Float[Any, "rows rows"]:
    """Apply a matrix to a patch's columns and to its rows."""
    import jax.numpy as jnp

    half = jnp.matmul(matrix, patch, precision="highest")
    return jnp.matmul(half, matrix.T, precision="highest")
