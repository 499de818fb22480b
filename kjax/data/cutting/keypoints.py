"""Keypoints of a photograph: from an OpenCV detector, or given by the caller.

"SIFT" keeps SIFT's keypoints of the highest contrast, as OpenCV does; "SIFT-largest" those of the
largest scale, as COLMAP does; "SIFT-steady" ranks more of them by contrast × size² and keeps the
strongest orientation per location, which gave half as many correct matches again (docs/peers.md).

Patches are cut by SIFT's measure, `KeyPoint.size` = 2σ. ORB's size is the side of the area that it
describes, and SIFT describes 6 sizes, so ORB's is divided by 31/6. BRISK's is divided by 4,
which gave most correct matches.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from kjax.data.cutting.photographs import Grey, Photo, grey_values, whole_greys
from kjax.errors import InputError
from kjax.extras import require

MAX_KEYPOINTS = 4000
"""Default maximum per image."""
SIGMA = 0.5
"""Ratio of a keypoint's σ to its diameter."""
NO_ANGLE = -1.0
"""OpenCV's angle of a keypoint without orientation."""
SIFT, LARGEST, STEADY = "SIFT", "SIFT-largest", "SIFT-steady"
CONTRAST, LOW_CONTRAST, FAINT = 0.04, 0.02, 0.01
"""SIFT's contrast thresholds: OpenCV's default, COLMAP's, and ours where size counts, too."""
RESPONSE = operator.attrgetter("response")
"""What OpenCV itself ranks keypoints by."""
SMALLEST_SIDE = 8
"""Minimum side of a photograph: some detectors raise for smaller ones."""
SIFT_PIXELS = 4_800_000
"""Maximum pixels given to SIFT at a time: it needs about 240 bytes for each."""
MARGIN = 40
"""Rows above and below a keypoint of the finest octave that SIFT looks at: blurs reach 21 rows,
refinement 5 and the orientation 9."""
COARSEST, BLUR, NEAR, SPREAD = 1.8, 0.9, 1.5, math.radians(10)
"""Orientations: maximum σ in pixels of a level; σ of blur and weights, over σ; of the histogram."""


class Keypoints(NamedTuple):
    """Keypoints of one photograph, in OpenCV's conventions."""

    xy: Float[np.ndarray, "N 2"]  # the centre of the first pixel is (0, 0)
    scales: Float[np.ndarray, " N"]  # diameters in pixels, as `KeyPoint.size`
    angles: Float[np.ndarray, " N"]  # degrees, clockwise on screen; −1 means none
    scores: Float[np.ndarray, " N"]  # higher is better

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

    def upright(self) -> "Keypoints":
        """Drop orientations, so that several at one place and scale become one keypoint."""
        places = np.column_stack([self.xy, self.scales])
        found = self.keep(np.sort(np.unique(places, axis=0, return_index=True)[1]))
        return found._replace(angles=np.full_like(found.angles, NO_ANGLE))

    def concentric(self, context: np.ndarray) -> "Keypoints":
        """Repeat each keypoint at these multiples of its size, one after the other; JAX's, too."""
        repeated = Keypoints(*(column.repeat(len(context), axis=0) for column in self))
        return repeated._replace(scales=(self.scales[:, None] * context[None]).reshape(-1))

    def padded(self, count: int) -> "Keypoints":
        """Add keypoints of size 0, which never have a patch, up to `count`."""
        missing = (0, count - len(self.xy))
        pads = ([missing, *[(0, 0)] * (column.ndim - 1)] for column in self)
        return Keypoints(*map(np.pad, self, pads))


