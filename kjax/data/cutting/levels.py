"""Which low-passed copies of a photograph there are, and which of them a patch is read from.

| kind         | levels                                                        | pixels kept |
|--------------|---------------------------------------------------------------|-------------|
| `"thirds"`   | one per third of an octave, the nearest serves                | 4 ×         |
| `"octaves"`  | one per octave, the nearest serves                            | 4/3 ×       |
| `"off"`      | the image alone: plain bilinear sampling                      | 1 ×         |
| `"kornia"`   | one per octave, the next finer serves: kornia from 0.9.0      | 4/3 ×       |
| `"kornia0.8"`| the same, read off by a fraction of a pixel: kornia before    | 4/3 ×       |

An octave of ours keeps every second pixel from the first, as OpenCV's `pyrDown` does, so pixel
(0, 0) stays at (0, 0). Kornia's halves the area instead. Training sets are cut from "thirds".
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int32

from kjax.errors import unknown_name

SMALLEST_SIDE = 2
"""Of a level, so that each pixel has a neighbour to interpolate with."""


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
        blur: σ of the Gaussian that makes it from the first copy of its octave; 0 for that one.
    """

    height: int
    width: int
    zoom: tuple[float, float]
    shift: tuple[float, float]
    stretch: tuple[float, float]
    blur: float = 0.0


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
    levels, per_octave = [], CHOICES[kind].per_octave
    for number in range(_count_levels(height, width, size, per_octave)):
        octave, part = divmod(number, max(per_octave, 1))
        rows, columns = (max(-(-side // 2**octave), SMALLEST_SIDE) for side in (height, width))
        zoom = (0.5**octave, 0.5**octave)
        blur = antialias_sigma(2 ** (part / per_octave)) if part else 0.0
        levels.append(Level(rows, columns, zoom, (0.0, 0.0), zoom, blur))
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


def choose_level(
    step: Float[Any, "*N"], *, count: int | Int32[Any, ""], kind: str
) -> Int32[Any, "*N"]:
    """Number of the level that serves a sampling step in pixels of the image: NumPy's, or JAX's."""
    xp = step.__array_namespace__()
    choice = CHOICES[kind]
    number = xp.floor(choice.per_octave * xp.log2(xp.maximum(step, 1.0)) + choice.bias)
    return xp.minimum(number, count - 1).astype(np.int32)


def antialias_sigma(step: float) -> float:
    """Width of the Gaussian that readies an image for sampling every `step` ≥ 1 pixels."""
    return 0.5 * math.sqrt(step * step - 1)
