"""The two nearest descriptors of each descriptor: exact, and in bounded memory.

The device looks through all pairs in blocks and never holds a matrix of all distances. Squared L2
distances come from one matrix product in single precision, whose rounding errors could swap
neighbours that are almost equally far. So what is compared there is a LOWER BOUND of the distance:
the third smallest bound tells whether the two nearest can be any others. These are measured again
in double precision, from the differences; the few queries that stay in doubt are searched again in
double precision. The answer depends on neither the device nor the blocks.

Hamming distances are small integers, which single precision counts exactly.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int32, Int64, Integer

_SMALLEST = 64
"""Descriptors that the smallest program takes."""
_AT_ONCE = 1 << 22
"""Numbers in double precision that the host works on at once."""
_UNDERFLOW = 1e-30
"""Far more than what numbers too small for single precision can add up to, of vectors of size 1."""


class Neighbours(NamedTuple):
    """The nearest and the second nearest target of each query; ties go to the lowest index."""

    place: Int64[np.ndarray, " n"]
    nearest: Float64[np.ndarray, " n"]
    """Distances: squared ones for L2."""
    second: Float64[np.ndarray, " n"]
    """Infinite where there is only one target."""


def default_block() -> int:
    """Descriptors a side: a CPU's cache holds their distances, an accelerator needs more work."""
    return 1024 if jax.default_backend() == "cpu" else 4096


def two_nearest_l2(
    queries: Float32[np.ndarray, "n dim"], targets: Float32[np.ndarray, "m dim"], *, block: int
) -> Neighbours:
    """By the squared L2 distance, for finite descriptors and at least one target."""
    # Powers of two cost no digits; no square can then overflow. A product of n terms is off by
    # n/2 ε |q| |t| at most, however it is summed: `shrink` allows for twice what the doubled
    # product needs, and for the few roundings around it.
    _, exponent = np.frexp(max(_largest(queries), _largest(targets)))
    places, bounds = _shortlist(
        np.ldexp(queries, -exponent),
        np.ldexp(targets, -exponent),
        block=block,
        shrink=1.0 - (queries.shape[1] + 8) * float(np.finfo(np.float32).eps),
    )
    found = _measure(queries, targets, places)
    # No target outside the shortlist is closer than the third bound.
    limit = np.ldexp(bounds[:, 2].astype(np.float64) - _UNDERFLOW, 2 * exponent)
    worst = found.nearest if len(targets) == 1 else found.second
    doubtful = np.flatnonzero(~(worst < limit))
    if len(doubtful):
        searched = _search_again(queries[doubtful], targets)
        for mine, better in zip(found, searched, strict=True):
            mine[doubtful] = better
    return found


def two_nearest_bits(
    queries: Float32[np.ndarray, "n bits"], targets: Float32[np.ndarray, "m bits"], *, block: int
) -> Neighbours:
    """By the Hamming distance between rows of zeros and ones, for at least one target."""
    places, distances = _shortlist(queries, targets, block=block, shrink=1.0)
    first, second = distances[:, :2].astype(np.float64).T
    return Neighbours(places[:, 0].astype(np.int64), first.copy(), second.copy())


# On the device


