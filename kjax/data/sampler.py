"""The stream of training pairs: which patches meet at which step, as a function of (seed, step).

A batch holds B pairs of two patches each, of B different ones of the n points that have at least
two patches. The stream consists of passes that visit each point once, in an order that depends on
the seed and the pass's number; for n < 2B it changes only where a pass ends with a batch. Sets with
fixed shares of every batch are a stream each.

Nothing is stored between steps: a pass is a keyed permutation, evaluated only where it is needed.
All arithmetic is on uint32, so every device and every version of JAX yields the same stream.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Integer, UInt32

from kjax.errors import InputError

Counter = Integer[Array, ""] | int
"""A seed, step or pass number, concrete or traced."""
ROUNDS = 24
"""Rounds of the permutation; two points keep their distance with probability 2^−ROUNDS."""

# Every use of the hash has its own number, so no two draw the same bits.
_ORDER_KEYS, _ORDER_BITS, _ANCHOR, _POSITIVE = range(4)


class PointTable(NamedTuple):
    """The patches of each usable point: those of point p are patches[starts[p]:][:counts[p]]."""

    patches: Int32[Array, " usable"] | Int32[np.ndarray, " usable"]  # grouped by point
    starts: Int32[Array, " points"] | Int32[np.ndarray, " points"]
    counts: Int32[Array, " points"] | Int32[np.ndarray, " points"]


def make_point_table(point_ids: Integer[np.ndarray, " P"]) -> PointTable:
    """Group patches by 3-D point, without points that have a single patch."""
    point_ids = np.asarray(point_ids)
    order = np.argsort(point_ids, kind="stable")
    _, counts = np.unique(point_ids, return_counts=True)
    usable = counts >= 2
    if not usable.any():
        raise InputError(
            f"no pairs: none of the {len(counts)} points has two patches; "
            "check the point ids (column 0 of info.txt)"
        )
    kept, counts = order[np.repeat(usable, counts)], counts[usable]
    columns = (kept, np.cumsum(counts) - counts, counts)
    return PointTable(*(column.astype(np.int32) for column in columns))


def make_point_tables(
    point_ids: Integer[np.ndarray, " P"], parts: Sequence[int] = ()
) -> tuple[PointTable, ...]:
    """Return a table for each part, given the parts' numbers of patches (default: one part)."""
    ends = list(itertools.accumulate(parts)) or [len(point_ids)]
    tables = []
    for start, end in itertools.pairwise([0, *ends]):
        table = make_point_table(point_ids[start:end])
        tables.append(table._replace(patches=table.patches + np.int32(start)))
    return tuple(tables)


