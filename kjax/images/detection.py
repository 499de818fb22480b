"""Keypoints of a photograph: OpenCV's SIFT detector, or whatever the caller has."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from kjax.errors import InputError
from kjax.extras import require
from kjax.images.features import NO_ANGLE
from kjax.images.grey import to_grey

MAX_KEYPOINTS = 8000


class Keypoints(NamedTuple):
    """In OpenCV's conventions: see `kjax.images.features.Features`."""

    xy: Float32[np.ndarray, "N 2"]
    scales: Float32[np.ndarray, " N"]
    angles: Float32[np.ndarray, " N"]
    scores: Float32[np.ndarray, " N"]

    def keep(self, mask: np.ndarray) -> "Keypoints":
        """Those that a mask marks."""
        return Keypoints(*(column[mask] for column in self))


def detect(
    image: np.ndarray, *, mask: np.ndarray | None = None, max_keypoints: int = MAX_KEYPOINTS
) -> Keypoints:
    """The strongest SIFT keypoints of a photograph; none of an empty one.

    Args:
        image: as for `kjax.extract_patches`, `[H,W]` or `[H,W,C]`.
        mask: keypoints are looked for where it is not zero, `[H,W]`.
        max_keypoints: at most so many, the strongest first.
    """
    if 0 in image.shape:
        return from_opencv([])
    cv2 = require("cv2", "finding keypoints")
    # Without precise upscaling OpenCV's keypoints are shifted by a quarter of a pixel.
    detector = cv2.SIFT_create(nfeatures=max_keypoints, enable_precise_upscale=True)
    found = from_opencv(detector.detect(_as_bytes(image), mask))
    order = np.argsort(-found.scores, kind="stable")[:max_keypoints]
    return found.keep(order)


def as_keypoints(keypoints: Any) -> Keypoints:
    """What callers have: OpenCV's keypoints, `Keypoints`, or an array [N, 2 to 4].

    The columns of an array are x, y, the diameter (default: that of a patch of 32 pixels) and the
    angle in degrees, clockwise on screen (default: upright).
    """
    if isinstance(keypoints, Keypoints):
        return keypoints
    if not isinstance(keypoints, np.ndarray) and all(hasattr(one, "pt") for one in keypoints):
        return from_opencv(keypoints)
    table = np.asarray(keypoints, np.float32)
    if table.ndim != 2 or not 2 <= table.shape[1] <= 4:
        raise InputError(
            f"keypoints of shape {table.shape}: give cv2.KeyPoints, or [N, 2 to 4] with x, y, "
            "diameter and angle"
        )
    count = len(table)
    defaults = np.tile(np.array([0, 0, 32 / 12, NO_ANGLE], np.float32), (count, 1))
    defaults[:, : table.shape[1]] = table
    return Keypoints(defaults[:, :2], defaults[:, 2], defaults[:, 3], np.ones(count, np.float32))


def from_opencv(keypoints: Sequence[Any]) -> Keypoints:
    """The numbers of `cv2.KeyPoint` objects."""
    rows = [(*point.pt, point.size, point.angle, point.response) for point in keypoints]
    table = np.asarray(rows, np.float32).reshape(-1, 5)
    return Keypoints(table[:, :2], table[:, 2], table[:, 3], table[:, 4])


def to_opencv(keypoints: Keypoints) -> list[Any]:
    """`cv2.KeyPoint` objects."""
    cv2 = require("cv2", "cv2.KeyPoint")
    return [
        cv2.KeyPoint(float(x), float(y), float(size), float(angle), float(score))
        for (x, y), size, angle, score in zip(*keypoints, strict=True)
    ]


def _as_bytes(image: np.ndarray) -> np.ndarray:
    """Grey values 0–255, as the detector wants them."""
    grey = np.asarray(to_grey(image))
    if not np.isfinite(grey).all():
        raise InputError("the image has NaN or infinite pixels: mend or leave it out")
    if np.issubdtype(image.dtype, np.floating) and grey.max(initial=0) <= 1:
        grey = grey * 255
    return grey.round().clip(0, 255).astype(np.uint8)