def _shortlist(
    queries: Float32[np.ndarray, "n dim"],
    targets: Float32[np.ndarray, "m dim"],
    *,
    block: int,
    shrink: float,
) -> tuple[Int32[np.ndarray, "n 2"], Float32[np.ndarray, "n 3"]]:
    """Places of the two smallest values for each query, and the three smallest values.

    Values are s |q|² + s |t|² − 2 q·t, where s is `shrink`. A missing target has an infinite value
    and a place that does not exist.
    """
    columns = min(_power_of_two(block), _padded_size(len(targets), block))
    rows = min(_power_of_two(block), _padded_size(len(queries), block))
    padded = _pad(targets, _padded_size(len(targets), block))
    norms = np.full(len(padded), np.inf, np.float32)
    norms[: len(targets)] = shrink * _square_norms(targets)
    wanted = jnp.asarray(padded), jnp.asarray(norms)
    count = np.int32(-(-len(targets) // columns))
    # Launched one after the other, and fetched when the device has them all to do.
    launched = [
        _search_block(jnp.asarray(_pad(part, rows)), *wanted, count, columns=columns)
        for part in np.split(queries, range(rows, len(queries), rows))
    ]
    places = np.concatenate([np.asarray(place).T for place, _ in launched])[: len(queries), :2]
    values = np.concatenate([np.asarray(value).T for _, value in launched])[: len(queries)]
    return places, values + (shrink * _square_norms(queries)).astype(np.float32)[:, None]


@functools.partial(jax.jit, static_argnames="columns")
def _search_block(
    queries: Float32[Array, "rows dim"],
    targets: Float32[Array, "m dim"],
    norms: Float32[Array, " m"],
    count: Int32[Array, ""],
    *,
    columns: int,
) -> tuple[Int32[Array, "3 rows"], Float32[Array, "3 rows"]]:
    """The three smallest |t|² − 2 q·t in the first `count` blocks of targets, in order."""
    # Targets first: a CPU then compares many queries in one instruction.
    doubled = -2 * queries.T
    here = jnp.arange(columns, dtype=jnp.int32)[:, None]

    def look(turn: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        start = turn.astype(jnp.int32) * columns
        block = jax.lax.dynamic_slice_in_dim(targets, start, columns)
        squares = jax.lax.dynamic_slice_in_dim(norms, start, columns)
        values = jnp.dot(block, doubled, precision="highest") + squares[:, None]
        places, smallest = _three_smallest(values, here)
        # Stable, and earlier targets first: a tie keeps the lowest index.
        merged = jax.lax.sort(
            (
                jnp.concatenate([best[1], smallest]),
                jnp.concatenate([best[0], places + start]),
            ),
            dimension=0,
            is_stable=True,
            num_keys=1,
        )
        return merged[1][:3], merged[0][:3]

    shape = (3, queries.shape[0])
    start = jnp.full(shape, targets.shape[0], jnp.int32), jnp.full(shape, jnp.inf, jnp.float32)
    return jax.lax.fori_loop(0, count, look, start)


def _three_smallest(
    values: Float32[Array, "columns rows"], here: Int32[Array, "columns 1"]
) -> tuple[Int32[Array, "3 rows"], Float32[Array, "3 rows"]]:
    """By repeated minima, which are quicker than a sort; the third one's place is left out."""
    places, smallest = [], []
    for _ in range(2):
        least = values.min(axis=0)
        place = jnp.where(values == least[None], here, values.shape[0]).min(axis=0)
        values = jnp.where(here == place[None], jnp.inf, values)
        places.append(place)
        smallest.append(least)
    nowhere = jnp.zeros_like(places[0])
    return jnp.stack([*places, nowhere]), jnp.stack([*smallest, values.min(axis=0)])


def _power_of_two(block: int) -> int:
    return 1 << max(_SMALLEST, block).bit_length() - 1


def _padded_size(count: int, block: int) -> int:
    """The next of few sizes, four to an octave, in whole blocks where there are several."""
    step = max(_SMALLEST, 1 << max(0, count.bit_length() - 3))
    if count > _power_of_two(block):
        step = max(step, _power_of_two(block))
    return -(-count // step) * step


def _pad(rows: Float32[np.ndarray, "n dim"], count: int) -> Float32[np.ndarray, "count dim"]:
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))


def _largest(rows: Float32[np.ndarray, "n dim"]) -> float:
    return float(max(rows.max(initial=0), -rows.min(initial=0)))


def _square_norms(rows: Float32[np.ndarray, "n dim"]) -> Float64[np.ndarray, " n"]:
    return np.einsum("nd,nd->n", rows, rows, dtype=np.float64)


# On the host, in double precision


def _measure(
    queries: Float32[np.ndarray, "n dim"],
    targets: Float32[np.ndarray, "m dim"],
    places: Int32[np.ndarray, "n 2"],
) -> Neighbours:
    """The two candidates of each query, measured and put in order."""
    there = places < len(targets)
    safe = np.where(there, places, 0)
    rows = np.arange(len(queries))
    squares = np.stack([_squares(queries, rows, targets, column) for column in safe.T], axis=1)
    squares[~there] = np.inf
    order = np.lexsort((places, squares), axis=1)
    squares = np.take_along_axis(squares, order, axis=1)
    first = np.take_along_axis(places, order, axis=1)[:, 0]
    return Neighbours(first.astype(np.int64), squares[:, 0].copy(), squares[:, 1].copy())


def _squares(
    queries: Float[np.ndarray, "n dim"],
    rows: Int64[np.ndarray, " pairs"],
    targets: Float[np.ndarray, "m dim"],
    places: Integer[np.ndarray, " pairs"],
) -> Float64[np.ndarray, " pairs"]:
    """Squared distances of pairs, from their differences."""
    squares = np.empty(len(places))
    step = max(1, _AT_ONCE // max(1, queries.shape[1]))
    for start in range(0, len(places), step):
        part = slice(start, start + step)
        difference = queries[rows[part]].astype(np.float64) - targets[places[part]]
        squares[part] = np.einsum("nd,nd->n", difference, difference)
    return squares


def _search_again(
    queries: Float32[np.ndarray, "n dim"], targets: Float32[np.ndarray, "m dim"]
) -> Neighbours:
    """The same in double precision, with copies of a descriptor looked at once.

    Copies are the usual reason for doubt: featureless patches all have the same descriptor.
    """
    origin, _, copies = _distinct(targets)
    asked, inverse, _ = _distinct(queries)
    distinct = targets[origin].astype(np.float64)
    step = max(1, _AT_ONCE // len(distinct))
    parts = [
        _search_rows(queries[places].astype(np.float64), distinct, copies, origin)
        for places in np.split(asked, range(step, len(asked), step))
    ]
    columns = [np.concatenate(column)[inverse] for column in zip(*parts, strict=True)]
    return Neighbours(*columns)


def _distinct(
    rows: Float32[np.ndarray, "n dim"],
) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " n"], Int64[np.ndarray, " distinct"]]:
    """First places of different rows in order, which of them each row is, and their numbers."""
    # As bytes, which sort far quicker than rows of numbers.
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows[:1].nbytes)))[:, 0]
    _, first, inverse, count = np.unique(
        whole, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse], count[order]


