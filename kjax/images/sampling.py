"""Patches read out of a packed pyramid: where each lies, and its four reads a pixel."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from kjax.data.cutting.patches import Level, choose_level
from kjax.images.conventions import PatchFrames
from kjax.images.pyramid import Inside


class Windows(NamedTuple):
    """Where patches lie in the packed pyramid, seen from a pixel near their centre.

    Coordinates that count from there keep their precision in images of any size.

    Attributes:
        start: place of that pixel.
        stride: pixels in a row of the level.
        center: of the patch, from that pixel.
        along_u: step from one patch pixel to the next in a row.
        along_v: the same in a column.
        low: the level's first pixel, from that pixel.
        high: its last.
    """

    start: Int[Array, "B N"]
    stride: Int[Array, "B N"]
    center: Float[Array, "B N 2"]
    along_u: Float[Array, "B N 2"]
    along_v: Float[Array, "B N 2"]
    low: Float[Array, "B N 2"]
    high: Float[Array, "B N 2"]


def locate_windows(
    frames: PatchFrames, levels: list[Level], inside: Inside, *, size: int, pyramid: str
) -> Windows:
    """Each patch of `size`² pixels, in the pixels of its level of the given kind of pyramid."""
    step = frames.side / size
    chosen = choose_level(lax.stop_gradient(step), count=inside.levels, kind=pyramid)

    def per_patch(values: list) -> Array:
        """The values of each patch's level."""
        integral = isinstance(values[0], int)
        return jnp.asarray(np.array(values, np.int32 if integral else step.dtype))[chosen]

    areas = [level.width * level.height for level in levels]
    first = per_patch([sum(areas[:number]) for number in range(len(areas))])
    stride = per_patch([level.width for level in levels])
    last = jnp.asarray(inside.last).astype(step.dtype)[chosen]
    center = frames.center * per_patch([level.zoom for level in levels])
    center = center + per_patch([level.shift for level in levels])
    near = jnp.clip(jnp.floor(lax.stop_gradient(center)), 0, last)
    across, down = (near[..., axis].astype(jnp.int32) for axis in (0, 1))
    stretch = step[..., None] * per_patch([level.stretch for level in levels])
    return Windows(
        start=first + down * stride + across,
        stride=stride,
        center=center - near,
        along_u=stretch * frames.axes[..., 0],
        along_v=stretch * frames.axes[..., 1],
        low=-near,
        high=last - near,
    )


def sample_windows(
    packed: Float[Array, " pixels"], windows: Windows, *, size: int
) -> Float[Array, "B N {size} {size}"]:
    """Bilinear, four reads a pixel; beyond a level's border its outermost pixels repeat."""
    left, beyond_left = _cells(windows, 0, size)
    top, beyond_top = _cells(windows, 1, size)
    stride = windows.stride[..., None, None]
    corner = windows.start[..., None, None] + top * stride + left

    def read(index: Array) -> Array:
        return packed.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)

    upper = read(corner) * (1 - beyond_left) + read(corner + 1) * beyond_left
    below = corner + stride
    lower = read(below) * (1 - beyond_left) + read(below + 1) * beyond_left
    return upper * (1 - beyond_top) + lower * beyond_top


def _cells(
    windows: Windows, axis: int, size: int
) -> tuple[Int[Array, "B N {size} {size}"], Float[Array, "B N {size} {size}"]]:
    """Along x (0) or y (1): the pixel before each sample, and how far beyond it the sample lies."""
    center, along_u, along_v, low, high = (
        values[..., axis, None, None]
        for values in (windows.center, windows.along_u, windows.along_v, windows.low, windows.high)
    )
    offsets = (np.arange(size) - (size - 1) / 2).astype(center.dtype)
    u, v = offsets.reshape(1, 1, 1, size), offsets.reshape(1, 1, size, 1)
    position = jnp.clip(center + along_u * u + along_v * v, low, high)
    # The last cell is closed on the right, so that all four neighbours exist on the border too.
    before = jnp.minimum(jnp.floor(lax.stop_gradient(position)), high - 1)
    return before.astype(jnp.int32), position - before
