"""Errors of matches, homographies and relative poses, and the area under their recall curve."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from kjax.images.poses import Pose

PIXELS = tuple(range(1, 11))
"""Thresholds of the curve of mean matching accuracy."""
ESSENTIAL_PIXELS, HOMOGRAPHY_PIXELS = 1.0, 3.0
"""Inlier thresholds of MAGSAC++."""
STRICTER_PIXELS = (0.1, 0.2, 0.5)
"""More inlier thresholds of essential matrices; the page selects one per method on one scene."""


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


def _homogeneous(rays: np.ndarray) -> np.ndarray:
    return np.column_stack([rays, np.ones(len(rays))])
