"""Pyramids of `kjax.data.cutting.patches` in one flat array, and patches read out of them.

Everything here is written for NumPy and JAX alike.
"""

import functools
import math
import operator
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int32

from kjax.data.cutting.patches import KORNIA, Level, choose_level
from kjax.extras import optional
from kjax.images.conventions import PatchFrames
from kjax.model.describe import on_cpu

BINOMIAL = np.array([1, 4, 6, 4, 1]) / 16
"""Low-pass filter before every second pixel is dropped."""
MATRIX_SIDE, ACCELERATED_MATRIX_SIDE = 256, 1024
"""Largest side that is blurred by a matrix product, on CPUs and on accelerators. The latter are
faster so; the former are hardly slower and compile several times faster."""

SMALL = 4096
"""Maximum side of an image that OpenCV samples: float32 leaves 1/4096 pixel for its positions."""


class Inside(NamedTuple):
    """Size of an image inside its padding, last pixel of each level, and number of levels.

    These are run-time values of a program, so that images of several sizes share it.
    """

    size: Int32[Any, "2"]
    last: Int32[Any, "levels 2"]
    levels: Int32[Any, ""]

    @classmethod
    def of(cls, height: int, width: int, levels: list[Level], most: int) -> "Inside":
        """Describe an image with its levels, for a program with `most` levels."""
        last = [(level.width - 1, level.height - 1) for level in levels]
        last += [(0, 0)] * (most - len(levels))
        numbers = (np.array(values, np.int32) for values in ([width, height], last, len(levels)))
        return cls(*numbers)


def pack_pyramid(
    images: Float[Any, "batch height width"],
    *,
    levels: list[Level],
    kind: str,
    inside: Inside | None = None,
) -> Float[Any, "batch pixels"]:
    """Compute the pixels of all levels, row by row; kornia's kinds do not support `inside`."""
    rows = [copy.reshape(images.shape[0], -1) for copy in _copies(images, levels, kind, inside)]
    return images.__array_namespace__().concatenate(rows, axis=1) if len(rows) > 1 else rows[0]


def _copies(images: Any, levels: list[Level], kind: str, inside: Inside | None) -> Iterator[Any]:
    own = kind not in KORNIA
    return _own_copies(images, levels, inside) if own else _kornia_copies(images, levels)


def _own_copies(
    images: Float[Any, "batch _ _"], levels: list[Level], inside: Inside | None
) -> Iterator[Any]:
    """Reduce by `BINOMIAL` to octaves; blur each octave for the levels between."""
    octave = 0
    for number, level in enumerate(levels):
        if level.blur:
            radius = math.ceil(4 * level.blur)
            kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / level.blur) ** 2)
            kernel /= kernel.sum()
            yield _at_least(_low_pass(images, kernel), level)
            continue
        if number:
            images = _low_pass(images, BINOMIAL, every=2)
            octave += 1
            if inside is not None:
                # The padding is now blurred with the inside: repeat the border again.
                last, xp = (inside.size - 1) >> octave, images.__array_namespace__()
                for axis, end in ((2, last[0]), (1, last[1])):
                    border = xp.take(images, end.reshape(1), axis=axis, mode="clip")
                    beyond = xp.arange(images.shape[axis]) > end
                    shape = [-1 if one == axis else 1 for one in range(3)]
                    images = xp.where(beyond.reshape(shape), border, images)
        yield _at_least(images, level)


def _low_pass(images: Any, kernel: np.ndarray, *, every: int = 1) -> Any:
    """Convolve rows and columns, and keep every Nth of them from the first."""
    if not isinstance(images, np.ndarray) or not (cv2 := optional("cv2")):
        return _blur(_blur(images, kernel, axis=1, every=every), kernel, axis=2, every=every)
    blurred = np.empty(images.shape, images.dtype)  # in rows, as OpenCV requires
    for image, result in zip(images, blurred, strict=True):
        cv2.sepFilter2D(image, -1, kernel, kernel, result, borderType=cv2.BORDER_REPLICATE)
    return np.ascontiguousarray(blurred[:, ::every, ::every])


