"""kjax as a matcher of vismatch (once image-matching-models).

    from kjax.integrations.vismatch import KjaxMatcher

    result = KjaxMatcher()("left.jpg", "right.jpg")  # as vismatch.get_matcher(…)(…)

vismatch has a fixed list of matchers, so `get_matcher` does not find this one. Positions have the
centre of the first pixel at (0, 0), as in OpenCV.
"""

from typing import Any

import numpy as np
from torch import Tensor
from vismatch import BaseMatcher

import kjax
from kjax.images.features import Features, MatchingMethod
from kjax.weights import shipped


class KjaxMatcher(BaseMatcher):
    """SIFT keypoints, described and matched by kjax."""

    def __init__(
        self,
        device: str = "cpu",
        max_num_keypoints: int = 2048,
        *,
        weights: str = shipped.DEFAULT,
        method: MatchingMethod = "mutual_ratio",
        ratio: float | None = None,
        **options: Any,
    ) -> None:
        """Load weights; arguments are those of vismatch, `kjax.load` and `kjax.match`.

        The images are on `device`; kjax computes on JAX's default.
        """
        super().__init__(device, **options)
        self.describer = kjax.load(weights)
        self.max_num_keypoints, self.method, self.ratio = max_num_keypoints, method, ratio

    def _forward(self, img0: Tensor, img1: Tensor) -> tuple[np.ndarray, ...]:
        """Return vismatch's seven arrays for images [3,H,W] from 0 to 1."""
        first, second = self._describe(img0), self._describe(img1)
        found = kjax.match(first, second, method=self.method, ratio=self.ratio)
        ours, theirs = found.indices.T
        return (
            first.xy[ours],
            second.xy[theirs],
            first.xy,
            second.xy,
            first.descriptors,
            second.descriptors,
            1 - found.ratios,
        )

    def _describe(self, image: Tensor) -> Features:
        return self.describer.describe_image(
            image.permute(1, 2, 0).cpu().numpy(), max_keypoints=self.max_num_keypoints
        )
