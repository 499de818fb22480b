"""How far matches, homographies and poses are off, and the areas under curves of such errors."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from kjax.extras import require

PIXELS = tuple(range(1, 11))
"""At which the curve of mean matching accuracy is measured."""
ESSENTIAL_PIXELS, HOMOGRAPHY_PIXELS = 1.0, 3.0
"""That an inlier of an essential matrix, or of a homography, may be off."""
STRICTER_PIXELS = (0.1, 0.2, 0.5)
"""Of essential matrices: which of all suits a method is chosen on another scene."""
SMALLEST_SAMPLE = 5
SEED = 0


def area_under_recall(errors: Sequence[float | None], threshold: float) -> float:
    """Area under the curve of recall against error up to a threshold, as a share of it.

    Args:
        errors: of all pairs; None, of a pair without an answer, is never small enough.
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
    """The share of matches that is off by at most 1, 2, … 10 pixels; 0 of none."""
    return [float((off <= pixels).mean()) if len(off) else 0.0 for pixels in PIXELS]


def essential_matrix(
    rotation: Float[np.ndarray, "3 3"], translation: Float[np.ndarray, "3"]
) -> Float[np.ndarray, "3 3"]:
    """E with bᵀ E a = 0, of matched points on the planes at distance 1."""
    x, y, z = translation
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ rotation


def epipolar_distance(
    rays_a: Float[np.ndarray, "K 2"],
    rays_b: Float[np.ndarray, "K 2"],
    essential: Float[np.ndarray, "3 3"],
) -> Float[np.ndarray, " K"]:
    """Distances of points from the lines they should lie on, the larger of both photographs."""
    a, b = (np.column_stack([rays, np.ones(len(rays))]) for rays in (rays_a, rays_b))
    lines_b, lines_a = a @ essential.T, b @ essential
    residual = np.abs((b * lines_b).sum(axis=1))
    return residual / np.minimum(*(np.linalg.norm(x[:, :2], axis=1) for x in (lines_a, lines_b)))


def relative_pose(
    rays_a: Float[np.ndarray, "K 2"], rays_b: Float[np.ndarray, "K 2"], *, threshold: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Rotation and direction of translation by MAGSAC++, of points on the plane at distance 1."""
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
    found: tuple[np.ndarray, np.ndarray] | None,
    rotation: Float[np.ndarray, "3 3"],
    translation: Float[np.ndarray, "3"],
) -> float | None:
    """Degrees by which rotation or direction of translation is off, the larger of both."""
    if found is None:
        return None
    turned = (np.trace(found[0].T @ rotation) - 1) / 2
    along = found[1] @ translation / np.linalg.norm(found[1]) / np.linalg.norm(translation)
    return max(math.degrees(math.acos(float(np.clip(one, -1, 1)))) for one in (turned, along))
