"""Pairs of views to train the detector: one place through two homographies, on the device.

Both views are squares of pixels, of one photograph or of two that show the same. They differ in
position, size, rotation, perspective and appearance. A pair is a function of (key of the step,
index in the batch) alone.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kjax.data.appearance import DRAWS, blur, draw_change, respond, see
from kjax.data.photo_points import ResidentPhotos, sample_photo
from kjax.errors import InputError


@dataclasses.dataclass(frozen=True)
class PairConfig:
    """How pairs are drawn.

    Attributes:
        side: side of a view in pixels.
        least_extent: minimum side of a view in the photograph, over the photograph's shorter side.
        zoom_noise: σ of the log of the ratio of both views' sides.
        shift_noise: σ of the distance of both views, over their side.
        upright_share: fraction of pairs that are near-upright; others are rotated uniformly.
        tilt_degrees: σ of the tilt of near-upright views.
        perspective: maximum displacement of a view's corners, over its side.
        appearance: strength of changed appearance; see `kjax.data.appearance`.
        appearance_probability: fraction of views whose appearance changes.
    """

    side: int = 512
    least_extent: float = 0.4
    zoom_noise: float = 0.35
    shift_noise: float = 0.12
    upright_share: float = 0.5
    tilt_degrees: float = 10.0
    perspective: float = 0.15
    appearance: float = 0.7
    appearance_probability: float = 0.5

    def __post_init__(self) -> None:
        if self.side < 64 or self.side % 64:
            raise InputError(f"draw.side must be a multiple of 64, not {self.side}")
        for name in ("least_extent", "upright_share", "appearance_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"draw.{name} must be from 0 to 1, not {getattr(self, name)}")
        if not 0 <= self.perspective < 0.4:
            raise InputError(f"draw.perspective must be from 0 to 0.4, not {self.perspective}")
        for name in ("zoom_noise", "shift_noise", "tilt_degrees", "appearance"):
            if not getattr(self, name) >= 0:
                raise InputError(f"draw.{name} must not be negative: {getattr(self, name)}")


class ViewPairs(NamedTuple):
    """Pairs of views."""

    grey: Float[Array, "pairs 2 side side"]  # from 0 to 1
    inside: Bool[Array, "pairs 2 side side"]  # where a view shows the photograph
    homographies: Float[Array, "pairs 2 3 3"]  # from the view's pixels to the photograph's


def draw_pairs(
    photos: ResidentPhotos, key: Key[Array, ""], indices: Int[Array, " pairs"], config: PairConfig
) -> ViewPairs:
    """Draw the pairs with these indices in a step's batch."""

    def draw(index: Array) -> tuple[Array, Array, Array]:
        photo_key, place_key, *view_keys = jax.random.split(jax.random.fold_in(key, index), 4)
        photo = jax.random.randint(photo_key, (), 0, photos.counts.shape[0])
        first, count = photos.alike[photo]
        other = first + jax.random.randint(jax.random.fold_in(photo_key, 1), (), 0, count)
        size = photos.sizes[photo, 0].astype(jnp.float32)
        both = random_homographies(place_key, size, config)
        views = [
            draw_view(photos, seen, own, one, config)
            for seen, own, one in zip((photo, other), view_keys, both, strict=True)
        ]
        grey, inside = zip(*views, strict=True)
        return jnp.stack(grey), jnp.stack(inside), both

    # Few pairs at a time: a batch of views with their colours takes gigabytes.
    return ViewPairs(*jax.lax.map(draw, indices, batch_size=min(4, len(indices))))


