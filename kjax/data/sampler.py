"""The stream of training pairs: which patches meet at which step, as a function of (seed, step).

A batch holds one pair per 3-D point, of two different patches of that point. With n points that
have at least two patches, and B pairs a step:

* The points of the stream, read step after step, come in passes of exactly n. Every pass visits
  each point once; so at any moment the visits to any two points differ by at most one.
* No batch holds a point twice, not even where one pass ends and the next begins (B ≤ n).
* The order of a pass depends on the seed and its number only. For n ≥ 2B every pass has an order of
  its own; for B ≤ n < 2B, where one batch leaves the next too little choice, an order is kept until
  the end of a pass falls on the end of a batch, and only then changed.

Sets that shall keep fixed shares of every batch are a stream each, all of it true for each of them.

Nothing is stored between steps, and a step costs a few thousand integer operations whatever n is: a
pass is a keyed permutation that is evaluated only where it is needed. All arithmetic is on uint32,
so every device and every version of JAX yields the same stream.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, Integer, UInt32

from kjax.errors import InputError

Counter = Integer[Array, ""] | int
"""A seed, step or pass, known or traced."""
ROUNDS = 24
"""Rounds of the permutation; two given points keep their distance with probability 2^−ROUNDS."""

# Every use of the hash has a number of its own, so that no two draw the same bits.
_ORDER_KEYS, _ORDER_BITS, _ANCHOR, _POSITIVE = range(4)


class PointTable(NamedTuple):
    """The patches of each usable point: those of point p are patches[starts[p]:][:counts[p]]."""

    patches: Int32[Array, " usable"] | Int32[np.ndarray, " usable"]
    """Patch numbers, grouped by point."""
    starts: Int32[Array, " points"] | Int32[np.ndarray, " points"]
    counts: Int32[Array, " points"] | Int32[np.ndarray, " points"]


def make_point_table(point_ids: Integer[np.ndarray, " P"]) -> PointTable:
    """Groups patches by 3-D point and leaves out points with a single patch, which have no pair."""
    point_ids = np.asarray(point_ids)
    order = np.argsort(point_ids, kind="stable")
    _, starts, counts = np.unique(point_ids[order], return_index=True, return_counts=True)
    usable = counts >= 2
    if not usable.any():
        raise InputError(
            f"no pairs: none of the {len(counts)} points has two patches; "
            "check the point ids (column 0 of info.txt)"
        )
    kept = order[np.repeat(usable, counts)]
    counts = counts[usable]
    starts = np.cumsum(counts) - counts
    return PointTable(kept.astype(np.int32), starts.astype(np.int32), counts.astype(np.int32))


def make_point_tables(
    point_ids: Integer[np.ndarray, " P"], parts: Sequence[int] = ()
) -> tuple[PointTable, ...]:
    """A table for each part of the patches, given by their numbers; by default one for all."""
    ends = list(itertools.accumulate(parts)) or [len(point_ids)]
    tables = []
    for start, end in itertools.pairwise([0, *ends]):
        table = make_point_table(point_ids[start:end])
        tables.append(table._replace(patches=table.patches + np.int32(start)))
    return tuple(tables)


def split_batch(pairs: int, shares: Sequence[float]) -> tuple[int, ...]:
    """How many pairs of a batch come from each of several streams."""
    ends = [round(pairs * total) for total in itertools.accumulate(shares)]
    return tuple(end - start for start, end in itertools.pairwise([0, *ends]))


def check_streams(
    tables: Sequence[PointTable], pairs: int, shares: Sequence[float], *, seed: int, group: int = 1
) -> None:
    """Refuses a batch that one of the streams cannot fill its share of."""
    for table, own in zip(tables, split_batch(pairs, shares), strict=True):
        check_stream(len(table.starts), own, seed=seed, group=group)


def check_stream(
    point_count: int, pairs: int, *, seed: int = 0, shards: int = 1, group: int = 1
) -> None:
    """Refuses a batch that the points cannot fill or the shards not share, and a bad seed."""
    check_seed(seed)
    if pairs % group:
        raise InputError(
            f"a batch of {pairs} pairs is not made of groups of {group}: choose a multiple of it"
        )
    if pairs < 1 or pairs > point_count:
        raise InputError(
            f"a batch of {pairs} pairs needs as many different points, and the set has "
            f"{point_count} with two or more patches: choose a batch of 1 to {point_count} pairs"
        )
    check_shares(pairs, shards)
    if not _countable(point_count // group, pairs // group):
        step = math.lcm(group, shards)
        smaller = range(pairs - pairs % step, 0, -step)
        fitting = (n for n in smaller if _countable(point_count // group, n // group))
        raise InputError(
            f"{point_count} points in batches of {pairs} are too many for 32-bit counters: "
            f"choose a batch of {next(fitting, step)}, or use fewer points"
        )


def _countable(points: int, pairs: int) -> bool:
    """Whether places in a stream that begins anew after whole passes fit into 32 bits."""
    return math.lcm(points, pairs) < 2**32


def check_seed(seed: int) -> None:
    """Refuses a seed that the stream's 32-bit hash cannot take."""
    if not 0 <= seed < 2**32:
        raise InputError(f"a seed must be from 0 to 4294967295 (2³²−1), not {seed}")


