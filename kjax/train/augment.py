"""On-device augmentation of anchor–positive pairs.

Everything that moves a patch's pixels is one affine map from output to input pixels, so each output
pixel reads its four neighbours in the stored patch once: flips and transposes move no memory, and
the 64×64 original is never copied to floating point. Pixel centres are integers; a patch of side N
covers [−½, N−½], and pixels beyond it repeat its border. What changes grey values, if anything
does, comes after it: `kjax.train.photometry`.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Num

from kjax.data.hpatches import NOISE, Noise
from kjax.errors import InputError
from kjax.model.resampling import to_pixels, warp_patch
from kjax.train.photometry import PhotometryConfig, distort_pair

# A crop narrower than this would magnify a few pixels to a patch: surely a mistake.
SMALLEST_AREA = 0.01
# Of HPatches' noise: beyond it, views of a point have little in common.
LARGEST_MISALIGNMENT = 3.0
# What a pair's key is folded with for its grey values, and for what is askew; the crops take the
# key as it is.
_PHOTOMETRY = 100
_MISALIGNMENT = 200


def _check_range(name: str, limits: Sequence[float], lowest: float, highest: float) -> None:
    if len(limits) != 2 or not lowest <= limits[0] <= limits[1] <= highest:
        raise InputError(
            f"{name} must be (low, high) with {lowest} ≤ low ≤ high ≤ {highest}, not {limits}"
        )


@dataclasses.dataclass(frozen=True)
class AugmentConfig(PhotometryConfig):
    """How patches vary in training. The defaults are the HardNet release's and the paper's.

    Besides what follows, the fields of `PhotometryConfig`, which are about grey values.

    Attributes:
        flip_probability: of mirroring both patches of a pair left to right.
        transpose_probability: of swapping rows and columns of both patches of a pair.
        max_rotation_degrees: each patch turns about its centre by an angle uniform in ±this.
        area: range of the crop's share of the patch's area, drawn uniformly for each patch.
        aspect_ratio: range of the crop's width over its height, drawn log-uniformly. A side that
            area and ratio would make longer than the patch is cut to the patch's.
        max_translation: the crop's centre moves from the patch's by up to this share of the crop's
            half side, along each side, and never so far that the crop leaves the patch.
        misalignment: how far the second patch of a pair is cut askew of the first, as a multiple
            of HPatches' noise, one of its three levels at a time. If it is not 0, both have the
            turn and the crop of the first, and this is all that tells them apart.
    """

    flip_probability: float = 0.5
    transpose_probability: float = 0.5
    max_rotation_degrees: float = 5.0
    area: tuple[float, float] = (0.9, 1.0)
    aspect_ratio: tuple[float, float] = (0.9, 1.1)
    max_translation: float = math.inf
    misalignment: float = 0.0

    def __post_init__(self) -> None:
        """Refuses ranges that no patch could follow."""
        super().__post_init__()
        for name in ("flip_probability", "transpose_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must lie in 0…1, not {getattr(self, name)}")
        if not 0 <= self.max_rotation_degrees <= 180:
            raise InputError(
                f"max_rotation_degrees must lie in 0…180, not {self.max_rotation_degrees}"
            )
        _check_range("area", self.area, SMALLEST_AREA, 1.0)
        _check_range("aspect_ratio", self.aspect_ratio, 0.1, 10.0)
        if not self.max_translation >= 0:
            raise InputError(f"max_translation must not be negative: {self.max_translation}")
        if not 0 <= self.misalignment <= LARGEST_MISALIGNMENT:
            raise InputError(
                f"misalignment must lie in 0…{LARGEST_MISALIGNMENT:g}, not {self.misalignment}"
            )


def augment_pairs(
    key: Key[Array, ""],
    pairs: Num[Array, "pairs 2 height width"],
    *,
    size: int,
    config: AugmentConfig,
) -> Float[Array, "pairs 2 {size} {size}"]:
    """Flips and transposes each pair as one; turns, crops, resizes and distorts its patches apart.

    Args:
        key: split into one key per pair, so that a pair's fate does not depend on its neighbours.
        pairs: uint8 or floating patches, any scale of grey values.
        size: side of the result.
        config: the ranges of everything random.

    Returns:
        float32 patches with the grey values' scale unchanged.
    """
    augment = jax.vmap(lambda own_key, pair: augment_pair(own_key, pair, size=size, config=config))
    return augment(jax.random.split(key, pairs.shape[0]), pairs)


def augment_pair(
    key: Key[Array, ""], pair: Num[Array, "2 height width"], *, size: int, config: AugmentConfig
) -> Float[Array, "2 {size} {size}"]:
    """`augment_pairs` for one pair and its own key."""
    shape = (pair.shape[1], pair.shape[2])
    matrices = random_pair_matrices(key, shape=shape, size=size, config=config)
    warped = jax.vmap(lambda patch, matrix: warp_patch(patch, matrix, size=size))(pair, matrices)
    if not config.changes_grey_values:
        return warped
    return distort_pair(jax.random.fold_in(key, _PHOTOMETRY), warped, config)


def random_pair_matrices(
    key: Key[Array, ""], *, shape: tuple[int, int], size: int, config: AugmentConfig
) -> Float[Array, "2 2 3"]:
    """The affine maps, output pixel to input pixel, that `augment_pair` applies to a pair.

    Args:
        key: the pair's own key.
        shape: height and width of the stored patches.
        size: side of the result.
        config: the ranges of everything random.
    """
    # One draw for all twelve numbers: on a GPU the launches would cost more than the bits.
    draws = jax.random.uniform(key, (12,))
    orientation = _shared_orientation(draws[:2], config)
    crops = jax.vmap(lambda own: _crop_matrix(own, config))(draws[2:].reshape(2, 5))
    if config.misalignment:
        askew = _misalignment(jax.random.fold_in(key, _MISALIGNMENT), config.misalignment)
        crops = jnp.stack([crops[0], _compose(crops[0], askew)])
    return jax.vmap(lambda crop: to_pixels(_compose(crop, orientation), shape, size))(crops)


def _shared_orientation(draws: Float[Array, "2"], config: AugmentConfig) -> Float[Array, "2 3"]:
    """Flip and transpose, as a map of coordinates whose origin is the patch's centre."""
    mirror = jnp.where(draws[0] < config.flip_probability, -1.0, 1.0)
    flipped = jnp.array([[mirror, 0.0, 0.0], [0.0, 1.0, 0.0]])
    # Output (u, v) of a transpose reads input (v, u): the rows of the map change places.
    return jnp.where(draws[1] < config.transpose_probability, flipped[::-1], flipped)