def upright_without(angles: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Return angles in degrees with 0 for keypoints without orientation."""
    return np.where(angles == NO_ANGLE, np.zeros_like(angles), angles)


# Detectors


class Detector(NamedTuple):
    """One of OpenCV's detectors."""

    create: Callable[[ModuleType, int | None, float], Any]  # from number and SIFT's threshold
    sizes: float = 1.0  # divisor of its `KeyPoint.size` that gives 2σ
    turns_late: bool = False  # angles are found only during description
    rank: Callable[[Any], float] = RESPONSE
    contrast: float = CONTRAST  # default threshold of SIFT
    dominant: bool = False  # keep the strongest orientation per location
    label: str = ""


def _sift(cv2: ModuleType, count: int | None, contrast: float) -> Any:
    # Without precise upscaling OpenCV's keypoints are shifted by a quarter of a pixel.
    return cv2.SIFT_create(
        nfeatures=count or 0, contrastThreshold=contrast, enable_precise_upscale=True
    )


def _contributed(name: str, cv2: ModuleType, *_: Any) -> Any:
    """Create a detector that OpenCV 5 has moved to its contributed modules."""
    for home in (cv2, getattr(cv2, "xfeatures2d", None)):
        if hasattr(home, name):
            return getattr(home, name)()
    raise InputError(f"this OpenCV has no {name}: pip install opencv-contrib-python-headless")


_PRECISE = "OpenCV SIFT, precise upscale"
DETECTORS = {
    STEADY: Detector(
        _sift,
        rank=lambda one: one.response * one.size**2,
        contrast=FAINT,
        dominant=True,
        label=f"{_PRECISE}, contrast {FAINT}, by contrast times size², dominant orientation",
    ),
    SIFT: Detector(_sift, label=_PRECISE),
    LARGEST: Detector(
        _sift,
        rank=lambda one: one.size,
        contrast=LOW_CONTRAST,
        label=f"{_PRECISE}, contrast {LOW_CONTRAST}, largest first",
    ),
    "ORB": Detector(lambda cv2, count, _: cv2.ORB_create(nfeatures=count or 10**6), 31 / 6),
    "BRISK": Detector(functools.partial(_contributed, "BRISK_create"), 4.0),
    "AKAZE": Detector(functools.partial(_contributed, "AKAZE_create")),
    "KAZE": Detector(functools.partial(_contributed, "KAZE_create"), turns_late=True),
}


def detector_label(detector: Any) -> str:
    """Return the description of a detector for people and records."""
    own = detector if callable(detector) else DETECTORS[detector]
    return own.label or f"OpenCV {detector}"


def detect(image: np.ndarray, *, order: str = "rgb", **options: Any) -> Keypoints:
    """Detect keypoints of an image as `grey_values` takes it; see `find_in_grey` for options."""
    return detect_in_grey(grey_values(image, order=order), **options)


def detect_in_grey(grey: Grey, *, detector: Any = SIFT, **options: Any) -> Keypoints:
    """Like `find_in_grey`, but return `Keypoints`."""
    if callable(detector):
        return detector(grey, **options)
    return from_opencv(find_in_grey(grey, detector=detector, **options))


def find_in_grey(
    grey: Grey,
    *,
    mask: np.ndarray | None = None,
    max_keypoints: int | None = MAX_KEYPOINTS,
    contrast: float | None = None,
    detector: Any = SIFT,
    upright: bool = False,
) -> list[Any]:
    """Detect `cv2.KeyPoint` objects, best first, whose size is 2σ for every detector.

    Args:
        grey: the result of `grey_values`.
        mask: search where it is not zero, `[H,W]`.
        max_keypoints: maximum number of keypoints; None returns all.
        contrast: SIFT's threshold; lower finds more (default: the detector's own).
        detector: one of `DETECTORS`, or a function like `detect_in_grey`.
        upright: no orientations: several at one place and scale count as one keypoint.
    """
    if callable(detector):
        return to_opencv(detector(grey, mask=mask, max_keypoints=max_keypoints, upright=upright))
    mask = check_search(grey, mask, max_keypoints)
    kind = DETECTORS[detector]
    if min(grey.shape) < (1 if kind.create is _sift else SMALLEST_SIDE):
        return []
    # OpenCV's own limit counts every orientation, and holds for each part of a large photograph.
    every = kind.create is _sift and (upright or grey.size > SIFT_PIXELS)
    count = max_keypoints if kind.rank is RESPONSE and not every else None
    contrast = kind.contrast if contrast is None else contrast
    opened = kind.create(require("cv2", "finding keypoints"), count, contrast)
    if kind.turns_late:
        found = opened.detectAndCompute(whole_greys(grey), mask)[0]
    elif kind.create is _sift:
        enough = None if kind.rank is RESPONSE else max_keypoints
        found = _detect_sift(opened, whole_greys(grey), mask, enough)
    else:
        found = opened.detect(whole_greys(grey), mask)
    ranked = sorted(found, key=kind.rank, reverse=True)
    if kind.dominant or upright:
        places: dict[Any, list[Any]] = {}
        for point in ranked:
            places.setdefault((point.pt, point.size), []).append(point)
        first = list(places.values())[:max_keypoints]
        ranked = [one[0] for one in first] if upright else _dominant(whole_greys(grey), first)
    best = ranked[:max_keypoints]
    for point in best:
        point.size /= kind.sizes
        point.angle = NO_ANGLE if upright else point.angle
    return best


def check_search(
    grey: Grey, mask: np.ndarray | None, max_keypoints: int | None
) -> np.ndarray | None:
    """Return the mask as bytes of 0 and 1, or raise InputError."""
    if max_keypoints is not None and max_keypoints < 1:
        raise InputError(f"max_keypoints is {max_keypoints}: ask for at least one")
    if mask is not None:
        mask = (np.asarray(mask) != 0).astype(np.uint8)
        if mask.shape != grey.shape:
            raise InputError(
                f"the mask has shape {list(mask.shape)}, the image {list(grey.shape)}: "
                "give a mask of the image's size"
            )
    return mask


def _detect_sift(sift: Any, grey: Photo, mask: np.ndarray | None, enough: int | None) -> list[Any]:
    """Detect SIFT's keypoints, of large photographs in parts.

    All octaves but the finest are those of the photograph at half its size: most keypoints move by
    less than a fifth of a pixel. The finest is searched in overlapping bands, unless the others
    have `enough` locations.
    """
    if grey.size <= SIFT_PIXELS:
        return list(sift.detect(grey, mask))
    (height, width), cv2 = grey.shape, require("cv2", "finding keypoints")
    # As sharp, for its size, as SIFT expects of a photograph: σ = ½.
    small = np.ascontiguousarray(cv2.GaussianBlur(grey, (0, 0), math.sqrt(1 - 0.25))[::2, ::2])
    half_mask = None if mask is None else np.ascontiguousarray(mask[::2, ::2])
    found = _detect_sift(sift, small, half_mask, enough)
    for point in found:
        point.pt, point.size = (2 * point.pt[0], 2 * point.pt[1]), 2 * point.size
        point.octave = point.octave & ~255 | _octave(point) + 1
    if enough and len({point.pt for point in found}) >= enough:
        return found
    step = max(SIFT_PIXELS // width - 2 * MARGIN, MARGIN)
    for start in range(0, height, step):
        first, end = max(start - MARGIN, 0), start + step
        band = slice(first, end + MARGIN)
        low, high = start if start else -1, end if end < height else height + 1
        for point in sift.detect(grey[band], None if mask is None else mask[band]):
            x, y = point.pt
            if _octave(point) < 0 and low <= y + first < high:
                point.pt = x, y + first
                found.append(point)
    return found


def _octave(point: Any) -> int:
    """Return the octave of SIFT's keypoint: −1 is the photograph at twice its size."""
    return (point.octave + 128 & 255) - 128


def _dominant(grey: Photo, places: list[list[Any]]) -> list[Any]:
    """Return the keypoint with the strongest orientation of each location.

    OpenCV does not return strengths: as in SIFT, they are the histogram of gradients at each angle.
    """
    points = [point for several in places if len(several) > 1 for point in several]
    table, strengths, cv2 = from_opencv(points), np.empty(len(points)), require("cv2", "SIFT")
    # Where gradients and pixels are, in σ.
    inner, outer = np.linspace(-3.3, 3.3, 11, dtype="f4"), np.linspace(-4.8, 4.8, 16, dtype="f4")
    weight = np.exp(-(inner**2 + inner[:, None] ** 2) / (2 * NEAR**2))
    apart = outer - inner[:, None]
    smooth = np.exp(-((apart / BLUR) ** 2) / 2)
    slope = apart * smooth - (apart * smooth).mean(axis=1, keepdims=True)
    least = max(1.0, max(grey.shape) / 32_000)  # `remap` takes sides below 2¹⁵
    levels = np.ceil(np.log2(np.maximum(table.sigma / COARSEST, least)))
    for level in range(int(levels.max(initial=-1)) + 1):
        grey, here = cv2.pyrDown(grey) if level else grey, np.flatnonzero(levels == level)
        for block in (here[start : start + 4096] for start in range(0, len(here), 4096)):
            found = table.keep(block)
            x, y = (found.xy.T[:, :, None] + found.scales[:, None] * SIGMA * outer) / 2**level
            maps = np.broadcast_arrays(x[:, None], y[:, :, None])
            flat = (one.reshape(len(block), -1) for one in maps)
            seen = cv2.remap(grey, *flat, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            seen = seen.reshape(maps[0].shape).astype("f4")
            dx, dy = smooth @ (seen @ slope.T), slope @ (seen @ smooth.T)
            angles = found.radians.astype("f4")[:, None, None]
            length = np.sqrt(dx**2 + dy**2) + np.float32(1e-9)
            cosine = (dx * np.cos(angles) + dy * np.sin(angles)) / length
            votes = length * np.exp((cosine - 1) / np.float32(SPREAD**2))
            strengths[block] = (weight * votes).sum(axis=(1, 2))
    best = dict(zip(map(id, points), strengths.tolist(), strict=True))
    return [max(several, key=lambda point: best.get(id(point), 0.0)) for several in places]


# Conversion


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
