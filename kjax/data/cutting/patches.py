"""64×64 patches in PhotoTourism's geometry, cut on the host in whole grey values, with OpenCV."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, UInt8

from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.levels import Level, choose_level, plan_levels
from kjax.data.phototour import PATCH_SIDE
from kjax.extras import require

EXTENT = 12.0
"""Side of a patch on the photograph over the keypoint's diameter (24σ)."""
PYRAMID = "thirds"


def cut_patches(
    photo: UInt8[np.ndarray, "height width"], keypoints: Keypoints, *, extent: float = EXTENT
) -> UInt8[np.ndarray, "K 64 64"]:
    """The patch of each keypoint; beyond its border the photograph is repeated."""
    cv2 = require("cv2", "cutting patches")
    steps = extent * keypoints.scales.astype(np.float64) / PATCH_SIDE
    levels = plan_levels(*photo.shape, size=PATCH_SIDE, kind=PYRAMID)
    chosen = choose_level(steps, count=len(levels), kind=PYRAMID)
    zoom = np.array([level.zoom[0] for level in levels])[chosen]
    matrices = _patch_to_level(keypoints, steps, zoom)
    patches = np.empty((len(steps), PATCH_SIDE, PATCH_SIDE), np.uint8)
    for number, image in _low_passed(photo, levels, set(chosen.tolist())):
        for patch in np.flatnonzero(chosen == number):
            patches[patch] = cv2.warpAffine(
                image,
                matrices[patch],
                (PATCH_SIDE, PATCH_SIDE),
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REPLICATE,
            )
    return patches


def _low_passed(
    photo: UInt8[np.ndarray, "_ _"], levels: Sequence[Level], wanted: set[int]
) -> Iterator[tuple[int, UInt8[np.ndarray, "_ _"]]]:
    """The wanted levels by number: what `kjax.images.pyramid` makes, in whole grey values."""
    cv2 = require("cv2", "cutting patches")
    border = cv2.BORDER_REPLICATE
    for number, level in enumerate(levels[: max(wanted, default=-1) + 1]):
        if number and not level.blur:
            # Keeps every second pixel from the first, so pixel (0, 0) stays at (0, 0).
            photo = cv2.pyrDown(photo, borderType=border)
        if number in wanted and level.blur:
            yield number, cv2.GaussianBlur(photo, (0, 0), level.blur, borderType=border)
        elif number in wanted:
            yield number, photo


def _patch_to_level(
    keypoints: Keypoints, steps: Float[np.ndarray, " K"], zoom: Float[np.ndarray, " K"]
) -> Float[np.ndarray, "K 2 3"]:
    """The affine map from each patch's pixels to those of its level of the pyramid."""
    cosine = steps * np.cos(keypoints.radians) * zoom
    sine = steps * np.sin(keypoints.radians) * zoom
    x, y = keypoints.xy.T * zoom
    middle = (PATCH_SIDE - 1) / 2
    rows = [
        np.stack([cosine, -sine, x - (cosine - sine) * middle], axis=1),
        np.stack([sine, cosine, y - (cosine + sine) * middle], axis=1),
    ]
    return np.stack(rows, axis=1)
