"""A relative pose after RANSAC, brought to where all matches near it agree best.

OpenCV's MAGSAC++ ends with a pose of few matches, which is off by a multiple of what the others
would allow; pose estimators that people use beside it (PoseLib, pycolmap) end with such a step.
"""

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from kjax.extras import require
from peer_table.scores import essential_matrix

Pose = tuple[np.ndarray, np.ndarray]
NEARBY = 3.0
"""Thresholds of RANSAC that a match may be off to have a say."""
OFTEN = 3
"""Each time with the matches that are near then."""
DAMPED = 0.5
"""Of the threshold: from here on, the farther a match is off the less it weighs (Cauchy)."""


def refined_pose(
    rays_a: Float[np.ndarray, "K 2"],
    rays_b: Float[np.ndarray, "K 2"],
    pose: Pose | None,
    *,
    threshold: float,
) -> Pose | None:
    """Rotation and direction of translation of the least damped Sampson distances.

    Args:
        rays_a: matches in the first photograph, on the plane at distance 1.
        rays_b: in the second.
        pose: to start from; without one there is none.
        threshold: of RANSAC, on the same plane.
    """
    if pose is None:
        return None
    a, b = (np.column_stack([rays, np.ones(len(rays))]) for rays in (rays_a, rays_b))
    for _ in range(OFTEN):
        near = np.abs(_sampson(pose, a, b)) <= NEARBY * threshold
        if near.sum() > 5:  # numbers that a pose has
            pose = _fitted(pose, a[near], b[near], threshold)
    return pose


def _fitted(pose: Pose, a: np.ndarray, b: np.ndarray, threshold: float) -> Pose:
    def off(step: np.ndarray) -> np.ndarray:
        return _sampson(_moved(pose, step), a, b) / threshold

    found = least_squares(off, np.zeros(5), loss="cauchy", f_scale=DAMPED, max_nfev=20)
    return _moved(pose, found.x)


def _moved(pose: Pose, step: Float[np.ndarray, "5"]) -> Pose:
    """Turned by a vector of three, and its direction moved across by two."""
    cv2 = require("cv2", "relative poses")
    rotation, along = pose
    across = np.linalg.svd(along[None])[2][1:]
    moved = along / np.linalg.norm(along) + step[3:] @ across
    return cv2.Rodrigues(step[:3])[0] @ rotation, moved / np.linalg.norm(moved)


def _sampson(pose: Pose, a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, " K"]:
    """To first order, how far matches are from where the pose allows them."""
    essential = essential_matrix(*pose)
    lines_b, lines_a = a @ essential.T, b @ essential
    steepness = (lines_a[:, :2] ** 2).sum(axis=1) + (lines_b[:, :2] ** 2).sum(axis=1)
    return (b * lines_b).sum(axis=1) / np.sqrt(np.maximum(steepness, 1e-30))