def check_shares(pairs: int, shards: int) -> None:
    """Refuses a batch that the devices cannot share."""
    if pairs % shards:
        raise InputError(
            f"{pairs} pairs cannot be shared evenly by {shards} devices: "
            f"choose a multiple of {shards}"
        )


def stream_seed(seed: Counter, number: int) -> Counter:
    """The seed of one of several streams; the first has the run's own."""
    return _hash(jnp.uint32(number), seed) if number else seed


def sample_pairs(
    table: PointTable,
    seed: Counter,
    step: Counter,
    *,
    pairs: int,
    group: int = 1,
) -> Int32[Array, "pairs 2"]:
    """Patch numbers of the pairs of one step; usable inside jit, with `seed` and `step` traced.

    Args:
        table: made by `make_point_table`.
        seed: the run's seed, 0 to 2³²−1.
        step: from 0.
        pairs: in the whole batch, over all devices; checked with `check_stream` beforehand.
        group: so many points that are neighbours in the table come together: the stream is one of
            groups, of which the table's last may be incomplete and is left out.
    """
    groups = sample_points(
        seed, step, point_count=table.starts.shape[0] // group, pairs=pairs // group
    )
    within = jnp.arange(group, dtype=jnp.int32)[None]
    points = (groups[:, None] * group + within).reshape(-1)
    starts, counts = jnp.asarray(table.starts)[points], jnp.asarray(table.counts)[points]
    count = counts.astype(jnp.uint32)
    row = jnp.arange(pairs, dtype=jnp.uint32)
    anchor = _hash(_key(seed, _ANCHOR, step), row) % count
    other = _hash(_key(seed, _POSITIVE, step), row) % (count - 1)
    positive = other + (other >= anchor)  # uniform over the patches that are not the anchor
    chosen = jnp.stack([anchor, positive], axis=1).astype(jnp.int32)
    return jnp.asarray(table.patches)[starts[:, None] + chosen]


@functools.partial(jax.jit, static_argnames=("pairs", "group"))
def _sample_steps(
    table: PointTable, seed: Counter, steps: Integer[Array, " steps"], *, pairs: int, group: int
) -> Int32[Array, "steps pairs 2"]:
    return jax.vmap(lambda step: sample_pairs(table, seed, step, pairs=pairs, group=group))(steps)


def sample_pairs_on_host(
    table: PointTable,
    seed: int,
    steps: Integer[np.ndarray, " steps"],
    *,
    pairs: int,
    group: int = 1,
) -> Int32[np.ndarray, "steps pairs 2"]:
    """`sample_pairs` of several steps, by the host's processor; leaves accelerators alone."""
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise InputError(
            "JAX runs without its cpu platform: add it, e.g. JAX_PLATFORMS=cuda,cpu"
        ) from error
    with jax.default_device(host):
        numbers = steps.astype(np.uint32)
        drawn = _sample_steps(table, np.uint32(seed), numbers, pairs=pairs, group=group)
        return np.asarray(drawn)


def sample_points(
    seed: Counter, step: Counter, *, point_count: int, pairs: int
) -> Int32[Array, " pairs"]:
    """The points of one step, 0 ≤ point < `point_count`, all different."""
    # Batches and passes begin together every `cycle` steps. Counting from there keeps every
    # product below lcm(point_count, pairs), which `check_stream` holds below 2³².
    common = math.gcd(point_count, pairs)
    cycle, passes_per_cycle = point_count // common, pairs // common
    step = _uint32(step)
    cycle_number, step_in_cycle = step // cycle, step % cycle
    first = step_in_cycle * pairs
    position = first % point_count + jnp.arange(pairs, dtype=jnp.uint32)
    if point_count < 2 * pairs:
        keys = _order_keys(seed, cycle_number, point_count)
        return _permute(keys, position % point_count, point_count).astype(jnp.int32)

    own_pass = first // point_count
    straddles = position[-1] >= point_count
    # Only the first B places of a pass can differ from the plain permutation; a batch that reaches
    # into the next pass sees those of that one, any other may see those of its own.
    head_pass = own_pass + straddles.astype(jnp.uint32)
    base = cycle_number * passes_per_cycle
    keys = _order_keys(seed, base + jnp.stack([own_pass, head_pass]), point_count)
    places = jnp.stack([position % point_count, jnp.arange(pairs, dtype=jnp.uint32)])
    plain, plain_head = _permute(keys, places, point_count)
    keys_before = _order_keys(seed, base + head_pass - 1, point_count)
    places_before = _unpermute(keys_before, plain_head, point_count)
    shared = head_pass * point_count % pairs
    head = _clear_head(plain_head, places_before >= point_count - shared)
    head_start = jnp.where(straddles, jnp.uint32(point_count), jnp.uint32(0))
    place_in_head = position - head_start  # wraps, and so is large, before the head
    return jnp.where(place_in_head < pairs, head[place_in_head % pairs], plain).astype(jnp.int32)


