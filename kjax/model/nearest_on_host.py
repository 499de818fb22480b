"""The two nearest neighbours of each row in another set, by NumPy: exact, in bounded memory.

For squared L2 distances, one product in single precision gives lower bounds (see
`kjax.model.kernels.group_minima`). Distances of the few rows that may be among the two nearest are
computed again in double precision, from the differences. `kjax.model.nearest` finds the same on
accelerators, and asks here where its bounds leave doubts.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64, Integer

Metric = Literal["L2", "L1"]
UNDERFLOW = 1e-30
"""Bound on the sum of underflowing products of unit vectors."""
_AT_ONCE = 1 << 20
"""Maximum numbers per step."""


class Neighbours(NamedTuple):
    """The nearest and the second nearest target of each query; ties go to the lowest index."""

    place: Integer[np.ndarray, "*pairs n"]
    nearest: Float64[np.ndarray, "*pairs n"]
    """Distances: squared ones for L2."""
    second: Float64[np.ndarray, "*pairs n"]
    """Infinite where there is only one target."""


def search(
    queries: Float32[np.ndarray, "n dim"],
    targets: Float32[np.ndarray, "m dim"],
    metric: Metric = "L2",
    *,
    block: int | None = None,
) -> Neighbours:
    """Search the targets for the two nearest of each query; `block`: queries per step.

    Equal rows are compared once: featureless patches have the same descriptor.
    """
    origin, _, copies = _distinct(targets)
    asked, inverse, _ = _distinct(queries)
    distinct, dim = targets[origin], queries.shape[1]
    # Scaling by a power of two is exact, and then no square overflows.
    largest = max(float(np.abs(rows).max(initial=0)) for rows in (queries, distinct))
    small, other = (np.ldexp(rows, -np.frexp(largest)[1]) for rows in (queries[asked], distinct))
    sizes, other_sizes = (_sizes(rows, metric).astype(np.float32) for rows in (small, other))
    slack = np.float32((dim + 16) * np.finfo(np.float32).eps)
    step = block or max(1, _AT_ONCE // len(distinct) // (1 if metric == "L2" else dim))
    buffer = np.empty((min(step, len(asked)), len(distinct)), np.float32)
    parts = []
    for start in range(0, len(asked), step):
        part = slice(start, start + step)
        lower = buffer[: len(small[part])]
        if metric == "L1":
            np.abs(small[part, None] - other[None]).sum(axis=2, out=lower)
            lower -= slack * other_sizes[None]
        else:
            np.matmul(small[part], other.T, out=lower)
            lower *= -2
            lower += (1 - slack) * other_sizes[None]
        # Candidates have a lower bound that is not above both upper bounds of the lowest two.
        rows, limit = np.arange(len(lower)), np.full(len(lower), -np.inf, np.float32)
        taken = []
        for _ in range(2):
            place = lower.argmin(axis=1)
            value = lower[rows, place]
            limit = np.maximum(limit, value + 2 * slack * (sizes[part] + other_sizes[place]))
            taken.append((place, value))
            lower[rows, place] = np.inf
        for place, value in reversed(taken):
            lower[rows, place] = value
        flat = np.flatnonzero(lower <= (limit + np.float32(UNDERFLOW))[:, None])
        rows, places = np.divmod(flat, len(distinct))
        parts.append(_two_smallest(queries[asked[part]], distinct, rows, places, metric))
    columns = (np.concatenate(column)[inverse] for column in zip(*parts, strict=True))
    place, nearest, second = columns
    second = np.where(copies[place] > 1, nearest, second)
    return Neighbours(origin[place], nearest, second)


def _two_smallest(
    queries: Float32[np.ndarray, "n dim"],
    targets: Float32[np.ndarray, "m dim"],
    rows: Int64[np.ndarray, " pairs"],
    places: Int64[np.ndarray, " pairs"],
    metric: Metric,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nearest of each query's candidates, and both distances in double precision."""
    cuts = range(step := max(1, _AT_ONCE // queries.shape[1]), len(places), step)
    sizes = np.concatenate(
        [
            _sizes(queries[some].astype(np.float64) - targets[others], metric)
            for some, others in zip(np.split(rows, cuts), np.split(places, cuts), strict=True)
        ]
    )
    order = np.lexsort((places, sizes, rows))
    rows, places, sizes = rows[order], places[order], sizes[order]
    first = np.searchsorted(rows, np.arange(len(queries)))
    after = np.minimum(first + 1, len(rows) - 1)
    second = np.where((rows[after] == rows[first]) & (after > first), sizes[after], np.inf)
    return places[first], sizes[first], second


def _distinct(
    rows: Float32[np.ndarray, "n dim"],
) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " n"], Int64[np.ndarray, " distinct"]]:
    """Return first indices of distinct rows, which of them each row is, and their counts."""
    # Bytes sort far faster than rows of numbers.
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows[:1].nbytes)))[:, 0]
    _, first, inverse, count = np.unique(
        whole, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse], count[order]


def _sizes(rows: Float[np.ndarray, "n dim"], metric: Metric) -> Float[np.ndarray, " n"]:
    return np.abs(rows).sum(axis=1) if metric == "L1" else np.einsum("nd,nd->n", rows, rows)
