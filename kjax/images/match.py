"""Matches between the descriptors of two images, and hloc's form of them."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from jaxtyping import Float32, Float64, Int32

from kjax.errors import InputError, check_name
from kjax.extras import is_jax_array, jnp
from kjax.images.features import Distance, Features, Matches, MatchingMethod
from kjax.model.describe import on_cpu
from kjax.model.nearest_on_host import Neighbours, search
from kjax.weights.shipped import DEFAULT_RATIO

if TYPE_CHECKING:
    from kjax.images.learned import Matcher

NO_MATCH = -1
"""Index of a keypoint without a match in hloc's `matches0`."""
_PAIRS_AT_ONCE = 64
"""Maximum pairs of images in one call on the device."""
_REPAYS_IMPORT = 16
"""Pairs of images from which it is faster to import JAX."""


def match(
    a: Any,
    b: Any,
    *,
    method: MatchingMethod = "mutual_ratio",
    ratio: float | None = None,
    distance: Distance | None = None,
    block: int | None = None,
    matcher: "Matcher | str | None" = None,
) -> Matches:
    """Match descriptors exactly, in memory linear in their number.

    Ties go to the lowest index. The first four methods are kornia's `match_nn`, `match_mnn`,
    `match_snn` and `match_smnn`.

    Args:
        a: descriptors [N, D] of the first image, a NumPy or JAX array, or `Features`. For Hamming:
            uint8 bytes of eight bits each as OpenCV packs them, or zeros and ones of any type.
        b: descriptors [M, D] of the second image.
        method: "nearest": the nearest neighbours of a in b. "mutual": nearest neighbours of each
            other. "ratio": much nearer than the second nearest. "mutual_ratio": mutual, with the
            ratio test in both directions. "learned": a network that also sees positions; needs
            `Features` and a matcher.
        ratio: maximum distance ratio (default: the smaller of the features' own, or 0.9). Without
            a second nearest the ratio test keeps nothing.
        distance: "L2" or "Hamming" (default: the features' own; L2 for arrays).
        block: descriptors per side that are compared at once, rounded down to a power of two
            (default: depends on the device).
        matcher: for "learned": a matcher, or a source for `kjax.load_matcher` (default: the one
            that ships with the features' weights).
    """
    if method == "learned":
        from kjax.images.learned import Matcher, cached_matcher, own_matcher

        if not isinstance(a, Features) or not isinstance(b, Features):
            raise InputError("method='learned' needs positions: give describe_image's features")
        if not isinstance(matcher, Matcher):
            matcher = cached_matcher(matcher or own_matcher(a))
        return matcher.match(a, b)
    return _match_sets([a, b], "ab", [(0, 1)], method, ratio, distance, block)[0]


def match_many(
    descriptors: Sequence[Any],
    pairs: Sequence[tuple[int, int]],
    *,
    method: MatchingMethod = "mutual_ratio",
    ratio: float | None = None,
    distance: Distance | None = None,
    block: int | None = None,
) -> list[Matches]:
    """Match pairs of indices in `descriptors`, arrays or `Features`, each as `match` does."""
    if method == "learned":
        raise InputError("method='learned' cannot match many pairs at once: call match for each")
    for pair in pairs:
        if len(pair) != 2 or not all(0 <= place < len(descriptors) for place in pair):
            raise InputError(
                f"pair {tuple(pair)} does not name two of {len(descriptors)} images: "
                "give their indices, from 0"
            )
    names = [*map(str, range(len(descriptors)))]
    return _match_sets(descriptors, names, pairs, method, ratio, distance, block)


