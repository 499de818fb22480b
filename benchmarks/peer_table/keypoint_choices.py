"""Ways to choose a number of SIFT's keypoints in a grey photograph, by name."""

import functools
from collections.abc import Callable

import numpy as np

from kjax.data.cutting.detectors import CONTRAST, FAINT, LARGEST, LOW_CONTRAST, SIFT, STEADY
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey, from_opencv
from kjax.extras import require

STRONGEST = "strongest"
EDGE = 20
"""Twice OpenCV's threshold: more points on edges pass."""
CELLS = 16
"""Along a photograph's long side, that share its keypoints."""

Choose = Callable[[np.ndarray, int], Keypoints]


def _choose(photo: np.ndarray, count: int, *, detector: str, contrast: float) -> Keypoints:
    return detect_in_grey(photo, max_keypoints=count, detector=detector, contrast=contrast)


def _on_edges(photo: np.ndarray, count: int) -> Keypoints:
    cv2 = require("cv2", "finding keypoints")
    finder = cv2.SIFT_create(nfeatures=count, edgeThreshold=EDGE, enable_precise_upscale=True)
    return from_opencv(sorted(finder.detect(photo), key=lambda one: -one.response)[:count])


def _single(photo: np.ndarray, count: int) -> Keypoints:
    """One orientation a location, the first that SIFT tells."""
    every = detect_in_grey(photo, max_keypoints=None)
    _, first = np.unique(every.xy, axis=0, return_index=True)
    return every.keep(np.sort(first)[:count])


def _spread(photo: np.ndarray, count: int) -> Keypoints:
    """The strongest of each cell first, then each one's second, and so on."""
    every = detect_in_grey(photo, max_keypoints=None, contrast=LOW_CONTRAST)
    column, row = (every.xy // (max(photo.shape) / CELLS)).astype(int).T
    cell = row * CELLS + column
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], cell[order])
    place = np.empty(len(cell), int)
    place[order] = np.arange(len(cell)) - starts
    return every.keep(np.lexsort((-every.scores, place))[:count])


def _ranked(photo: np.ndarray, count: int, *, power: float, contrast: float) -> Keypoints:
    """By contrast times a power of size."""
    every = detect_in_grey(photo, max_keypoints=None, contrast=contrast)
    return every.keep(np.argsort(-every.scores * every.scales**power, kind="stable")[:count])


CHOICES: dict[str, Choose] = {
    STRONGEST: functools.partial(_choose, detector=SIFT, contrast=CONTRAST),
    "denser": functools.partial(_choose, detector=SIFT, contrast=LOW_CONTRAST),
    "edges": _on_edges,
    "single": _single,
    "spread": _spread,
    "largest": functools.partial(_choose, detector=LARGEST, contrast=LOW_CONTRAST),
    "product": functools.partial(_ranked, power=1, contrast=LOW_CONTRAST),
    "faint": functools.partial(_ranked, power=1, contrast=FAINT),
    "square": functools.partial(_ranked, power=2, contrast=FAINT),
    "steady": functools.partial(_choose, detector=STEADY, contrast=FAINT),
}
WORDS = {
    STRONGEST: "strongest contrast, OpenCV's own (contrast ≥ 0.04)",
    "denser": "the same from contrast ≥ 0.02",
    "edges": "the same with more points on edges (threshold 20, not 10)",
    "single": "the same with one orientation a location",
    "spread": "strongest of each cell of a 16 × 16 grid in turn",
    "largest": "largest scale, as COLMAP (contrast ≥ 0.02)",
    "product": "contrast × size (contrast ≥ 0.02)",
    "faint": "the same from contrast ≥ 0.01",
    "square": "contrast × size² (contrast ≥ 0.01)",
    "steady": "the same with one orientation a location, what `kjax match` takes",
}
"""For people."""