def _crop_matrix(draws: Float[Array, "5"], config: AugmentConfig) -> Float[Array, "2 3"]:
    """A turned crop in units of the patch's side, origin at its centre: R · (D c + offset)."""
    angle = (2 * draws[0] - 1) * math.radians(config.max_rotation_degrees)
    area = config.area[0] + draws[1] * (config.area[1] - config.area[0])
    low, high = (math.log(ratio) for ratio in config.aspect_ratio)
    ratio = jnp.exp(low + draws[2] * (high - low))
    sides = jnp.minimum(jnp.sqrt(area * jnp.stack([ratio, 1 / ratio])), 1.0)
    offset = (draws[3:] - 0.5) * jnp.minimum(1 - sides, config.max_translation * sides)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    columns = [
        jnp.stack([cosine, sine]) * sides[0],
        jnp.stack([-sine, cosine]) * sides[1],
        jnp.stack([cosine * offset[0] - sine * offset[1], sine * offset[0] + cosine * offset[1]]),
    ]
    return jnp.stack(columns, axis=1)


def _misalignment(key: Key[Array, ""], strength: float) -> Float[Array, "2 3"]:
    """A map of the crop, in units of its side, with HPatches' noise of a random level."""
    level_key, axis_key, normal_key = jax.random.split(key, 3)
    level = jax.random.randint(level_key, (), 0, len(NOISE))
    noise = Noise(*(strength * jnp.array(list(NOISE.values()))[level]))
    normal = jax.random.normal(normal_key, (5,))
    # Symmetric, with the eigenvalues 2^(scale ± ratio): stretched along an axis at half of `twice`.
    scale, ratio = (
        math.log(2) * each for each in (noise.scale * normal[0], noise.ratio * normal[1] / 2)
    )
    twice = jax.random.uniform(axis_key, maxval=2 * jnp.pi)
    even, odd = jnp.exp(scale) * jnp.cosh(ratio), jnp.exp(scale) * jnp.sinh(ratio)
    along, across = odd * jnp.cos(twice), odd * jnp.sin(twice)
    angle = jnp.radians(noise.rotation * normal[2])
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    turn = jnp.stack([jnp.stack([cosine, sine]), jnp.stack([-sine, cosine]), jnp.zeros(2)], axis=1)
    stretch = jnp.stack(
        [jnp.stack([even + along, across]), jnp.stack([across, even - along]), jnp.zeros(2)], axis=1
    )
    # HPatches' translation is in half sides.
    return _compose(turn, stretch).at[:, 2].set(noise.translation / 2 * normal[3:])


def _compose(outer: Float[Array, "2 3"], inner: Float[Array, "2 3"]) -> Float[Array, "2 3"]:
    """The affine map that applies `inner` first. Written out: a matrix product may lose bits."""
    columns = [outer[:, 0] * inner[0, i] + outer[:, 1] * inner[1, i] for i in range(3)]
    columns[2] = columns[2] + outer[:, 2]
    return jnp.stack(columns, axis=1)
