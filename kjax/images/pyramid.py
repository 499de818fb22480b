"""Low-passed copies of an image, all in one flat array, for sampling it at any step.

| kind         | levels                                                        | pixels kept |
|--------------|---------------------------------------------------------------|-------------|
| `"thirds"`   | one per third of an octave, the nearest serves                | 4 ×         |
| `"octaves"`  | one per octave, the nearest serves                            | 4/3 ×       |
| `"off"`      | the image alone: plain bilinear sampling                      | 1 ×         |
| `"kornia"`   | one per octave, the next finer serves: kornia from 0.9.0      | 4/3 ×       |
| `"kornia0.8"`| the same, read off by a fraction of a pixel: kornia before    | 4/3 ×       |

An octave of ours keeps every second pixel from the first, as OpenCV's `pyrDown` does, so pixel
(0, 0) stays at (0, 0); beyond the border an image is repeated. Kornia's halves the area instead.
"""

import functools
import math
import operator
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from kjax.errors import unknown_name

BINOMIAL = np.array([1, 4, 6, 4, 1]) / 16
"""The low pass before every second pixel is dropped."""
SMALLEST_SIDE = 2
"""Of a level, so that each pixel has a neighbour to interpolate with."""


MATRIX_SIDE = 256
"""Up to here a blur is a matrix product: hardly slower, and it compiles several times faster."""

Border = Literal["edge", "reflect"]


class Choice(NamedTuple):
    """Which level serves a step of t pixels: ⌊per_octave · log2 t + bias⌋."""

    per_octave: int
    bias: float


CHOICES = {
    "thirds": Choice(3, 0.5),
    "octaves": Choice(1, 0.5),
    "off": Choice(0, 0.0),
    "kornia": Choice(1, 0.0),
    "kornia0.8": Choice(1, 0.0),
}
KORNIA = ("kornia", "kornia0.8")


class Level(NamedTuple):
    """One copy of an image: its shape, and how the image's pixels map to its own, x and y apart.

    Attributes:
        height: rows.
        width: columns.
        zoom: a point p of the image lies at zoom · p + shift.
        shift: see `zoom`.
        stretch: a vector v from a patch's centre becomes stretch · v.
    """

    height: int
    width: int
    zoom: tuple[float, float]
    shift: tuple[float, float]
    stretch: tuple[float, float]


def check_pyramid(kind: str) -> None:
    """Refuses the name of an unknown kind."""
    if kind not in CHOICES:
        raise unknown_name("pyramid", kind, CHOICES)


def plan_levels(height: int, width: int, *, size: int, kind: str) -> list[Level]:
    """The levels for patches of `size`² pixels, finest first."""
    if kind in KORNIA:
        return [
            _kornia_level((height, width), shape, kind)
            for shape in _kornia_shapes(height, width, size)
        ]
    levels = []
    for number in range(_count_levels(height, width, size, CHOICES[kind].per_octave)):
        octave = number // max(CHOICES[kind].per_octave, 1)
        rows, columns = (max(-(-side // 2**octave), SMALLEST_SIDE) for side in (height, width))
        zoom = (0.5**octave, 0.5**octave)
        levels.append(Level(rows, columns, zoom, (0.0, 0.0), zoom))
    return levels


def _count_levels(height: int, width: int, size: int, per_octave: int) -> int:
    """As many as it takes until one patch spans the image; a larger one sees mostly its border."""
    octaves = max(math.log2(max(height, width) / size), 0.0)
    return 1 + math.ceil(per_octave * octaves)


def _kornia_shapes(height: int, width: int, size: int) -> list[tuple[int, int]]:
    """Halved, rounding down, while a patch fits in."""
    shapes = [(max(height, SMALLEST_SIDE), max(width, SMALLEST_SIDE))]
    while min(height // 2, width // 2) >= max(size, SMALLEST_SIDE):
        height, width = height // 2, width // 2
        shapes.append((height, width))
    return shapes


def _kornia_level(image: tuple[int, int], shape: tuple[int, int], kind: str) -> Level:
    """How kornia reads a level of the given (height, width)."""
    height, width = shape
    if kind == "kornia":
        zoom = (width / image[1], height / image[0])
        return Level(height, width, zoom, (zoom[0] / 2 - 0.5, zoom[1] / 2 - 0.5), zoom)
    # Its grid puts pixel x at 2x / (w − 1) − 1, where sampling expects (2x + 1) / w − 1.
    mixture = (width / max(width - 1, 1), height / max(height - 1, 1))
    ratio = max(min(shape) - 1, 1) / max(min(image) - 1, 1)
    zoom = (width / max(image[1] - 1, 1), height / max(image[0] - 1, 1))
    return Level(height, width, zoom, (-0.5, -0.5), (ratio * mixture[0], ratio * mixture[1]))


def choose_level(step: Float[Array, "*N"], *, count: int, kind: str) -> Int[Array, "*N"]:
    """Number of the level that serves a sampling step, in pixels of the image."""
    choice = CHOICES[kind]
    number = jnp.floor(choice.per_octave * jnp.log2(jnp.maximum(step, 1.0)) + choice.bias)
    return jnp.minimum(number, count - 1).astype(jnp.int32)


def pack_pyramid(
    images: Float[Array, "batch height width"], *, levels: list[Level], kind: str
) -> Float[Array, "batch pixels"]:
    """The levels' pixels, row by row, one level after the other."""
    copies = _kornia_copies(images, levels) if kind in KORNIA else _own_copies(images, levels, kind)
    rows = [copy.reshape(images.shape[0], -1) for copy in copies]
    return jnp.concatenate(rows, axis=1) if len(rows) > 1 else rows[0]


def _own_copies(
    images: Float[Array, "batch _ _"], levels: list[Level], kind: str
) -> Iterator[Array]:
    """Octaves by `BINOMIAL`; between them, the octave blurred for the remaining step."""
    per_octave = max(CHOICES[kind].per_octave, 1)
    for number, level in enumerate(levels):
        octave, part = divmod(number, per_octave)
        if part == 0:
            if octave:
                images = _blur(_blur(images, BINOMIAL, axis=1, every=2), BINOMIAL, axis=2, every=2)
            yield _at_least(images, level)
        else:
            kernel = _gaussian(antialias_sigma(2 ** (part / per_octave)))
            yield _at_least(_blur(_blur(images, kernel, axis=1), kernel, axis=2), level)


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


def antialias_sigma(step: float) -> float:
    """Width of the Gaussian that readies an image for sampling every `step` ≥ 1 pixels."""
    return 0.5 * math.sqrt(step * step - 1)


def _gaussian(sigma: float) -> np.ndarray:
    """Sampled to four σ, and of sum 1."""
    radius = math.ceil(4 * sigma)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return kernel / kernel.sum()