def _search_rows(
    queries: Float64[np.ndarray, "n dim"],
    targets: Float64[np.ndarray, "m dim"],
    copies: Int64[np.ndarray, " m"],
    origin: Int64[np.ndarray, " m"],
) -> Neighbours:
    """The two nearest of distinct targets, each of which stands for its copies."""
    norms = _square_norms64(queries)[:, None] + _square_norms64(targets)[None]
    error = norms * (queries.shape[1] + 8) * float(np.finfo(np.float64).eps)
    estimates = norms - 2 * queries @ targets.T
    within = min(1, len(targets) - 1)
    # Whatever may be among the first two: its lower bound is not above the second upper bound.
    upper = np.partition(estimates + error, within, axis=1)[:, within]
    rows, places = np.nonzero(estimates - error <= upper[:, None])
    squares = _squares(queries, rows, targets, places)
    order = np.lexsort((places, squares, rows))
    rows, places, squares = rows[order], places[order], squares[order]
    first = np.searchsorted(rows, np.arange(len(queries)))
    after = np.minimum(first + 1, len(rows) - 1)
    second = np.where(rows[after] == rows[first], squares[after], np.inf)
    second[after == first] = np.inf
    chosen = places[first]
    second = np.where(copies[chosen] > 1, squares[first], second)
    return Neighbours(origin[chosen], squares[first], second)


def _square_norms64(rows: Float64[np.ndarray, "n dim"]) -> Float64[np.ndarray, " n"]:
    return np.einsum("nd,nd->n", rows, rows)
