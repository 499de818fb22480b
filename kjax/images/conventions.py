"""Conventions for the scales, angles and pixel origin of keypoints.

Every library draws another square about the same keypoint. All of them become one `PatchFrames`:
the patch's centre with pixel centres at integers, its side in pixels, and the directions of its
rows and columns, x to the right and y down. For a square these are (cos a, sin a) and
(−sin a, cos a), with a in radians, clockwise on screen. For an affine frame they are the columns of
its matrix, scaled to determinant ±1.

| `size_is`      | `scale` holds                            | side of the patch     | 24σ with |
|----------------|------------------------------------------|-----------------------|----------|
| `"diameter"`   | OpenCV's `KeyPoint.size`, 2σ for SIFT    | `extent` · scale      | 12       |
| `"sigma"`      | σ, as COLMAP and pycolmap store it       | 2 · `extent` · scale  | 12       |
| `"hloc"`       | σ, read as hloc's `dog` extractor does   | `extent` · scale      | 24       |
| `"half_width"` | half the patch's side, as a kornia LAF   | 2 · scale             | –        |

The first two cut the same square about the same keypoint: that of PhotoTourism and of the Image
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
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from kjax.data.cutting.keypoints import NO_ANGLE, Keypoints, as_keypoints
from kjax.errors import InputError, one_line
from kjax.extras import is_jax_array

DIAMETERS = {"diameter": 1.0, "sigma": 2.0, "hloc": 1.0}
"""Side of the patch over `extent` · scale."""
HALF_WIDTH = "half_width"
ANGLE_UNITS = {"opencv": math.radians(1.0), "radians": 1.0, "kornia": -math.radians(1.0)}
"""Radians, clockwise on screen, per unit of the angle."""
FIRST_PIXEL = {"center": 0.0, "corner": 0.5}
"""Coordinates of the first pixel's centre."""


class PatchFrames(NamedTuple):
    """Patches in an image, in kjax's own convention, as NumPy or JAX arrays."""

    center: Float[Any, "*batch N 2"]
    side: Float[Any, "*batch N"]
    axes: Float[Any, "*batch N 2 2"]

    def reach(self) -> Float[Any, "*batch N 2"]:
        """Return half the width and height of the upright box about each patch."""
        return self.side[..., None] / 2 * abs(self.axes).sum(axis=-1)


def patch_frames(
    xy: Float[Any, "*batch N 2"],
    scale: Float[Any, "*batch N"],
    angle: Float[Any, "*batch N"],
    *,
    shape: Float[Any, "*batch N 2 2"] | None = None,
    size_is: str = "diameter",
    extent: float = 12.0,
    angle_is: str = "opencv",
    pixel_origin: str = "center",
) -> PatchFrames:
    """Compute patches, of side 0 for unusable keypoints; the size of `shape` is ignored."""
    xp = xy.__array_namespace__()
    side = 2 * scale if size_is == HALF_WIDTH else DIAMETERS[size_is] * extent * scale
    # Unusable values are replaced, so that gradients stay finite.
    if shape is None:
        usable = xp.isfinite(angle)
        upright = ~usable | (angle == NO_ANGLE) if angle_is == "opencv" else ~usable
        angle = ANGLE_UNITS[angle_is] * xp.where(upright, 0.0, angle)
        cosine, sine = xp.cos(angle), xp.sin(angle)
        rows = xp.stack([cosine, -sine], axis=-1), xp.stack([sine, cosine], axis=-1)
        axes = xp.stack(rows, axis=-2)
    else:
        finite = xp.isfinite(shape).all(axis=(-2, -1))
        shape = xp.where(finite[..., None, None], shape, 0.0)
        area = xp.abs(shape[..., 0, 0] * shape[..., 1, 1] - shape[..., 0, 1] * shape[..., 1, 0])
        usable = area > 0
        axes = shape / xp.sqrt(xp.where(usable, area, 1.0))[..., None, None]
    return PatchFrames(xy - FIRST_PIXEL[pixel_origin], xp.where(usable, side, 0), axes)


def neutral_where(bad: Any, frames: PatchFrames, size: int) -> PatchFrames:
    """Replace frames of patches that will be blank, so that no NaN reaches a gradient."""
    xp = frames.side.__array_namespace__()
    return PatchFrames(
        xp.where(bad[..., None], 0, frames.center),
        xp.where(bad, size, frames.side),
        xp.where(bad[..., None, None], 0, frames.axes),
    )


def keypoints_and_shapes(
    keypoints: Any, extent: float
) -> tuple[Keypoints, Float32[np.ndarray, "N 2 2"] | None]:
    """Convert keypoints as `as_keypoints` does, or kornia's LAFs [N,2,3] or [1,N,2,3].

    A LAF is a matrix [A | t]. Its patch is A · [−1, 1]² about t, whatever the extent. It gets the
    diameter that gives its patch's area, and the direction of the patch's rows as its angle.
    """
    listed = isinstance(keypoints, list | tuple) and all(hasattr(one, "pt") for one in keypoints)
    if listed or isinstance(keypoints, Keypoints):
        return as_keypoints(keypoints), None
    table = np.asarray(as_array(keypoints, "keypoints"))
    if table.ndim == 4 and len(table) == 1:
        table = table[0]
    if table.ndim != 3 or table.shape[1:] != (2, 3):
        return as_keypoints(table), None
    lafs = table.astype(np.float32)
    shapes = lafs[:, :, :2]
    sides = 2 * np.sqrt(np.abs(np.linalg.det(shapes)))
    angles = np.rad2deg(np.arctan2(shapes[:, 1, 0], shapes[:, 0, 0])) % 360
    ones = np.ones(len(lafs), np.float32)
    return Keypoints(lafs[:, :, 2], sides / np.float32(extent), angles, ones), shapes


def as_array(values: Any, kind: str) -> Any:
    """Convert to a NumPy array, or raise InputError; JAX arrays stay as they are."""
    if is_jax_array(values):
        return values
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        name = type(values).__name__
        raise InputError(f"{kind} must be an array, not {name} ({one_line(error)})") from None
