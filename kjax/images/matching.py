"""Matches between the descriptors of two photographs, and the forms other libraries give them.

matches = match(first, second, method="mutual_ratio", ratio=describer.ratio)
first.xy[matches.indices[:, 0]], second.xy[matches.indices[:, 1]]
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from kjax.errors import InputError, unknown_name
from kjax.images.features import Distance, Features, MatchingMethod
from kjax.images.matches import Matches
from kjax.model.nearest import Neighbours, padded_size, two_nearest
from kjax.weights.shipped import DEFAULT

if TYPE_CHECKING:
    from kjax.images.learned_matching import Matcher

NO_MATCH = -1
"""Stands in hloc's `matches0` for a keypoint without a match."""
_PAIRS_AT_ONCE = 64
"""Pairs of photographs that are one piece of work for the device."""


def match(
    a: Any,
    b: Any,
    *,
    method: MatchingMethod = "mutual",
    ratio: float = 0.8,
    distance: Distance = "L2",
    block: int | None = None,
    matcher: "Matcher | str | None" = None,
) -> Matches:
    """Matches descriptors exactly, in memory that grows with the descriptors, not their pairs.

    Or, with method "learned", the `kjax.Describer.describe_image`'s features of two photographs.

    Of equally near descriptors the one with the lowest index is the nearest. Either side may be
    empty. Kornia's `match_nn`, `match_mnn`, `match_snn` and `match_smnn` are the four methods.

    Args:
        a: descriptors [N, D] of the first photograph, of NumPy or of JAX. Taken as float32 for
            L2. For Hamming: uint8 bytes of eight bits each as OpenCV packs them, or zeros and ones
            of any type. Or `Features`, whose descriptors are taken.
        b: descriptors [M, D] of the second photograph.
        method: which pairs to keep: "nearest" neighbours of a in b; those that are nearest
            neighbours of each other ("mutual"); those much nearer than the second nearest
            ("ratio"); or both, the ratio in both directions ("mutual_ratio"). "learned" looks at
            positions too, and needs `Features` and a matcher.
        ratio: the largest ratio that is kept. A ratio test keeps nothing without a second nearest.
        distance: "L2" or "Hamming".
        block: descriptors a side that are compared at once, rounded down to a power of two. The
            default suits the device.
        matcher: for "learned": `kjax.load_matcher`'s, or what it shall load; its default if None.

    Raises:
        InputError: descriptors that cannot be compared, or an unknown method or distance.
    """
    if method == "learned":
        return _match_learned(a, b, matcher)
    a, b = (side.descriptors if isinstance(side, Features) else side for side in (a, b))
    settings = _Settings(method, ratio, distance, block)
    return _match_sets(_prepare({"a": a, "b": b}, distance), [(0, 1)], settings)[0]


def _match_learned(a: Any, b: Any, matcher: "Matcher | str | None") -> Matches:
    from kjax.images.learned_matching import Matcher, remembered_matcher

    if not isinstance(a, Features) or not isinstance(b, Features):
        raise InputError("method='learned' needs positions too: give describe_image's features")
    word = DEFAULT if matcher is None else matcher
    found = word if isinstance(word, Matcher) else remembered_matcher(str(word))
    return found.match(a, b)