def _clear_head(
    head: UInt32[Array, " pairs"], shared: Bool[Array, " pairs"]
) -> UInt32[Array, " pairs"]:
    """Rearranges the first B points of a pass so that the batch which they complete is distinct.

    That batch begins with the last r points of the pass before. At most r of our B points are among
    these, the shared ones; moved behind the others they leave the first B − r clear. For n ≥ 2B the
    last r places of a pass are never rearranged themselves, so no pass depends on more than one
    before it.
    """
    unshared = (~shared).astype(jnp.int32)
    place = jnp.where(
        shared,
        unshared.sum() + jnp.cumsum(shared.astype(jnp.int32)) - 1,
        jnp.cumsum(unshared) - 1,
    )
    return jnp.zeros_like(head).at[place].set(head, unique_indices=True)


# A keyed permutation of 0 … n−1 for any n: the swap-or-not shuffle (Hoang, Morris & Rogaway 2012).
# In each round x and (key − x) mod n are partners, and a hash of the larger says whether they swap.
# A round is its own inverse, so the inverse runs the rounds backwards.


class _OrderKeys(NamedTuple):
    partners: UInt32[Array, "*passes rounds"]
    bits: UInt32[Array, "*passes rounds"]


def _order_keys(seed: Counter, passes: UInt32[Array, "*passes"], point_count: int) -> _OrderKeys:
    rounds = jnp.arange(ROUNDS, dtype=jnp.uint32).reshape((1,) * passes.ndim + (ROUNDS,))
    partners = _hash(_key(seed, _ORDER_KEYS, passes)[..., None], rounds) % point_count
    return _OrderKeys(partners, _hash(_key(seed, _ORDER_BITS, passes)[..., None], rounds))


def _permute(
    keys: _OrderKeys, values: UInt32[Array, "*passes n"], point_count: int
) -> UInt32[Array, "*passes n"]:
    for i in range(ROUNDS):  # unrolled: an accelerator then runs all rounds as one kernel
        partner, bits = keys.partners[..., i, None], keys.bits[..., i, None]
        wrap = jnp.where(values > partner, jnp.uint32(point_count), jnp.uint32(0))
        other = partner + wrap - values
        swap = _coin(bits, jnp.maximum(values, other))
        values = jnp.where(swap, other, values)
    return values


def _unpermute(
    keys: _OrderKeys, values: UInt32[Array, " n"], point_count: int
) -> UInt32[Array, " n"]:
    return _permute(jax.tree.map(lambda k: k[..., ::-1], keys), values, point_count)


def _coin(bits: UInt32[Array, "*a"], values: UInt32[Array, "*b"]) -> Bool[Array, "*b"]:
    """One bit: the hash below, cut short where its top bit is already mixed."""
    mixed = (values ^ bits) * jnp.uint32(0x7FEB352D)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x846CA68B)
    return mixed >= jnp.uint32(1 << 31)


def _key(
    seed: Counter, use: int, number: Integer[Array, "*passes"] | int
) -> UInt32[Array, "*passes"]:
    return _hash(_hash(_hash(jnp.uint32(0), seed), use), number)


def _hash(key: UInt32[Array, "*a"], values: Integer[Array, "*b"] | int) -> UInt32[Array, "*c"]:
    """32 well-mixed bits: multiply and xor-shift, with the odd constants of `lowbias32`."""
    bits = _uint32(values) * jnp.uint32(0x9E3779B9) + key
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def _uint32(number: Integer[Array, "*shape"] | int) -> UInt32[Array, "*shape"]:
    # A Python integer may be too large for the int32 that JAX would first make of it.
    if isinstance(number, int):
        return jnp.uint32(number)
    return jnp.asarray(number).astype(jnp.uint32)
