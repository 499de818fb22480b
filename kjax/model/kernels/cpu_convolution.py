"""3×3 convolutions for inference on CPUs, where multiplications dominate the cost.

With stride 1 and many channels they run by Winograd's minimal filtering F(4, 3) down the columns:
four rows of the output come from six products, each a 1×3 convolution of a combination of rows,
instead of from twelve. That halves the multiplications. Nested in both directions it would quarter
them, but then the combinations cost as much as is saved.

With few channels, gathering the pixels dominates: there one product makes several columns of the
output, from pixels that are gathered once.
"""

import functools
import math
import operator

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kjax.model.kernels.convolution import convolve as plain_convolve

ROWS = 4
"""Output rows per Winograd block."""
WINOGRAD_BATCH = 16
"""Minimum batch size for Winograd's filtering, which takes a second or two more to compile. Larger
batches leave the cache; callers with few patches use smaller batches, and compile less."""
WIDTH = 32
"""Outputs of a product, over channels and columns, below which gathering its input dominates."""
LAYOUTS = ("NHWC", "HWIO", "NHWC")


def supports(x: Float[Array, "batch N N C"]) -> bool:
    """Whether the input is precise enough for Winograd's filtering."""
    return jnp.finfo(x.dtype).bits >= 32


def convolve(
    x: Float[Array, "batch N N C"], kernel: Float[Array, "3 3 C C2"], *, stride: int
) -> Float[Array, "batch n n C2"]:
    """Compute `kjax.model.kernels.convolution.convolve`, up to rounding."""
    if stride == 1 and x.shape[3] == 1:
        # Nine shifted images, weighted: in a matrix product the rows would be too short.
        side = x.shape[1]
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifted = (
            padded[:, i : i + side, j : j + side] * kernel[i : i + 1, j : j + 1]
            for i in range(3)
            for j in range(3)
        )
        return functools.reduce(operator.add, shifted)
    if kernel.shape[3] < WIDTH:
        # Several output columns per product, with one shifted kernel for each.
        channels, side = kernel.shape[3], x.shape[1] // stride
        columns = math.gcd(side, WIDTH // channels)
        spare = stride * (columns - 1)
        kernels = [
            jnp.pad(kernel, ((0, 0), (stride * i, spare - stride * i), (0, 0), (0, 0)))
            for i in range(columns)
        ]
        strides, padding = (stride, stride * columns), ((1, 1), (1, 1))
        together = lax.conv_general_dilated(
            x, jnp.concatenate(kernels, axis=3), strides, padding, dimension_numbers=LAYOUTS
        )
        return together.reshape(x.shape[0], side, side, channels)
    if stride == 1 and x.shape[1] % ROWS == 0 and x.shape[0] >= WINOGRAD_BATCH:
        return _convolve_by_rows(x, kernel)
    return plain_convolve(x, kernel, stride=stride)


def _convolve_by_rows(
    x: Float[Array, "batch N N C"], kernel: Float[Array, "3 3 C C2"]
) -> Float[Array, "batch N N C2"]:
    """Winograd's F(4, 3) as in Lavin and Gray (2016), with the points 0, ±1, ±2 and ∞."""
    side = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    x0, x1, x2, x3, x4, x5 = (padded[:, i : i + side - ROWS + 1 : ROWS] for i in range(ROWS + 2))
    even1, odd1 = x4 - 4 * x2, x3 - 4 * x1
    even2, odd2 = x4 - x2, 2 * (x3 - x1)
    ends = 4 * x0 - 5 * x2 + x4, 4 * x1 - 5 * x3 + x5
    rows = [ends[0], even1 + odd1, even1 - odd1, even2 + odd2, even2 - odd2, ends[1]]
    k0, k1, k2 = kernel
    even1, odd1 = -(k0 + k2) / 6, -k1 / 6
    even2, odd2 = k0 / 24 + k2 / 6, k1 / 12
    kernels = [k0 / 4, even1 + odd1, even1 - odd1, even2 + odd2, even2 - odd2, k2]
    m0, m1, m2, m3, m4, m5 = (
        lax.conv_general_dilated(
            row, own[None], (1, 1), ((0, 0), (1, 1)), dimension_numbers=LAYOUTS
        )
        for row, own in zip(rows, kernels, strict=True)
    )
    even1, odd1 = m1 + m2, m1 - m2
    even2, odd2 = m3 + m4, m3 - m4
    outputs = [m0 + even1 + even2, odd1 + 2 * odd2, even1 + 4 * even2, odd1 + 8 * odd2 + m5]
    return jnp.stack(outputs, axis=2).reshape(*x.shape[:3], kernel.shape[3])
