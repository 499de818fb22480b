"""Attention, computed by what is fastest on the device. The results are the same.

`blocked` is XLA's work on some queries of one head at a time. Their scores fit into a CPU's cache,
and memory does not grow with the square of the keypoints. It is for matching: training would keep
the scores of all blocks for the gradient. `xla` and `cudnn` are JAX's own.

Two images that attend to each other with the same keys have one score matrix and its transpose:
then `blocked` computes products and exponentials once for both.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32
from numpy.polynomial import Chebyshev, Polynomial

from kjax.model.describe import cores

Attention = Literal["blocked", "xla", "cudnn"]
MANY_CORES = 8
"""Number of cores from which waiting for each other costs more than waiting for memory."""
_LEAST_TOTAL = 1e-28
"""Minimum sum of scaled exponentials: thousands of the smallest values of `exp_quickly`, 4e-38, are
then a millionth of it."""
_LOWEST = -86.0
"""Minimum argument of the exponential: floats lose digits below."""
_ROUNDING = 1.5 * 2**23
"""Added to a float, it leaves no digits behind the point, and the integer in its last bits."""
_POWERS = Chebyshev.interpolate(np.exp2, 5, domain=[-0.5, 0.5]).convert(kind=Polynomial).coef
"""Coefficients of a polynomial for 2ˣ, accurate to 1e-7."""


def attend(
    query: Float[Array, "S N heads size"],
    key: Float[Array, "S M heads size"],
    value: Float[Array, "S M heads size"],
    counts: Int32[Array, " S"],
    how: Attention,
) -> Float[Array, "S N heads size"]:
    """Attend to the first `counts` keys of each image; the others are padding."""
    # Without keys the result is not used, but must be finite.
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
    """Attend from each image to the other; keys serve as queries, too."""
    if how != "blocked":
        others = [jnp.flip(part, axis=1) for part in (key, value, counts)]
        flat = [part.reshape(-1, *part.shape[2:]) for part in (key, *others[:2])]
        return attend(flat[0], flat[1], flat[2], others[2].reshape(-1), how).reshape(key.shape)
    heads = key.shape[3]
    by_head = [jnp.moveaxis(part, 3, 1) for part in (key, value)]
    flat = [part.reshape(-1, *part.shape[2:]) for part in by_head]
    own_counts = jnp.repeat(jnp.maximum(counts, 1), heads, axis=0)

    def attend_by_head(head: tuple[Array, Array, Array]) -> Float[Array, "2 N size"]:
        """Attend both ways at once, or one after the other where float32 lacks the range."""
        keys, values, counts = head

        def separately() -> Float[Array, "2 N size"]:
            alone = [part[:, :, None] for part in (keys, keys[::-1], values[::-1])]
            return _attend_in_blocks(alone[0], alone[1], alone[2], counts[::-1])[:, :, 0]

        there = jnp.arange(keys.shape[1])[None] < counts[:, None]
        seen, totals = _attend_both_ways(keys, values, there)
        exact = ((totals > _LEAST_TOTAL) | ~there).all()
        return jax.lax.cond(exact, lambda: seen, separately)

    seen = jax.lax.map(attend_by_head, (*flat, own_counts))
    return jnp.moveaxis(seen.reshape(by_head[0].shape), 1, 3)


def _attend_in_blocks(query: Array, key: Array, value: Array, counts: Array) -> Array:
    sides, rows, heads, size = query.shape
    block = _block_of(rows)
    absent = jnp.arange(key.shape[1])[None] >= counts[:, None]
    bias = jnp.where(absent, -jnp.inf, 0.0).astype(query.dtype)

    def attend_by_head(
        head: tuple[Array, Array, Array, Array],
    ) -> Float[Array, "blocks block size"]:
        blocks, keys, values, bias = head

        def attend_block(some: Float[Array, "block size"]) -> Float[Array, "block size"]:
            scores = some @ keys + bias[None]
            shares = exp_quickly(scores - scores.max(axis=-1, keepdims=True))
            return (shares @ values) / shares.sum(axis=-1, keepdims=True)

        return jax.lax.map(attend_block, blocks)

    def by_head(part: Float[Array, "S N heads size"]) -> Float[Array, "S_heads N size"]:
        return part.transpose(0, 2, 1, 3).reshape(sides * heads, -1, size)

    blocks = by_head(query / math.sqrt(size)).reshape(-1, rows // block, block, size)
    own_bias = jnp.repeat(bias, heads, axis=0)
    keys, values = by_head(key).transpose(0, 2, 1), by_head(value)
    seen = jax.lax.map(attend_by_head, (blocks, keys, values, own_bias))
    return seen.reshape(sides, heads, rows, size).transpose(0, 2, 1, 3)


def _block_of(rows: int) -> int:
    """Return the number of queries per block: what fits into caches, or else rarely waits."""
    if jax.default_backend() != "cpu":
        return math.gcd(rows, 8192)
    return math.gcd(rows, 1024 if cores() < MANY_CORES else 2048)


def _attend_both_ways(
    keys: Float[Array, "2 N size"], values: Float[Array, "2 N size"], there: Bool[Array, "2 N"]
) -> tuple[Float[Array, "2 N size"], Float[Array, "2 N"]]:
    """Return the result, and the sums of exponentials that it was divided by.

    exp(k·k′) = exp(−|k − k′|²/2) · exp(|k|²/2) · exp(|k′|²/2). The first factor is the same from
    both sides and at most 1. The second belongs to the keypoint that is attended to. The third is
    common to all that a keypoint attends to and cancels.
    """
    _, rows, size = keys.shape
    keys = keys / size**0.25
    halves = jnp.square(keys).sum(axis=-1) / 2
    highest = jnp.where(there, halves, -jnp.inf).max(axis=1, keepdims=True)
    weights = jnp.where(there, jnp.exp(halves - highest), 0)
    # The sums of weights are one more column: sums of single numbers use one core.
    weighted = jnp.concatenate([values * weights[..., None], weights[..., None]], axis=-1)
    others = keys[1].T

    def attend_block(sums: Array, some: tuple[Array, ...]) -> tuple[Array, Array]:
        own_keys, own_halves, own_weighted = some
        alike = exp_quickly(own_keys @ others - own_halves[:, None] - halves[1][None])
        return sums + own_weighted.T @ alike, alike @ weighted[1]

    first = (part[0] for part in (keys, halves, weighted))
    blocks = tuple(part.reshape(-1, _block_of(rows), *part.shape[1:]) for part in first)
    start = jnp.zeros((size + 1, rows), keys.dtype)
    second_sums, first_sums = jax.lax.scan(attend_block, start, blocks)
    sums = jnp.stack([first_sums.reshape(rows, size + 1), second_sums.T])
    totals = sums[..., -1]
    return sums[..., :-1] / jnp.maximum(totals, _LEAST_TOTAL)[..., None], totals


def exp_quickly(x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Compute exponentials of x ≤ 0 to five digits, in half of XLA's time on aarch64.

    2^(n + f) = 2ⁿ · 2ᶠ for the integer n nearest to x / ln 2: 2ᶠ is a polynomial, and n is added to
    its exponent. There is no gradient.
    """

    def bits(x: Array) -> Int32[Array, "*shape"]:
        return jax.lax.bitcast_convert_type(x, jnp.int32)

    doublings = jnp.maximum(x, _LOWEST) * math.log2(math.e)
    # By bits: XLA would simplify (doublings + c) - c.
    whole = bits(doublings + _ROUNDING) - bits(jnp.float32(_ROUNDING))
    rest = doublings - whole.astype(jnp.float32)
    power = jnp.full_like(x, _POWERS[-1])
    for coefficient in _POWERS[-2::-1]:
        power = power * rest + np.float32(coefficient)
    return jax.lax.bitcast_convert_type(bits(power) + (whole << 23), jnp.float32)