def split_batch(pairs: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Return the number of pairs of a batch from each of several streams."""
    ends = [round(pairs * total) for total in itertools.accumulate(shares)]
    return tuple(end - start for start, end in itertools.pairwise([0, *ends]))


def check_streams(
    tables: Sequence[PointTable], pairs: int, shares: Sequence[float], *, seed: int, group: int = 1
) -> None:
    """Raise if one of the streams cannot fill its share of a batch, or for an invalid seed."""
    check_seed(seed)
    for table, own in zip(tables, split_batch(pairs, shares), strict=True):
        count = len(table.starts)
        if own % group:
            raise InputError(
                f"a batch of {own} pairs is not made of groups of {group}: choose a multiple of it"
            )
        if own < 1 or own > count:
            raise InputError(
                f"a batch of {own} pairs needs as many different points, and the set has "
                f"{count} with two or more patches: choose a batch of 1 to {count} pairs"
            )
        # Positions in a stream, which starts again after whole passes, must fit 32 bits.
        if math.lcm(count // group, own // group) >= 2**32:
            raise InputError(
                f"{count} points in batches of {own} are too many for 32-bit counters: "
                "choose a batch size with more factors in common, or fewer points"
            )


def check_seed(seed: int) -> None:
    """Raise for a seed that does not fit the stream's 32-bit hash."""
    if not 0 <= seed < 2**32:
        raise InputError(f"a seed must be from 0 to 4294967295 (2³²−1), not {seed}")


def check_shares(pairs: int, shards: int) -> None:
    """Raise if a batch cannot be split evenly over devices."""
    if pairs % shards:
        raise InputError(
            f"{pairs} pairs cannot be shared evenly by {shards} devices: use a multiple of {shards}"
        )


def stream_seed(seed: Counter, number: int) -> Counter:
    """Return the seed of one of several streams; the first has the run's own."""
    return _hash(jnp.uint32(number), seed) if number else seed


def sample_pairs(
    table: PointTable, seed: Counter, step: Counter, *, pairs: int, group: int = 1
) -> Int32[Array, "pairs 2"]:
    """Return the patch numbers of the pairs of one step, over all devices.

    Groups of `group` neighbouring points in the table are drawn together. An incomplete group at
    its end is left out. Validate the arguments with `check_streams` beforehand.
    """
    count = table.starts.shape[0] // group
    groups = sample_points(seed, step, point_count=count, pairs=pairs // group)
    points = (groups[:, None] * group + jnp.arange(group, dtype=jnp.int32)[None]).reshape(-1)
    starts, counts = jnp.asarray(table.starts)[points], jnp.asarray(table.counts)[points]
    patches = counts.astype(jnp.uint32)
    row = jnp.arange(pairs, dtype=jnp.uint32)
    anchor = _hash(_key(seed, _ANCHOR, step), row) % patches
    other = _hash(_key(seed, _POSITIVE, step), row) % (patches - 1)
    positive = other + (other >= anchor)  # uniform over the patches that are not the anchor
    chosen = jnp.stack([anchor, positive], axis=1).astype(jnp.int32)
    return jnp.asarray(table.patches)[starts[:, None] + chosen]


@functools.partial(jax.jit, static_argnames=("pairs", "group"))
def _sample_steps(
    table: PointTable, seed: Counter, steps: Integer[Array, " steps"], *, pairs: int, group: int
) -> Int32[Array, "steps pairs 2"]:
    return jax.vmap(lambda step: sample_pairs(table, seed, step, pairs=pairs, group=group))(steps)


def sample_pairs_on_host(
    table: PointTable, seed: int, steps: Integer[np.ndarray, " n"], *, pairs: int, group: int = 1
) -> Int32[np.ndarray, "steps pairs 2"]:
    """Run `sample_pairs` for several steps on the host's CPU."""
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise InputError(
            "JAX runs without its cpu platform: add it, e.g. JAX_PLATFORMS=cuda,cpu"
        ) from error
    with jax.default_device(host):
        numbers = steps.astype(np.uint32)
        return np.asarray(_sample_steps(table, np.uint32(seed), numbers, pairs=pairs, group=group))


def sample_points(
    seed: Counter, step: Counter, *, point_count: int, pairs: int
) -> Int32[Array, " pairs"]:
    """Return the points of one step, all different, 0 ≤ point < `point_count`."""
    # Batches and passes begin together every `cycle` steps: counts from there fit 32 bits.
    common = math.gcd(point_count, pairs)
    cycle, passes_per_cycle = point_count // common, pairs // common
    step = jnp.asarray(step, jnp.uint32)
    cycle_number, step_in_cycle = step // cycle, step % cycle
    first = step_in_cycle * pairs
    position = first % point_count + jnp.arange(pairs, dtype=jnp.uint32)
    if point_count < 2 * pairs:
        keys = _order_keys(seed, cycle_number, point_count)
        return _permute(keys, position % point_count, point_count).astype(jnp.int32)

    own_pass = first // point_count
    straddles = position[-1] >= point_count
    # Only the first B positions of a pass, its head, can differ from the plain permutation.
    head_pass = own_pass + straddles.astype(jnp.uint32)
    base = cycle_number * passes_per_cycle
    keys = _order_keys(seed, base + jnp.stack([own_pass, head_pass]), point_count)
    places = jnp.stack([position % point_count, jnp.arange(pairs, dtype=jnp.uint32)])
    plain, plain_head = _permute(keys, places, point_count)
    keys_before = _order_keys(seed, base + head_pass - 1, point_count)
    partners, bits = (key[..., ::-1] for key in keys_before)
    places_before = _permute((partners, bits), plain_head, point_count)  # the inverse
    # A batch that completes a pass begins with its last r points. At most r of the next pass's
    # first B points are among these; moved behind the others they leave the first B − r clear.
    # For n ≥ 2B the last r are never moved, so a pass depends on only one before it.
    repeated = places_before >= point_count - head_pass * point_count % pairs
    fresh = jnp.cumsum(~repeated, dtype=jnp.int32)
    place = jnp.where(repeated, fresh[-1] + jnp.cumsum(repeated, dtype=jnp.int32), fresh) - 1
    head = jnp.zeros_like(plain_head).at[place].set(plain_head, unique_indices=True)
    head_start = jnp.where(straddles, jnp.uint32(point_count), jnp.uint32(0))
    place_in_head = position - head_start  # wraps, and so is large, before the head
    return jnp.where(place_in_head < pairs, head[place_in_head % pairs], plain).astype(jnp.int32)


# A keyed permutation of 0 … n−1 for any n: the swap-or-not shuffle (Hoang, Morris & Rogaway 2012).
# In each round x and (key − x) mod n are partners, and a hash of the larger says whether they swap.
# A round is its own inverse, so the inverse runs the rounds backwards.

_OrderKeys = tuple[UInt32[Array, "*passes rounds"], UInt32[Array, "*passes rounds"]]


def _order_keys(seed: Counter, passes: UInt32[Array, "*passes"], point_count: int) -> _OrderKeys:
    rounds = jnp.arange(ROUNDS, dtype=jnp.uint32).reshape((1,) * passes.ndim + (ROUNDS,))
    partners = _hash(_key(seed, _ORDER_KEYS, passes)[..., None], rounds) % point_count
    return partners, _hash(_key(seed, _ORDER_BITS, passes)[..., None], rounds)


def _permute(
    keys: _OrderKeys, values: UInt32[Array, "*passes n"], point_count: int
) -> UInt32[Array, "*passes n"]:
    for i in range(ROUNDS):  # unrolled: an accelerator then runs all rounds as one kernel
        partner, bits = (key[..., i, None] for key in keys)
        wrap = jnp.where(values > partner, jnp.uint32(point_count), jnp.uint32(0))
        other = partner + wrap - values
        # The top bit of `_hash`, without the steps that no longer change it.
        mixed = (jnp.maximum(values, other) ^ bits) * jnp.uint32(0x7FEB352D)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x846CA68B)
        values = jnp.where(mixed >= jnp.uint32(1 << 31), other, values)
    return values


def _key(
    seed: Counter, use: int, number: Integer[Array, "*passes"] | int
) -> UInt32[Array, "*passes"]:
    return _hash(_hash(_hash(jnp.uint32(0), seed), use), number)


def _hash(key: UInt32[Array, "*a"], values: Integer[Array, "*b"] | int) -> UInt32[Array, "*c"]:
    """Hash of the input bits (lowbias32)."""
    bits = jnp.asarray(values, jnp.uint32) * jnp.uint32(0x9E3779B9) + key
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)