def _prepare(sets: Sequence[Any], names: Sequence[str], distance: str) -> list[Any]:
    """Convert to rows of float32, uint8 or bits; rows on an accelerator stay there for L2."""
    on_device = distance == "L2" and not on_cpu()
    sets = [rows if on_device and is_jax_array(rows) else np.asarray(rows) for rows in sets]
    for name, rows in zip(names, sets, strict=True):
        if rows.ndim != 2:
            raise InputError(f"descriptors {name} have shape {rows.shape}: give one row for each")
    if len({rows.dtype == np.uint8 for rows in sets}) > 1:
        types = " and of ".join(dict.fromkeys(str(rows.dtype) for rows in sets))
        raise InputError(f"descriptors of {types} cannot be compared: store all in the same form")
    dimensions = list(dict.fromkeys(rows.shape[1] for rows in sets))
    if len(dimensions) > 1:
        raise InputError(
            f"descriptors of {dimensions[0]} and of {dimensions[1]} numbers cannot be compared: "
            "describe both images with the same model"
        )
    if not dimensions[0]:
        raise InputError("descriptors of no numbers cannot be compared: give columns")
    converted = []
    for name, rows in zip(names, sets, strict=True):
        if distance == "Hamming" and rows.dtype == np.uint8:
            # Bytes that hold a single bit each are fine as well: the other seven never differ.
            rows = np.unpackbits(np.ascontiguousarray(rows), axis=1).view(bool)
        elif distance == "Hamming":
            if not np.isin(rows, (0, 1)).all():
                raise InputError(
                    f"descriptors {name} are not bits: Hamming distances need uint8 bytes, or "
                    "zeros and ones"
                )
            rows = rows.astype(bool)
        elif rows.dtype == bool:
            raise InputError(f"descriptors {name} are bits: compare them with distance='Hamming'")
        elif rows.dtype != np.uint8:
            rows = rows.astype(np.float32)
            # NaN is both the minimum and the maximum of any array that has it.
            if not np.isfinite([float(rows.max(initial=0)), float(rows.min(initial=0))]).all():
                bad = ~np.isfinite(np.asarray(rows)).all(axis=1)
                raise InputError(
                    f"descriptors {name} have NaN or infinite values in {bad.sum()} of {len(rows)} "
                    f"rows, row {int(bad.argmax())} first: leave these out or check the model"
                )
        converted.append(rows)
    return converted


def _match_sets(
    given: Sequence[Any],
    names: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    method: str,
    ratio: float | None,
    distance: str | None,
    block: int | None,
) -> list[Matches]:
    """Match pairs; few ones by NumPy, if that spares a command the import of JAX."""
    check_name("method", method, get_args(MatchingMethod))
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"ratio is {ratio}: give a number above 0 and at most 1, such as 0.8")
    if block is not None and block < 1:
        raise InputError(f"block is {block}: give a positive number of descriptors")
    own = {one.distance for one in given if isinstance(one, Features)}
    if len(own) > 1:
        raise InputError("binary descriptors and others cannot be compared: quantize all or none")
    distance = distance or min(own, default="L2")
    check_name("distance", distance, get_args(Distance))
    if not len(pairs):
        return []
    rows = [one.descriptors if isinstance(one, Features) else one for one in given]
    sets = _prepare(rows, names, distance)
    search_pairs = _search_on_host if _without_jax(len(pairs)) else _search_on_device
    found = [Matches.none()] * len(pairs)
    for number, sides in search_pairs(sets, pairs, "mutual" in method, block):
        # Arrays have no ratio of their own.
        own_ratios = [getattr(given[side], "ratio", None) for side in pairs[number]]
        limit = ratio or min(filter(None, own_ratios), default=DEFAULT_RATIO)
        found[number] = _select(sides, method, limit, bits=sets[0].dtype == bool)
    return found


def _without_jax(pairs: int) -> bool:
    return "jax" not in sys.modules and pairs <= _REPAYS_IMPORT and on_cpu()


def _search_on_host(
    sets: list[Any], pairs: Sequence[tuple[int, int]], both: bool, block: int | None
) -> Iterator[tuple[int, list[Neighbours]]]:
    """Yield the number of each pair without empty sets, and neighbours in one direction or both."""
    rows = [one.astype(np.float32) for one in sets]
    for number, (a, b) in enumerate(pairs):
        if len(rows[a]) and len(rows[b]):
            ways = ((a, b), (b, a)) if both else ((a, b),)
            yield number, [search(rows[one], rows[other], block=block) for one, other in ways]