def _at_least(images: Any, level: Level) -> Any:
    """Repeat the only row or column of an image that has no more."""
    missing = (level.height - images.shape[1], level.width - images.shape[2])
    if not any(missing):
        return images
    padding = ((0, 0), (0, missing[0]), (0, missing[1]))
    return images.__array_namespace__().pad(images, padding, mode="edge")


def _kornia_copies(images: Float[Any, "batch _ _"], levels: list[Level]) -> Iterator[Any]:
    """Kornia's `pyrdown`: the same low pass, mirrored at the border, then a bilinear resize."""
    yield _at_least(images, levels[0])
    xp = images.__array_namespace__()
    for level in levels[1:]:
        for axis, side in ((1, level.height), (2, level.width)):
            images = _blur(images, BINOMIAL, axis=axis, border="reflect")
            before = images.shape[axis]
            if before == 2 * side:  # the general case below, without its slower reads
                even, odd = (_along(images, axis, slice(start, None, 2)) for start in (0, 1))
                images = (even + odd) / 2
                continue
            position = (np.arange(side) + 0.5) * before / side - 0.5
            left = np.floor(position).astype(np.int32)
            share = np.expand_dims(position - left, [a for a in range(images.ndim) if a != axis])
            lower, upper = (xp.take(images, at, axis=axis) for at in (left, left + 1))
            images = lower * (1 - share).astype(images.dtype) + upper * share.astype(images.dtype)
        yield images


def _blur(
    images: Any,
    kernel: np.ndarray,
    *,
    axis: int,
    every: int = 1,
    border: Literal["edge", "reflect"] = "edge",
) -> Any:
    """Convolve along axis 1 or 2 and keep every Nth pixel from the first."""
    xp, side, radius = images.__array_namespace__(), images.shape[axis], len(kernel) // 2
    on_host = isinstance(images, np.ndarray) or on_cpu()
    if side <= (MATRIX_SIDE if on_host else ACCELERATED_MATRIX_SIDE):
        source = np.pad(np.arange(side), radius, mode=border)
        kept = np.arange(0, side, every)
        matrix = np.zeros((len(kept), side))
        for start, weight in enumerate(kernel):
            # Several pixels beyond the border may be copies of one: they add up.
            np.add.at(matrix, (np.arange(len(kept)), source[kept + start]), weight)
        matrix = xp.asarray(matrix, dtype=images.dtype)
        multiply = xp.matmul if xp is np else functools.partial(xp.matmul, precision="highest")
        return multiply(matrix[None], images) if axis == 1 else multiply(images, matrix.T[None])
    padding = [(radius, radius) if a == axis else (0, 0) for a in range(images.ndim)]
    padded = xp.pad(images, padding, mode=border)
    # A sum of slices is one pass over memory; XLA's convolution of one channel is far slower.
    shifted = (
        weight * _along(padded, axis, slice(start, start + side, every))
        for start, weight in enumerate(kernel.tolist())
    )
    return functools.reduce(operator.add, shifted)


def _along(images: Any, axis: int, part: slice) -> Any:
    return images[(slice(None),) * axis + (part,)]


class Windows(NamedTuple):
    """Patches in the packed pyramid, relative to a pixel near their centre.

    `level` is the number of the level, `start` the index of that pixel, and `stride` the number of
    pixels in a row of the level. `low` and `high` are the level's first and last pixel. Relative
    coordinates keep their precision in images of any size.
    """

    level: Int[Any, "B N"]
    start: Int[Any, "B N"]
    stride: Int[Any, "B N"]
    center: Float[Any, "B N 2"]
    along_u: Float[Any, "B N 2"]
    along_v: Float[Any, "B N 2"]
    low: Float[Any, "B N 2"]
    high: Float[Any, "B N 2"]


