"""Ways to choose a number of SIFT's keypoints in a grey photograph, by name."""

from collections.abc import Callable

import numpy as np

from kjax.data.cutting.keypoints import Keypoints, detect
from kjax.images.collection.describing import largest_keypoints

STRONGEST = "strongest"

Choose = Callable[[np.ndarray, int], Keypoints]

CHOICES: dict[str, Choose] = {
    STRONGEST: lambda photo, count: detect(photo, max_keypoints=count),
    "largest": largest_keypoints,
}
