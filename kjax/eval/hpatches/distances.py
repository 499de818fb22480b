"""Distances between descriptors on the device, in bounded memory: what HPatches' tasks rest on.

Descriptors lie in one array of rows; places are rows of it. L2 distances stay squared, as only
their order matters. `double` and `count_closer` work in double precision: call them under
`jax.enable_x64(True)`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int32

from kjax.model.kernels.group_minima import Metric
from kjax.model.nearest import Neighbours, apart, padded_size, two_nearest

PAIRS_IN_BLOCK = 2048
"""Pairs that fit a CPU's cache together."""


@functools.partial(jax.jit, static_argnames="distance")
def pair_distances(
    rows: Float32[Array, "rows dim"],
    first: Int32[Array, "blocks block"],
    second: Int32[Array, "blocks kinds block"],
    *,
    distance: Metric,
) -> Float32[Array, "blocks kinds block"]:
    """Distances from each first descriptor to several second ones, in single precision."""

    def of_block(places: tuple[Array, Array]) -> Float32[Array, "kinds block"]:
        one, others = places
        start = _take(rows, one)
        return jnp.stack([_length(_take(rows, other) - start, distance) for other in others])

    return jax.lax.map(of_block, (first, second))


def nearest(
    rows: Float32[Array, "rows dim"], start: int, count: int, *, images: int, distance: Metric
) -> Neighbours:
    """The nearest patch to each reference patch in a sequence's other images, and how far it is.

    Args:
        rows: all descriptors.
        start: the first of the sequence.
        count: its patches per image.
        images: how many follow the reference image.
        distance: "L1" or "L2".

    Returns:
        A row for each image; the second nearest is not looked for.
    """
    starts = start + count * np.stack([np.zeros(images, int), np.arange(1, images + 1)], axis=1)
    sizes = (padded_size(count), padded_size(count))
    (found,) = two_nearest(
        *(rows, starts, np.full_like(starts, count), sizes),
        metric=distance,
        both=False,
        second=False,
    )
    return Neighbours(*(column[:, :count] for column in found))


@jax.jit
def double(rows: Float32[Array, "rows dim"], places: Int32[Array, " n"]) -> Float64[Array, "n dim"]:
    """Rows in double precision."""
    return _take(rows, places).astype(jnp.float64)


@functools.partial(jax.jit, static_argnames=("lengths", "distance"))
def count_closer(
    rows: Float32[Array, "rows dim"],
    queries: Int32[Array, " queries"],
    positives: Int32[Array, "positives queries"],
    others: Float64[Array, "others dim"],
    pool: Int32[Array, " pool"],
    *,
    lengths: tuple[int, ...],
    distance: Metric,
) -> Int32[Array, "positives parts queries"]:
    """How many patches of each part of a pool are closer to a query than each of its positives.

    Args:
        rows: all descriptors.
        queries: their places.
        positives: the places of each query's positives.
        others: descriptors to look among.
        pool: which of `others` to look among, in order; a negative place stands for nothing.
        lengths: of the parts of the pool.
        distance: "L1" or "L2".
    """
    wanted = double(rows, queries)
    far, slack = apart(others, wanted, distance)
    # A tie is no closer. Rounding must not break one.
    far = _take(far + slack, jnp.maximum(pool, 0))
    far = jnp.where((pool < 0)[:, None], jnp.inf, far)
    ends = [sum(lengths[: part + 1]) for part in range(len(lengths))]

    def count(places: Int32[Array, " queries"]) -> Int32[Array, "parts queries"]:
        closer = far < _length(double(rows, places) - wanted, distance)[None, :]
        return jnp.stack(
            [
                closer[end - length : end].sum(axis=0, dtype=jnp.int32)
                for end, length in zip(ends, lengths, strict=True)
            ]
        )

    # One positive at a time: a CPU then compares many queries in one instruction.
    return jax.lax.map(count, positives)


def _take(rows: Float[Array, "rows dim"], places: Int32[Array, " n"]) -> Float[Array, "n dim"]:
    """Rows at places that are known to exist; checking them again would cost as much."""
    return rows.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _length(differences: Float[Array, "n dim"], distance: Metric) -> Float[Array, " n"]:
    parts = jnp.abs(differences) if distance == "L1" else differences * differences
    # A product with ones, as XLA's sums on a CPU add one number at a time.
    return jnp.dot(parts, jnp.ones(parts.shape[1], parts.dtype), precision="highest")
