"""Matches between the descriptors of two photographs, and the forms other libraries give them.

matches = match(first.descriptors, second.descriptors, method="mutual_ratio", ratio=0.9)
first.xy[matches.indices[:, 0]], second.xy[matches.indices[:, 1]]
"""

import dataclasses
from typing import Any, get_args

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64, Num

from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.images.methods import Distance, MatchingMethod
from kjax.images.nearest import Neighbours, default_block, two_nearest_bits, two_nearest_l2

NO_MATCH = -1
"""Stands in hloc's `matches0` for a keypoint without a match."""


@dataclasses.dataclass(frozen=True)
class Matches:
    """Pairs of descriptors, in the order of the first photograph's.

    Attributes:
        indices: of the first and of the second photograph's descriptor.
        distances: L2, or the number of differing bits.
        ratios: the distance over that to the second nearest: near 0 is distinctive, 1 is a tie.
            For "mutual_ratio", the larger one of both directions. 0 if there is no second.
    """

    indices: Int32[np.ndarray, "K 2"]
    distances: Float32[np.ndarray, " K"]
    ratios: Float32[np.ndarray, " K"]

    def __len__(self) -> int:
        return len(self.indices)

    def keep(self, mask: Bool[np.ndarray, " K"]) -> "Matches":
        """Those that a mask marks, such as the inliers of a geometric verification."""
        return Matches(self.indices[mask], self.distances[mask], self.ratios[mask])


def match(
    a: Any,
    b: Any,
    *,
    method: MatchingMethod = "mutual",
    ratio: float = 0.8,
    distance: Distance = "L2",
    block: int | None = None,
) -> Matches:
    """Matches descriptors exactly, in memory that grows with the descriptors, not their pairs.

    Of equally near descriptors the one with the lowest index is the nearest. Either side may be
    empty. Kornia's `match_nn`, `match_mnn`, `match_snn` and `match_smnn` are the four methods.

    Args:
        a: descriptors [N, D] of the first photograph, of NumPy or of JAX. Taken as float32 for
            L2. For Hamming: uint8 bytes of eight bits each as OpenCV packs them, or zeros and ones
            of any type.
        b: descriptors [M, D] of the second photograph.
        method: which pairs to keep: "nearest" neighbours of a in b; those that are nearest
            neighbours of each other ("mutual"); those much nearer than the second nearest
            ("ratio"); or both, the ratio in both directions ("mutual_ratio").
        ratio: the largest ratio that is kept. A ratio test keeps nothing without a second nearest.
        distance: "L2" or "Hamming".
        block: descriptors a side that are compared at once, rounded down to a power of two. The
            default suits the device.

    Raises:
        InputError: descriptors that cannot be compared, or an unknown method or distance.
    """
    if method not in get_args(MatchingMethod):
        raise unknown_name("method", method, get_args(MatchingMethod))
    if not 0 < ratio <= 1:
        raise InputError(f"ratio is {ratio}: give a number above 0 and at most 1, such as 0.8")
    block = default_block() if block is None else block
    if block < 1:
        raise InputError(f"block is {block}: give a positive number of descriptors")
    first, second = _prepare(a, b, distance)
    if not len(first) or not len(second):
        return _matches(np.empty((0, 2)), np.empty(0), np.empty(0))
    forward = _two_nearest(first, second, distance, block)
    ratios = _ratios(forward)
    kept = np.ones(len(first), bool)
    if "ratio" in method:
        kept &= (ratios <= ratio) & np.isfinite(forward.second)
    places = np.flatnonzero(kept)
    if "mutual" in method:
        places, back_ratios = _mutual(first, second, forward.place, places, distance, block)
        if method == "mutual_ratio":
            enough = (back_ratios <= ratio) & (len(first) > 1)
            ratios[places] = np.maximum(ratios[places], back_ratios)
            places = places[enough]
    indices = np.stack([places, forward.place[places]], axis=1)
    return _matches(indices, forward.nearest[places], ratios[places])


def _matches(indices: np.ndarray, distances: np.ndarray, ratios: np.ndarray) -> Matches:
    return Matches(
        indices.astype(np.int32), distances.astype(np.float32), ratios.astype(np.float32)
    )


def _mutual(
    first: Float32[np.ndarray, "N D"],
    second: Float32[np.ndarray, "M D"],
    nearest: Int64[np.ndarray, " N"],
    places: Int64[np.ndarray, " kept"],
    distance: str,
    block: int,
) -> tuple[Int64[np.ndarray, " mutual"], Float64[np.ndarray, " mutual"]]:
    """Of the kept descriptors those whose neighbour's nearest they are, and the ratios back."""
    # Only neighbours of something can be mutual: often far fewer than there are.
    asked, inverse = np.unique(nearest[places], return_inverse=True)
    if not len(asked):
        return places, np.empty(0)
    back = _two_nearest(second[asked], first, distance, block)
    mutual = back.place[inverse] == places
    return places[mutual], _ratios(back)[inverse[mutual]]


