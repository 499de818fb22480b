"""OpenCV's detectors of keypoints with a scale and an angle, by name.

SIFT's keypoints are ranked in three ways. "SIFT" keeps those of the highest contrast, as OpenCV
does; "SIFT-largest" those of the largest scale, as COLMAP does; "SIFT-steady" ranks a larger set by
contrast × size² and keeps one orientation per location. Under random homographies 2,048 keypoints
of the last gave half as many correct matches again as the first (docs/peers.md).

Patches are cut by SIFT's measure, `KeyPoint.size` = 2σ. ORB's size is the side of the area that it
describes, and SIFT describes 6 sizes, so ORB's is divided by 31/6. BRISK's is divided by 4, which
gave most correct matches of the factors 1, 1.4, 2, … 11. KAZE's and AKAZE's stay.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from kjax.data.cutting.photographs import Photo
from kjax.errors import InputError, unknown_name
from kjax.extras import require

SIFT, LARGEST, STEADY = "SIFT", "SIFT-largest", "SIFT-steady"
CONTRAST = 0.04
"""OpenCV's default contrast threshold of SIFT."""
LOW_CONTRAST = 0.02
"""COLMAP's contrast threshold."""
FAINT = 0.01
"""Contrast threshold where size counts, too."""
LABELS = {
    SIFT: "OpenCV SIFT, precise upscale",
    LARGEST: f"OpenCV SIFT, precise upscale, contrast {LOW_CONTRAST}, largest first",
    STEADY: f"OpenCV SIFT, precise upscale, contrast {FAINT}, by contrast times size², places once",
}
"""Descriptions of detectors in records; the default is "OpenCV" and the name."""
SMALLEST_SIDE = 8
"""Minimum side of a photograph: some detectors raise for smaller ones."""
_ALL = 10**6
"""Maximum number of keypoints for a detector that has no unlimited mode."""


def _response(point: Any) -> float:
    return point.response


class Detector(NamedTuple):
    """One of OpenCV's detectors.

    Attributes:
        create: makes it from OpenCV, the number of keypoints and SIFT's threshold.
        sizes: divisor of its `KeyPoint.size` that gives 2σ.
        turns_late: angles are found only during description.
        rank: ranks keypoints; the highest are kept.
        contrast: default threshold of SIFT.
        places_once: keep one orientation per location.
    """

    create: Callable[[ModuleType, int | None, float], Any]
    sizes: float = 1.0
    turns_late: bool = False
    rank: Callable[[Any], float] = _response
    contrast: float = CONTRAST
    places_once: bool = False


def _sift(cv2: ModuleType, count: int | None, contrast: float) -> Any:
    # Without precise upscaling OpenCV's keypoints are shifted by a quarter of a pixel.
    return cv2.SIFT_create(
        nfeatures=count or 0, contrastThreshold=contrast, enable_precise_upscale=True
    )


def _contributed(cv2: ModuleType, name: str) -> Any:
    """Create a detector that OpenCV 5 has moved to its contributed modules."""
    for home in (cv2, getattr(cv2, "xfeatures2d", None)):
        if hasattr(home, name):
            return getattr(home, name)()
    raise InputError(f"this OpenCV has no {name}: pip install opencv-contrib-python-headless")


DETECTORS = {
    STEADY: Detector(
        _sift, rank=lambda one: one.response * one.size**2, contrast=FAINT, places_once=True
    ),
    SIFT: Detector(_sift),
    LARGEST: Detector(_sift, rank=lambda one: one.size, contrast=LOW_CONTRAST),
    "ORB": Detector(lambda cv2, count, _: cv2.ORB_create(nfeatures=count or _ALL), 31 / 6),
    "BRISK": Detector(lambda cv2, *_: _contributed(cv2, "BRISK_create"), 4.0),
    "AKAZE": Detector(lambda cv2, *_: _contributed(cv2, "AKAZE_create")),
    "KAZE": Detector(lambda cv2, *_: _contributed(cv2, "KAZE_create"), turns_late=True),
}


def check_detector(name: str) -> None:
    """Raise for an unknown detector."""
    if name not in DETECTORS:
        raise unknown_name("detector", name, DETECTORS)


def detector_label(name: str) -> str:
    """Return the description of a detector for people and records."""
    return LABELS.get(name, f"OpenCV {name}")


def find_keypoints(
    grey: Photo,
    mask: Photo | None = None,
    *,
    name: str = SIFT,
    max_keypoints: int | None = None,
    contrast: float | None = None,
) -> list[Any]:
    """Detect `cv2.KeyPoint` objects, best first, whose size is 2σ for every detector.

    `contrast` is SIFT's threshold: lower finds more (default: the detector's own).
    """
    kind = DETECTORS[name]
    if min(grey.shape) < (1 if kind.create is _sift else SMALLEST_SIDE):
        return []
    cv2 = require("cv2", "finding keypoints")
    # OpenCV itself keeps the strongest.
    count = max_keypoints if kind.rank is _response else None
    detector = kind.create(cv2, count, kind.contrast if contrast is None else contrast)
    found = (
        detector.detectAndCompute(grey, mask)[0] if kind.turns_late else detector.detect(grey, mask)
    )
    ranked = sorted(found, key=kind.rank, reverse=True)
    if kind.places_once:
        firsts: dict[tuple[float, float], Any] = {}
        for point in ranked:
            firsts.setdefault(point.pt, point)
        ranked = list(firsts.values())
    best = ranked[:max_keypoints]
    if kind.sizes != 1:
        for point in best:
            point.size /= kind.sizes
    return best