def _search_on_device(
    sets: list[Any], pairs: Sequence[tuple[int, int]], both: bool, block: int | None
) -> Iterator[tuple[int, list[Neighbours]]]:
    """Search like `_search_on_host`; pairs of like sizes share a program and a call."""
    from kjax.model.nearest import padded_size, two_nearest

    places = np.asarray(pairs)
    counts = np.array([len(rows) for rows in sets])[places]
    # All rows go to the device in one array of one of few sizes.
    sizes = [padded_size(len(rows), block) for rows in sets]
    starts = np.cumsum(sizes) - sizes
    whole = padded_size(sum(sizes), block)
    if any(map(is_jax_array, sets)):
        gaps = np.diff([*starts, whole]) - [len(rows) for rows in sets]
        parts = [jnp.pad(rows, ((0, gap), (0, 0))) for rows, gap in zip(sets, gaps, strict=True)]
        joined = jnp.concatenate(parts)
    else:
        host = np.zeros((whole, sets[0].shape[1]), np.result_type(*sets))
        for rows, start in zip(sets, starts, strict=True):
            host[start : start + len(rows)] = rows
        joined = jnp.asarray(host)
    shapes: dict[tuple[int, int], list[int]] = {}
    for number in np.flatnonzero(counts.all(axis=1)).tolist():
        # With many pairs, both sides get one size: the next power of two.
        largest = 1 << int(counts[number].max() - 1).bit_length()
        wanted = (largest, largest) if len(pairs) > 1 else counts[number]
        first, second = (padded_size(int(count), block) for count in wanted)
        shapes.setdefault((first, second), []).append(number)
    for shape, numbers in shapes.items():
        chunk = min(_PAIRS_AT_ONCE, 1 << (len(numbers) - 1).bit_length())
        for at in range(0, len(numbers), chunk):
            part = numbers[at : at + chunk]
            filling = ((0, chunk - len(part)), (0, 0))
            sides = two_nearest(
                joined,
                np.pad(starts[places[part]], filling),
                np.pad(counts[part], filling),
                shape,
                both=both,
                block=block,
            )
            for turn, number in enumerate(part):
                near = [
                    Neighbours(*(column[turn, :count] for column in side))
                    for side, count in zip(sides, counts[number], strict=False)
                ]
                yield number, near


def _select(near: list[Neighbours], method: str, ratio: float, *, bits: bool) -> Matches:
    """Keep what the method keeps, given the neighbours in one direction or both."""
    if not bits:
        near = [
            Neighbours(side.place, np.sqrt(side.nearest), np.sqrt(side.second)) for side in near
        ]
    forward, back = near[0], near[-1]
    ratios = _ratios(forward)
    kept = np.ones(len(ratios), bool)
    if "ratio" in method:
        kept &= (ratios <= ratio) & np.isfinite(forward.second)
    if "mutual" in method:
        kept &= back.place[forward.place] == np.arange(len(ratios))
    if method == "mutual_ratio":
        back_ratios = _ratios(back)[forward.place]
        kept &= (back_ratios <= ratio) & np.isfinite(back.second[forward.place])
        ratios = np.maximum(ratios, back_ratios)
    rows = np.flatnonzero(kept)
    return Matches(
        np.stack([rows, forward.place[rows]], axis=1).astype(np.int32),
        forward.nearest[rows].astype(np.float32),
        ratios[rows].astype(np.float32),
    )


def _ratios(found: Neighbours) -> Float64[np.ndarray, " n"]:
    # Two copies of the same descriptor are a tie, not 0/0.
    tied = found.nearest == found.second
    return np.where(tied, 1.0, found.nearest / np.where(tied, 1.0, found.second))


def hloc_style(matches: Matches, n0: int, n1: int) -> dict[str, np.ndarray]:
    """Convert to `matches0` and `matching_scores0` of hloc and LightGlue, and `…1`.

    Scores are one minus the ratio. If several keypoints of the first image match one, the best
    score wins, then the lowest index.
    """
    first, second = matches.indices.T
    if len(matches) and (first.max() >= n0 or second.max() >= n1):
        raise InputError(f"matches do not fit {n0} and {n1} keypoints: give the counts of the pair")
    scores = 1 - matches.ratios
    styled: dict[str, np.ndarray] = {}
    # The last one written stays: the best, with the lowest index.
    order = np.lexsort((-first, scores))
    for side, count, own, other in (("0", n0, first, second), ("1", n1, second, first)):
        partner, score = np.full(count, NO_MATCH, np.int32), np.zeros(count, np.float32)
        partner[own[order]], score[own[order]] = other[order], scores[order]
        styled[f"matches{side}"], styled[f"matching_scores{side}"] = partner, score
    return styled


def from_hloc_style(
    matches0: Int32[np.ndarray, " N"], scores0: Float32[np.ndarray, " N"]
) -> tuple[Int32[np.ndarray, "K 2"], Float32[np.ndarray, " K"]]:
    """Convert hloc's arrays to pairs of indices and their scores."""
    found = np.flatnonzero(matches0 != NO_MATCH)
    return np.stack([found, matches0[found]], axis=1).astype(np.int32), scores0[found]
