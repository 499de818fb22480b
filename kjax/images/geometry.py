"""Geometry of matches: robust estimation, refinement, and counts of correct matches."""

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from kjax.data.cutting.keypoints import Keypoints
from kjax.errors import InputError, check_name
from kjax.extras import require
from kjax.images.features import Distance, Matches
from kjax.images.match import match

Kind = Literal["homography", "fundamental"]
Choice = Literal["auto", "homography", "fundamental"]
MODELS = {"homography": (4, 2, 8), "fundamental": (7, 3, 7)}
"""Size of a minimal sample, dimension in the space of matches, and degrees of freedom."""
NOISE = 1 / 3
"""Standard deviation of keypoints' positions, as a fraction of the threshold."""
SEED = 0
ROUNDS, STEPS = 3, 5
"""Rounds of refinement, each with newly chosen inliers, and Gauss–Newton steps per round."""
DAMPED = 1.5
"""Cauchy scale of the refinement over the median distance, for Gaussian noise and heavy tails."""
_NEGLIGIBLE = 1e-10
"""Fraction of the largest curvature below which a direction does not change the homography."""
LEAST = 8
"""Minimum number of matches for the refinement."""

Matrix = Float64[np.ndarray, "3 3"]


class Verified(NamedTuple):
    """A geometric model of two images, and the matches that agree with it."""

    model: Matrix | None
    """H with b ~ H a, or F with bᵀ F a = 0, for points (x, y, 1); None if none was found.

    An essential matrix is for points on the planes at distance 1: see `kjax.images.poses`."""
    inliers: Bool[np.ndarray, " K"]
    kind: Kind | Literal["essential"] | None = None


def verify(
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    *,
    model: Choice = "auto",
    threshold: float = 3.0,
    confidence: float = 0.9999,
    iterations: int = 10_000,
    refine: bool = True,
    false_alarms: float = 1.0,
) -> Verified:
    """Fit a model to matched points with OpenCV's MAGSAC++. The result is deterministic.

    A "homography" is for planes and rotating cameras, "fundamental" for any rigid scene. "auto"
    fits both and takes the one with the lower GRIC. A model with no more inliers than random
    matches would give is rejected: `false_alarms` of those are expected to pass, at most. The
    threshold is the maximum inlier distance in pixels, from the transformed match or from the
    epipolar geometry (Sampson). `refine` fits the model to all matches near it.
    """
    check_name("model", model, get_args(Choice))
    check_matches(xy_a, xy_b, threshold)
    cv2 = require("cv2", "geometric verification")
    nothing = Verified(None, np.zeros(len(xy_a), bool))
    if model == "auto":
        options: Any = {"confidence": confidence, "iterations": iterations, "refine": refine}
        options["false_alarms"] = false_alarms / 2  # of each of two
        both = [verify(xy_a, xy_b, model=k, threshold=threshold, **options) for k in get_args(Kind)]
        near = both[0].inliers | both[1].inliers
        costs = [gric(one, xy_a[near], xy_b[near], NOISE * threshold) for one in both]
        return both[int(costs[1] < costs[0])]
    if len(xy_a) <= MODELS[model][0]:
        return nothing
    # OpenCV has one global generator: earlier draws from it must not matter.
    cv2.setRNGSeed(SEED)
    a, b = (np.ascontiguousarray(points, np.float64) for points in (xy_a, xy_b))
    fit = cv2.findHomography if model == "homography" else cv2.findFundamentalMat
    found = mask = None
    # Degenerate points, such as copies of one, make some of its solvers raise.
    with contextlib.suppress(cv2.error):
        found, mask = fit(
            a, b, cv2.USAC_MAGSAC, threshold, confidence=confidence, maxIters=iterations
        )
    if found is None or np.shape(found) != (3, 3) or not np.isfinite(found).all():
        return nothing
    inliers = np.asarray(mask).reshape(-1).astype(bool)
    found = np.asarray(found, np.float64)
    if refine:
        found, inliers = refine_model(model, found, inliers, xy_a, xy_b, threshold)
    verified = Verified(found, inliers, model)
    alarms = log_false_alarms(verified, xy_a, xy_b, threshold)
    return verified if alarms < math.log(false_alarms) else nothing


