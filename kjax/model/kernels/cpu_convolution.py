"""3×3 convolutions for inference on CPUs, where multiplications are what costs.

With stride 1 and many channels they run by Winograd's minimal filtering F(4, 3) down the columns:
four rows of the output come from six products, each a 1×3 convolution of a combination of rows,
instead of from twelve. That halves the multiplications. Nested in both directions it would quarter
them, but then the combinations cost as much as is saved.

With few channels it is gathering the pixels that costs, not multiplying them: there a product makes
several columns of the output together, from pixels that are gathered once.
"""

import functools
import math
import operator

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kjax.model.kernels.convolution import convolve as plain_convolve

ROWS = 4
"""Rows of the output that are made together."""
WINOGRAD_BATCH = 16
"""The fewest patches that run by Winograd's filtering: it takes a second or two more to compile.
Larger batches leave the cache, so whoever has few patches asks for smaller ones, and compiles less.
"""
WIDTH = 32
"""Outputs of a product, over all channels and columns, below which gathering its input dominates.
"""


def pays(x: Float[Array, "batch N N C"]) -> bool:
    """Whether the input is one for `convolve` here: precise enough."""
    return jnp.finfo(x.dtype).bits >= 32


def convolve(
    x: Float[Array, "batch N N C"], kernel: Float[Array, "3 3 C C2"], *, stride: int
) -> Float[Array, "batch n n C2"]:
    """`kjax.model.kernels.convolution.convolve`, up to rounding."""
    if stride == 1 and x.shape[3] == 1:
        return _convolve_one_channel(x, kernel)
    if kernel.shape[3] < WIDTH:
        return _convolve_by_columns(x, kernel, stride=stride)
    if stride == 1 and x.shape[1] % ROWS == 0 and x.shape[0] >= WINOGRAD_BATCH:
        return _convolve_by_rows(x, kernel)
    return plain_convolve(x, kernel, stride=stride)


def _convolve_one_channel(
    x: Float[Array, "batch N N 1"], kernel: Float[Array, "3 3 1 C"]
) -> Float[Array, "batch N N C"]:
    """Sums nine shifted images, weighted: one loop, where a matrix product has too short rows."""
    side = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = (
        padded[:, i : i + side, j : j + side] * kernel[i : i + 1, j : j + 1]
        for i in range(3)
        for j in range(3)
    )
    return functools.reduce(operator.add, shifted)


def _convolve_by_columns(
    x: Float[Array, "batch N N C"], kernel: Float[Array, "3 3 C C2"], *, stride: int
) -> Float[Array, "batch n n C2"]:
    """Several columns of the output in one product, whose kernel has one, shifted, for each."""
    channels, side = kernel.shape[3], x.shape[1] // stride
    columns = math.gcd(side, WIDTH // channels)
    spare = stride * (columns - 1)
    shifted = [
        jnp.pad(kernel, ((0, 0), (stride * i, spare - stride * i), (0, 0), (0, 0)))
        for i in range(columns)
    ]
    together = lax.conv_general_dilated(
        x,
        jnp.concatenate(shifted, axis=3),
        (stride, stride * columns),
        ((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return together.reshape(x.shape[0], side, side, channels)


def _convolve_by_rows(
    x: Float[Array, "batch N N C"], kernel: Float[Array, "3 3 C C2"]
) -> Float[Array, "batch N N C2"]:
    """F(4, 3) as Lavin and Gray (2016) have it; its points are 0, ±1, ±2 and ∞."""
    side = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    rows = [padded[:, i : i + side - ROWS + 1 : ROWS] for i in range(ROWS + 2)]
    products = [
        lax.conv_general_dilated(
            combined,
            own[None],
            (1, 1),
            ((0, 0), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        for combined, own in zip(_combine_rows(*rows), _combine_kernels(*kernel), strict=True)
    ]
    together = jnp.stack(_combine_products(*products), axis=2)
    return together.reshape(*x.shape[:3], kernel.shape[3])


def _combine_rows(x0: Array, x1: Array, x2: Array, x3: Array, x4: Array, x5: Array) -> list[Array]:
    even1, odd1 = x4 - 4 * x2, x3 - 4 * x1
    even2, odd2 = x4 - x2, 2 * (x3 - x1)
    ends = 4 * x0 - 5 * x2 + x4, 4 * x1 - 5 * x3 + x5
    return [ends[0], even1 + odd1, even1 - odd1, even2 + odd2, even2 - odd2, ends[1]]


def _combine_kernels(k0: Array, k1: Array, k2: Array) -> list[Array]:
    even1, odd1 = -(k0 + k2) / 6, -k1 / 6
    even2, odd2 = k0 / 24 + k2 / 6, k1 / 12
    return [k0 / 4, even1 + odd1, even1 - odd1, even2 + odd2, even2 - odd2, k2]


def _combine_products(
    m0: Array, m1: Array, m2: Array, m3: Array, m4: Array, m5: Array
) -> list[Array]:
    even1, odd1 = m1 + m2, m1 - m2
    even2, odd2 = m3 + m4, m3 - m4
    return [m0 + even1 + even2, odd1 + 2 * odd2, even1 + 4 * even2, odd1 + 8 * odd2 + m5]
