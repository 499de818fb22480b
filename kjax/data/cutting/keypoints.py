"""Keypoints of a photograph: those of an OpenCV detector, or whatever the caller has."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from kjax.data.cutting.detectors import SIFT, find_keypoints
from kjax.data.cutting.photographs import grey_values, whole_greys
from kjax.errors import InputError
from kjax.extras import require

MAX_KEYPOINTS = 8000
SIGMA = 0.5
"""σ of a keypoint over its diameter."""
NO_ANGLE = -1.0
"""OpenCV's angle of a keypoint without one."""


class Keypoints(NamedTuple):
    """Points of one photograph, in OpenCV's conventions.

    Attributes:
        xy: positions; the centre of the first pixel is (0, 0).
        scales: diameters in pixels, as `KeyPoint.size`.
        angles: degrees, clockwise on screen, as `KeyPoint.angle`; −1 is "none".
        scores: how sure the detector is; higher is better.
    """

    xy: Float[np.ndarray, "N 2"]
    scales: Float[np.ndarray, " N"]
    angles: Float[np.ndarray, " N"]
    scores: Float[np.ndarray, " N"]

    @classmethod
    def of_sigma(
        cls,
        xy: Float[np.ndarray, "N 2"],
        sigma: Float[np.ndarray, " N"],
        radians: Float[np.ndarray, " N"],
    ) -> "Keypoints":
        """Points of known σ and direction, all equally sure."""
        degrees = np.rad2deg(radians.astype(np.float64))
        return cls(xy, sigma / SIGMA, degrees, np.ones(len(xy)))

    @classmethod
    def join(cls, parts: Iterable["Keypoints"]) -> "Keypoints":
        """All of them, one after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def sigma(self) -> Float64[np.ndarray, " N"]:
        """Scales as PhotoTourism and COLMAP have them."""
        return self.scales.astype(np.float64) * SIGMA

    @property
    def radians(self) -> Float64[np.ndarray, " N"]:
        """Angles in radians, clockwise on screen, 0 for "none"."""
        return np.deg2rad(upright_without(self.angles).astype(np.float64))

    def interest(self, photograph: Any) -> Float64[np.ndarray, "N 5"]:
        """A line of PhotoTourism's `interest.txt` for each; `photograph` is its number there."""
        numbers = np.broadcast_to(photograph, self.scales.shape)
        return np.column_stack([numbers, self.xy, self.radians, np.log2(self.sigma)])

    def keep(self, chosen: np.ndarray) -> "Keypoints":
        """Select keypoints by a mask or by indices."""
        return Keypoints(*(column[chosen] for column in self))

    def padded(self, count: int) -> "Keypoints":
        """Add keypoints of size 0, which never have a patch, up to `count`."""
        missing = (0, count - len(self.xy))
        return Keypoints(
            *(np.pad(column, [missing, *[(0, 0)] * (column.ndim - 1)]) for column in self)
        )


def upright_without(angles: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Angles in degrees with 0 in the place of OpenCV's "none"."""
    return np.where(angles == NO_ANGLE, np.zeros_like(angles), angles)


def detect(
    image: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int = MAX_KEYPOINTS,
    order: str = "rgb",
) -> Keypoints:
    """The strongest SIFT keypoints of a photograph; none of an empty one.

    Args:
        image: as for `kjax.data.cutting.photographs.grey_values`.
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
    max_keypoints: int | None = MAX_KEYPOINTS,
    contrast: float | None = None,
    detector: str = SIFT,
) -> Keypoints:
    """The same of a photograph that `grey_values` has made grey already; None finds all keypoints.

    `contrast` is SIFT's threshold: lower finds more; the detector's own by default. `detector` is
    one of `DETECTORS`.
    """
    return from_opencv(
        find_in_grey(
            grey, mask=mask, max_keypoints=max_keypoints, contrast=contrast, detector=detector
        )
    )


def find_in_grey(
    grey: UInt8[np.ndarray, "height width"] | Float32[np.ndarray, "height width"],
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int | None = MAX_KEYPOINTS,
    contrast: float | None = None,
    detector: str = SIFT,
) -> list[Any]:
    """The same as OpenCV's own objects, which know more of themselves."""
    if max_keypoints is not None and max_keypoints < 1:
        raise InputError(f"max_keypoints is {max_keypoints}: look for at least one")
    if mask is not None:
        mask = _as_mask(mask, grey.shape)
    return find_keypoints(
        whole_greys(grey), mask, name=detector, max_keypoints=max_keypoints, contrast=contrast
    )


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
            f"keypoints of shape {table.shape}: give cv2.KeyPoints, [N, 2 to 4] with x, y, "
            "diameter and angle, or LAFs [N, 2, 3]"
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
