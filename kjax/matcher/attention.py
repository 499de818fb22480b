"""Attention, by whatever suits the device: the sums are the same.

`blocked` is XLA's work on some queries of one head at a time, whose scores then fit into a CPU's
cache, and whose memory does not grow with the square of the keypoints. It is for matching: a
training would keep all blocks' scores for its gradient. `xla` and `cudnn` are JAX's own.

Two photographs that look at each other with the same keys have one matrix of scores, and its
transpose: then `blocked` takes products and exponentials once for both.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from kjax.matcher.exponential import exp_quickly
from kjax.model.describe import cores

Attention = Literal["blocked", "xla", "cudnn"]
MANY_CORES = 8
"""From where on they wait for each other longer than for memory."""
_LEAST_TOTAL = 1e-28
"""Of exponentials that are scaled alike: thousands of the least that `exp_quickly` gives, 4e-38,
are then a millionth."""


def attend(
    query: Float[Array, "S N heads size"],
    key: Float[Array, "S M heads size"],
    value: Float[Array, "S M heads size"],
    counts: Int32[Array, " S"],
    how: Attention,
) -> Float[Array, "S N heads size"]:
    """What each query sees of the values.

    Args:
        query: of keypoints that look.
        key: of keypoints that are looked at.
        value: of the same.
        counts: how many of them there are; the others are padding.
        how: what computes it.
    """
    # Nobody to look at: what is then seen is of no use, but must be a number.
    counts = jnp.maximum(counts, 1)
    if how == "blocked":
        return _attend_in_blocks(query, key, value, counts)
    return jax.nn.dot_product_attention(
        query, key, value, key_value_seq_lengths=counts, implementation=how
    )


def attend_across(
    key: Float[Array, "B 2 N heads size"],
    value: Float[Array, "B 2 N heads size"],
    counts: Int32[Array, "B 2"],
    how: Attention,
) -> Float[Array, "B 2 N heads size"]:
    """What the keypoints of each photograph see of the other one's values.

    Args:
        key: of keypoints, both to look with and to be looked at.
        value: of the same.
        counts: how many of them there are; the others are padding.
        how: what computes it.
    """
    if how == "blocked":
        return _attend_both_ways(key, value, jnp.maximum(counts, 1))
    others = [jnp.flip(part, axis=1) for part in (key, value, counts)]
    flat = [part.reshape(-1, *part.shape[2:]) for part in (key, *others[:2])]
    return attend(flat[0], flat[1], flat[2], others[2].reshape(-1), how).reshape(key.shape)


def _attend_in_blocks(query: Array, key: Array, value: Array, counts: Array) -> Array:
    sides, rows, heads, size = query.shape
    block = _block_of(rows)
    absent = jnp.arange(key.shape[1])[None] >= counts[:, None]
    bias = jnp.where(absent, -jnp.inf, 0.0).astype(query.dtype)

    def look_by_head(head: tuple[Array, Array, Array, Array]) -> Float[Array, "blocks block size"]:
        blocks, keys, values, bias = head

        def look(some: Float[Array, "block size"]) -> Float[Array, "block size"]:
            scores = some @ keys + bias[None]
            shares = exp_quickly(scores - scores.max(axis=-1, keepdims=True))
            return (shares @ values) / shares.sum(axis=-1, keepdims=True)

        return jax.lax.map(look, blocks)

    def by_head(part: Float[Array, "S N heads size"]) -> Float[Array, "S_heads N size"]:
        return part.transpose(0, 2, 1, 3).reshape(sides * heads, -1, size)

    blocks = by_head(query / math.sqrt(size)).reshape(-1, rows // block, block, size)
    own_bias = jnp.repeat(bias, heads, axis=0)
    keys, values = by_head(key).transpose(0, 2, 1), by_head(value)
    seen = jax.lax.map(look_by_head, (blocks, keys, values, own_bias))
    return seen.reshape(sides, heads, rows, size).transpose(0, 2, 1, 3)


def _block_of(rows: int) -> int:
    """How many queries are looked at together: what caches hold, or else seldom has to wait."""
    if jax.default_backend() != "cpu":
        return math.gcd(rows, 8192)
    return math.gcd(rows, 1024 if cores() < MANY_CORES else 2048)


def _attend_both_ways(
    key: Float[Array, "B 2 N heads size"],
    value: Float[Array, "B 2 N heads size"],
    counts: Int32[Array, "B 2"],
) -> Float[Array, "B 2 N heads size"]:
    """What each photograph sees of the other, head by head."""
    heads = key.shape[3]
    by_head = [jnp.moveaxis(part, 3, 1) for part in (key, value)]
    flat = [part.reshape(-1, *part.shape[2:]) for part in by_head]
    own_counts = jnp.repeat(counts, heads, axis=0)
    seen = jax.lax.map(lambda head: _look_by_one_head(*head), (*flat, own_counts))
    return jnp.moveaxis(seen.reshape(by_head[0].shape), 1, 3)


def _look_by_one_head(
    keys: Float[Array, "2 N size"], values: Float[Array, "2 N size"], counts: Int32[Array, "2"]
) -> Float[Array, "2 N size"]:
    """Both ways at once, or one after the other where floats have not the range for it."""

    def separately() -> Float[Array, "2 N size"]:
        alone = [part[:, :, None] for part in (keys, keys[::-1], values[::-1])]
        return _attend_in_blocks(alone[0], alone[1], alone[2], counts[::-1])[:, :, 0]

    there = jnp.arange(keys.shape[1])[None] < counts[:, None]
    seen, totals = _look_both_ways(keys, values, there)
    exact = ((totals > _LEAST_TOTAL) | ~there).all()
    return jax.lax.cond(exact, lambda: seen, separately)


def _look_both_ways(
    keys: Float[Array, "2 N size"], values: Float[Array, "2 N size"], there: Bool[Array, "2 N"]
) -> tuple[Float[Array, "2 N size"], Float[Array, "2 N"]]:
    """What is seen, and the sums of exponentials that it was divided by.

    exp(k·k′) = exp(−|k − k′|²/2) · exp(|k|²/2) · exp(|k′|²/2): the first factor is the same from
    both sides and at most 1, the second goes with what is looked at, the third is common to all
    that a keypoint sees.
    """
    _, rows, size = keys.shape
    keys = keys / size**0.25
    halves = jnp.square(keys).sum(axis=-1) / 2
    highest = jnp.where(there, halves, -jnp.inf).max(axis=1, keepdims=True)
    weights = jnp.where(there, jnp.exp(halves - highest), 0)
    # The weights' own sums come with the others: sums of single numbers use one core.
    weighted = jnp.concatenate([values * weights[..., None], weights[..., None]], axis=-1)
    others = keys[1].T

    def look(sums: Array, some: tuple[Array, ...]) -> tuple[Array, Array]:
        own_keys, own_halves, own_weighted = some
        alike = exp_quickly(own_keys @ others - own_halves[:, None] - halves[1][None])
        return sums + own_weighted.T @ alike, alike @ weighted[1]

    first = (part[0] for part in (keys, halves, weighted))
    blocks = tuple(part.reshape(-1, _block_of(rows), *part.shape[1:]) for part in first)
    second_sums, first_sums = jax.lax.scan(look, jnp.zeros((size + 1, rows), keys.dtype), blocks)
    sums = jnp.stack([first_sums.reshape(rows, size + 1), second_sums.T])
    totals = sums[..., -1]
    return sums[..., :-1] / jnp.maximum(totals, _LEAST_TOTAL)[..., None], totals