def random_homographies(
    key: Key[Array, ""], size: Float[Array, "2"], config: PairConfig
) -> Float[Array, "2 3 3"]:
    """Draw the maps of both views' pixels to a photograph of this width and height."""
    place_key, normal_key, corner_key = jax.random.split(key, 3)
    extent, across, down, turned, angle = jax.random.uniform(place_key, (5,))
    normal = jax.random.normal(normal_key, (5,))
    extent = size.min() * (config.least_extent + (1 - config.least_extent) * extent)
    centre = extent / 2 + jnp.stack([across, down]) * (size - extent)
    tilt = math.radians(config.tilt_degrees)
    around = 2 * math.pi * angle * jnp.array([0.0, 1.0])
    angles = jnp.where(turned < config.upright_share, tilt * normal[:2], around)
    extents = extent * jnp.exp(config.zoom_noise * normal[2] * jnp.array([-0.5, 0.5]))
    apart = config.shift_noise * extent * normal[None, 3:]
    centres = centre[None] + apart * jnp.array([[-0.5], [0.5]])
    jitter = config.perspective * jax.random.uniform(corner_key, (2, 4, 2), minval=-1.0)
    unit = jnp.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    turn = jnp.stack([jnp.stack([cosine, sine], -1), jnp.stack([-sine, cosine], -1)], -2)
    corners = (unit[None] + jitter) @ turn * extents[:, None, None] + centres[:, None]
    return jax.vmap(lambda four: square_to_quadrilateral(four, config.side))(corners)


def square_to_quadrilateral(corners: Float[Array, "4 2"], side: int) -> Float[Array, "3 3"]:
    """Return the homography of a square's pixels that maps its corners, clockwise, to these."""
    one, two, three, four = corners
    total = one - two + three - four
    a, b = two - three, four - three
    area = a[0] * b[1] - a[1] * b[0]
    g = (total[0] * b[1] - total[1] * b[0]) / area
    h = (a[0] * total[1] - a[1] * total[0]) / area
    linear = jnp.stack([two - one + g * two, four - one + h * four, one], axis=1)
    unit = jnp.concatenate([linear, jnp.stack([g, h, jnp.ones(())])[None]])
    # Pixel centres: the first one is half a pixel inside the square.
    scale = jnp.array([[1 / side, 0, 0.5 / side], [0, 1 / side, 0.5 / side], [0, 0, 1]])
    return jnp.matmul(unit, scale, precision="highest")


def draw_view(
    photos: ResidentPhotos,
    photo: Int[Array, ""],
    key: Key[Array, ""],
    homography: Float[Array, "3 3"],
    config: PairConfig,
) -> tuple[Float[Array, "side side"], Bool[Array, "side side"]]:
    """Return a view in grey after a change of appearance, and where it shows the photograph."""
    side = config.side
    grid = jnp.arange(side, dtype=jnp.float32)
    across, down = grid[None, :], grid[:, None]
    x, y, depth = (row[0] * across + row[1] * down + row[2] for row in homography)
    x, y = x / depth, y / depth
    last = photos.sizes[photo, 0].astype(jnp.float32) - 1
    inside = (x >= 0) & (y >= 0) & (x <= last[0]) & (y <= last[1])
    diagonals = [jnp.stack([one[-1, -1] - one[0, 0], one[0, -1] - one[-1, 0]]) for one in (x, y)]
    area = jnp.abs(diagonals[0][0] * diagonals[1][1] - diagonals[0][1] * diagonals[1][0]) / 2
    step = 0.5 * jnp.log2(area) - math.log2(side)
    channels = sample_photo(photos, photo, x, y, step)
    change = draw_change(
        jax.random.uniform(key, (DRAWS,)),
        strength=config.appearance,
        probability=config.appearance_probability,
    )
    seen = see(channels, change)
    seen = blur(seen, change.blur, radius=math.ceil(3 * 1.8 * config.appearance))
    noise = jax.random.normal(jax.random.fold_in(key, 1), seen.shape)
    # Noise of single pixels is a patch's: less than that of a keypoint's surroundings.
    return respond(seen, change._replace(noise=change.noise / 2), noise), inside


def project(homography: Float[Any, "3 3"], xy: Float[Any, "N 2"]) -> Float[Any, "N 2"]:
    """Map points by a homography."""
    moved = jnp.matmul(xy, homography[:, :2].T, precision="highest") + homography[None, :, 2]
    return moved[:, :2] / moved[:, 2:]