def match_many(
    descriptors: Sequence[Any],
    pairs: Sequence[tuple[int, int]],
    *,
    method: MatchingMethod = "mutual",
    ratio: float = 0.8,
    distance: Distance = "L2",
    block: int | None = None,
) -> list[Matches]:
    """Matches many pairs of photographs in one call: what `match` finds for each of them.

    Every photograph's descriptors go to the device once, and many small pairs are one piece of
    work there.

    Args:
        descriptors: of each photograph, as `match` takes them.
        pairs: places of the two photographs of each pair in `descriptors`.
        method: as in `match`; so are the others.
        ratio: the largest ratio that is kept.
        distance: "L2" or "Hamming".
        block: descriptors a side that are compared at once.

    Raises:
        InputError: descriptors that cannot be compared, pairs of photographs that are not there,
            or an unknown method or distance.
    """
    if method == "learned":
        raise InputError("many pairs cannot be matched by method='learned': match one by one")
    settings = _Settings(method, ratio, distance, block)
    for pair in pairs:
        if len(pair) != 2 or not all(0 <= place < len(descriptors) for place in pair):
            raise InputError(
                f"pair {tuple(pair)} does not name two of {len(descriptors)} photographs: "
                "give their places, from 0"
            )
    if not len(pairs):
        return []
    named = {str(place): rows for place, rows in enumerate(descriptors)}
    return _match_sets(_prepare(named, distance), pairs, settings)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """How to match; refused here if that cannot be."""

    method: MatchingMethod
    ratio: float
    distance: Distance
    block: int | None

    def __post_init__(self) -> None:
        if self.method not in get_args(MatchingMethod):
            raise unknown_name("method", self.method, get_args(MatchingMethod))
        if not 0 < self.ratio <= 1:
            raise InputError(
                f"ratio is {self.ratio}: give a number above 0 and at most 1, such as 0.8"
            )
        if self.block is not None and self.block < 1:
            raise InputError(f"block is {self.block}: give a positive number of descriptors")
        if self.distance not in get_args(Distance):
            raise unknown_name("distance", self.distance, get_args(Distance))


def _match_sets(
    sets: list[Any], pairs: Sequence[tuple[int, int]], settings: _Settings
) -> list[Matches]:
    """Matches of pairs, those that share a program together."""
    lengths = np.array([len(rows) for rows in sets])
    counts = lengths[np.asarray(pairs)]
    rows, starts = _joined(sets, settings.block)
    found = [Matches.none()] * len(pairs)
    several = len(pairs) > 1
    shapes: dict[tuple[int, int], list[int]] = {}
    for place in np.flatnonzero(counts.all(axis=1)).tolist():
        # Of many pairs, both sides of a pair get one size, an octave's largest.
        largest = 1 << int(counts[place].max() - 1).bit_length()
        wanted = (largest, largest) if several else counts[place]
        first, second = (padded_size(int(count), settings.block) for count in wanted)
        shapes.setdefault((first, second), []).append(place)
    for sizes, places in shapes.items():
        chunk = min(_PAIRS_AT_ONCE, 1 << (len(places) - 1).bit_length())
        for at in range(0, len(places), chunk):
            part = places[at : at + chunk]
            filling = ((0, chunk - len(part)), (0, 0))
            sides = two_nearest(
                rows,
                np.pad(starts[np.asarray(pairs)[part]], filling),
                np.pad(counts[part], filling),
                sizes,
                both="mutual" in settings.method,
                block=settings.block,
            )
            for turn, place in enumerate(part):
                near = [
                    Neighbours(*(column[turn, :count] for column in side))
                    for side, count in zip(sides, counts[place], strict=False)
                ]
                found[place] = _chosen(near, settings)
    return found


def _joined(sets: list[Any], block: int | None) -> tuple[jax.Array, Int64[np.ndarray, " sets"]]:
    """All rows on the device, in one array of one of few sizes, and where each set begins."""
    sizes = [padded_size(len(rows), block) for rows in sets]
    ends = np.cumsum(sizes)
    starts = ends - sizes
    whole = padded_size(int(ends[-1]), block)
    if any(isinstance(rows, jax.Array) for rows in sets):
        gaps = np.diff([*starts, whole]) - [len(rows) for rows in sets]
        parts = [jnp.pad(rows, ((0, gap), (0, 0))) for rows, gap in zip(sets, gaps, strict=True)]
        return jnp.concatenate(parts), starts
    joined = np.zeros((whole, sets[0].shape[1]), np.result_type(*sets))
    for rows, start in zip(sets, starts, strict=True):
        joined[start : start + len(rows)] = rows
    return jnp.asarray(joined), starts


