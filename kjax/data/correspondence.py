"""Which detections in two views are of the same place, by geometry alone.

No descriptor has a say, so that the pairs are fair to all of them; and both keypoints were
detected, so that the patches differ by a real detector's errors in position, scale and orientation.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.spatial import cKDTree

from kjax.data.cutting.keypoints import Keypoints

CANDIDATES = 8
"""Detections looked at about each place; SIFT may report it in a few orientations and scales."""


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """How far a detection may be from where the geometry puts it.

    Attributes:
        offset: distance in units of the keypoint's σ; a patch is 24 σ wide.
        octaves: difference in log2 σ.
        degrees: difference in orientation.
    """

    offset: float = 1.0
    octaves: float = 0.5
    degrees: float = 22.5


def transform_keypoints(keypoints: Keypoints, homography: Float[np.ndarray, "3 3"]) -> Keypoints:
    """Keypoints as a homography (pixels to pixels) shows them: its linear part acts on each."""
    homogeneous = np.column_stack([keypoints.xy, np.ones(len(keypoints.xy))]) @ homography.T
    depth = homogeneous[:, 2]
    xy = homogeneous[:, :2] / depth[:, None]
    # The derivative of (h₁·x, h₂·x) / (h₃·x).
    jacobian = homography[None, :2, :2] - xy[:, :, None] * homography[None, 2:, :2]
    jacobian = jacobian / depth[:, None, None]
    direction = np.stack([np.cos(keypoints.radians), np.sin(keypoints.radians)], axis=1)
    turned = np.einsum("kij,kj->ki", jacobian, direction)
    scale = np.sqrt(np.abs(np.linalg.det(jacobian)))
    return Keypoints.of_sigma(xy, keypoints.sigma * scale, np.arctan2(turned[:, 1], turned[:, 0]))


def match_keypoints(
    predicted: Keypoints, found: Keypoints, *, tolerances: Tolerances
) -> Int64[np.ndarray, " K"]:
    """The detection that each prediction is nearest to, or −1; none is given out twice."""
    matches = np.full(len(predicted.sigma), -1, np.int64)
    if not len(predicted.sigma) or not len(found.sigma):
        return matches
    neighbours = range(1, 1 + min(CANDIDATES, len(found.sigma)))
    distance, index = cKDTree(found.xy).query(predicted.xy, k=neighbours)
    octaves = np.abs(np.log2(found.sigma[index] / predicted.sigma[:, None]))
    turn = np.abs(wrap_angle(found.radians[index] - predicted.radians[:, None]))
    errors = np.stack(
        [
            distance / (tolerances.offset * predicted.sigma[:, None]),
            octaves / tolerances.octaves,
            turn / np.deg2rad(tolerances.degrees),
        ]
    )
    cost = np.where((errors <= 1).all(axis=0), errors.sum(axis=0), np.inf)
    best = cost.argmin(axis=1)
    rows = np.arange(len(best))
    cost, index = cost[rows, best], index[rows, best]
    order = np.argsort(cost, kind="stable")
    order = order[np.isfinite(cost[order])]
    _, first = np.unique(index[order], return_index=True)
    matches[order[first]] = index[order[first]]
    return matches


def distinct_places(keypoints: Keypoints, *, spacing: float = 0.5) -> Bool[np.ndarray, " K"]:
    """Marks the first keypoint at each place: no other before it within `spacing`·σ.

    SIFT gives several orientations to one place; as different "points" they would be non-matching
    pairs that no descriptor could tell apart.
    """
    keep = np.ones(len(keypoints.sigma), bool)
    if len(keep):
        tree = cKDTree(keypoints.xy)
        radii = spacing * keypoints.sigma
        for number, near in enumerate(tree.query_ball_point(keypoints.xy, radii)):
            if any(keep[other] for other in near if other < number):
                keep[number] = False
    return keep


def wrap_angle(radians: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The same angles, within ±π."""
    return (radians + np.pi) % (2 * np.pi) - np.pi
