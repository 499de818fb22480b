"""Triton kernels for the trunk's few-channel layers, where the vendor's convolutions are slow.

Patches are read as pairs of horizontal neighbours: a pair's four-pixel neighbourhood in one row is
contiguous in memory, and turns the 3×3 convolution of C channels into three products, one per
kernel row, with [4C, 2C′] matrices. These fill tensor cores, and each pixel is read once or twice
instead of nine times: a program walks down the rows of its patches and keeps the sums of three
output rows.

All arrays are bfloat16 (any floating type in interpret mode) and sums are float32. Sums over pixels
are returned as one partial sum per program, so that results do not depend on timing. `interpret`
runs a kernel on any device, slowly.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

try:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu
except ImportError:  # deprecated since JAX 0.11
    pl = plgpu = None  # type: ignore[assignment]

Ref = Any
"""An array in the device's memory, as kernels see it."""
TILE = 64
"""Rows in one product of a group of four warps; kernels with eight warps take twice as many."""
SIDES = (16, 32, 64, 128)
"""Supported patch sizes: their rows of pairs fill a tile."""
PATCHES_PER_SUM = 8
"""Patches over which one program sums a kernel's gradient."""
SUM_TILE, SUM_WIDTH = 16, 256
"""Rows and columns that a program of `moment_sums` adds up at a time."""
SUM_STEPS = (8, 4, 2, 1)
"""Number of tiles per program of `moment_sums`; the first that divides the work is used."""
WINDOW = 32
"""Columns of a window: 3×6 pixels, padded with zeros."""
TAPS = 16
"""Columns of `_taps` per pixel: nine neighbours, a one, padded with zeros."""


