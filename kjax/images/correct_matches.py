"""Correct matches: those that a known homography confirms, each location counted once."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from kjax.data.cutting.keypoints import Keypoints
from kjax.images.matching import Distance, Matches, match


class Count(NamedTuple):
    """Matches of a pair of photographs, or of several."""

    correct: int
    matches: int

    @property
    def precision(self) -> float:
        """Share of the matches that are correct; 0 of none."""
        return self.correct / self.matches if self.matches else 0.0


def project(
    homography: Float[np.ndarray, "3 3"], xy: Float[np.ndarray, "N 2"]
) -> Float64[np.ndarray, "N 2"]:
    """Where a homography takes points; NaN for those that it takes to infinity or behind it."""
    moved = np.column_stack([xy.astype(np.float64), np.ones(len(xy))]) @ homography.T
    # The plane's visible side is the one of the photograph's origin, which has homography[2, 2].
    depth = moved[:, 2] * np.sign(homography[2, 2])
    visible = np.where(depth > 0, moved[:, 2], np.nan)
    return moved[:, :2] / visible[:, None]


def total(counts: Iterable[Count]) -> Count:
    """Of several pairs or sequences."""
    correct, matches = np.array([(0, 0), *counts]).sum(axis=0)
    return Count(int(correct), int(matches))


def count_matches(
    keypoints: Sequence[Keypoints],
    rows: Sequence[np.ndarray],
    homographies: Iterable[Float[np.ndarray, "3 3"]],
    *,
    threshold: float,
    ratio: float | None = None,
    distance: Distance = "L2",
) -> list[Count]:
    """Matches of the first photograph's keypoints with those of each other, and the correct ones.

    Args:
        keypoints: of all photographs of a plane.
        rows: their descriptors.
        homographies: from the first to each of the others.
        threshold: pixels that a match may be off.
        ratio: the largest that the ratio test lets pass, both ways; no test by default.
        distance: of the descriptors.
    """
    return [
        count_correct(
            match(
                rows[0],
                rows[other],
                method="mutual" if ratio is None else "mutual_ratio",
                ratio=1.0 if ratio is None else ratio,
                distance=distance,
            ),
            keypoints[0].xy,
            keypoints[other].xy,
            homography,
            threshold=threshold,
        )
        for other, homography in enumerate(homographies, start=1)
    ]


def count_correct(
    matches: Matches,
    xy_a: Float[np.ndarray, "N 2"],
    xy_b: Float[np.ndarray, "M 2"],
    homography: Float[np.ndarray, "3 3"],
    *,
    threshold: float,
) -> Count:
    """How many matches a homography confirms, and of how many, each location counted once.

    Args:
        matches: between the keypoints of two photographs.
        xy_a: positions in the first.
        xy_b: positions in the second.
        homography: the true one, from the first to the second.
        threshold: pixels of the second photograph that a match may be off.
    """
    once = matches.keep(one_per_location(matches, xy_a, xy_b))
    expected = project(homography, xy_a[once.indices[:, 0]])
    off = np.linalg.norm(expected - xy_b[once.indices[:, 1]], axis=1)
    return Count(int((off <= threshold).sum()), len(once))


def one_per_location(
    matches: Matches, xy_a: Float[np.ndarray, "N 2"], xy_b: Float[np.ndarray, "M 2"]
) -> Bool[np.ndarray, " K"]:
    """Which matches to keep so that no location, in either photograph, has two.

    SIFT gives a point with several dominant orientations as several keypoints of one position, and
    a match of each would count one point several times. The one with the smallest distance stays:
    what a matcher could do, as it asks nothing of the true geometry.
    """
    places_a = _location_numbers(xy_a)[matches.indices[:, 0]]
    places_b = _location_numbers(xy_b)[matches.indices[:, 1]]
    kept = ~(_has_others(places_a) | _has_others(places_b))
    taken_a: set[int] = set()
    taken_b: set[int] = set()
    contested = np.flatnonzero(~kept)
    for row in contested[np.argsort(matches.distances[contested], kind="stable")]:
        a, b = int(places_a[row]), int(places_b[row])
        if a not in taken_a and b not in taken_b:
            kept[row] = True
            taken_a.add(a)
            taken_b.add(b)
    return kept


def _location_numbers(xy: Float[np.ndarray, "N 2"]) -> Int[np.ndarray, " N"]:
    # As complex numbers: `np.unique` takes many times as long for rows.
    return np.unique(xy[:, 0] + 1j * xy[:, 1], return_inverse=True)[1].reshape(-1)


def _has_others(places: Int[np.ndarray, " K"]) -> Bool[np.ndarray, " K"]:
    """Of each, whether it is there more than once."""
    return (np.bincount(places) > 1)[places]
