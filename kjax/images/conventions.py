"""What a keypoint's numbers mean: whose scale, whose angle, whose origin.

Every library draws another square about the same keypoint. All of them become one `PatchFrames`:
the patch's centre with pixel centres at integers, its side in pixels, and the directions of its
rows and columns, x to the right and y down: of a square (cos a, sin a) and (−sin a, cos a), with a
in radians, clockwise on screen; of an affine frame, the columns of its matrix of determinant ±1.

| `size_is`      | `scale` holds                            | side of the patch     | 24σ with |
|----------------|------------------------------------------|-----------------------|----------|
| `"diameter"`   | OpenCV's `KeyPoint.size`; of SIFT, 2σ    | `extent` · scale      | 12       |
| `"sigma"`      | σ, as COLMAP and pycolmap store it       | 2 · `extent` · scale  | 12       |
| `"hloc"`       | σ, read as hloc's `dog` extractor does   | `extent` · scale      | 24       |
| `"half_width"` | half the patch's side: a kornia LAF's    | 2 · scale             | –        |

The first two cut the same square about the same keypoint, that of PhotoTourism and of the Image
Matching Challenge's "mrSize 12". hloc's is half as wide with its own `mr_size=12`.

| `angle_is`  | `angle` holds                                                              |
|-------------|----------------------------------------------------------------------------|
| `"opencv"`  | degrees, clockwise on screen; −1, OpenCV's "none", is upright              |
| `"radians"` | radians, clockwise on screen: COLMAP and pycolmap                          |
| `"kornia"`  | degrees, counter-clockwise on screen                                       |

| `pixel_origin` | (0, 0) is                                                                |
|----------------|--------------------------------------------------------------------------|
| `"center"`     | the centre of the first pixel: OpenCV, kornia, hloc's h5 files           |
| `"corner"`     | its outer corner, so that its centre is (0.5, 0.5): COLMAP               |
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kjax.errors import unknown_name

DIAMETERS = {"diameter": 1.0, "sigma": 2.0, "hloc": 1.0}
"""Side of the patch over `extent` · scale."""
HALF_WIDTH = "half_width"
SIZE_IS = (*DIAMETERS, HALF_WIDTH)

ANGLE_UNITS = {
    "opencv": math.radians(1.0),
    "radians": 1.0,
    "kornia": -math.radians(1.0),
}
"""Radians clockwise on screen that one unit of the angle turns."""
OPENCV_NO_ANGLE = -1.0

FIRST_PIXEL = {"center": 0.0, "corner": 0.5}
"""Coordinates of the first pixel's centre."""


class PatchFrames(NamedTuple):
    """Where patches lie in an image, in kjax's own convention."""

    center: Float[Array, "*batch N 2"]
    side: Float[Array, "*batch N"]
    axes: Float[Array, "*batch N 2 2"]


def check_conventions(size_is: str, angle_is: str, pixel_origin: str) -> None:
    """Refuses names that none of the tables has."""
    if size_is not in SIZE_IS:
        raise unknown_name("size_is", size_is, SIZE_IS)
    if angle_is not in ANGLE_UNITS:
        raise unknown_name("angle_is", angle_is, ANGLE_UNITS)
    if pixel_origin not in FIRST_PIXEL:
        raise unknown_name("pixel_origin", pixel_origin, FIRST_PIXEL)


def patch_frames(
    xy: Float[Array, "*batch N 2"],
    scale: Float[Array, "*batch N"],
    angle: Float[Array, "*batch N"],
    *,
    shape: Float[Array, "*batch N 2 2"] | None = None,
    size_is: str = "diameter",
    extent: float = 12.0,
    angle_is: str = "opencv",
    pixel_origin: str = "center",
) -> PatchFrames:
    """The squares that keypoints stand for.

    Args:
        xy: positions.
        scale: sizes.
        angle: orientations.
        shape: of affine frames, in the place of their angles; the matrices' own size is left out.
        size_is: what `scale` holds.
        extent: side of a patch in units of the keypoint's diameter; `"half_width"` ignores it.
        angle_is: what `angle` holds.
        pixel_origin: which point of the first pixel is (0, 0).
    """
    check_conventions(size_is, angle_is, pixel_origin)
    side = 2 * scale if size_is == HALF_WIDTH else DIAMETERS[size_is] * extent * scale
    axes, usable = _turned(angle, angle_is) if shape is None else _of_unit_area(shape)
    return PatchFrames(xy - FIRST_PIXEL[pixel_origin], jnp.where(usable, side, 0), axes)


_Axes = tuple[Float[Array, "*batch N 2 2"], Bool[Array, "*batch N"]]
"""Directions, and whether they are any. Those that are none are finite, as gradients must be."""


def _turned(angle: Float[Array, "*batch N"], angle_is: str) -> _Axes:
    usable = jnp.isfinite(angle)
    upright = ~usable | (angle == OPENCV_NO_ANGLE) if angle_is == "opencv" else ~usable
    angle = ANGLE_UNITS[angle_is] * jnp.where(upright, 0.0, angle)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    rows = jnp.stack([cosine, -sine], axis=-1), jnp.stack([sine, cosine], axis=-1)
    return jnp.stack(rows, axis=-2), usable


def _of_unit_area(shape: Float[Array, "*batch N 2 2"]) -> _Axes:
    finite = jnp.isfinite(shape).all(axis=(-2, -1))
    shape = jnp.where(finite[..., None, None], shape, 0.0)
    area = jnp.abs(shape[..., 0, 0] * shape[..., 1, 1] - shape[..., 0, 1] * shape[..., 1, 0])
    usable = area > 0
    return shape / jnp.sqrt(jnp.where(usable, area, 1.0))[..., None, None], usable
