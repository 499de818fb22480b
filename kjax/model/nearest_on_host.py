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
    queries, targets, dim = queries[asked], targets[origin], queries.shape[1]
    # Scaling by a power of two is exact, and then no square overflows.
    largest = max(float(np.abs(rows).max(initial=0)) for rows in (queries, targets))
    a, b = (np.ldexp(rows, -np.frexp(largest)[1]) for rows in (queries, targets))
    slack = (dim + 16) * np.finfo(np.float32).eps
    error_a, error_b = (slack * _sizes(rows, metric) for rows in (a, b))
    step = block or max(1, _AT_ONCE // len(b) // (1 if metric == "L2" else dim))
    buffer, found = np.empty((min(step, len(a)), len(b)), np.float32), []
    for start in range(0, len(a), step):
        part = slice(start, start + step)
        lower = buffer[: len(a[part])]
        if metric == "L1":
            np.abs(a[part, None] - b[None]).sum(axis=2, out=lower)
            lower -= error_b[None]
        else:
            np.matmul(a[part], b.T, out=lower)
            lower *= -2
            lower += (_sizes(b, metric) - error_b)[None]
        # The upper bound of the second distance: the larger one of the two lowest rows.
        rows, first = np.arange(len(lower)), lower.argmin(axis=1)
        lowest, lower[rows, first] = lower[rows, first], np.inf
        other = lower.argmin(axis=1)
        upper = np.maximum(lowest + 2 * error_b[first], lower[rows, other] + 2 * error_b[other])
        lower[rows, first] = lowest
        limit = upper + 2 * error_a[part] + np.float32(UNDERFLOW)
        rows, places = np.divmod(np.flatnonzero(lower <= limit[:, None]), len(b))
        at_once = max(1, _AT_ONCE // dim)
        sizes = np.concatenate(
            [
                _sizes(queries[part][rows[few]].astype(np.float64) - targets[places[few]], metric)
                for few in (slice(at, at + at_once) for at in range(0, len(rows), at_once))
            ]
        )
        order = np.lexsort((places, sizes, rows))
        rows, places, sizes = rows[order], places[order], sizes[order]
        nearest = np.searchsorted(rows, np.arange(len(lower)))
        after = np.minimum(nearest + 1, len(rows) - 1)
        alone = (rows[after] != rows[nearest]) | (after == nearest)
        second = np.where(alone, np.inf, sizes[after])
        second = np.where(copies[places[nearest]] > 1, sizes[nearest], second)
        found.append((origin[places[nearest]], sizes[nearest], second))
    return Neighbours(*(np.concatenate(column)[inverse] for column in zip(*found, strict=True)))


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