def check_matches(xy_a: np.ndarray, xy_b: np.ndarray, threshold: float) -> None:
    """Raise InputError unless a model can be fitted to matched points within this threshold."""
    if not threshold > 0:
        raise InputError(f"threshold is {threshold}: give a positive number of pixels")
    if len(xy_a) != len(xy_b):
        raise InputError(f"{len(xy_a)} points do not match {len(xy_b)}: give one for each")
    if not (np.isfinite(xy_a).all() and np.isfinite(xy_b).all()):
        raise InputError("matched points have NaN or infinite coordinates: leave them out")


def log_false_alarms(
    found: Verified, xy_a: Float[np.ndarray, "K 2"], xy_b: Float[np.ndarray, "K 2"], limit: float
) -> float:
    """Return the logarithm of the expected number of models as good among random matches.

    This is the a-contrario criterion of Moisan and Stival (2004). Random points of the second image
    are uniform in the bounding box of the matched ones.
    """
    if (model := found.model) is None or (kind := found.kind) is None:
        return math.inf
    a, b = homogeneous(xy_a), homogeneous(xy_b)
    width, height = np.ptp(xy_b, axis=0)
    if kind == "homography":
        near = _distances(model, a, xy_b) <= limit
        size = math.pi * limit**2
    else:
        there = a @ model.T
        near = np.abs((b * there).sum(axis=1)) <= limit * np.linalg.norm(there[:, :2], axis=1)
        size = 2 * limit * math.hypot(width, height)
    n, k, s = len(b), int((near & found.inliers).sum()), MODELS[kind][0]
    if k <= s or size >= width * height:
        return 0.0
    ways = math.comb(n, k) * math.comb(k, s) * (n - s)
    return math.log(ways) + (k - s) * math.log(size / (width * height))


def gric(
    found: Verified, xy_a: Float[np.ndarray, "K 2"], xy_b: Float[np.ndarray, "K 2"], sigma: float
) -> float:
    """Return Torr's geometric robust information criterion (1998); lower is better."""
    if (model := found.model) is None or (kind := found.kind) is None:
        return math.inf
    b = homogeneous(xy_b)
    there = homogeneous(xy_a) @ model.T
    # Sampson's distance in the space of matches: first order in the error, for both models.
    if kind == "homography":
        error = there[:, :2] - b[:, :2] * there[:, 2:]
        by_a = model[:2, :2] - b[:, :2, None] * model[2, :2]
        slope = np.concatenate([by_a, -there[:, 2, None, None] * np.eye(2)], axis=2)
    else:
        error = (b * there).sum(axis=1)[:, None]
        slope = np.concatenate([b @ model[:, :2], there[:, :2]], axis=1)[:, None]
    curvature = np.linalg.pinv(slope @ slope.transpose(0, 2, 1), hermitian=True)
    squared = np.einsum("ki,kij,kj->k", error, curvature, error)
    n, (_, dimension, freedom) = len(b), MODELS[kind]
    costs = np.minimum(squared / sigma**2, 2 * (4 - dimension)) + dimension * math.log(4)
    return float(costs.sum() + freedom * math.log(4 * n))


def refine_model(
    kind: Kind,
    model: Matrix,
    inliers: Bool[np.ndarray, " K"],
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    threshold: float,
) -> tuple[Matrix, Bool[np.ndarray, " K"]]:
    """Minimise the Cauchy loss of all matches near a model; keep the first if none is better.

    RANSAC ends with a model of few matches; a refined homography is off by half as much at the
    corners.
    """
    plane = kind == "homography"
    distances, step = (
        (_distances, _homography_step) if plane else (sampson_distances, _fundamental_step)
    )
    to_a, to_b = _conditioning(xy_a), _conditioning(xy_b)
    size = 1.0 if plane else math.sqrt(to_a[0, 0] / to_b[0, 0])
    # Sampson's distance is of both images: one scale for both.
    to_a, to_b = np.diag([1 / size, 1 / size, 1]) @ to_a, np.diag([size, size, 1]) @ to_b
    a, b = homogeneous(xy_a) @ to_a.T, homogeneous(xy_b) @ to_b.T
    limit = threshold * to_b[0, 0]
    # x_b ~ H x_a and x_bᵀ F x_a = 0, for the conditioned points, too.
    outer = to_b if plane else np.linalg.inv(to_b).T
    found = initial = outer @ model @ np.linalg.inv(to_a)
    for _ in range(ROUNDS):
        near = (off := np.abs(distances(found, a, b))) <= limit
        if near.sum() < LEAST:
            return model, inliers
        scale = max(DAMPED * float(np.median(off[near])), _NEGLIGIBLE * limit)
        for _ in range(STEPS):
            found = step(found, a[near], b[near], scale)
    costs = [
        np.log1p((np.minimum(np.abs(distances(one, a, b)), limit) / scale) ** 2).sum()
        for one in (found, initial)
    ]
    if not costs[0] < costs[1]:
        return model, inliers
    refined = np.linalg.inv(outer) @ found @ to_a
    refined /= refined[2, 2] if plane else np.linalg.norm(refined)
    return refined, np.abs(distances(found, a, b)) <= limit