def locate_windows(
    frames: PatchFrames, levels: list[Level], inside: Inside, *, size: int, pyramid: str
) -> Windows:
    """Choose the level of each patch of `size`² pixels and convert its frame to that level."""
    step = frames.side / size
    xp = step.__array_namespace__()
    chosen = choose_level(step, count=inside.levels, kind=pyramid)

    def per_patch(values: list) -> Any:
        integral = isinstance(values[0], int)
        return xp.asarray(np.array(values, np.int32 if integral else step.dtype))[chosen]

    areas = [level.width * level.height for level in levels]
    first = per_patch([sum(areas[:number]) for number in range(len(areas))])
    stride = per_patch([level.width for level in levels])
    last = xp.asarray(inside.last, dtype=step.dtype)[chosen]
    center = frames.center * per_patch([level.zoom for level in levels])
    center = center + per_patch([level.shift for level in levels])
    near = xp.clip(xp.floor(center), 0, last)
    across, down = (near[..., axis].astype(np.int32) for axis in (0, 1))
    stretch = step[..., None] * per_patch([level.stretch for level in levels])
    return Windows(
        level=chosen,
        start=first + down * stride + across,
        stride=stride,
        center=center - near,
        along_u=stretch * frames.axes[..., 0],
        along_v=stretch * frames.axes[..., 1],
        low=-near,
        high=last - near,
    )


def sample_windows(
    packed: Float[Any, " pixels"], windows: Windows, *, size: int
) -> Float[Any, "B N {size} {size}"]:
    """Sample patches bilinearly, four reads a pixel; a level's border pixels repeat beyond it."""
    left, beyond_left = _cells(windows, 0, size)
    top, beyond_top = _cells(windows, 1, size)
    stride = windows.stride[..., None, None]
    corner = windows.start[..., None, None] + top * stride + left

    def read(index: Any) -> Any:
        if isinstance(packed, np.ndarray):
            return packed.take(index)
        return packed.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)

    upper = read(corner) * (1 - beyond_left) + read(corner + 1) * beyond_left
    below = corner + stride
    lower = read(below) * (1 - beyond_left) + read(below + 1) * beyond_left
    return upper * (1 - beyond_top) + lower * beyond_top


def sample_on_host(
    images: Float[np.ndarray, "B height width"],
    windows: Windows,
    *,
    levels: list[Level],
    kind: str,
    size: int,
) -> Float[np.ndarray, "B N {size} {size}"]:
    """Sample patches by OpenCV, or by NumPy if OpenCV is absent or not precise enough."""
    patches, cv2 = np.empty((*windows.start.shape, size, size), images.dtype), optional("cv2")
    # Before version 5, OpenCV rounds positions to 1/32 pixel.
    if cv2 and int(cv2.__version__.partition(".")[0]) >= 5 and max(images.shape[1:]) <= SMALL:
        copies = list(_copies(images, levels, kind, None))
        u, v, center = windows.along_u, windows.along_v, windows.center - windows.low
        matrices = np.stack([u, v, center - (u + v) * ((size - 1) / 2)], axis=-1).astype("f8")
        how = {"flags": cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP}
        how["borderMode"] = cv2.BORDER_REPLICATE
        for place in np.ndindex(patches.shape[:2]):  # threads would wait for Python's lock
            copy = copies[windows.level[place]][place[0]]
            cv2.warpAffine(copy, matrices[place], (size, size), dst=patches[place], **how)
        return patches
    packed = pack_pyramid(images, levels=levels, kind=kind).reshape(-1)
    # NumPy's own type for indices, and so few patches at a time that they stay in the cache.
    indices = {name: getattr(windows, name).astype(np.intp) for name in ("start", "stride")}
    windows, block = windows._replace(**indices), max(1, 2**15 // size**2)
    for start in range(0, patches.shape[1], block):
        part = slice(start, start + block)
        few = Windows(*(column[:, part] for column in windows))
        patches[:, part] = sample_windows(packed, few, size=size)
    return patches


def _cells(
    windows: Windows, axis: int, size: int
) -> tuple[Int[Any, "B N {size} {size}"], Float[Any, "B N {size} {size}"]]:
    """Along x (0) or y (1): the pixel before each sample, and the sample's distance from it."""
    center, along_u, along_v, low, high = (
        values[..., axis, None, None]
        for values in (windows.center, windows.along_u, windows.along_v, windows.low, windows.high)
    )
    offsets = (np.arange(size) - (size - 1) / 2).astype(center.dtype)
    u, v = offsets.reshape(1, 1, 1, size), offsets.reshape(1, 1, size, 1)
    xp = center.__array_namespace__()
    position = xp.clip(center + along_u * u + along_v * v, low, high)
    # The last cell is closed on the right, so that all four neighbours exist on the border too.
    before = xp.minimum(xp.floor(position), high - 1)
    return before.astype(windows.start.dtype), position - before
