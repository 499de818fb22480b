"""A homography brought to where all matches near it agree best.

RANSAC ends with a model of few matches. On random views of photographs a refined one is off by half
as much at the corners, or less.
"""

import numpy as np
from jaxtyping import Bool, Float, Float64

ROUNDS, STEPS = 3, 5
"""How often the matches that are near are chosen anew, and steps of Gauss and Newton with each."""
DAMPED = 1 / 6
"""Of the threshold: from here on, the farther a match is off the less it weighs (Cauchy)."""
_NOTHING = 1e-10
"""Of the largest curvature: what is less does not change the homography."""
LEAST = 8
"""Matches: of fewer, the model stays as it is."""

Matrix = Float64[np.ndarray, "3 3"]


def refine_homography(
    model: Matrix,
    inliers: Bool[np.ndarray, " K"],
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    threshold: float,
) -> tuple[Matrix, Bool[np.ndarray, " K"]]:
    """The homography of the least damped distances, and which matches are near it.

    Args:
        model: H with b ~ H a, to start from: it comes back if none is found to be better.
        inliers: matches near it, likewise.
        xy_a: points of the first photograph.
        xy_b: the points that match them.
        threshold: pixels in the second photograph that a match may be off to have a say.
    """
    to_a, to_b = _conditioned(xy_a), _conditioned(xy_b)
    a, b = _mapped(to_a, xy_a), _mapped(to_b, xy_b)[:, :2]
    limit = threshold * to_b[0, 0]
    found = begun = to_b @ model @ np.linalg.inv(to_a)
    for _ in range(ROUNDS):
        near = _distances(found, a, b) <= limit
        if near.sum() < LEAST:
            return model, inliers
        for _ in range(STEPS):
            found = _stepped(found, a[near], b[near], DAMPED * limit)
    if not _cost(found, a, b, limit) < _cost(begun, a, b, limit):
        return model, inliers
    refined = np.linalg.inv(to_b) @ found @ to_a
    return refined / refined[2, 2], _distances(found, a, b) <= limit


def _conditioned(xy: Float[np.ndarray, "K 2"]) -> Matrix:
    """What brings points about the origin, to distances of about one."""
    middle = xy.mean(axis=0)
    size = max(float(np.abs(xy - middle).mean()), 1e-9)
    return np.array([[1 / size, 0, -middle[0] / size], [0, 1 / size, -middle[1] / size], [0, 0, 1]])


def _mapped(matrix: Matrix, xy: Float[np.ndarray, "K 2"]) -> Float64[np.ndarray, "K 3"]:
    return np.column_stack([xy, np.ones(len(xy))]) @ matrix.T


def _distances(matrix: Matrix, a: np.ndarray, b: np.ndarray) -> Float64[np.ndarray, " K"]:
    with np.errstate(divide="ignore", invalid="ignore"):
        there = a @ matrix.T
        off = np.linalg.norm(there[:, :2] / there[:, 2:] - b, axis=1)
    return np.where(np.isfinite(off), off, np.inf)


def _cost(matrix: Matrix, a: np.ndarray, b: np.ndarray, limit: float) -> float:
    off = np.minimum(_distances(matrix, a, b), limit)
    return float(np.log1p((off / (DAMPED * limit)) ** 2).sum())


def _stepped(matrix: Matrix, a: np.ndarray, b: np.ndarray, scale: float) -> Matrix:
    """One step towards the least squares, each match weighed by how near it is."""
    there = a @ matrix.T
    depth = there[:, 2:]
    seen = there[:, :2] / depth
    off = seen - b
    weight = 1 / np.sqrt(1 + (off**2).sum(axis=1) / scale**2)
    rows = np.zeros((len(a), 2, 9))
    rows[:, 0, :3] = rows[:, 1, 3:6] = a / depth
    rows[:, :, 6:] = -seen[:, :, None] * (a / depth)[:, None]
    weighted = (rows * weight[:, None, None]).reshape(-1, 9)
    slope = weighted.T @ (off * weight[:, None]).reshape(-1)
    # A matrix times a number is the same homography: of all steps the shortest.
    step = -np.linalg.pinv(weighted.T @ weighted, rcond=_NOTHING, hermitian=True) @ slope
    moved = matrix + step.reshape(3, 3)
    return moved / np.linalg.norm(moved)
