"""Features as a learned matcher takes them, of whatever extractor, in training and in use alike."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from kjax.errors import InputError
from kjax.images.features import Features, unit_rows

NO_SCALE = 8.0
"""Diameter in pixels of keypoints that have none."""
LEAST_SCALE = 1e-6


class Matchable(NamedTuple):
    """What is known of keypoints besides their positions."""

    scales: Float32[np.ndarray, " N"]
    """Diameters above 0, of which logarithms can be taken."""
    radians: Float32[np.ndarray, " N"]
    descriptors: Float32[np.ndarray, "N D"]
    """Of length 1."""


def matchable(features: Features) -> Matchable:
    """Constants where the extractor found no scales or angles.

    Raises:
        InputError: descriptors of another kind.
    """
    if features.distance != "L2" or features.descriptors.dtype == np.uint8:
        raise InputError("learned matching needs descriptors that are not quantized")
    if not np.isfinite(features.descriptors).all():
        raise InputError("descriptors have NaN or infinite values: mend the extractor")
    count = len(features)
    scales, radians = features.scales, features.radians()
    return Matchable(
        np.full(count, NO_SCALE, "f4") if scales is None else np.maximum(scales, LEAST_SCALE),
        np.zeros(count, "f4") if radians is None else radians,
        unit_rows(features.descriptors),
    )
