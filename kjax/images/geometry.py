"""Geometric verification: which matches one homography or one epipolar geometry explains."""

import contextlib
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64

from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.images.refinement import refine_homography

Kind = Literal["homography", "fundamental"]
SMALLEST_SAMPLE = {"homography": 4, "fundamental": 8}
"""Matches that a model needs: with fewer there is none."""
SEED = 0


class Verified(NamedTuple):
    """What the matches of two photographs have in common."""

    model: Float64[np.ndarray, "3 3"] | None
    """H with b ~ H a, or F with bᵀ F a = 0, of points (x, y, 1); None if there is none."""
    inliers: Bool[np.ndarray, " K"]
    """Which matches agree with the model: none of them without one."""


def verify(
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    *,
    model: Kind = "homography",
    threshold: float = 3.0,
    confidence: float = 0.9999,
    iterations: int = 10_000,
    refine: bool = True,
) -> Verified:
    """Fits a model to matched points with OpenCV's MAGSAC++. The same input gives the same result.

    Args:
        xy_a: points of the first photograph.
        xy_b: the points that match them, in the second photograph.
        model: "homography" for planes and turning cameras, "fundamental" for any rigid scene.
        threshold: pixels that an inlier may be off: from its transformed match, or from the
            epipolar line.
        confidence: that a better model does not exist, at which the search ends.
        iterations: after which it ends anyway.
        refine: bring a homography to where all matches near it agree best.

    Raises:
        InputError: OpenCV is missing, or the points are not finite.
    """
    if model not in get_args(Kind):
        raise unknown_name("model", model, get_args(Kind))
    if not threshold > 0:
        raise InputError(f"threshold is {threshold}: give a positive number of pixels")
    if len(xy_a) != len(xy_b):
        raise InputError(f"{len(xy_a)} points do not match {len(xy_b)}: give one for each")
    if not (np.isfinite(xy_a).all() and np.isfinite(xy_b).all()):
        raise InputError("matched points have NaN or infinite coordinates: leave them out")
    cv2 = require("cv2", "geometric verification")
    nothing = Verified(None, np.zeros(len(xy_a), bool))
    if len(xy_a) < SMALLEST_SAMPLE[model]:
        return nothing
    # OpenCV's generator is one for all: whoever drew from it before must not matter.
    cv2.setRNGSeed(SEED)
    found, mask = _fit(cv2, xy_a, xy_b, model, threshold, confidence, iterations)
    if found is None or np.shape(found) != (3, 3) or not np.isfinite(found).all():
        return nothing
    inliers = np.asarray(mask).reshape(-1).astype(bool)
    if inliers.sum() < SMALLEST_SAMPLE[model]:
        return nothing
    found = np.asarray(found, np.float64)
    if refine and model == "homography":
        found, inliers = refine_homography(found, inliers, xy_a, xy_b, threshold)
    return Verified(found, inliers)


def _fit(
    cv2: Any,
    xy_a: np.ndarray,
    xy_b: np.ndarray,
    model: str,
    threshold: float,
    confidence: float,
    iterations: int,
) -> tuple[np.ndarray | None, np.ndarray | None]:
    a, b = (np.ascontiguousarray(points, np.float64) for points in (xy_a, xy_b))
    # Points without any geometry, such as copies of one, make some of its solvers raise.
    with contextlib.suppress(cv2.error):
        if model == "homography":
            return cv2.findHomography(
                a,
                b,
                cv2.USAC_MAGSAC,
                threshold,
                maxIters=iterations,
                confidence=confidence,
            )
        return cv2.findFundamentalMat(
            a, b, cv2.USAC_MAGSAC, threshold, confidence, maxIters=iterations
        )
    return None, None
