"""Dictionaries as LightGlue's matchers take them: with a batch of one.

Positions have the centre of the first pixel at (0, 0). Scales are σ, and `oris` radians clockwise
on screen, as its pycolmap backend gives them. The arrays are NumPy's: for a matcher,
`{name: torch.from_numpy(array) for name, array in to_dictionary(features).items()}`.
"""

import numpy as np

from kjax.images.features import Features


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
