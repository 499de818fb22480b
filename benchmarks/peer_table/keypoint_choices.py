"""Ways to choose a number of SIFT's keypoints in a grey photograph, by name."""

import functools
from collections.abc import Callable

import numpy as np

from kjax.data.cutting.detectors import LARGEST, SIFT, STEADY
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey

STRONGEST = "strongest"

Choose = Callable[[np.ndarray, int], Keypoints]


def _choose(photo: np.ndarray, count: int, *, detector: str) -> Keypoints:
    return detect_in_grey(photo, max_keypoints=count, detector=detector)


CHOICES: dict[str, Choose] = {
    STRONGEST: functools.partial(_choose, detector=SIFT),
    "largest": functools.partial(_choose, detector=LARGEST),
    "steady": functools.partial(_choose, detector=STEADY),
}