def _two_nearest(
    queries: Float32[np.ndarray, "n D"],
    targets: Float32[np.ndarray, "m D"],
    distance: str,
    block: int,
) -> Neighbours:
    if distance == "Hamming":
        return two_nearest_bits(queries, targets, block=block)
    found = two_nearest_l2(queries, targets, block=block)
    return Neighbours(found.place, np.sqrt(found.nearest), np.sqrt(found.second))


def _ratios(found: Neighbours) -> Float64[np.ndarray, " n"]:
    # Two copies of the same descriptor are a tie, not 0/0.
    tied = found.nearest == found.second
    return np.where(tied, 1.0, found.nearest / np.where(tied, 1.0, found.second))


def _prepare(
    a: Any, b: Any, distance: str
) -> tuple[Float32[np.ndarray, "N D"], Float32[np.ndarray, "M D"]]:
    if distance not in get_args(Distance):
        raise unknown_name("distance", distance, get_args(Distance))
    first, second = np.asarray(a), np.asarray(b)
    for name, rows in (("a", first), ("b", second)):
        if rows.ndim != 2:
            raise InputError(f"descriptors {name} have shape {rows.shape}: give one row for each")
    if first.shape[1] != second.shape[1]:
        raise InputError(
            f"descriptors of {first.shape[1]} and of {second.shape[1]} numbers cannot be compared: "
            "describe both photographs with the same model"
        )
    if not first.shape[1]:
        raise InputError("descriptors of no numbers cannot be compared: give columns")
    convert = _bits if distance == "Hamming" else _numbers
    return convert("a", first), convert("b", second)


def _numbers(name: str, rows: Num[np.ndarray, "n D"] | np.ndarray) -> Float32[np.ndarray, "n D"]:
    if rows.dtype == bool:
        raise InputError(f"descriptors {name} are bits: compare them with distance='Hamming'")
    numbers = np.ascontiguousarray(rows, np.float32)
    bad = ~np.isfinite(numbers).all(axis=1)
    if bad.any():
        raise InputError(
            f"descriptors {name} have NaN or infinite values in {bad.sum()} of {len(rows)} rows, "
            f"row {int(bad.argmax())} first: leave them out or mend the model"
        )
    return numbers


def _bits(name: str, rows: np.ndarray) -> Float32[np.ndarray, "n bits"]:
    if rows.dtype == np.uint8:
        # Bytes that hold a single bit each come out right as well: the other seven never differ.
        return np.unpackbits(np.ascontiguousarray(rows), axis=1).astype(np.float32)
    if not np.isin(rows, (0, 1)).all():
        raise InputError(
            f"descriptors {name} are no bits: Hamming distances need uint8 bytes, or zeros and ones"
        )
    return rows.astype(np.float32)


# The forms of other libraries


def kornia_style(
    matches: Matches, *, ratios: bool = False
) -> tuple[Float32[np.ndarray, "K 1"], Int64[np.ndarray, "K 2"]]:
    """Kornia's (dists, idxs): `ratios` in the place of distances, as in its match_s(m)nn."""
    values = matches.ratios if ratios else matches.distances
    return values[:, None], matches.indices.astype(np.int64)


def hloc_style(matches: Matches, n0: int, n1: int) -> dict[str, np.ndarray]:
    """`matches0`, `matching_scores0` of hloc and LightGlue, and the same of the second side.

    Args:
        matches: at most one for each descriptor of the first photograph.
        n0: descriptors of the first photograph.
        n1: descriptors of the second photograph. Where several of the first match one, its entry
            is the one with the best score, the lowest index among equal ones.

    Returns:
        For each side the other's index, or −1, and a score from 0 to 1: one minus the ratio.
    """
    first, second = matches.indices.T
    if len(matches) and (first.max() >= n0 or second.max() >= n1):
        raise InputError(f"matches do not fit {n0} and {n1} keypoints: give the counts of the pair")
    scores = 1 - matches.ratios
    styled: dict[str, np.ndarray] = {}
    # The last to be written stays: the best one, of the lowest index.
    order = np.lexsort((-first, scores))
    for side, count, own, other in (("0", n0, first, second), ("1", n1, second, first)):
        partner, score = np.full(count, NO_MATCH, np.int32), np.zeros(count, np.float32)
        partner[own[order]], score[own[order]] = other[order], scores[order]
        styled[f"matches{side}"], styled[f"matching_scores{side}"] = partner, score
    return styled


def from_hloc_style(
    matches0: Int32[np.ndarray, " N"], scores0: Float32[np.ndarray, " N"]
) -> tuple[Int32[np.ndarray, "K 2"], Float32[np.ndarray, " K"]]:
    """Pairs of indices, and their scores."""
    found = np.flatnonzero(matches0 != NO_MATCH)
    return np.stack([found, matches0[found]], axis=1).astype(np.int32), scores0[found]


def opencv_style(matches: Matches) -> list[Any]:
    """A list of OpenCV's DMatch, for `cv2.drawMatches` and the like."""
    cv2 = require("cv2", "cv2.DMatch")
    return [
        cv2.DMatch(int(first), int(second), float(distance))
        for (first, second), distance in zip(matches.indices, matches.distances, strict=True)
    ]
