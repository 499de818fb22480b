"""The two nearest neighbours of each row in another set: exact, fast, and in bounded memory.

Distances are squared L2 or L1; between bits, both are the Hamming distance. All pairs are compared
once, in single precision, for both directions (`kjax.model.kernels.group_minima`), which gives
lower bounds of the distances to groups of rows. The few groups with the smallest bounds are
searched in double precision, and the two smallest distances computed from the differences. Another
row can only be among the two nearest if its lower bound is below the second distance. The few
queries for which that is so, mostly because of equal rows, are searched again on the host. Ties go
to the lower index. The result depends on neither the device nor the blocks.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, Int32, Integer, Shaped

from kjax.model.kernels import group_minima
from kjax.model.kernels.group_minima import Metric, Product, compare
from kjax.model.nearest_on_host import UNDERFLOW, Neighbours, search

_GROUPS: dict[Product, int] = {"single": 3, "split": 4, "whole": 3}
"""Groups that are searched again for each row; more where bounds are less tight."""
_TILE = 64
"""Rows that search one group together."""
_WHOLE = 1 << 24
"""Integers below this are exact in single precision."""
Candidates = tuple[Array, Array, Array, Array]
"""`Neighbours` of queries [*pairs, n], and a lower bound of all other distances."""


def default_block() -> int:
    """Return the rows per block: on a CPU their distances fit the cache."""
    return 512 if jax.default_backend() == "cpu" else 8192


def padded_size(count: int, block: int | None = None) -> int:
    """Round up to one of few sizes: sets of similar sizes share their programs."""
    return group_minima.padded_size(count, default_block() if block is None else block)


def two_nearest(
    rows: Shaped[Array, "rows dim"],
    starts: Integer[np.ndarray, "pairs 2"],
    counts: Integer[np.ndarray, "pairs 2"],
    sizes: tuple[int, int],
    *,
    metric: Metric = "L2",
    both: bool = True,
    second: bool = True,
    block: int | None = None,
) -> list[Neighbours]:
    """Search each pair's second set for the two nearest rows of each row of its first set.

    Args:
        rows: finite rows of all sets, one set after the other.
        starts: first row of each pair's two sets.
        counts: number of rows of each pair's two sets; results beyond it are padding.
        sizes: from `padded_size`, at least the largest count on each side.
        metric: "L2" or "L1".
        both: also search the first sets for the rows of the second ones, as a second result.
        second: whether the second distance must be exact; otherwise it may be too large.
        block: rows per side that are compared at once, rounded down to a power of two.
    """
    starts, counts = starts.astype(np.int32), counts.astype(np.int32)
    limit = {"bool": 1, "uint8": 255}.get(rows.dtype.name, np.inf)
    product: Product = "single" if metric == "L1" or _float32_is_fastest() else "split"
    if metric == "L2" and 2 * rows.shape[1] * limit**2 < _WHOLE:
        product = "whole"
    options: dict[str, Any] = {"metric": metric, "product": product}
    block = default_block() if block is None else block
    found = []
    with jax.enable_x64(True):
        *bounds, scale = _bounds(
            rows, starts, counts, sizes=sizes, block=block, both=both, **options
        )
        for way, minima in zip((1, -1) if both else (1,), bounds, strict=False):
            places, lengths = starts[:, ::way], counts[:, ::way]
            one = _refined(rows, places, lengths, minima, scale, sizes=sizes[::way], **options)
            found.append((one, places, lengths))

    # Bounds of groups of whole numbers are exact and in order: another row as near comes later.
    below = np.less if product == "whole" else np.less_equal
    settled = []
    for candidates, places, lengths in found:
        sure, others = Neighbours(*(np.array(one) for one in candidates[:3])), candidates[3]
        worst = sure.second if second else sure.nearest
        real = np.arange(worst.shape[1])[None] < lengths[:, :1]
        doubtful = real & below(others, worst) & np.isfinite(others)
        for at in np.flatnonzero(doubtful.any(axis=1)):
            chosen = np.flatnonzero(doubtful[at])
            queries, targets = (
                np.asarray(rows)[start : start + count].astype(np.float32)
                for start, count in zip(places[at], lengths[at], strict=True)
            )
            again = search(queries[chosen], targets, metric)
            for mine, better in zip(sure, again, strict=True):
                mine[at, chosen] = better
        settled.append(sure)
    return settled


def _float32_is_fastest() -> bool:
    return jax.default_backend() == "cpu"


# On the device

_STATIC = ("sizes", "metric", "product")


@functools.partial(jax.jit, static_argnames=(*_STATIC, "block", "both"))
def _bounds(
    rows: Shaped[Array, "rows dim"],
    starts: Int32[Array, "pairs 2"],
    counts: Int32[Array, "pairs 2"],
    *,
    sizes: tuple[int, int],
    metric: Metric,
    product: Product,
    block: int,
    both: bool,
) -> tuple[
    Float32[Array, "pairs groups n"], Float32[Array, "pairs others m"], Float64[Array, " pairs"]
]:
    """Compute lower bounds of the distances to groups, both ways, and their scale."""

    def compare_sets(pair: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        sets = [_set(rows, *one) for one in zip(pair[0], sizes, strict=True)]
        # Scaling by a power of two is exact, and then no square overflows.
        _, exponent = jnp.frexp(jnp.maximum(*(jnp.abs(one).max() for one in sets)))
        scale = jnp.ldexp(jnp.ones((), jnp.float64), -exponent)
        scaled = [(one * scale).astype(jnp.float32) for one in sets]
        factor = group_minima.share(rows.shape[1], metric, product)
        offsets = [
            jnp.where(jnp.arange(len(one)) < count, factor * _extent(one, metric), jnp.inf)
            for one, count in zip(scaled, pair[1], strict=True)
        ]
        single = product == "whole" and _float32_is_fastest()
        minima = group_minima.group_minima(
            group_minima.operands(scaled[0], scaled[1], "single" if single else product),
            (offsets[0].astype(jnp.float32), offsets[1].astype(jnp.float32)),
            pair[1],
            metric=metric,
            block=block,
            both=both,
        )
        # JAX cannot concatenate empty batches.
        others = minima[1] if both else jnp.zeros((1, 1), jnp.float32)
        return minima[0].T, others, scale if metric == "L1" else scale * scale

    return _map_pairs(compare_sets, (starts, counts), sizes)


@functools.partial(jax.jit, static_argnames=_STATIC)
def _refined(
    rows: Shaped[Array, "rows dim"],
    starts: Int32[Array, "pairs 2"],
    counts: Int32[Array, "pairs 2"],
    minima: Float32[Array, "pairs groups n"],
    scale: Float64[Array, " pairs"],
    *,
    sizes: tuple[int, int],
    metric: Metric,
    product: Product,
) -> Candidates:
    """Search the groups with the smallest bounds in double precision."""
    kept = _GROUPS[product]

    def refine(pair: tuple[Array, Array, Array, Array]) -> Candidates:
        queries, targets = (_set(rows, *one) for one in zip(pair[0], sizes, strict=True))
        real = jnp.arange(len(targets)) < pair[1][1]
        groups, bounds = _smallest(pair[2], kept + 1)
        bounds = (bounds.astype(jnp.float64) - UNDERFLOW) / pair[3]
        slack = 0.0 if product == "whole" else _slack(queries.shape[1])
        indices, values = _search_groups(queries, targets, real, groups[:kept], slack, metric)
        values = jnp.where(bounds[:kept, None] < jnp.inf, values, jnp.inf)
        indices, values = (array.reshape(-1, len(queries)) for array in (indices, values))
        chosen, values = _smallest(values, 3)
        first, other = jnp.take_along_axis(indices, chosen[:2], axis=0)
        wide = queries.astype(jnp.float64)
        near, far = (
            jnp.where(value < jnp.inf, _length(wide - targets[index], metric), jnp.inf)
            for index, value in ((first, values[0]), (other, values[1]))
        )
        swap = (far < near) | ((far == near) & (other < first))
        return (
            jnp.where(swap, other, first),
            jnp.minimum(near, far),
            jnp.maximum(near, far),
            jnp.minimum(values[2], bounds[kept]),
        )

    return _map_pairs(refine, (starts, counts, minima, scale), sizes)


def _map_pairs(work: Callable[..., Any], jobs: tuple[Array, ...], sizes: tuple[int, int]) -> Any:
    """Map over pairs, on accelerators over several small ones at once."""
    if len(jobs[0]) == 1:
        return jax.tree.map(lambda one: one[None], work(tuple(job[0] for job in jobs)))
    if jax.default_backend() == "cpu":
        return jax.lax.map(work, jobs)
    together = max(1, default_block() ** 2 // (sizes[0] * sizes[1]))
    return jax.lax.map(work, jobs, batch_size=min(together, len(jobs[0])))


def _set(rows: Shaped[Array, "rows dim"], start: Array, size: int) -> Float32[Array, "{size} dim"]:
    """Return the rows of one set, padded with any others."""
    indices = jnp.minimum(start + jnp.arange(size, dtype=jnp.int32), len(rows) - 1)
    return rows.at[indices].get(mode="promise_in_bounds").astype(jnp.float32)


def _search_groups(
    queries: Float32[Array, "n dim"],
    targets: Float32[Array, "m dim"],
    real: Bool[Array, " m"],
    groups: Int32[Array, "kept n"],
    slack: float,
    metric: Metric,
) -> tuple[Int32[Array, "kept 3 n"], Float64[Array, "kept 3 n"]]:
    """Return indices and values of the three smallest lower bounds in each query's groups."""
    count, size = len(queries), group_minima.group_size(len(targets))
    asked, owners, position = _tiles(groups.reshape(-1), len(targets) // size)
    factor = (1.0 if metric == "L2" else 0.0) - slack

    def look(tile: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, group = tile
        wanted = queries[rows % count].astype(jnp.float64)
        offered = jax.lax.dynamic_slice_in_dim(targets, group * size, size).astype(jnp.float64)
        is_real = jax.lax.dynamic_slice_in_dim(real, group * size, size)
        sizes = [factor * _extent(one, metric) for one in (offered, wanted)]
        values = compare(offered, wanted, metric) + sizes[0][:, None] + sizes[1][None, :]
        near, values = _smallest(jnp.where(is_real[:, None], values, jnp.inf), 3)
        return group * size + near, values

    at_once = 1 << (16 if jax.default_backend() == "cpu" else 22)
    batch = min(len(owners), max(1, at_once // (size * (_TILE + queries.shape[1]))))
    # Padded to whole batches.
    turns = -(-len(owners) // batch)
    batches = (
        jnp.pad(one, [(0, turns * batch - len(one))] + [(0, 0)] * (one.ndim - 1)).reshape(
            turns, batch, *one.shape[1:]
        )
        for one in (asked, owners)
    )
    indices, values = (
        jnp.moveaxis(one, 2, 0).reshape(3, -1)[:, position].reshape(3, -1, count).swapaxes(0, 1)
        for one in jax.lax.map(jax.vmap(look), tuple(batches))
    )
    return indices, values


def _tiles(
    groups: Int32[Array, " pairs"], count: int
) -> tuple[Int32[Array, "tiles tile"], Int32[Array, " tiles"], Int32[Array, " pairs"]]:
    """Cut pairs of row and group into tiles of one group: pairs, group, each pair's position.

    Unused entries of a tile hold any pair.
    """
    pairs = jnp.arange(len(groups), dtype=jnp.int32)
    by_group, order = jax.lax.sort((groups, pairs), num_keys=1)
    members = jnp.zeros(count, jnp.int32).at[groups].add(1)
    tiles = -(-members // _TILE)
    starts, first = (jnp.cumsum(one, dtype=jnp.int32) - one for one in (members, tiles))
    slots = first[by_group] * _TILE + pairs - starts[by_group]
    asked = jnp.zeros((len(groups) // _TILE + count) * _TILE, jnp.int32)
    asked = asked.at[slots].set(order, unique_indices=True).reshape(-1, _TILE)
    position = jnp.zeros_like(order).at[order].set(slots, unique_indices=True)
    return asked, groups[asked[:, 0]], position


def _smallest(
    bounds: Float[Array, "rows n"], count: int
) -> tuple[Int32[Array, "{count} n"], Float[Array, "{count} n"]]:
    """Return indices and values of each column's smallest lower bounds, rounded down a little.

    Repeated minima are faster than a sort. The minima are of integers whose last bits are the
    index: a search for the value could miss it, as XLA may compute it twice and round differently.
    """
    kind = jnp.int32 if bounds.dtype == jnp.float32 else jnp.int64
    mask = (1 << (len(bounds) - 1).bit_length()) - 1
    here = jnp.arange(len(bounds), dtype=kind)[:, None]
    # Distances are not negative, and the bits of positive floats are ordered like integers.
    keys = jax.lax.bitcast_convert_type(jnp.where(bounds > 0, bounds, 0), kind) & ~mask | here
    nothing = jax.lax.bitcast_convert_type(jnp.full((), jnp.inf, bounds.dtype), kind)
    found = []
    for _ in range(count):
        found.append(keys.min(axis=0))
        keys = jnp.where(here == (found[-1] & mask)[None], nothing, keys)
    smallest = jnp.stack(found)
    values = jax.lax.bitcast_convert_type(smallest & ~mask, bounds.dtype)
    return (smallest & mask).astype(jnp.int32), values


def _length(differences: Float[Array, "*n dim"], metric: Metric) -> Float[Array, "*n"]:
    """Sum squares or absolute values, in the same order on every device."""
    parts = jnp.abs(differences) if metric == "L1" else differences * differences
    while (width := parts.shape[-1]) > 1:
        half = width // 2
        folded = parts[..., :half] + parts[..., half : 2 * half]
        parts = jnp.concatenate([folded, parts[..., 2 * half :]], axis=-1) if width % 2 else folded
    return parts[..., 0]


def _extent(rows: Float[Array, "n dim"], metric: Metric) -> Float64[Array, " n"]:
    return _length(rows.astype(jnp.float64), metric)


def apart(
    some: Float64[Array, "n dim"], others: Float64[Array, "m dim"], metric: Metric
) -> tuple[Float64[Array, "n m"], Float64[Array, "n m"]]:
    """Compute all distances in double precision, and a bound on their rounding errors."""
    scale = _extent(some, metric)[:, None] + _extent(others, metric)[None, :]
    values = compare(some, others, metric) + (scale if metric == "L2" else 0)
    return values, scale * _slack(some.shape[1])


def _slack(dim: int) -> float:
    """Relative rounding error, as in `group_minima` with double precision's ε."""
    return (dim + 8) * float(np.finfo(np.float64).eps)
