"""Attention, by whatever suits the device: the sums are the same.

`blocked` is XLA's work on some queries of one head at a time, whose scores then fit into a CPU's
cache, and whose memory does not grow with the square of the keypoints. It is for matching: a
training would keep all blocks' scores for its gradient. `xla` and `cudnn` are JAX's own.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

Attention = Literal["blocked", "xla", "cudnn"]
BLOCK = 1024
"""Queries at a time."""


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


def _attend_in_blocks(query: Array, key: Array, value: Array, counts: Array) -> Array:
    sides, rows, heads, size = query.shape
    block = math.gcd(rows, BLOCK)
    absent = jnp.arange(key.shape[1])[None] >= counts[:, None]
    bias = jnp.where(absent, -jnp.inf, 0.0).astype(query.dtype)

    def look_by_head(head: tuple[Array, Array, Array, Array]) -> Float[Array, "blocks block size"]:
        blocks, keys, values, bias = head

        def look(some: Float[Array, "block size"]) -> Float[Array, "block size"]:
            scores = some @ keys + bias[None]
            shares = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
            return (shares @ values) / shares.sum(axis=-1, keepdims=True)

        return jax.lax.map(look, blocks)

    def by_head(part: Float[Array, "S N heads size"]) -> Float[Array, "S_heads N size"]:
        return part.transpose(0, 2, 1, 3).reshape(sides * heads, -1, size)

    blocks = by_head(query / math.sqrt(size)).reshape(-1, rows // block, block, size)
    own_bias = jnp.repeat(bias, heads, axis=0)
    keys, values = by_head(key).transpose(0, 2, 1), by_head(value)
    seen = jax.lax.map(look_by_head, (blocks, keys, values, own_bias))
    return seen.reshape(sides, heads, rows, size).transpose(0, 2, 1, 3)
