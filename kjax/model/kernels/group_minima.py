"""The smallest distances between two sets of rows, by groups: one product serves both directions.

The device compares all pairs in blocks that fit its cache, and keeps for each row the minimum over
each of some 400 groups of the other set, and vice versa. Besides the product only minima are
needed: no sort, no index. `kjax.model.nearest` then searches the best groups again, a hundredth of
the work.

The compared values are LOWER BOUNDS of the distances in single precision. Squared L2 distances are
|q|² + |t|² − 2 q·t. With ε = 2⁻²³, a sum of n products is off by n ε/2 Σ|qᵢtᵢ| ≤ n ε/2 |q| |t| at
most, in whatever order it is added, and by twice that where an accelerator cuts digits off instead
of rounding. As 2 |q| |t| ≤ |q|² + |t|² =: s, the doubled product is off by n ε s. Four more
roundings, of the two squares and of two additions, make 3 ε s. So (1 − (n + 8) ε) s − 2 q·t, as it
is computed, is not above the distance. For L1 each difference and each addition rounds once:
Σ|qᵢ − tᵢ| − (n + 8) ε s with s = Σ|qᵢ| + Σ|tᵢ|.

Accelerators multiply bfloat16 (eight significant bits) far faster. A number is h + l + r, where h
is the nearest bfloat16 and l the bfloat16 nearest to the rest: |l| ≤ 2⁻⁹ |x| and |r| ≤ 2⁻¹⁸ |x|.
The products hh', hl' and lh' are exact and are added in single precision: 3 n terms, and a 2⁻⁸ more
in the sum of their sizes, which 4 n covers. The omitted terms ll', rx' and xr' are below
3 · 2⁻¹⁸ |q| |t|, so 3 · 2⁻¹⁸ s = 96 ε s is added to the doubled product's bound.

Integers of at most eight bits, whose sums stay below 2²⁴, are computed without any error.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32, Num

Metric = Literal["L2", "L1"]
Product = Literal["single", "split", "whole"]
"""Products of float32; of bfloat16 in three parts; of integers that bfloat16 holds."""

_SMALLEST = 256
"""Minimum padded size."""
_SMALLEST_BLOCK = 64
_MOST_GROUPS = 512
"""Maximum number of groups in a set; the minimum is an eighth of it."""
_EPSILON = 2.0**-23


def granularity(count: int) -> int:
    """Return the step that sizes are rounded up to: four sizes per octave share their programs."""
    return max(_SMALLEST, 1 << max(0, count.bit_length() - 3))


def group_size(rows: int) -> int:
    """Return the number of consecutive rows in a group."""
    return 8 * granularity(rows) // _MOST_GROUPS


def compare(
    some: Num[Array, "n dim"], others: Num[Array, "m dim"], metric: Metric
) -> Float[Array, "n m"]:
    """Compute −2 q·t, the mixed term of squared L2 distances, or L1 distances."""
    if metric == "L2":
        precision = None if some.dtype == jnp.bfloat16 else "highest"
        kind = jnp.promote_types(some.dtype, jnp.float32)
        return -2 * jnp.dot(some, others.T, precision=precision, preferred_element_type=kind)

    def add(column: Array, total: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return total + jnp.abs(some[:, column, None] - others[None, :, column])

    empty = jnp.zeros((some.shape[0], others.shape[0]), some.dtype)
    return jax.lax.fori_loop(0, some.shape[1], add, empty)


def share(dim: int, metric: Metric, product: Product) -> float:
    """Return the factor of a row's own size in a lower bound."""
    terms = {"single": dim + 8, "split": 4 * dim + 112, "whole": 0}[product]
    return (1.0 if metric == "L2" else 0.0) - terms * _EPSILON


