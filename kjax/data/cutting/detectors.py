"""OpenCV's detectors of keypoints with a scale and an angle, by name.

SIFT's keypoints are chosen in three ways. OpenCV keeps those of the strongest contrast, COLMAP
those of the largest scale; "SIFT-steady" ranks by contrast × size², among more: contrast says that
a point is there, scale that noise, blur and another distance leave it there. It has a place once,
with the first orientation that OpenCV tells: another place is worth more than another orientation.
Under random homographies 2,048 keypoints gave half as many correct matches again as the strongest
(docs/peers.md).

Patches are cut by SIFT's measure, `KeyPoint.size` = 2σ. Others' sizes are made such diameters:

| name  | its `KeyPoint.size`                        | divided by                           |
|-------|--------------------------------------------|--------------------------------------|
| SIFT  | 2σ                                         | 1                                    |
| AKAZE | the same by its nonlinear scale, 1.5 · 2σ  | 1, by right matches                  |
| KAZE  | the same, 2σ                               | 1                                    |
| ORB   | the side of what it describes, 31 · 1.2ⁿ   | 31/6: what SIFT describes is 6 sizes |
| BRISK | 12 times its scale                         | 4, by right matches                  |

Right matches were counted with the factors 1, 1.4, 2, … 11 on one pair of photographs, 1,200
keypoints each: 1 gave AKAZE most, 4 and 5.6 gave BRISK most (377 and 379), and 5.6 gave ORB most.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from kjax.errors import InputError, unknown_name
from kjax.extras import require

SIFT, LARGEST, STEADY = "SIFT", "SIFT-largest", "SIFT-steady"
CONTRAST = 0.04
"""OpenCV's own threshold, of SIFT."""
LOW_CONTRAST = 0.02
"""COLMAP's."""
FAINT = 0.01
"""Where size is weighed too, these are worth looking at."""
LABELS = {
    SIFT: "OpenCV SIFT, precise upscale",
    LARGEST: f"OpenCV SIFT, precise upscale, contrast {LOW_CONTRAST}, largest first",
    STEADY: f"OpenCV SIFT, precise upscale, contrast {FAINT}, by contrast times size², places once",
}
"""For people and records, where it is not "OpenCV" and the name."""
SMALLEST_SIDE = 8
"""Of a photograph: with fewer pixels there are no keypoints, and some detectors raise."""
_ALL = 10**6
"""Keypoints for a detector that has to be told how many."""


def _response(point: Any) -> float:
    return point.response


class Detector(NamedTuple):
    """One of OpenCV's detectors.

    Attributes:
        create: makes it, given OpenCV, the number of keypoints, and SIFT's threshold.
        sizes: its `KeyPoint.size` in diameters, 2σ.
        turns_late: whether it finds angles only when it describes.
        rank: of a keypoint: those of the highest are kept.
        contrast: SIFT's threshold, where the caller has none.
        places_once: whether a place with several orientations is one keypoint.
    """

    create: Callable[[ModuleType, int | None, float], Any]
    sizes: float = 1.0
    turns_late: bool = False
    rank: Callable[[Any], float] = _response
    contrast: float = CONTRAST
    places_once: bool = False


def _steadiness(point: Any) -> float:
    return point.response * point.size**2


def _sift(cv2: ModuleType, count: int | None, contrast: float) -> Any:
    # Without precise upscaling OpenCV's keypoints are shifted by a quarter of a pixel.
    return cv2.SIFT_create(
        nfeatures=count or 0, contrastThreshold=contrast, enable_precise_upscale=True
    )


def _contributed(cv2: ModuleType, name: str) -> Any:
    """A detector that OpenCV 5 has moved to its contributed modules."""
    for home in (cv2, getattr(cv2, "xfeatures2d", None)):
        if hasattr(home, name):
            return getattr(home, name)()
    raise InputError(f"this OpenCV has no {name}: pip install opencv-contrib-python-headless")


DETECTORS = {
    STEADY: Detector(_sift, rank=_steadiness, contrast=FAINT, places_once=True),
    SIFT: Detector(_sift),
    LARGEST: Detector(_sift, rank=lambda one: one.size, contrast=LOW_CONTRAST),
    "ORB": Detector(lambda cv2, count, _: cv2.ORB_create(nfeatures=count or _ALL), 31 / 6),
    "BRISK": Detector(lambda cv2, *_: _contributed(cv2, "BRISK_create"), 4.0),
    "AKAZE": Detector(lambda cv2, *_: _contributed(cv2, "AKAZE_create")),
    "KAZE": Detector(lambda cv2, *_: _contributed(cv2, "KAZE_create"), turns_late=True),
}


def check_detector(name: str) -> None:
    """Refuses the name of an unknown detector."""
    if name not in DETECTORS:
        raise unknown_name("detector", name, DETECTORS)


def detector_label(name: str) -> str:
    """For people and records: what a name stands for."""
    return LABELS.get(name, f"OpenCV {name}")


def find_keypoints(
    grey: UInt8[np.ndarray, "height width"],
    mask: UInt8[np.ndarray, "height width"] | None = None,
    *,
    name: str = SIFT,
    max_keypoints: int | None = None,
    contrast: float | None = None,
) -> list[Any]:
    """`cv2.KeyPoint` objects, the best first; their size is a diameter, whoever found them.

    Args:
        grey: photograph.
        mask: keypoints are looked for where it is not zero.
        name: of the detector.
        max_keypoints: at most so many; None finds all.
        contrast: SIFT's threshold: lower finds more. The detector's own by default.
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
        ranked = _once(ranked)
    best = ranked[:max_keypoints]
    if kind.sizes != 1:
        for point in best:
            point.size /= kind.sizes
    return best


def _once(ranked: Sequence[Any]) -> list[Any]:
    """The first keypoint of each place."""
    firsts: dict[tuple[float, float], Any] = {}
    for point in ranked:
        firsts.setdefault(point.pt, point)
    return list(firsts.values())
