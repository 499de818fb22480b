"""Low-passed copies of an image, all in one flat array on the device, for sampling it at any step.

`kjax.data.cutting.patches` says which copies there are; beyond its border an image is repeated.
"""

import functools
import math
import operator
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32

from kjax.data.cutting.patches import KORNIA, Level

BINOMIAL = np.array([1, 4, 6, 4, 1]) / 16
"""The low pass before every second pixel is dropped."""
MATRIX_SIDE = 256
"""Up to here a blur is a matrix product: hardly slower, and it compiles several times faster."""

Border = Literal["edge", "reflect"]


class Inside(NamedTuple):
    """How much of an image, which was filled up by repeating its border, is the image.

    A program is told when it runs: images of several sizes share it.

    Attributes:
        size: width and height.
        last: x and y of the last pixel of each level.
        levels: that the image has.
    """

    size: Int32[Array | np.ndarray, "2"]
    last: Int32[Array | np.ndarray, "levels 2"]
    levels: Int32[Array | np.ndarray, ""]

    @classmethod
    def of(cls, height: int, width: int, levels: list[Level], most: int) -> "Inside":
        """An image with its levels, where a program has as many as `most`."""
        last = [(level.width - 1, level.height - 1) for level in levels]
        last += [(0, 0)] * (most - len(levels))
        numbers = (np.array(values, np.int32) for values in ([width, height], last, len(levels)))
        return cls(*numbers)


def pack_pyramid(
    images: Float[Array, "batch height width"],
    *,
    levels: list[Level],
    kind: str,
    inside: Inside | None = None,
) -> Float[Array, "batch pixels"]:
    """The levels' pixels, row by row, one level after the other; Kornia's only of whole images."""
    if kind in KORNIA:
        copies = _kornia_copies(images, levels)
    else:
        copies = _own_copies(images, levels, inside)
    rows = [copy.reshape(images.shape[0], -1) for copy in copies]
    return jnp.concatenate(rows, axis=1) if len(rows) > 1 else rows[0]


def _own_copies(
    images: Float[Array, "batch _ _"], levels: list[Level], inside: Inside | None
) -> Iterator[Array]:
    """Octaves by `BINOMIAL`; between them, the octave blurred for the remaining step."""
    octave = 0
    for number, level in enumerate(levels):
        if level.blur:
            kernel = _gaussian(level.blur)
            yield _at_least(_blur(_blur(images, kernel, axis=1), kernel, axis=2), level)
            continue
        if number:
            images = _blur(_blur(images, BINOMIAL, axis=1, every=2), BINOMIAL, axis=2, every=2)
            octave += 1
            if inside is not None:
                images = _repeat_border(images, (inside.size - 1) >> octave)
        yield _at_least(images, level)


def _repeat_border(images: Array, last: Int32[Array | np.ndarray, "2"]) -> Array:
    """Fills up again what lies beyond the last pixel: by now it is blurred with the inside."""
    for axis, end in ((2, last[0]), (1, last[1])):
        border = lax.dynamic_index_in_dim(images, end, axis)
        beyond = lax.broadcasted_iota(jnp.int32, images.shape, axis) > end
        images = jnp.where(beyond, border, images)
    return images


def _at_least(images: Array, level: Level) -> Array:
    """Repeats the only row or column of an image that has no more."""
    missing = (level.height - images.shape[1], level.width - images.shape[2])
    if not any(missing):
        return images
    return jnp.pad(images, ((0, 0), (0, missing[0]), (0, missing[1])), mode="edge")


def _kornia_copies(images: Float[Array, "batch _ _"], levels: list[Level]) -> Iterator[Array]:
    """Kornia's `pyrdown`: the same low pass, mirrored at the border, then a bilinear resize."""
    yield _at_least(images, levels[0])
    for level in levels[1:]:
        for axis, side in ((1, level.height), (2, level.width)):
            blurred = _blur(images, BINOMIAL, axis=axis, border="reflect")
            images = _resize(blurred, side, axis)
        yield images


def _resize(images: Array, side: int, axis: int) -> Array:
    """Bilinear along one axis, half-pixel centres, to at most half as many pixels."""
    before = images.shape[axis]
    if before == 2 * side:  # the general case below, without its slower reads
        even, odd = (lax.slice_in_dim(images, start, None, 2, axis) for start in (0, 1))
        return (even + odd) / 2
    position = (np.arange(side) + 0.5) * before / side - 0.5
    left = np.floor(position).astype(np.int32)
    share = np.expand_dims(position - left, [a for a in range(images.ndim) if a != axis])
    lower, upper = jnp.take(images, left, axis=axis), jnp.take(images, left + 1, axis=axis)
    return lower * (1 - share).astype(images.dtype) + upper * share.astype(images.dtype)


def _blur(
    images: Array, kernel: np.ndarray, *, axis: int, every: int = 1, border: Border = "edge"
) -> Array:
    """Convolves along axis 1 or 2 and keeps every so many-th pixel from the first."""
    side = images.shape[axis]
    if side <= MATRIX_SIDE:
        matrix = _blur_matrix(side, kernel, every, border).astype(images.dtype)
        product = "bhw,rh->brw" if axis == 1 else "bhw,cw->bhc"
        return jnp.einsum(product, images, matrix, precision="highest")
    radius = len(kernel) // 2
    padding = [(radius, radius) if a == axis else (0, 0) for a in range(images.ndim)]
    padded = jnp.pad(images, padding, mode=border)
    # A sum of slices is one pass over memory; XLA's convolution of one channel is far slower.
    shifted = (
        weight * lax.slice_in_dim(padded, start, start + side, every, axis)
        for start, weight in enumerate(kernel.tolist())
    )
    return functools.reduce(operator.add, shifted)


def _blur_matrix(side: int, kernel: np.ndarray, every: int, border: Border) -> np.ndarray:
    """`_blur` as a matrix, from the left."""
    source = np.pad(np.arange(side), len(kernel) // 2, mode=border)
    kept = np.arange(0, side, every)
    matrix = np.zeros((len(kept), side))
    for start, weight in enumerate(kernel):
        # Several pixels beyond the border may be copies of one: they add up.
        np.add.at(matrix, (np.arange(len(kept)), source[kept + start]), weight)
    return matrix


def _gaussian(sigma: float) -> np.ndarray:
    """Sampled to four σ, and of sum 1."""
    radius = math.ceil(4 * sigma)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return kernel / kernel.sum()
