"""Dictionaries as LightGlue's extractors give and its matchers take: with a batch of one.

Positions have the centre of the first pixel at (0, 0). Scales are σ, and `oris` radians clockwise
on screen, as its pycolmap backend gives them. The arrays are NumPy's: for a matcher,
`{name: torch.from_numpy(array) for name, array in to_dictionary(features).items()}`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kjax.errors import InputError
from kjax.images.features import Features, from_radians, from_sigmas


def to_dictionary(features: Features) -> dict[str, np.ndarray]:
    """`keypoints` [1, N, 2], `descriptors` [1, N, D], `image_size` and what else is known."""
    columns = {
        "keypoints": features.xy,
        "descriptors": features.descriptors,
        "image_size": np.array(features.image_size, np.float32),
        "keypoint_scores": features.scores,
        "scales": features.sigmas(),
        "oris": features.radians(),
    }
    return {name: column[None] for name, column in columns.items() if column is not None}


def from_dictionary(dictionary: Mapping[str, Any]) -> Features:
    """The same back, from arrays or tensors, with or without the batch of one."""
    for name in ("keypoints", "descriptors", "image_size"):
        if name not in dictionary:
            raise InputError(f"the dictionary lacks {name}: give what a LightGlue extractor gives")
    batched = np.ndim(dictionary["keypoints"]) == 3
    if batched and len(dictionary["keypoints"]) != 1:
        raise InputError("the dictionary is of several photographs: give one at a time")
    known = ("keypoints", "descriptors", "image_size", "keypoint_scores", "scales", "oris")
    columns = {
        name: np.asarray(value)[0] if batched else np.asarray(value)
        for name, value in dictionary.items()
        if name in known
    }
    width, height = (round(float(side)) for side in columns["image_size"])
    scores = columns.get("keypoint_scores")
    return Features(
        xy=columns["keypoints"].astype(np.float32),
        descriptors=columns["descriptors"],
        image_size=(width, height),
        scales=from_sigmas(columns.get("scales")),
        angles=from_radians(columns.get("oris")),
        scores=None if scores is None else scores.astype(np.float32),
    )