def fits(batch: int, side: int) -> bool:
    """Whether the kernels support views of `batch` patches of this side."""
    share = max(PATCHES_PER_SUM, 2 * TILE // (side // 2))
    return side in SIDES and batch % share == 0 and _available()


@functools.cache
def _available() -> bool:
    """Whether JAX can compile the kernels, and all local GPUs can hold their largest tiles."""
    if jax.default_backend() != "gpu":
        return plgpu is not None  # for cross-compilation and interpret mode
    capabilities = (getattr(device, "compute_capability", "") for device in jax.local_devices())
    if not all(capability.split(".")[0] in ("9", "10") for capability in capabilities):
        return False  # only data-centre GPUs have enough shared memory
    if plgpu is None:
        text = f"JAX {jax.__version__} has no Triton backend: without kjax's kernels, XLA is slower"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return plgpu is not None


# A "pair" is two horizontal neighbours (2j, 2j+1); its row is i and its patch b.


def tap_gram(
    padded: Float[Array, "batch P P"], *, views: int, interpret: bool = False
) -> Float[Array, "views 16 16"]:
    """Compute Σ over pixels of t tᵀ, where t are the pixel's nine neighbours, a one, six zeros.

    The images have one pixel of zeros around.
    """
    batch, side = padded.shape[0], padded.shape[1] - 2
    segments = 4

    def kernel(padded: Ref, out: Ref) -> None:
        patch, j, first = _tile(side // 2, side, segments=segments)

        def add_row(step: Array, total: Any) -> Any:
            taps = _taps(padded, patch, first + step, j, side=side, interpret=interpret)
            return total + _dot(taps.T, taps)

        zero = jnp.zeros((2 * TAPS, 2 * TAPS), jnp.float32)
        out[0] = lax.fori_loop(0, side // segments, add_row, zero)

    partial = _call(
        kernel,
        programs=segments * batch * side // 2 // TILE,
        sums=(2 * TAPS, 2 * TAPS),
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
    """Compute ReLU(convolution · scale + shift) of images with one pixel of zeros around."""
    batch, side = padded.shape[0], padded.shape[1] - 2
    block, width = 2 * TILE, 2 * kernel.shape[-1]
    rows = batch * side * side // 2

    def body(padded: Ref, kernel: Ref, scale: Ref, shift: Ref, out: Ref) -> None:
        index = pl.program_id(0) * block + jnp.arange(block)
        patch, i, j = _coordinates(index, side, side // 2)
        taps = _taps(padded, patch, i, j, side=side, interpret=interpret)
        y = _dot(taps, kernel[...]) * scale[0][None, :] + shift[0][None, :]
        out[...] = jnp.maximum(y, 0).astype(out.dtype)

    out = _call(
        body,
        programs=rows // block,
        out=((rows, width), padded.dtype, pl.BlockSpec((block, width), lambda i: (i, 0))),
        per_view=(scale.shape[0], 2, width),
        stages=1,
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
    """Compute the convolution y of stride 1, and each view's Σy and Σy²."""
    batch, side, _, channels = x.shape
    width = 2 * kernel.shape[-1]

    def body(x: Ref, kernels: Ref, y: Ref, sums: Ref) -> None:
        patch, j, _ = _tile(side // 2, side, tile=2 * TILE)
        zero = jnp.zeros((2 * TILE, width), jnp.float32)

        def finish(i: Array, row: Array, totals: Any) -> Any:
            y[_pair_index(patch, i, j, side), :] = row.astype(y.dtype)
            return totals[0] + row, totals[1] + row * row

        def read(i: Array) -> Array:
            return _four_pixels(x, patch, i, j, side=side, channels=channels, interpret=interpret)

        total, squares = _walk_rows(read, kernels, finish, (zero, zero), rows=side)
        sums[0, 0, :] = total.sum(axis=0)
        sums[0, 1, :] = squares.sum(axis=0)

    y, sums = _call(
        body,
        programs=batch * side // 2 // (2 * TILE),
        out=((batch * side * side // 2, width), x.dtype),
        sums=(2, width),
        warps=8,
        stages=3,
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
    """Compute ReLU(convolution + bias) twice, without storing the intermediate map.

    The images have two pixels of zeros around. The biases are float32.
    """
    batch, side = padded.shape[0], padded.shape[1] - 4
    width = 2 * kernel2.shape[-1]

    def body(
        padded: Ref, first_kernel: Ref, first_bias: Ref, kernels: Ref, bias: Ref, y: Ref
    ) -> None:
        patch, j, _ = _tile(side // 2, side)
        first_kernel, first_bias = first_kernel[...], first_bias[...][None, :]
        bias = bias[...][None, :]
        inside = _four_inside(j, side=side, channels=first_kernel.shape[1] // 4)

        def read(i: Array) -> Array:
            # Three rows of the pixels 2j−2 … 2j+3 about row i, and zeros.
            columns, stride = jnp.arange(WINDOW), side + 4
            offset = lax.div(columns, _int(6)) * stride + lax.rem(columns, _int(6))
            index = ((patch * stride + i + 1) * stride + 2 * j)[:, None] + offset[None, :]
            mask = jnp.broadcast_to((columns < 18)[None, :], index.shape) & (i <= side)
            window = _load(padded, index, mask, interpret)
            seen = jnp.maximum(_dot(window, first_kernel) + first_bias, 0)
            return jnp.where(inside & _inside(i, side), seen, 0).astype(y.dtype)

        def finish(i: Array, row: Array, carry: None) -> None:
            y[_pair_index(patch, i, j, side), :] = jnp.maximum(row + bias, 0).astype(y.dtype)
            return carry

        _walk_rows(read, kernels, finish, None, rows=side)

    # From a window of 3×6 pixels to the outputs at its four inner columns.
    moved = [jnp.pad(kernel1[:, :, 0], ((0, 0), (i, 3 - i), (0, 0))) for i in range(4)]
    matrix = jnp.stack(moved, axis=2).reshape(18, -1)
    y = _call(
        body,
        programs=batch * side // 2 // TILE,
        out=((batch * side * side // 2, width), padded.dtype),
        stages=3,
        interpret=interpret,
    )(
        padded.reshape(-1),
        jnp.pad(matrix, ((0, WINDOW - 18), (0, 0))),
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
    """Compute the gradient of a convolution of stride 1 with respect to its kernel."""
    batch, side, _, channels = x.shape
    out = dy.shape[-1]

    def body(x: Ref, dy: Ref, totals: Ref) -> None:
        steps = PATCHES_PER_SUM * side * side // 2 // TILE
        first = pl.program_id(0) * steps

        def one_tile(step: Array, sums: Any) -> Any:
            index = (first + step) * TILE + jnp.arange(TILE)
            patch, i, j = _coordinates(index, side, side // 2)
            gradient = dy[index, :]

            def product(i: Array) -> Array:
                pixels = _four_pixels(
                    x, patch, i, j, side=side, channels=channels, interpret=interpret
                )
                return _dot(pixels.T, gradient)

            return tuple(total + product(i + h - 1) for h, total in enumerate(sums))

        zero = jnp.zeros((4 * channels, 2 * out), jnp.float32)
        for h, total in enumerate(lax.fori_loop(0, steps, one_tile, (zero, zero, zero))):
            totals[0, h] = total

    partial = _call(
        body,
        programs=batch // PATCHES_PER_SUM,
        sums=(3, 4 * channels, 2 * out),
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
    """Compute Σ over pixels of t gᵀ, with g the gradient by `first_layer` before its ReLU.

    The gradient `dy` by the second convolution's output passes through that convolution and the
    ReLU, and is never stored. The ReLU's mask is computed again, from the arguments of
    `first_layer`.
    """
    batch, side, _, channels = dy.shape
    width, views = 2 * kernel.shape[2], scale.shape[0]

    def body(
        dy: Ref, kernels: Ref, padded: Ref, first_kernel: Ref, scale: Ref, shift: Ref, out: Ref
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

        zero = jnp.zeros((2 * TAPS, width), jnp.float32)
        out[0] = _walk_rows(read, kernels, finish, zero, rows=side)

    partial = _call(
        body,
        programs=batch * side // 2 // TILE,
        sums=(2 * TAPS, width),
        per_view=(views, 2, width),
        stages=2,
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
    """Compute the gradient g by y = x · scale + shift, where ReLU(y) enters a stride-2 convolution.

    `dy` is the gradient by the convolution's output. Returns g, and each view's Σg and Σg·y.
    """
    batch, side, _, out = dy.shape
    channels = kernel.shape[2]
    width = 2 * channels

    def body(dy: Ref, kernels: Ref, x: Ref, scale: Ref, shift: Ref, dx: Ref, sums: Ref) -> None:
        # Walks down the rows of `dy`: row i completes input row 2i − 1 and makes 2i.
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

        zero = jnp.zeros((TILE, width), jnp.float32)
        here = read(jnp.int32(0))
        totals = finish(jnp.int32(0), _dot(here, middle), (zero, zero))
        odd, totals = lax.fori_loop(0, side - 1, one_row, (_dot(here, lower), totals))
        totals = finish(jnp.int32(2 * side - 1), odd, totals)
        sums[0, 0, :] = totals[0].sum(axis=0)
        sums[0, 1, :] = totals[1].sum(axis=0)

    # From two neighbours' gradients to the first's two inputs', one matrix per kernel row.
    back = kernel.swapaxes(2, 3)
    own = jnp.concatenate([back[:, 1], back[:, 2]], axis=2)
    neighbour = jnp.concatenate([jnp.zeros_like(back[:, 0]), back[:, 0]], axis=2)
    gradient, sums = _call(
        body,
        programs=batch * side // TILE,
        out=((2 * batch * side * side, width), dy.dtype),
        sums=(2, width),
        per_view=(scale.shape[0], 2, width),
        stages=2,
        interpret=interpret,
    )(
        dy.reshape(-1),
        jnp.concatenate([own, neighbour], axis=1),
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
    """Compute the gradient of a convolution of stride 2 with respect to its kernel."""
    batch, side, _, out = dy.shape
    channels = x.shape[-1]

    def body(x: Ref, dy: Ref, totals: Ref) -> None:
        program = pl.program_id(0)
        part, h = lax.div(program, _int(3)), lax.rem(program, _int(3))
        steps = PATCHES_PER_SUM * side * side // TILE

        def one_tile(step: Array, total: Any) -> Any:
            index = (part * steps + step) * TILE + jnp.arange(TILE)
            patch, i, j = _coordinates(index, side, side)
            pixels = _four_pixels(
                x, patch, 2 * i + h - 1, j, side=2 * side, channels=channels, interpret=interpret
            )
            return total + _dot(pixels.T, dy[index, :])

        zero = jnp.zeros((4 * channels, out), jnp.float32)
        totals[0, 0] = lax.fori_loop(0, steps, one_tile, zero)

    parts = batch // PATCHES_PER_SUM
    block = pl.BlockSpec((1, 1, 4 * channels, out), lambda i: (i // 3, i % 3, 0, 0))
    partial = _call(
        body,
        programs=3 * parts,
        out=((parts, 3, 4 * channels, out), jnp.float32, block),
        stages=3,
        interpret=interpret,
    )(x.reshape(-1), dy.reshape(-1, out))
    return partial.sum(axis=0).reshape(3, 4, channels, out)[:, :3]


def can_sum(shape: tuple[int, ...], views: int) -> bool:
    """Whether `moment_sums` and `gradient_sums` support arrays of this shape."""
    whole = math.prod(shape) % (views * SUM_TILE * SUM_WIDTH) == 0
    return SUM_WIDTH % shape[-1] == 0 and whole and _available()


def moment_sums(
    x: Float[Array, "*batch C"], *, views: int, interpret: bool = False
) -> Float[Array, "views 2 C"]:
    """Compute each view's Σx and Σx²."""

    def summands(x: Ref) -> Callable[[int], Any]:
        def at(start: int) -> Any:
            values = x[pl.ds(start, SUM_TILE), :].astype(jnp.float32)
            return values, values * values

        return at

    return _column_sums(summands, [x], [], views, interpret)


def gradient_sums(
    gradient: Float[Array, "*batch C"],
    x: Float[Array, "*batch C"],
    scale: Float[Array, "views C"],
    shift: Float[Array, "views C"],
    *,
    interpret: bool = False,
) -> Float[Array, "views 2 C"]:
    """Compute each view's Σg and Σg·y: y = x · scale + shift, g is the gradient where y > 0."""

    def summands(gradient: Ref, x: Ref, scale: Ref, shift: Ref) -> Callable[[int], Any]:
        scale, shift = scale[0][None, :], shift[0][None, :]

        def at(start: int) -> Any:
            rows = pl.ds(start, SUM_TILE)
            y = x[rows, :].astype(jnp.float32) * scale + shift
            passed = jnp.where(y > 0, gradient[rows, :].astype(jnp.float32), 0.0)
            return passed, passed * y

        return at

    return _column_sums(summands, [gradient, x], [scale, shift], scale.shape[0], interpret)


def _column_sums(
    summands: Callable[..., Any],
    arrays: list[Array],
    values: list[Array],
    views: int,
    interpret: bool,
) -> Float[Array, "views 2 C"]:
    """Add up what `summands(refs)(start)` returns for tiles of rows, per view."""
    channels = arrays[0].shape[-1]
    tiles = arrays[0].size // SUM_TILE // SUM_WIDTH
    steps = next(n for n in SUM_STEPS if tiles % (views * n) == 0)
    programs = tiles // steps

    def body(*refs: Ref) -> None:
        *inputs, out = refs
        at = summands(*inputs)
        totals = at(0)
        for step in range(1, steps):
            new = at(step * SUM_TILE)
            totals = tuple(total + value for total, value in zip(totals, new, strict=True))
        for i, total in enumerate(totals):
            out[0, i, :] = total.sum(axis=0)

    rows = pl.BlockSpec((steps * SUM_TILE, SUM_WIDTH), lambda i: (i, 0))
    partial = _call(
        body,
        programs=programs,
        sums=(2, SUM_WIDTH),
        per_view=(views, len(values), SUM_WIDTH),
        array_spec=rows,
        stages=1,
        interpret=interpret,
    )(
        *(array.reshape(-1, SUM_WIDTH) for array in arrays),
        *(jnp.tile(value, (1, SUM_WIDTH // channels)) for value in values),
    )
    return partial.reshape(views, programs // views, 2, -1, channels).sum(axis=(1, 3))


# Calling kernels


def _call(
    kernel: Callable[..., None],
    *,
    programs: int,
    stages: int,
    interpret: bool,
    out: tuple[Any, ...] | None = None,
    sums: tuple[int, ...] | None = None,
    warps: int = 4,
    per_view: tuple[int, int, int] = (1, 0, 0),
    array_spec: Any = None,
) -> Callable[..., Any]:
    """Return a function that runs a kernel on all programs; each view has an equal share.

    `out` is shape, dtype and optionally block of an output array. `sums` is the shape of an output
    with one float32 partial sum per program. `per_view` is the number of views, of trailing
    arguments with a row per view, and of their columns; the others have the block `array_spec`.
    """
    views, count, width = per_view
    row = pl.BlockSpec((1, width), lambda i: (i // (programs // views), 0))
    shapes, blocks = [], []
    if out is not None:
        shapes.append(jax.ShapeDtypeStruct(*out[:2]))
        blocks.append(out[2] if len(out) > 2 else pl.no_block_spec)
    if sums is not None:
        shapes.append(jax.ShapeDtypeStruct((programs, *sums), jnp.float32))
        blocks.append(pl.BlockSpec((1, *sums), lambda i: (i, *(0 for _ in sums))))

    def run(*arrays: Array) -> Any:
        results = pl.pallas_call(
            kernel,
            grid=(programs,),
            in_specs=[array_spec or pl.no_block_spec] * (len(arrays) - count) + [row] * count,
            out_specs=blocks,
            out_shape=shapes,
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
            interpret=interpret,
        )(*arrays)
        return results if len(shapes) > 1 else results[0]

    return run


def _walk_rows(
    read: Callable[..., Any], kernels: Ref, finish: Callable[..., Any], carry: Any, *, rows: int
) -> Any:
    """Call `finish` with each row of a convolution of stride 1, from the top."""
    # The kernel's rows see the rows above, at and below the one that they contribute to.
    upper, middle, lower = kernels[0], kernels[1], kernels[2]

    def one_row(i: Array, carried: Any) -> Any:
        now, following, carry = carried
        below = read(i + 1)
        carry = finish(i, now + _dot(below, lower), carry)
        return following + _dot(below, middle), _dot(below, upper), carry

    here = read(jnp.int32(0))
    return lax.fori_loop(0, rows, one_row, (_dot(here, middle), _dot(here, upper), carry))[2]


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
    """[pairs or 1, 1]: which rows lie in the patch."""
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


def _load(ref: Any, index: Array, mask: Array, interpret: bool) -> Array:
    """Entries of a flat array where `mask`, zero elsewhere."""
    if interpret:  # the interpreter does not support masks with gathered entries
        return jnp.where(mask, ref[jnp.clip(index, 0, ref.shape[0] - 1)], 0)
    return plgpu.load(ref.at[index], mask=mask, other=0.0)


def _dot(a: Array, b: Array) -> Array:
    dimensions = (((1,), (0,)), ((), ()))
    return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _int(number: int) -> Array:
    # Truncating division by a constant is one instruction; Python's // also handles the sign.
    return jnp.int32(number)


# Weights as the kernels multiply by them


def _pair_matrices(kernel: Float[Array, "3 3 C C2"]) -> Float[Array, "3 4*C 2*C2"]:
    """Matrices from four neighbouring pixels to the middle two's outputs, one per kernel row."""
    channels, out = kernel.shape[2:]
    left = jnp.pad(kernel, ((0, 0), (0, 1), (0, 0), (0, 0)))
    right = jnp.pad(kernel, ((0, 0), (1, 0), (0, 0), (0, 0)))
    return jnp.stack([left, right], axis=3).reshape(3, 4 * channels, 2 * out)


def _tap_matrix(kernel: Float[Array, "3 3 1 C"]) -> Float[Array, "32 2*C"]:
    """The matrix from both pixels' taps to both pixels' outputs."""
    matrix = jnp.pad(kernel.reshape(9, -1), ((0, TAPS - 9), (0, 0)))
    zero = jnp.zeros_like(matrix)
    return jnp.block([[matrix, zero], [zero, matrix]])


def _fold_pixels(
    partial: Float[Array, "programs 32 W"], views: int, width: int
) -> Float[Array, "views 16 W2"]:
    """Sum over the programs of a view, and over both pixels' products with their own taps."""
    total = partial.reshape(views, -1, *partial.shape[1:]).sum(axis=1)
    return total[:, :TAPS, :width] + total[:, TAPS:, width:]


def _twice(values: Float[Array, "views C"]) -> Float[Array, "views 2*C"]:
    return jnp.tile(values, (1, 2))
