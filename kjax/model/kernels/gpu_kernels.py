"""Triton kernels for the trunk's few-channel layers, where the vendor's convolutions are slow.

Patches are read as pairs of horizontal neighbours: a pair's four-pixel neighbourhood in one row is
contiguous in memory, and turns the 3×3 convolution of C channels into three products, one per
kernel row, with [4C, 2C′] matrices. Those are what tensor cores like, and each pixel is read once
or twice instead of nine times: a program walks down the rows of its patches and keeps the sums of
three output rows.

All arrays are bfloat16 (any floating type in interpret mode), sums are float32, and sums over
pixels come back as one partial sum per program, so that results do not depend on timing.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

Ref = Any
"""An array in the device's memory, as kernels see it."""
TILE = 64
"""Rows in one product of a group of four warps; kernels with eight warps take twice as many."""
SIDES = (16, 32, 64, 128)
"""Sides of patches whose rows of pairs fill a tile."""
PATCHES_PER_SUM = 8
"""Patches over which one program sums a kernel's gradient."""
SUM_TILE, SUM_WIDTH = 16, 256
"""Rows and columns that a program of `moment_sums` adds up at a time."""
SUM_STEPS = (8, 4, 2, 1)
"""How many times it may do so; the first that divides the work is taken."""
WINDOW = 32
"""Columns of `_window`: 3×6 pixels, and zeros up to what products need."""
TAPS = 16
"""Columns of `_taps` per pixel: nine neighbours, a one, and zeros up to what products need."""


