"""On-device augmentation of anchor–positive pairs.

All geometric augmentation is one affine map from output to input pixels, so each output
pixel reads its four neighbours in the stored patch once: flips and transposes move no memory, and
the 64×64 original is never converted to floating point. Pixel centres are integers; a patch of side
N covers [−½, N−½], and pixels beyond it repeat its border. Grey values change afterwards:
`kjax.data.appearance`.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Num

from kjax.data.appearance import change_views, distort_pair
from kjax.data.hpatches import NOISE, Noise
from kjax.model.patches import to_pixels, warp_patch
from kjax.runs.config import AugmentConfig

# Numbers folded into a pair's key for these effects; crops use the key itself.
_PHOTOMETRY = 100
_MISALIGNMENT = 200
_APPEARANCE = 300


def augment_pairs(
    key: Key[Array, ""],
    pairs: Num[Array, "pairs 2 height width"],
    *,
    size: int,
    config: AugmentConfig,
) -> Float[Array, "pairs 2 {size} {size}"]:
    """Flip and transpose pairs; rotate, crop, resize and distort each patch on its own.

    Patches have any scale of grey values, which is kept; the result has this `size`. Each pair has
    its own key, so it does not depend on its neighbours.
    """
    augment = jax.vmap(lambda own_key, pair: augment_pair(own_key, pair, size=size, config=config))
    return augment(jax.random.split(key, pairs.shape[0]), pairs)


def augment_pair(
    key: Key[Array, ""], pair: Num[Array, "2 height width"], *, size: int, config: AugmentConfig
) -> Float[Array, "2 {size} {size}"]:
    """Augment one pair with its own key."""
    shape = (pair.shape[1], pair.shape[2])
    matrices = random_pair_matrices(key, shape=shape, size=size, config=config)
    warped = jax.vmap(lambda patch, matrix: warp_patch(patch, matrix, size=size))(pair, matrices)
    if config.changes_grey_values:
        warped = distort_pair(jax.random.fold_in(key, _PHOTOMETRY), warped, config)
    if config.appearance:
        views = warped[:, None, None]  # one patch each, with one channel
        warped = change_views(jax.random.fold_in(key, _APPEARANCE), views, config)[:, 0]
    return warped


def random_pair_matrices(
    key: Key[Array, ""], *, shape: tuple[int, int], size: int, config: AugmentConfig
) -> Float[Array, "2 2 3"]:
    """Return the affine maps, output pixel to input pixel, that `augment_pair` applies to a pair.

    `shape` is the height and width of the stored patches, `size` the side of the result.
    """
    # One draw for all twelve numbers: on a GPU, launches cost more than bits.
    draws = jax.random.uniform(key, (12,))
    # Flip and transpose, in coordinates with their origin at the patch's centre.
    mirror = jnp.where(draws[0] < config.flip_probability, -1.0, 1.0)
    flipped = jnp.array([[mirror, 0.0, 0.0], [0.0, 1.0, 0.0]])
    # Output (u, v) of a transpose reads input (v, u): the map's rows are swapped.
    orientation = jnp.where(draws[1] < config.transpose_probability, flipped[::-1], flipped)
    crops = jax.vmap(lambda own: _crop_matrix(own, config))(draws[2:].reshape(2, 5))
    if config.misalignment:
        jitter = _misalignment(jax.random.fold_in(key, _MISALIGNMENT), config.misalignment)
        crops = jnp.stack([crops[0], _compose(crops[0], jitter)])
    return jax.vmap(lambda crop: to_pixels(_compose(crop, orientation), shape, size))(crops)


def _crop_matrix(draws: Float[Array, "5"], config: AugmentConfig) -> Float[Array, "2 3"]:
    """Return a rotated crop R (D c + offset), in units of the patch's side from its centre."""
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
    """Return a map of the crop, in units of its side, with HPatches' noise of a random level."""
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
    """Compose affine maps, `inner` first. Written out: a matrix product may lose bits."""
    columns = [outer[:, 0] * inner[0, i] + outer[:, 1] * inner[1, i] for i in range(3)]
    columns[2] = columns[2] + outer[:, 2]
    return jnp.stack(columns, axis=1)