def _conditioning(xy: Float[np.ndarray, "K 2"]) -> Matrix:
    """Return the map that centres points and scales their mean distance to about one."""
    middle = xy.mean(axis=0)
    size = max(float(np.abs(xy - middle).mean()), 1e-9)
    return np.array([[1 / size, 0, -middle[0] / size], [0, 1 / size, -middle[1] / size], [0, 0, 1]])


def homogeneous(xy: Float[np.ndarray, "K 2"]) -> Float64[np.ndarray, "K 3"]:
    """Append ones."""
    return np.column_stack([xy, np.ones(len(xy))])


def _distances(matrix: Matrix, a: np.ndarray, b: np.ndarray) -> Float64[np.ndarray, " K"]:
    """Distances of points from their transformed matches."""
    with np.errstate(divide="ignore", invalid="ignore"):
        there = a @ matrix.T
        off = np.linalg.norm(there[:, :2] / there[:, 2:] - b[:, :2], axis=1)
    return np.where(np.isfinite(off), off, np.inf)


def sampson_distances(
    matrix: Matrix, a: Float64[np.ndarray, "K 3"], b: Float64[np.ndarray, "K 3"]
) -> Float64[np.ndarray, " K"]:
    """First-order distances of matches from an epipolar geometry, with signs."""
    return (b @ matrix * a).sum(axis=1) / _steepness(matrix, a, b)


def _steepness(matrix: Matrix, a: np.ndarray, b: np.ndarray) -> Float64[np.ndarray, " K"]:
    lines = np.concatenate([(a @ matrix.T)[:, :2], (b @ matrix)[:, :2]], axis=1)
    return np.maximum(np.linalg.norm(lines, axis=1), 1e-30)


def _homography_step(matrix: Matrix, a: np.ndarray, b: np.ndarray, scale: float) -> Matrix:
    """Take one step of iteratively reweighted least squares."""
    there = a @ matrix.T
    depth = there[:, 2:]
    seen = there[:, :2] / depth
    rows = np.zeros((len(a), 2, 9))
    rows[:, 0, :3] = rows[:, 1, 3:6] = a / depth
    rows[:, :, 6:] = -seen[:, :, None] * (a / depth)[:, None]
    moved = matrix + _weighted_step(rows, seen - b[:, :2], scale).reshape(3, 3)
    return moved / np.linalg.norm(moved)


def _fundamental_step(matrix: Matrix, a: np.ndarray, b: np.ndarray, scale: float) -> Matrix:
    """Likewise, among matrices of rank 2."""
    left, sizes, right = np.linalg.svd(matrix)
    basis = np.einsum("ai,jb->ijab", left, right).reshape(9, 9)
    # All changes but of the scale, and of the smallest singular value: to first order, that keeps
    # the rank.
    ratio = (sizes[1] * basis[0] - sizes[0] * basis[4]) / math.hypot(*sizes[:2])
    tangents = np.vstack([basis[[1, 2, 3, 5, 6, 7]], ratio])
    matrix = (left[:, :2] * sizes[:2]) @ right[:2]
    steepness = _steepness(matrix, a, b)[:, None]
    rows = np.einsum("ki,kj->kij", b, a).reshape(-1, 9) / steepness
    step = _weighted_step((rows @ tangents.T)[:, None], rows @ matrix.reshape(9, 1), scale)
    left, sizes, right = np.linalg.svd(matrix + (step @ tangents).reshape(3, 3))
    return (left[:, :2] * sizes[:2]) @ right[:2] / np.linalg.norm(sizes[:2])


