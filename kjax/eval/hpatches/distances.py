"""Distances between descriptors on the device, in bounded memory: what HPatches' tasks rest on.

Descriptors lie in one array of rows; places are rows of it. L2 distances stay squared, as only
their order matters. All but `pair_distances` work in double precision: call them under
`jax.enable_x64(True)`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Float64, Int32, Integer, Scalar

PAIRS_IN_BLOCK = 2048
"""Pairs that fit a CPU's cache together."""
_MATRIX = 1 << 22
"""Entries of a distance matrix at once."""


@functools.partial(jax.jit, static_argnames="distance")
def pair_distances(
    rows: Float32[Array, "rows dim"],
    first: Int32[Array, "blocks block"],
    second: Int32[Array, "blocks kinds block"],
    *,
    distance: str,
) -> Float32[Array, "blocks kinds block"]:
    """Distances from each first descriptor to several second ones, in single precision."""

    def of_block(places: tuple[Array, Array]) -> Float32[Array, "kinds block"]:
        one, others = places
        start = _take(rows, one)
        return jnp.stack([_length(_take(rows, other) - start, distance) for other in others])

    return jax.lax.map(of_block, (first, second))


@functools.partial(jax.jit, static_argnames=("size", "images", "distance"))
def nearest(
    rows: Float32[Array, "rows dim"],
    start: Int32[Scalar, ""],
    count: Int32[Scalar, ""],
    *,
    size: int,
    images: int,
    distance: str,
) -> tuple[Int32[Array, "{images} {size}"], Float64[Array, "{images} {size}"]]:
    """The nearest patch to each reference patch in a sequence's other images, and how far it is.

    Args:
        rows: all descriptors.
        start: the first of the sequence.
        count: its patches per image.
        size: of the result, at least `count`, from `padded_size`; what lies beyond is filling.
        images: how many follow the reference image.
        distance: "L1" or "L2".

    Returns:
        The first of the nearest patches, and its distance.
    """
    patch = jnp.arange(size, dtype=jnp.int32)
    places = start + jnp.minimum(patch, count - 1)
    references = double(rows, places)
    blocks = references.reshape(_block_count(size), -1, references.shape[1])

    def in_image(image: Int32[Array, ""]) -> tuple[Array, Array]:
        targets = double(rows, places + image * count)

        def of_block(block: Float64[Array, "block dim"]) -> Int32[Array, " block"]:
            apart, slack = _apart(targets, block, distance)
            apart = jnp.where((patch < count)[:, None], apart, jnp.inf)
            tied = apart <= apart.min(axis=0)[None, :] + slack
            return jnp.where(tied, patch[:, None], size).min(axis=0)

        found = jax.lax.map(of_block, blocks).reshape(size)
        return found, _length(_take(targets, found) - references, distance)

    return jax.lax.map(in_image, jnp.arange(1, images + 1, dtype=jnp.int32))


def padded_size(count: int) -> int:
    """The next of few sizes, four to an octave: sequences of any length share their programs."""
    step = max(64, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step


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
    distance: str,
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
    apart, slack = _apart(others, wanted, distance)
    # A tie is no closer. Rounding must not break one.
    apart = _take(apart + slack, jnp.maximum(pool, 0))
    apart = jnp.where((pool < 0)[:, None], jnp.inf, apart)
    ends = [sum(lengths[: part + 1]) for part in range(len(lengths))]

    def count(places: Int32[Array, " queries"]) -> Int32[Array, "parts queries"]:
        closer = apart < _length(double(rows, places) - wanted, distance)[None, :]
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


def _length(differences: Float[Array, "n dim"], distance: str) -> Float[Array, " n"]:
    parts = jnp.abs(differences) if distance == "L1" else differences * differences
    # A product with ones, as XLA's sums on a CPU add one number at a time.
    return jnp.dot(parts, jnp.ones(parts.shape[1], parts.dtype), precision="highest")


def _apart(
    some: Float64[Array, "n dim"], others: Float64[Array, "m dim"], distance: str
) -> tuple[Float64[Array, "n m"], Float64[Array, "n m"]]:
    """All distances, and a bound on their rounding errors."""
    if distance == "L1":
        scale = jnp.abs(some).sum(axis=1)[:, None] + jnp.abs(others).sum(axis=1)[None, :]

        def add(column: Integer[Array, ""], total: Float64[Array, "n m"]) -> Float64[Array, "n m"]:
            return total + jnp.abs(some[:, column, None] - others[None, :, column])

        apart = jax.lax.fori_loop(0, some.shape[1], add, jnp.zeros_like(scale))
    else:
        scale = _length(some, distance)[:, None] + _length(others, distance)[None, :]
        apart = scale - 2 * jnp.dot(some, others.T, precision="highest")
    return apart, scale * (some.shape[1] * float(jnp.finfo(jnp.float64).eps))


def _block_count(size: int) -> int:
    """Number of blocks to cut `size` queries into, by halving, to bound the distance matrix."""
    blocks = 1
    while size // blocks * size > _MATRIX and size % (2 * blocks) == 0:
        blocks *= 2
    return blocks
