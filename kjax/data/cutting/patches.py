"""Pyramid levels of an image, and the cutting of 64×64 training patches from them.

| pyramid      | levels                                                        | pixels kept |
|--------------|---------------------------------------------------------------|-------------|
| `"thirds"`   | one per third of an octave; the nearest is sampled            | 4 ×         |
| `"octaves"`  | one per octave; the nearest is sampled                        | 4/3 ×       |
| `"off"`      | the image alone: plain bilinear sampling                      | 1 ×         |
| `"kornia"`   | one per octave; the next finer is sampled, as in kornia 0.9   | 4/3 ×       |
| `"kornia0.8"`| the same with the subpixel offset of kornia before 0.9        | 4/3 ×       |

An octave keeps every second pixel from the first, as OpenCV's `pyrDown` does, so pixel (0, 0) stays
at (0, 0). Kornia halves the area instead. Training sets are cut from "thirds".
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int32, UInt8

from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.photographs import Photo
from kjax.extras import require

PATCH_SIDE = 64
"""Pixels along each side of a training patch."""
EXTENT = 12.0
"""Side of a patch on the photograph over the keypoint's diameter (24σ)."""
PYRAMID = "thirds"
KORNIA = ("kornia", "kornia0.8")
PYRAMIDS = {"thirds": (3, 0.5), "octaves": (1, 0.5), "off": (0, 0.0)}
PYRAMIDS |= dict.fromkeys(KORNIA, (1, 0.0))
"""Levels per octave n and bias b: a sampling step of t pixels uses level ⌊n · log2 t + b⌋."""
SMALLEST_SIDE = 2
"""Minimum side of a level, so that each pixel has a neighbour to interpolate with."""


class Level(NamedTuple):
    """One low-passed copy of an image: its shape and the map from image pixels, for x and y."""

    height: int
    width: int
    zoom: tuple[float, float]  # a point p of the image lies at zoom · p + shift
    shift: tuple[float, float]
    stretch: tuple[float, float]  # a vector v from a patch's centre becomes stretch · v
    blur: float = 0.0  # σ of the Gaussian applied to the octave's first level, 0 for that itself


def plan_levels(height: int, width: int, *, size: int, kind: str) -> list[Level]:
    """Return the levels for patches of `size`² pixels, finest first."""
    levels = []
    if kind in KORNIA:
        shapes = [(max(height, SMALLEST_SIDE), max(width, SMALLEST_SIDE))]
        rows, columns = height // 2, width // 2
        while min(rows, columns) >= max(size, SMALLEST_SIDE):
            shapes.append((rows, columns))
            rows, columns = rows // 2, columns // 2
        for rows, columns in shapes:
            if kind == "kornia":
                zoom = (columns / width, rows / height)
                shift = (zoom[0] / 2 - 0.5, zoom[1] / 2 - 0.5)
                levels.append(Level(rows, columns, zoom, shift, zoom))
                continue
            # Its grid puts pixel x at 2x / (w − 1) − 1, where sampling expects (2x + 1) / w − 1.
            mixture = (columns / max(columns - 1, 1), rows / max(rows - 1, 1))
            ratio = max(min(rows, columns) - 1, 1) / max(min(height, width) - 1, 1)
            zoom = (columns / max(width - 1, 1), rows / max(height - 1, 1))
            stretch = (ratio * mixture[0], ratio * mixture[1])
            levels.append(Level(rows, columns, zoom, (-0.5, -0.5), stretch))
        return levels
    per_octave, _ = PYRAMIDS[kind]
    # Coarser levels stop where one patch spans the image.
    octaves = max(math.log2(max(height, width) / size), 0.0)
    for number in range(1 + math.ceil(per_octave * octaves)):
        octave, part = divmod(number, max(per_octave, 1))
        rows, columns = (max(-(-side // 2**octave), SMALLEST_SIDE) for side in (height, width))
        zoom = (0.5**octave, 0.5**octave)
        blur = antialias_sigma(2 ** (part / per_octave)) if part else 0.0
        levels.append(Level(rows, columns, zoom, (0.0, 0.0), zoom, blur))
    return levels


def choose_level(
    step: Float[Any, "*N"], *, count: int | Int32[Any, ""], kind: str
) -> Int32[Any, "*N"]:
    """Return the level to sample for a step in image pixels; for NumPy and JAX arrays."""
    xp = step.__array_namespace__()
    per_octave, bias = PYRAMIDS[kind]
    number = xp.floor(per_octave * xp.log2(xp.maximum(step, 1.0)) + bias)
    return xp.minimum(number, count - 1).astype(np.int32)


def antialias_sigma(step: float) -> float:
    """Return σ of the Gaussian to apply before sampling every `step` ≥ 1 pixels."""
    return 0.5 * math.sqrt(step * step - 1)


def cut_patches(
    photo: Photo, keypoints: Keypoints, *, extent: float = EXTENT
) -> UInt8[np.ndarray, "K 64 64"]:
    """Cut the patch of each keypoint with OpenCV; border pixels are repeated beyond the border."""
    cv2 = require("cv2", "cutting patches")
    border = cv2.BORDER_REPLICATE
    steps = extent * keypoints.scales.astype(np.float64) / PATCH_SIDE
    levels = plan_levels(*photo.shape, size=PATCH_SIDE, kind=PYRAMID)
    chosen = choose_level(steps, count=len(levels), kind=PYRAMID)
    zoom = np.array([level.zoom[0] for level in levels])[chosen]
    cosine = steps * np.cos(keypoints.radians) * zoom
    sine = steps * np.sin(keypoints.radians) * zoom
    x, y = keypoints.xy.T * zoom
    middle = (PATCH_SIDE - 1) / 2
    across = [cosine, -sine, x - (cosine - sine) * middle]
    down = [sine, cosine, y - (cosine + sine) * middle]
    patch_to_level = np.stack([*across, *down], axis=1).reshape(-1, 2, 3)
    patches = np.empty((len(steps), PATCH_SIDE, PATCH_SIDE), np.uint8)
    for number, level in enumerate(levels[: max(chosen.tolist(), default=-1) + 1]):
        if number and not level.blur:
            photo = cv2.pyrDown(photo, borderType=border)
        here = np.flatnonzero(chosen == number)
        image = photo
        if len(here) and level.blur:
            image = cv2.GaussianBlur(photo, (0, 0), level.blur, borderType=border)
        how = {"flags": cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, "borderMode": border}
        for patch in here:
            patches[patch] = cv2.warpAffine(image, patch_to_level[patch], patches.shape[1:], **how)
    return patches