def _weighted_step(
    rows: Float64[np.ndarray, "K n p"], off: Float64[np.ndarray, "K n"], scale: float
) -> Float64[np.ndarray, " p"]:
    """Return the Gauss–Newton step for errors and their derivatives, with Cauchy weights."""
    weight = 1 / np.sqrt(1 + (off**2).sum(axis=1) / scale**2)
    weighted = (rows * weight[:, None, None]).reshape(-1, rows.shape[2])
    slope = weighted.T @ (off * weight[:, None]).reshape(-1)
    # The scale of a matrix is free: the pseudo-inverse takes the shortest step.
    return -np.linalg.pinv(weighted.T @ weighted, rcond=_NEGLIGIBLE, hermitian=True) @ slope


class Count(NamedTuple):
    """Numbers of correct matches and of all matches, of one or several pairs of images."""

    correct: int
    matches: int

    @property
    def precision(self) -> float:
        """Fraction of correct matches; 0 without matches."""
        return self.correct / self.matches if self.matches else 0.0


def total(counts: Iterable[Count]) -> Count:
    """Sum counts over pairs or sequences."""
    correct, matches = np.array([(0, 0), *counts]).sum(axis=0)
    return Count(int(correct), int(matches))


def project(
    homography: Float[np.ndarray, "3 3"], xy: Float[np.ndarray, "N 2"]
) -> Float64[np.ndarray, "N 2"]:
    """Map points by a homography; points at infinity or behind the camera become NaN."""
    moved = homogeneous(xy.astype(np.float64)) @ homography.T
    # The plane's visible side is that of the image's origin, whose depth is homography[2, 2].
    depth = moved[:, 2] * np.sign(homography[2, 2])
    visible = np.where(depth > 0, moved[:, 2], np.nan)
    return moved[:, :2] / visible[:, None]


def count_matches(
    keypoints: Sequence[Keypoints],
    rows: Sequence[np.ndarray],
    homographies: Iterable[Float[np.ndarray, "3 3"]],
    *,
    threshold: float,
    ratio: float | None = None,
    distance: Distance = "L2",
) -> list[Count]:
    """Match the first image of a planar scene with each other image, and count correct matches."""
    counts = []
    for other, homography in enumerate(homographies, start=1):
        matches = match(
            rows[0],
            rows[other],
            method="mutual" if ratio is None else "mutual_ratio",
            ratio=1.0 if ratio is None else ratio,
            distance=distance,
        )
        ends = keypoints[0].xy, keypoints[other].xy
        counts.append(count_correct(matches, *ends, homography, threshold=threshold))
    return counts


def count_correct(
    matches: Matches,
    xy_a: Float[np.ndarray, "N 2"],
    xy_b: Float[np.ndarray, "M 2"],
    homography: Float[np.ndarray, "3 3"],
    *,
    threshold: float,
) -> Count:
    """Count matches within `threshold` pixels of the true homography, each location once."""
    once = matches.keep(one_per_location(matches, xy_a, xy_b))
    expected = project(homography, xy_a[once.indices[:, 0]])
    off = np.linalg.norm(expected - xy_b[once.indices[:, 1]], axis=1)
    return Count(int((off <= threshold).sum()), len(once))


def one_per_location(
    matches: Matches, xy_a: Float[np.ndarray, "N 2"], xy_b: Float[np.ndarray, "M 2"]
) -> Bool[np.ndarray, " K"]:
    """Select matches so that no location, in either image, has two: the smallest distance stays.

    SIFT gives a point with several dominant orientations as several keypoints at one position.
    """
    places = [
        # As complex numbers: `np.unique` takes many times as long for rows.
        np.unique(xy[:, 0] + 1j * xy[:, 1], return_inverse=True)[1].reshape(-1)[ends]
        for xy, ends in zip((xy_a, xy_b), matches.indices.T, strict=True)
    ]

    def repeated(places: Int[np.ndarray, " K"]) -> Bool[np.ndarray, " K"]:
        return (np.bincount(places) > 1)[places]

    kept = ~(repeated(places[0]) | repeated(places[1]))
    taken: tuple[set[int], set[int]] = (set(), set())
    contested = np.flatnonzero(~kept)
    for row in contested[np.argsort(matches.distances[contested], kind="stable")]:
        ends = int(places[0][row]), int(places[1][row])
        if ends[0] not in taken[0] and ends[1] not in taken[1]:
            kept[row] = True
            taken[0].add(ends[0])
            taken[1].add(ends[1])
    return kept
