"""Keypoints of a photograph: OpenCV's SIFT detector, or whatever the caller has."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

from kjax.errors import InputError
from kjax.extras import require
from kjax.images.features import NO_ANGLE
from kjax.images.grey import grey_values, whole_greys

MAX_KEYPOINTS = 8000
DETECTOR = "OpenCV SIFT, precise upscale"
"""For people and records: what `detect` is."""


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
    image: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int = MAX_KEYPOINTS,
    order: str = "rgb",
) -> Keypoints:
    """The strongest SIFT keypoints of a photograph; none of an empty one.

    Args:
        image: as for `kjax.images.grey.grey_values`, whose range is told as written there.
        mask: keypoints are looked for where it is not zero, `[H,W]`.
        max_keypoints: at most so many, the strongest first.
        order: of colours, "rgb" or "bgr".
    """
    grey = grey_values(image, order=order)
    return detect_in_grey(grey, mask=mask, max_keypoints=max_keypoints)


def detect_in_grey(
    grey: UInt8[np.ndarray, "height width"] | Float32[np.ndarray, "height width"],
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int = MAX_KEYPOINTS,
) -> Keypoints:
    """The same of a photograph that `grey_values` has made grey already."""
    if max_keypoints < 1:
        raise InputError(f"max_keypoints is {max_keypoints}: look for at least one")
    if 0 in grey.shape:
        return from_opencv([])
    if mask is not None:
        mask = _as_mask(mask, grey.shape)
    cv2 = require("cv2", "finding keypoints")
    # Without precise upscaling OpenCV's keypoints are shifted by a quarter of a pixel.
    detector = cv2.SIFT_create(nfeatures=max_keypoints, enable_precise_upscale=True)
    found = from_opencv(detector.detect(whole_greys(grey), mask))
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


def _as_mask(mask: np.ndarray, shape: tuple[int, ...]) -> UInt8[np.ndarray, "height width"]:
    mask = np.asarray(mask)
    if mask.shape != shape:
        raise InputError(
            f"the mask has shape {list(mask.shape)}, the image {list(shape)}: give one of its size"
        )
    return (mask != 0).astype(np.uint8)