def fits(batch: int, side: int) -> bool:
    """Whether the kernels can run, with equal shares of a batch of patches of this side."""
    share = max(PATCHES_PER_SUM, 2 * TILE // (side // 2))
    return side in SIDES and batch % share == 0 and _enough_shared_memory()


@functools.cache
def _enough_shared_memory() -> bool:
    """Whether this process's GPUs, if it has any, can hold the largest tiles: data centres' can."""
    if jax.default_backend() != "gpu":
        return True  # the kernels are there for cross-compilation and in interpret mode
    capabilities = (getattr(device, "compute_capability", "") for device in jax.local_devices())
    return all(capability.split(".")[0] in ("9", "10") for capability in capabilities)


def tap_gram(
    padded: Float[Array, "batch P P"], *, views: int, interpret: bool = False
) -> Float[Array, "views 16 16"]:
    """Σ over pixels of t tᵀ, where t are a pixel's nine neighbours, a one, and six zeros.

    Args:
        padded: images with one pixel of zeros around.
        views: equal consecutive parts of the batch with sums of their own.
        interpret: run on any device, slowly.
    """
    batch, side = padded.shape[0], padded.shape[1] - 2
    segments = 4
    partial = _call(
        functools.partial(_gram_kernel, side=side, segments=segments, interpret=interpret),
        programs=segments * batch * side // 2 // TILE,
        out_shape=(2 * TAPS, 2 * TAPS),
        warps=4,
        stages=1,
        interpret=interpret,
    )(padded.reshape(-1))
    return _fold_pixels(partial, views, TAPS)


def first_layer(
    padded: Float[Array, "batch P P"],
    kernel: Float[Array, "3 3 1 C"],
    scale: Float[Array, "views C"],
    shift: Float[Array, "views C"],
    *,
    interpret: bool = False,
) -> Float[Array, "batch N N C"]:
    """ReLU(convolution · scale + shift), for images with one pixel of zeros around."""
    batch, side = padded.shape[0], padded.shape[1] - 2
    block, width = 2 * TILE, 2 * kernel.shape[-1]
    rows = batch * side * side // 2
    in_view = rows // block // scale.shape[0]
    per_view = pl.BlockSpec((1, width), lambda i: (i // in_view, 0))
    out = pl.pallas_call(
        functools.partial(_first_kernel, side=side, block=block, interpret=interpret),
        grid=(rows // block,),
        in_specs=[pl.no_block_spec, pl.no_block_spec, per_view, per_view],
        out_specs=pl.BlockSpec((block, width), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, width), padded.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
    )(padded.reshape(-1), _tap_matrix(kernel), _twice(scale), _twice(shift))
    return out.reshape(batch, side, side, width // 2)


def convolve_with_sums(
    x: Float[Array, "batch N N C"],
    kernel: Float[Array, "3 3 C C2"],
    *,
    views: int,
    interpret: bool = False,
) -> tuple[Float[Array, "batch N N C2"], Float[Array, "views 2 C2"]]:
    """The convolution y of stride 1, and each view's Σy and Σy²."""
    batch, side, _, channels = x.shape
    width = 2 * kernel.shape[-1]
    programs = batch * side // 2 // (2 * TILE)
    y, sums = pl.pallas_call(
        functools.partial(_convolution_kernel, side=side, channels=channels, interpret=interpret),
        grid=(programs,),
        in_specs=[pl.no_block_spec, pl.no_block_spec],
        out_specs=[pl.no_block_spec, pl.BlockSpec((1, 2, width), lambda i: (i, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct((batch * side * side // 2, width), x.dtype),
            jax.ShapeDtypeStruct((programs, 2, width), jnp.float32),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=3),
        interpret=interpret,
    )(x.reshape(-1), _pair_matrices(kernel))
    sums = sums.reshape(views, -1, 2, 2, width // 2).sum(axis=(1, 3))
    return y.reshape(batch, side, side, width // 2), sums


def folded_first_two_layers(
    padded: Float[Array, "batch P P"],
    kernel1: Float[Array, "3 3 1 C"],
    bias1: Float[Array, " C"],
    kernel2: Float[Array, "3 3 C C2"],
    bias2: Float[Array, " C2"],
    *,
    interpret: bool = False,
) -> Float[Array, "batch N N C2"]:
    """ReLU(convolution + bias) twice, for inference; what is between the two is never stored.

    Args:
        padded: images with two pixels of zeros around.
        kernel1: of the first convolution.
        bias1: of the first convolution, in float32.
        kernel2: of the second.
        bias2: of the second, in float32.
        interpret: run on any device, slowly.
    """
    batch, side = padded.shape[0], padded.shape[1] - 4
    width = 2 * kernel2.shape[-1]
    y = pl.pallas_call(
        functools.partial(_folded_kernel, side=side, interpret=interpret),
        grid=(batch * side // 2 // TILE,),
        in_specs=[pl.no_block_spec] * 5,
        out_specs=pl.no_block_spec,
        out_shape=jax.ShapeDtypeStruct((batch * side * side // 2, width), padded.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
    )(
        padded.reshape(-1),
        _window_matrix(kernel1),
        jnp.tile(bias1, 4),
        _pair_matrices(kernel2),
        jnp.tile(bias2, 2),
    )
    return y.reshape(batch, side, side, width // 2)


def kernel_gradient(
    x: Float[Array, "batch N N C"],
    dy: Float[Array, "batch N N C2"],
    *,
    interpret: bool = False,
) -> Float[Array, "3 3 C C2"]:
    """The gradient of a convolution of stride 1 by its kernel."""
    batch, side, _, channels = x.shape
    out = dy.shape[-1]
    body = functools.partial(
        _kernel_gradient_kernel, side=side, channels=channels, out=out, interpret=interpret
    )
    partial = _call(
        body,
        programs=batch // PATCHES_PER_SUM,
        out_shape=(3, 4 * channels, 2 * out),
        warps=8,
        stages=4,
        interpret=interpret,
    )(x.reshape(-1), dy.reshape(-1, 2 * out))
    total = partial.sum(axis=0).reshape(3, 4, channels, 2, out)
    return total[:, 0:3, :, 0] + total[:, 1:4, :, 1]


def tap_gradient(
    dy: Float[Array, "batch N N C2"],
    kernel: Float[Array, "3 3 C C2"],
    padded: Float[Array, "batch P P"],
    first_kernel: Float[Array, "3 3 1 C"],
    scale: Float[Array, "views C"],
    shift: Float[Array, "views C"],
    *,
    interpret: bool = False,
) -> Float[Array, "views 16 C"]:
    """Σ over pixels of t gᵀ: g is the gradient by `first_layer`'s value before its ReLU.

    The gradient passes through the second convolution and the ReLU, and is never stored; which
    values the ReLU let through is computed again.

    Args:
        dy: gradient by the output of the second convolution.
        kernel: of the second convolution.
        padded: of `first_layer`, as are the following.
        first_kernel: of the first convolution.
        scale: of its normalisation, as is `shift`.
        shift: of its normalisation.
        interpret: run on any device, slowly.
    """
    side, width, views = dy.shape[1], 2 * kernel.shape[2], scale.shape[0]
    programs = dy.shape[0] * side // 2 // TILE
    in_view = programs // views
    per_view = pl.BlockSpec((1, width), lambda i: (i // in_view, 0))
    partial = pl.pallas_call(
        functools.partial(
            _tap_gradient_kernel, side=side, channels=dy.shape[-1], interpret=interpret
        ),
        grid=(programs,),
        in_specs=[pl.no_block_spec] * 4 + [per_view] * 2,
        out_specs=pl.BlockSpec((1, 2 * TAPS, width), lambda i: (i, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((programs, 2 * TAPS, width), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
    )(
        dy.reshape(-1),
        _pair_matrices(jnp.flip(kernel, (0, 1)).swapaxes(2, 3)),
        padded.reshape(-1),
        _tap_matrix(first_kernel),
        _twice(scale),
        _twice(shift),
    )
    return _fold_pixels(partial, views, width // 2)


def halving_input_gradient(
    dy: Float[Array, "batch n n C2"],
    kernel: Float[Array, "3 3 C C2"],
    x: Float[Array, "batch N N C"],
    scale: Float[Array, "views C"],
    shift: Float[Array, "views C"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "batch N N C"], Float[Array, "views 2 C"]]:
    """The gradient g by y = x · scale + shift, where ReLU(y) enters a convolution of stride 2.

    Args:
        dy: gradient by the convolution's output.
        kernel: of the convolution.
        x: the values that were normalised.
        scale: of the normalisation, as is `shift`.
        shift: of the normalisation.
        interpret: run on any device, slowly.

    Returns:
        g, and each view's Σg and Σg·y.
    """
    batch, side, _, out = dy.shape
    channels = kernel.shape[2]
    width = 2 * channels
    programs = batch * side // TILE
    in_view = programs // scale.shape[0]
    per_view = pl.BlockSpec((1, width), lambda i: (i // in_view, 0))
    gradient, sums = pl.pallas_call(
        functools.partial(_doubling_kernel, side=side, out=out, interpret=interpret),
        grid=(programs,),
        in_specs=[pl.no_block_spec] * 3 + [per_view] * 2,
        out_specs=[pl.no_block_spec, pl.BlockSpec((1, 2, width), lambda i: (i, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct((2 * batch * side * side, width), dy.dtype),
            jax.ShapeDtypeStruct((programs, 2, width), jnp.float32),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
    )(
        dy.reshape(-1),
        _doubling_matrices(kernel),
        x.reshape(-1, width),
        _twice(scale),
        _twice(shift),
    )
    sums = sums.reshape(scale.shape[0], -1, 2, 2, channels).sum(axis=(1, 3))
    return gradient.reshape(batch, 2 * side, 2 * side, channels), sums


def halving_kernel_gradient(
    x: Float[Array, "batch N N C"],
    dy: Float[Array, "batch n n C2"],
    *,
    interpret: bool = False,
) -> Float[Array, "3 3 C C2"]:
    """The gradient of a convolution of stride 2 by its kernel."""
    batch, side, _, channels = x.shape
    out = dy.shape[-1]
    body = functools.partial(
        _halving_gradient_kernel, side=side // 2, channels=channels, out=out, interpret=interpret
    )
    partial = pl.pallas_call(
        body,
        grid=(3 * batch // PATCHES_PER_SUM,),
        in_specs=[pl.no_block_spec, pl.no_block_spec],
        out_specs=pl.BlockSpec((1, 1, 4 * channels, out), lambda i: (i // 3, i % 3, 0, 0)),
        out_shape=jax.ShapeDtypeStruct(
            (batch // PATCHES_PER_SUM, 3, 4 * channels, out), jnp.float32
        ),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
    )(x.reshape(-1), dy.reshape(-1, out))
    return partial.sum(axis=0).reshape(3, 4, channels, out)[:, :3]


def can_sum(shape: tuple[int, ...], views: int) -> bool:
    """Whether `moment_sums` and `gradient_sums` take arrays of this shape."""
    whole = math.prod(shape) % (views * SUM_TILE * SUM_WIDTH) == 0
    return SUM_WIDTH % shape[-1] == 0 and whole and _enough_shared_memory()


def moment_sums(
    x: Float[Array, "*batch C"], *, views: int, interpret: bool = False
) -> Float[Array, "views 2 C"]:
    """Each view's Σx and Σx²."""
    return _column_sums(_moments_kernel, [x], [], views, interpret)


def gradient_sums(
    gradient: Float[Array, "*batch C"],
    x: Float[Array, "*batch C"],
    scale: Float[Array, "views C"],
    shift: Float[Array, "views C"],
    *,
    interpret: bool = False,
) -> Float[Array, "views 2 C"]:
    """Each view's Σg and Σg·y, where y = x · scale + shift and g is the gradient where y > 0."""
    values = [scale, shift]
    return _column_sums(_gradient_sums_kernel, [gradient, x], values, scale.shape[0], interpret)


def _column_sums(
    kernel: Callable[..., None],
    arrays: list[Array],
    values: list[Array],
    views: int,
    interpret: bool,
) -> Float[Array, "views 2 C"]:
    channels = arrays[0].shape[-1]
    tiles = arrays[0].size // SUM_TILE // SUM_WIDTH
    steps = next(n for n in SUM_STEPS if tiles % (views * n) == 0)
    programs = tiles // steps
    in_view = programs // views
    per_view = pl.BlockSpec((1, SUM_WIDTH), lambda i: (i // in_view, 0))
    rows = pl.BlockSpec((steps * SUM_TILE, SUM_WIDTH), lambda i: (i, 0))
    partial = pl.pallas_call(
        functools.partial(kernel, steps=steps),
        grid=(programs,),
        in_specs=[rows] * len(arrays) + [per_view] * len(values),
        out_specs=pl.BlockSpec((1, 2, SUM_WIDTH), lambda i: (i, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((programs, 2, SUM_WIDTH), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
    )(
        *(array.reshape(-1, SUM_WIDTH) for array in arrays),
        *(jnp.tile(value, (1, SUM_WIDTH // channels)) for value in values),
    )
    return partial.reshape(views, in_view, 2, -1, channels).sum(axis=(1, 3))


# The kernels. A "pair" is two horizontal neighbours (2j, 2j+1); its row is i and its patch b.


def _gram_kernel(padded: Ref, out: Ref, *, side: int, segments: int, interpret: bool) -> None:
    patch, j, first = _tile(side // 2, side, segments=segments)

    def add_row(step: Array, total: Any) -> Any:
        taps = _taps(padded, patch, first + step, j, side=side, interpret=interpret)
        return total + _dot(taps.T, taps)

    zero = jnp.zeros((2 * TAPS, 2 * TAPS), jnp.float32)
    out[0] = lax.fori_loop(0, side // segments, add_row, zero)


def _first_kernel(
    padded: Ref,
    kernel: Ref,
    scale: Ref,
    shift: Ref,
    out: Ref,
    *,
    side: int,
    block: int,
    interpret: bool,
) -> None:
    index = pl.program_id(0) * block + jnp.arange(block)
    patch, i, j = _coordinates(index, side, side // 2)
    taps = _taps(padded, patch, i, j, side=side, interpret=interpret)
    y = _dot(taps, kernel[...]) * scale[0][None, :] + shift[0][None, :]
    out[...] = jnp.maximum(y, 0).astype(out.dtype)


def _convolution_kernel(
    x: Ref, kernels: Ref, y: Ref, sums: Ref, *, side: int, channels: int, interpret: bool
) -> None:
    patch, j, _ = _tile(side // 2, side, tile=2 * TILE)
    zero = jnp.zeros((2 * TILE, kernels.shape[-1]), jnp.float32)

    def finish(i: Array, row: Array, totals: Any) -> Any:
        y[_pair_index(patch, i, j, side), :] = row.astype(y.dtype)
        return totals[0] + row, totals[1] + row * row

    def read(i: Array) -> Array:
        return _four_pixels(x, patch, i, j, side=side, channels=channels, interpret=interpret)

    total, squares = _walk_rows(read, kernels, finish, (zero, zero), rows=side)
    sums[0, 0, :] = total.sum(axis=0)
    sums[0, 1, :] = squares.sum(axis=0)


def _folded_kernel(
    padded: Ref,
    first_kernel: Ref,
    first_bias: Ref,
    kernels: Ref,
    bias: Ref,
    y: Ref,
    *,
    side: int,
    interpret: bool,
) -> None:
    patch, j, _ = _tile(side // 2, side)
    first_kernel, first_bias = first_kernel[...], first_bias[...][None, :]
    bias = bias[...][None, :]
    inside = _four_inside(j, side=side, channels=first_kernel.shape[1] // 4)

    def read(i: Array) -> Array:
        window = _window(padded, patch, i, j, side=side, interpret=interpret)
        seen = jnp.maximum(_dot(window, first_kernel) + first_bias, 0)
        return jnp.where(inside & _inside(i, side), seen, 0).astype(y.dtype)

    def finish(i: Array, row: Array, carry: None) -> None:
        y[_pair_index(patch, i, j, side), :] = jnp.maximum(row + bias, 0).astype(y.dtype)
        return carry

    _walk_rows(read, kernels, finish, None, rows=side)


def _tap_gradient_kernel(
    dy: Ref,
    kernels: Ref,
    padded: Ref,
    first_kernel: Ref,
    scale: Ref,
    shift: Ref,
    out: Ref,
    *,
    side: int,
    channels: int,
    interpret: bool,
) -> None:
    patch, j, _ = _tile(side // 2, side)
    first_kernel, scale, shift = first_kernel[...], scale[0][None, :], shift[0][None, :]

    def finish(i: Array, row: Array, total: Any) -> Any:
        taps = _taps(padded, patch, i, j, side=side, interpret=interpret)
        active = _dot(taps, first_kernel) * scale + shift > 0
        gradient = jnp.where(active, row, 0.0).astype(taps.dtype)
        return total + _dot(taps.T, gradient)

    def read(i: Array) -> Array:
        return _four_pixels(dy, patch, i, j, side=side, channels=channels, interpret=interpret)

    zero = jnp.zeros(out.shape[1:], jnp.float32)
    out[0] = _walk_rows(read, kernels, finish, zero, rows=side)


def _walk_rows(
    read: Callable[..., Any], kernels: Ref, finish: Callable[..., Any], carry: Any, *, rows: int
) -> Any:
    """Calls `finish` with each row of a convolution of stride 1, from the top."""
    # The kernel's rows see the rows above, at and below the one that they contribute to.
    upper, middle, lower = kernels[0], kernels[1], kernels[2]

    def one_row(i: Array, carried: Any) -> Any:
        now, following, carry = carried
        below = read(i + 1)
        carry = finish(i, now + _dot(below, lower), carry)
        return following + _dot(below, middle), _dot(below, upper), carry

    here = read(jnp.int32(0))
    return lax.fori_loop(0, rows, one_row, (_dot(here, middle), _dot(here, upper), carry))[2]


def _kernel_gradient_kernel(
    x: Ref, dy: Ref, out_ref: Ref, *, side: int, channels: int, out: int, interpret: bool
) -> None:
    steps = PATCHES_PER_SUM * side * side // 2 // TILE
    first = pl.program_id(0) * steps

    def one_tile(step: Array, totals: Any) -> Any:
        index = (first + step) * TILE + jnp.arange(TILE)
        patch, i, j = _coordinates(index, side, side // 2)
        gradient = dy[index, :]

        def product(row: Array) -> Array:
            seen = _four_pixels(x, patch, row, j, side=side, channels=channels, interpret=interpret)
            return _dot(seen.T, gradient)

        return tuple(total + product(i + h - 1) for h, total in enumerate(totals))

    zero = jnp.zeros((4 * channels, 2 * out), jnp.float32)
    for h, total in enumerate(lax.fori_loop(0, steps, one_tile, (zero, zero, zero))):
        out_ref[0, h] = total


def _doubling_kernel(
    dy: Ref,
    kernels: Ref,
    x: Ref,
    scale: Ref,
    shift: Ref,
    dx: Ref,
    sums: Ref,
    *,
    side: int,
    out: int,
    interpret: bool,
) -> None:
    """Walks down the rows of `dy`: row i ends input row 2i − 1 and makes 2i."""
    patch, j, _ = _tile(side, side)
    scale, shift = scale[0][None, :], shift[0][None, :]
    upper, middle, lower = kernels[0], kernels[1], kernels[2]
    columns = jnp.arange(2 * out)
    inside = (j < side - 1)[:, None] | (columns < out)[None, :]

    def read(i: Array) -> Array:
        start = ((patch * side + i) * side + j) * out
        return _load(dy, start[:, None] + columns[None, :], inside, interpret)

    def finish(row: Array, gradient: Any, totals: Any) -> Any:
        index = (patch * (2 * side) + row) * side + j
        y = x[index, :].astype(jnp.float32) * scale + shift
        passed = jnp.where(y > 0, gradient, 0.0)
        dx[index, :] = passed.astype(dx.dtype)
        return totals[0] + passed, totals[1] + passed * y

    def one_row(i: Array, carried: Any) -> Any:
        odd, totals = carried
        below = read(i + 1)
        totals = finish(2 * i + 1, odd + _dot(below, upper), totals)
        totals = finish(2 * i + 2, _dot(below, middle), totals)
        return _dot(below, lower), totals

    zero = jnp.zeros((TILE, dx.shape[-1]), jnp.float32)
    here = read(jnp.int32(0))
    totals = finish(jnp.int32(0), _dot(here, middle), (zero, zero))
    odd, totals = lax.fori_loop(0, side - 1, one_row, (_dot(here, lower), totals))
    totals = finish(jnp.int32(2 * side - 1), odd, totals)
    sums[0, 0, :] = totals[0].sum(axis=0)
    sums[0, 1, :] = totals[1].sum(axis=0)


def _halving_gradient_kernel(
    x: Ref, dy: Ref, out_ref: Ref, *, side: int, channels: int, out: int, interpret: bool
) -> None:
    program = pl.program_id(0)
    part, h = lax.div(program, _int(3)), lax.rem(program, _int(3))
    steps = PATCHES_PER_SUM * side * side // TILE

    def one_tile(step: Array, total: Any) -> Any:
        index = (part * steps + step) * TILE + jnp.arange(TILE)
        patch, i, j = _coordinates(index, side, side)
        row = 2 * i + h - 1
        seen = _four_pixels(x, patch, row, j, side=2 * side, channels=channels, interpret=interpret)
        return total + _dot(seen.T, dy[index, :])

    out_ref[0, 0] = lax.fori_loop(0, steps, one_tile, jnp.zeros((4 * channels, out), jnp.float32))


def _moments_kernel(x: Ref, out: Ref, *, steps: int) -> None:
    def summands(start: int) -> Any:
        values = x[pl.ds(start, SUM_TILE), :].astype(jnp.float32)
        return values, values * values

    _sum_tiles(summands, out, steps)


def _gradient_sums_kernel(
    gradient: Ref, x: Ref, scale: Ref, shift: Ref, out: Ref, *, steps: int
) -> None:
    scale, shift = scale[0], shift[0]

    def summands(start: int) -> Any:
        rows = pl.ds(start, SUM_TILE)
        y = x[rows, :].astype(jnp.float32) * scale[None, :] + shift[None, :]
        passed = jnp.where(y > 0, gradient[rows, :].astype(jnp.float32), 0.0)
        return passed, passed * y

    _sum_tiles(summands, out, steps)


def _sum_tiles(summands: Callable[..., Any], out: Ref, steps: int) -> None:
    totals = summands(0)
    for step in range(1, steps):
        new = summands(step * SUM_TILE)
        totals = tuple(total + value for total, value in zip(totals, new, strict=True))
    for i, total in enumerate(totals):
        out[0, i, :] = total.sum(axis=0)


def _tile(
    columns: int, rows: int, *, tile: int = TILE, segments: int = 1
) -> tuple[Array, Array, Array]:
    """Patch and column of each row of a program's products, and the first row of its patches."""
    program, index = pl.program_id(0), jnp.arange(tile)
    group, segment = lax.div(program, _int(segments)), lax.rem(program, _int(segments))
    patch = group * (tile // columns) + lax.div(index, _int(columns))
    return patch, lax.rem(index, _int(columns)), segment * (rows // segments)


def _coordinates(index: Array, rows: int, columns: int) -> tuple[Array, Array, Array]:
    """Patch, row and column of flat positions."""
    j, above = lax.rem(index, _int(columns)), lax.div(index, _int(columns))
    return lax.div(above, _int(rows)), lax.rem(above, _int(rows)), j


def _pair_index(patch: Array, i: Array, j: Array, side: int) -> Array:
    return (patch * side + i) * (side // 2) + j


def _four_pixels(
    x: Ref, patch: Array, i: Array, j: Array, *, side: int, channels: int, interpret: bool
) -> Array:
    """[TILE, 4C]: pixels 2j−1 … 2j+2 of row i, zero beyond the patch; `i` scalar or per pair."""
    start = (_pair_index(patch, i, j, side) * 2 - 1) * channels
    mask = _four_inside(j, side=side, channels=channels) & _inside(i, side)
    return _load(x, start[:, None] + jnp.arange(4 * channels)[None, :], mask, interpret)


def _four_inside(j: Array, *, side: int, channels: int) -> Array:
    """[pairs, 4C]: which of the pixels 2j−1 … 2j+2 lie in the patch."""
    columns = jnp.arange(4 * channels)
    left = (j > 0)[:, None] | (columns >= channels)[None, :]
    right = (j < side // 2 - 1)[:, None] | (columns < 3 * channels)[None, :]
    return left & right


def _inside(i: Array, side: int) -> Array:
    """Whether rows lie in the patch, as [pairs or 1, 1]."""
    return ((i >= 0) & (i < side)).reshape(-1, 1)


def _taps(padded: Ref, patch: Array, i: Array, j: Array, *, side: int, interpret: bool) -> Array:
    """[pairs, 2·TAPS]: for both pixels of a pair nine neighbours, a one, and six zeros."""
    columns, stride = jnp.arange(2 * TAPS), side + 2
    pixel, tap = lax.div(columns, _int(TAPS)), lax.rem(columns, _int(TAPS))
    offset = lax.div(tap, _int(3)) * stride + lax.rem(tap, _int(3)) + pixel
    index = ((patch * stride + i) * stride + 2 * j)[:, None] + offset[None, :]
    values = _load(padded, index, jnp.broadcast_to((tap < 9)[None, :], index.shape), interpret)
    is_one = jnp.broadcast_to((tap == 9)[None, :], values.shape)
    return jnp.where(is_one, jnp.ones_like(values), values)


def _window(padded: Ref, patch: Array, i: Array, j: Array, *, side: int, interpret: bool) -> Array:
    """[pairs, WINDOW]: three rows of the pixels 2j−2 … 2j+3 about row i, and zeros."""
    columns, stride = jnp.arange(WINDOW), side + 4
    row, column = lax.div(columns, _int(6)), lax.rem(columns, _int(6))
    index = ((patch * stride + i + 1) * stride + 2 * j)[:, None] + (row * stride + column)[None, :]
    mask = jnp.broadcast_to((columns < 18)[None, :], index.shape) & (i <= side)
    return _load(padded, index, mask, interpret)


def _load(ref: Any, index: Array, mask: Array, interpret: bool) -> Array:
    """The flat array's entries where `mask`, zero elsewhere."""
    if interpret:  # the interpreter knows no masks with gathered entries
        return jnp.where(mask, ref[jnp.clip(index, 0, ref.shape[0] - 1)], 0)
    return plgpu.load(ref.at[index], mask=mask, other=0.0)


def _dot(a: Array, b: Array) -> Array:
    dimensions = (((1,), (0,)), ((), ()))
    return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _int(number: int) -> Array:
    # Truncating division by a constant is one instruction; Python's // would also mind the sign.
    return jnp.int32(number)


def _call(
    kernel: Callable[..., None],
    *,
    programs: int,
    out_shape: tuple[int, ...],
    warps: int,
    stages: int,
    interpret: bool,
) -> Callable[..., Array]:
    """Runs programs that each leave one float32 partial result."""

    def run(*arrays: Array) -> Array:
        return pl.pallas_call(
            kernel,
            grid=(programs,),
            in_specs=[pl.no_block_spec] * len(arrays),
            out_specs=pl.BlockSpec((1, *out_shape), lambda i: (i, *(0 for _ in out_shape))),
            out_shape=jax.ShapeDtypeStruct((programs, *out_shape), jnp.float32),
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
            interpret=interpret,
        )(*arrays)

    return run


# Weights as the kernels multiply by them.


def _pair_matrices(kernel: Float[Array, "3 3 C C2"]) -> Float[Array, "3 4*C 2*C2"]:
    """Matrices from four neighbouring pixels to the middle two's outputs, one per kernel row."""
    channels, out = kernel.shape[2:]
    left = jnp.pad(kernel, ((0, 0), (0, 1), (0, 0), (0, 0)))
    right = jnp.pad(kernel, ((0, 0), (1, 0), (0, 0), (0, 0)))
    return jnp.stack([left, right], axis=3).reshape(3, 4 * channels, 2 * out)


def _doubling_matrices(kernel: Float[Array, "3 3 C C2"]) -> Float[Array, "3 2*C2 2*C"]:
    """Matrices from two neighbours' gradients to the first's two inputs', one per kernel row."""
    back = kernel.swapaxes(2, 3)
    own = jnp.concatenate([back[:, 1], back[:, 2]], axis=2)
    neighbour = jnp.concatenate([jnp.zeros_like(back[:, 0]), back[:, 0]], axis=2)
    return jnp.concatenate([own, neighbour], axis=1)


def _tap_matrix(kernel: Float[Array, "3 3 1 C"]) -> Float[Array, "32 2*C"]:
    """The matrix from both pixels' taps to both pixels' outputs."""
    matrix = jnp.pad(kernel.reshape(9, -1), ((0, TAPS - 9), (0, 0)))
    zero = jnp.zeros_like(matrix)
    return jnp.block([[matrix, zero], [zero, matrix]])


def _window_matrix(kernel: Float[Array, "3 3 1 C"]) -> Float[Array, "32 4*C"]:
    """The matrix from a window of 3×6 pixels to the outputs at its four inner columns."""
    moved = [jnp.pad(kernel[:, :, 0], ((0, 0), (i, 3 - i), (0, 0))) for i in range(4)]
    matrix = jnp.stack(moved, axis=2).reshape(18, -1)
    return jnp.pad(matrix, ((0, WINDOW - 18), (0, 0)))


def _fold_pixels(
    partial: Float[Array, "programs 32 W"], views: int, width: int
) -> Float[Array, "views 16 W2"]:
    """Sums programs of a view, and of both pixels the products with their own taps."""
    total = partial.reshape(views, -1, *partial.shape[1:]).sum(axis=1)
    return total[:, :TAPS, :width] + total[:, TAPS:, width:]


def _twice(values: Float[Array, "views C"]) -> Float[Array, "views 2*C"]:
    return jnp.tile(values, (1, 2))