def operands(
    first: Float32[Array, "n dim"], second: Float32[Array, "m dim"], product: Product
) -> tuple[Num[Array, "n terms"], Num[Array, "m terms"]]:
    """Return the two factors of a product."""
    if product == "single":
        return first, second
    if product == "whole":
        return first.astype(jnp.bfloat16), second.astype(jnp.bfloat16)
    parts = []
    for rows in (first, second):
        # XLA would remove a conversion to bfloat16 and back.
        high = jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
        parts.append((high.astype(jnp.bfloat16), (rows - high).astype(jnp.bfloat16)))
    (high, low), (other_high, other_low) = parts
    return (
        jnp.concatenate([high, high, low], axis=1),
        jnp.concatenate([other_high, other_low, other_high], axis=1),
    )


def group_minima(
    sides: tuple[Num[Array, "n terms"], Num[Array, "m terms"]],
    offsets: tuple[Float32[Array, " n"], Float32[Array, " m"]],
    sizes: Int32[Array, "2"],
    *,
    metric: Metric,
    block: int,
    both: bool,
) -> tuple[Float32[Array, "n groups"], Float32[Array, "others columns"]]:
    """Compute each row's minima over groups of the second set, and each column's over the first.

    `sides` are from `operands`. `offsets` are added to each row's comparisons, and infinite for
    padding. Blocks beyond `sizes`, the numbers of rows without padding, are skipped. The second
    result is computed if `both`.
    """
    lengths = [len(side) for side in sides]
    blocks = [min(_power_of_two(block), length) for length in lengths]
    groups = [group_size(length) for length in lengths]
    # A group may be larger than a block.
    parts = [max(1, size // group) for size, group in zip(blocks, groups, strict=True)]

    def look(row: Array, column: Array, minima: tuple[Array, Array]) -> tuple[Array, Array]:
        starts = [turn * size for turn, size in zip((row, column), blocks, strict=True)]
        rows, columns, row_offsets, column_offsets = (
            jax.lax.dynamic_slice_in_dim(array, start, size)
            for arrays in (sides, offsets)
            for array, start, size in zip(arrays, starts, blocks, strict=True)
        )
        values = compare(rows, columns, metric) + row_offsets[:, None] + column_offsets[None, :]
        by_row = values.reshape(blocks[0], parts[1], -1).min(axis=2)
        lowered = _lower(minima[0], by_row, starts[0], starts[1] // groups[1])
        if not both:
            return lowered, minima[1]
        by_column = values.reshape(parts[0], -1, blocks[1]).min(axis=1)
        return lowered, _lower(minima[1], by_column, starts[0] // groups[0], starts[1])

    start = (
        jnp.full((lengths[0], lengths[1] // groups[1]), jnp.inf, jnp.float32),
        jnp.full((lengths[0] // groups[0], lengths[1] if both else 0), jnp.inf, jnp.float32),
    )
    zero = jnp.zeros((), jnp.int32)
    if blocks == lengths:
        return look(zero, zero, start)
    turns = [-(-sizes[side] // blocks[side]) for side in (0, 1)]

    def look_along(row: Array, minima: tuple[Array, Array]) -> tuple[Array, Array]:
        return jax.lax.fori_loop(zero, turns[1], lambda at, best: look(row, at, best), minima)

    return jax.lax.fori_loop(zero, turns[0], look_along, start)


def _lower(
    minima: Float32[Array, "n m"], values: Float32[Array, "a b"], row: Array, column: Array
) -> Float32[Array, "n m"]:
    """Lower a block of minima to the new values."""
    before = jax.lax.dynamic_slice(minima, (row, column), values.shape)
    return jax.lax.dynamic_update_slice(minima, jnp.minimum(before, values), (row, column))


def _power_of_two(block: int) -> int:
    return 1 << max(_SMALLEST_BLOCK, block).bit_length() - 1


def padded_size(count: int, block: int = 1) -> int:
    """Round up to one of few sizes, in whole blocks if there are several."""
    step = granularity(count)
    if count > _power_of_two(block):
        step = max(step, _power_of_two(block))
    return -(-count // step) * step