def _chosen(near: list[Neighbours], settings: _Settings) -> Matches:
    """Those that the method keeps, from the neighbours of one direction or both."""
    if settings.distance == "L2":
        near = [
            Neighbours(side.place, np.sqrt(side.nearest), np.sqrt(side.second)) for side in near
        ]
    forward, back = near[0], near[-1]
    ratios = _ratios(forward)
    kept = np.ones(len(ratios), bool)
    if "ratio" in settings.method:
        kept &= (ratios <= settings.ratio) & np.isfinite(forward.second)
    if "mutual" in settings.method:
        kept &= back.place[forward.place] == np.arange(len(ratios))
    if settings.method == "mutual_ratio":
        back_ratios = _ratios(back)[forward.place]
        kept &= (back_ratios <= settings.ratio) & np.isfinite(back.second[forward.place])
        ratios = np.maximum(ratios, back_ratios)
    places = np.flatnonzero(kept)
    indices = np.stack([places, forward.place[places]], axis=1)
    return _matches(indices, forward.nearest[places], ratios[places])


def _matches(indices: np.ndarray, distances: np.ndarray, ratios: np.ndarray) -> Matches:
    return Matches(
        indices.astype(np.int32), distances.astype(np.float32), ratios.astype(np.float32)
    )


def _ratios(found: Neighbours) -> Float64[np.ndarray, " n"]:
    # Two copies of the same descriptor are a tie, not 0/0.
    tied = found.nearest == found.second
    return np.where(tied, 1.0, found.nearest / np.where(tied, 1.0, found.second))


def _prepare(named: dict[str, Any], distance: str) -> list[Any]:
    """Rows of float32, of uint8 numbers or of bits; those on an accelerator stay there."""
    on_device = distance == "L2" and jax.default_backend() != "cpu"
    sets = {
        name: rows if on_device and isinstance(rows, jax.Array) else np.asarray(rows)
        for name, rows in named.items()
    }
    for name, rows in sets.items():
        if rows.ndim != 2:
            raise InputError(f"descriptors {name} have shape {rows.shape}: give one row for each")
    dimensions = list(dict.fromkeys(rows.shape[1] for rows in sets.values()))
    if len(dimensions) > 1:
        raise InputError(
            f"descriptors of {dimensions[0]} and of {dimensions[1]} numbers cannot be compared: "
            "describe both photographs with the same model"
        )
    if not dimensions[0]:
        raise InputError("descriptors of no numbers cannot be compared: give columns")
    convert: Callable[[str, Any], Any] = _bits if distance == "Hamming" else _numbers
    return [convert(name, rows) for name, rows in sets.items()]


def _numbers(name: str, rows: Any) -> Any:
    if rows.dtype == bool:
        raise InputError(f"descriptors {name} are bits: compare them with distance='Hamming'")
    if rows.dtype == np.uint8:
        return rows
    numbers = rows.astype(np.float32)
    # NaN is the smallest as well as the largest.
    if np.isfinite(numbers.max(initial=0)) and np.isfinite(numbers.min(initial=0)):
        return numbers
    bad = ~np.isfinite(np.asarray(numbers)).all(axis=1)
    raise InputError(
        f"descriptors {name} have NaN or infinite values in {bad.sum()} of {len(rows)} rows, "
        f"row {int(bad.argmax())} first: leave them out or mend the model"
    )


def _bits(name: str, rows: np.ndarray) -> Bool[np.ndarray, "n bits"]:
    if rows.dtype == np.uint8:
        # Bytes that hold a single bit each come out right as well: the other seven never differ.
        return np.unpackbits(np.ascontiguousarray(rows), axis=1).view(bool)
    if not np.isin(rows, (0, 1)).all():
        raise InputError(
            f"descriptors {name} are no bits: Hamming distances need uint8 bytes, or zeros and ones"
        )
    return rows.astype(bool)


# The form of hloc and LightGlue


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
