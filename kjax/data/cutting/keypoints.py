"""Keypoints of a photograph: from an OpenCV detector, or given by the caller."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from kjax.data.cutting.detectors import SIFT, find_keypoints
from kjax.data.cutting.photographs import Grey, grey_values, whole_greys
from kjax.errors import InputError
from kjax.extras import require

MAX_KEYPOINTS = 8000
SIGMA = 0.5
"""Ratio of a keypoint's σ to its diameter."""
NO_ANGLE = -1.0
"""OpenCV's angle of a keypoint without orientation."""


class Keypoints(NamedTuple):
    """Keypoints of one photograph, in OpenCV's conventions.

    Attributes:
        xy: positions; the centre of the first pixel is (0, 0).
        scales: diameters in pixels, as `KeyPoint.size`.
        angles: degrees, clockwise on screen, as `KeyPoint.angle`; −1 means none.
        scores: the detector's scores; higher is better.
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
        """Make keypoints from σ and orientation, with equal scores."""
        degrees = np.rad2deg(radians.astype(np.float64))
        return cls(xy, sigma / SIGMA, degrees, np.ones(len(xy)))

    @classmethod
    def join(cls, parts: Iterable["Keypoints"]) -> "Keypoints":
        """Concatenate keypoints."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def sigma(self) -> Float64[np.ndarray, " N"]:
        """Scales σ, as in PhotoTourism and COLMAP."""
        return self.scales.astype(np.float64) * SIGMA

    @property
    def radians(self) -> Float64[np.ndarray, " N"]:
        """Angles in radians, clockwise on screen; 0 for none."""
        return np.deg2rad(upright_without(self.angles).astype(np.float64))

    def interest(self, photograph: Any) -> Float64[np.ndarray, "N 5"]:
        """Return rows of PhotoTourism's `interest.txt`, given the photograph's number."""
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
    """Return angles in degrees with 0 for keypoints without orientation."""
    return np.where(angles == NO_ANGLE, np.zeros_like(angles), angles)


def detect(
    image: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int = MAX_KEYPOINTS,
    order: str = "rgb",
) -> Keypoints:
    """Detect the strongest SIFT keypoints of an image as `grey_values` takes it.

    Args:
        image: of any type that `grey_values` takes.
        mask: search where it is not zero, `[H,W]`.
        max_keypoints: maximum number of keypoints, strongest first.
        order: channel order, "rgb" or "bgr".
    """
    return detect_in_grey(grey_values(image, order=order), mask=mask, max_keypoints=max_keypoints)


def detect_in_grey(
    grey: Grey,
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int | None = MAX_KEYPOINTS,
    contrast: float | None = None,
    detector: str = SIFT,
) -> Keypoints:
    """Like `find_in_grey`, but return `Keypoints`."""
    found = find_in_grey(
        grey, mask=mask, max_keypoints=max_keypoints, contrast=contrast, detector=detector
    )
    return from_opencv(found)


def find_in_grey(
    grey: Grey,
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int | None = MAX_KEYPOINTS,
    contrast: float | None = None,
    detector: str = SIFT,
) -> list[Any]:
    """Detect `cv2.KeyPoint` objects in the result of `grey_values`.

    Args:
        grey: image.
        mask: search where it is not zero, `[H,W]`.
        max_keypoints: maximum number of keypoints; None returns all.
        contrast: SIFT's threshold; lower finds more (default: the detector's own).
        detector: one of `DETECTORS`.
    """
    if max_keypoints is not None and max_keypoints < 1:
        raise InputError(f"max_keypoints is {max_keypoints}: ask for at least one")
    if mask is not None:
        mask = np.asarray(mask)
        if mask.shape != grey.shape:
            raise InputError(
                f"the mask has shape {list(mask.shape)}, the image {list(grey.shape)}: "
                "give a mask of the image's size"
            )
        mask = (mask != 0).astype(np.uint8)
    return find_keypoints(
        whole_greys(grey), mask, name=detector, max_keypoints=max_keypoints, contrast=contrast
    )


def as_keypoints(keypoints: Any) -> Keypoints:
    """Convert OpenCV's keypoints, `Keypoints` or an array [N, 2 to 4] to `Keypoints`.

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
    full = np.tile(np.array([0, 0, 32 / 12, NO_ANGLE], np.float32), (len(table), 1))
    full[:, : table.shape[1]] = table
    return Keypoints(full[:, :2], full[:, 2], full[:, 3], np.ones(len(table), np.float32))


def from_opencv(keypoints: Sequence[Any]) -> Keypoints:
    """Convert `cv2.KeyPoint` objects."""
    rows = [(*point.pt, point.size, point.angle, point.response) for point in keypoints]
    table = np.asarray(rows, np.float32).reshape(-1, 5)
    return Keypoints(table[:, :2], table[:, 2], table[:, 3], table[:, 4])


def to_opencv(keypoints: Keypoints) -> list[Any]:
    """Convert to `cv2.KeyPoint` objects."""
    cv2 = require("cv2", "cv2.KeyPoint")
    return [
        cv2.KeyPoint(float(x), float(y), float(size), float(angle), float(score))
        for (x, y), size, angle, score in zip(*keypoints, strict=True)
    ]
