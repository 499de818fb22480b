"""Matches, however they were found."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float32, Int32


@dataclasses.dataclass(frozen=True)
class Matches:
    """Pairs of descriptors, in the order of the first photograph's.

    Attributes:
        indices: of the first and of the second photograph's descriptor.
        distances: L2, or the number of differing bits.
        ratios: the distance over that to the second nearest: near 0 is distinctive, 1 is a tie.
            For "mutual_ratio", the larger one of both directions. 0 if there is no second. For
            "learned", one minus the score.
    """

    indices: Int32[np.ndarray, "K 2"]
    distances: Float32[np.ndarray, " K"]
    ratios: Float32[np.ndarray, " K"]

    @classmethod
    def none(cls) -> "Matches":
        """No matches."""
        return cls(np.empty((0, 2), np.int32), np.empty(0, np.float32), np.empty(0, np.float32))

    def __len__(self) -> int:
        return len(self.indices)

    def keep(self, mask: Bool[np.ndarray, " K"]) -> "Matches":
        """Those that a mask marks, such as the inliers of a geometric verification."""
        return Matches(self.indices[mask], self.distances[mask], self.ratios[mask])
