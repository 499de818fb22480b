"""Errors of matches, homographies and relative poses, and the area under their recall curve."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from kjax.extras import require

PIXELS = tuple(range(1, 11))
"""Thresholds of the curve of mean matching accuracy."""
ESSENTIAL_PIXELS, HOMOGRAPHY_PIXELS = 1.0, 3.0
"""Inlier thresholds of MAGSAC++."""
STRICTER_PIXELS = (0.1, 0.2, 0.5)
"""More inlier thresholds of essential matrices; the page selects one per method on one scene."""
SMALLEST_SAMPLE = 5
SEED = 0
NEARBY = 3.0
"""Maximum distance of a match that takes part in the refinement, in RANSAC thresholds."""
ROUNDS = 3
"""Number of refinements, each on the matches near the last pose."""
CAUCHY_SCALE = 0.5
"""Cauchy scale of the refinement, as a fraction of the RANSAC threshold."""

Pose = tuple[np.ndarray, np.ndarray]
"""Rotation, and direction of translation."""


def area_under_recall(errors: Sequence[float | None], threshold: float) -> float:
    """Return the area under recall against error up to a threshold, as a fraction of it.

    Args:
        errors: one per pair; None, for a pair without an answer, counts as infinite.
        threshold: in the errors' unit.
    """
    known = np.sort([math.inf if error is None else error for error in errors])
    if not len(known):
        return 0.0
    within = int(np.searchsorted(known, threshold, side="right"))
    recall = np.arange(within + 1) / len(known)
    x = np.concatenate([[0.0], known[:within], [threshold]])
    return float(np.trapezoid(np.append(recall, recall[-1]), x)) / threshold


def matching_accuracy(off: Float[np.ndarray, " K"]) -> list[float]:
    """Return the share of matches within 1, 2, … 10 pixels; zeros if there are none."""
    return [float((off <= pixels).mean()) if len(off) else 0.0 for pixels in PIXELS]


def essential_matrix(
    rotation: Float[np.ndarray, "3 3"], translation: Float[np.ndarray, "3"]
) -> Float[np.ndarray, "3 3"]:
    """Return E with bᵀ E a = 0 for matched points on the planes at distance 1."""
    x, y, z = translation
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ rotation


def epipolar_distance(
    rays_a: Float[np.ndarray, "K 2"],
    rays_b: Float[np.ndarray, "K 2"],
    essential: Float[np.ndarray, "3 3"],
) -> Float[np.ndarray, " K"]:
    """Return distances of points from their epipolar lines, the larger of both photos."""
    a, b = _homogeneous(rays_a), _homogeneous(rays_b)
    lines_b, lines_a = a @ essential.T, b @ essential
    residual = np.abs((b * lines_b).sum(axis=1))
    return residual / np.minimum(*(np.linalg.norm(x[:, :2], axis=1) for x in (lines_a, lines_b)))


def relative_pose(
    rays_a: Float[np.ndarray, "K 2"], rays_b: Float[np.ndarray, "K 2"], *, threshold: float
) -> Pose | None:
    """Estimate a relative pose by MAGSAC++ from points on the plane at distance 1."""
    cv2 = require("cv2", "relative poses")
    if len(rays_a) < SMALLEST_SAMPLE:
        return None
    a, b = (np.ascontiguousarray(rays, np.float64) for rays in (rays_a, rays_b))
    cv2.setRNGSeed(SEED)
    try:
        found, mask = cv2.findEssentialMat(
            a, b, np.eye(3), cv2.USAC_MAGSAC, 0.9999, threshold, maxIters=10_000
        )
    except cv2.error:
        return None
    if found is None or found.shape != (3, 3):
        return None
    _, rotation, translation, _ = cv2.recoverPose(found, a, b, np.eye(3), mask=mask)
    return rotation, translation[:, 0]


def pose_error(
    found: Pose | None,
    rotation: Float[np.ndarray, "3 3"],
    translation: Float[np.ndarray, "3"],
) -> float | None:
    """Return the larger error of rotation and direction of translation, in degrees."""
    if found is None:
        return None
    turned = (np.trace(found[0].T @ rotation) - 1) / 2
    along = found[1] @ translation / np.linalg.norm(found[1]) / np.linalg.norm(translation)
    return max(math.degrees(math.acos(float(np.clip(one, -1, 1)))) for one in (turned, along))


def refined_pose(
    rays_a: Float[np.ndarray, "K 2"],
    rays_b: Float[np.ndarray, "K 2"],
    pose: Pose | None,
    *,
    threshold: float,
) -> Pose | None:
    """Refine a pose on all matches near it, by least squares of robust Sampson distances.

    OpenCV's MAGSAC++ returns a pose estimated from few matches; other estimators (PoseLib,
    pycolmap) end with such a step.

    Args:
        rays_a: matches in the first photo, on the plane at distance 1.
        rays_b: in the second.
        pose: start, or None.
        threshold: of RANSAC, on the same plane.
    """
    if pose is None:
        return None
    a, b = _homogeneous(rays_a), _homogeneous(rays_b)
    for _ in range(ROUNDS):
        near = np.abs(_sampson(pose, a, b)) <= NEARBY * threshold
        if near.sum() <= 5:  # degrees of freedom of a pose
            continue
        start, close_a, close_b = pose, a[near], b[near]
        found = least_squares(
            lambda step, start=start, a=close_a, b=close_b: (
                _sampson(_moved(start, step), a, b) / threshold
            ),
            np.zeros(5),
            loss="cauchy",
            f_scale=CAUCHY_SCALE,
            max_nfev=20,
        )
        pose = _moved(start, found.x)
    return pose


def _homogeneous(rays: np.ndarray) -> np.ndarray:
    return np.column_stack([rays, np.ones(len(rays))])


def _moved(pose: Pose, step: Float[np.ndarray, "5"]) -> Pose:
    """Turn by a rotation vector of three, and move the direction across by two."""
    cv2 = require("cv2", "relative poses")
    rotation, along = pose
    across = np.linalg.svd(along[None])[2][1:]
    moved = along / np.linalg.norm(along) + step[3:] @ across
    return cv2.Rodrigues(step[:3])[0] @ rotation, moved / np.linalg.norm(moved)


def _sampson(pose: Pose, a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, " K"]:
    """First-order distances of matches from the pose's epipolar geometry."""
    essential = essential_matrix(*pose)
    lines_b, lines_a = a @ essential.T, b @ essential
    steepness = (lines_a[:, :2] ** 2).sum(axis=1) + (lines_b[:, :2] ** 2).sum(axis=1)
    return (b * lines_b).sum(axis=1) / np.sqrt(np.maximum(steepness, 1e-30))
