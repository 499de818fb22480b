"""Keypoints from the scores of all octaves: maxima over position and octave, refined to sub-pixels.

Written for NumPy and JAX alike. Scores of all octaves lie in one flat array, octave by octave, row
by row. Pixel i of an octave lies at pixel 2i of the finer one.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from kjax.keypoints.network import DetectorConfig, DetectorNetwork, ScoreMaps, score_images

BINOMIAL = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
"""Low-pass filter before every second pixel is dropped."""
MARGIN = 3
"""Pixels of an octave along the border where nothing is found."""
APART = 3
"""A keypoint has the highest score within so many pixels, and within a pixel of its octave."""
NEIGHBOURS = np.array([(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)], np.int32)


class Located(NamedTuple):
    """Keypoints: positions and diameters in pixels, scores, and directions as vectors."""

    xy: Float[Any, "K 2"]
    sizes: Float[Any, " K"]
    scores: Float[Any, " K"]
    directions: Float[Any, "K 2"]


def make_octaves(grey: Float[Any, "B H W"], config: DetectorConfig) -> list[Float[Any, "B _ _"]]:
    """Halve images down to `config.multiple` pixels; pad each octave for the network."""
    octaves = [grey]
    while len(octaves) < config.octaves and min(grey.shape[1:]) >= 2 * config.multiple:
        grey = _halve(_halve(grey, axis=1), axis=2)
        octaves.append(grey)
    xp, multiple = grey.__array_namespace__(), config.multiple
    missing = ([(0, 0), *((0, -side % multiple) for side in one.shape[1:])] for one in octaves)
    return [xp.pad(one, pad, mode="edge") for one, pad in zip(octaves, missing, strict=True)]


def _halve(images: Float[Any, "B _ _"], *, axis: int) -> Float[Any, "B _ _"]:
    side = images.shape[axis]
    padding = [(2, 2) if one == axis else (0, 0) for one in range(3)]
    padded = images.__array_namespace__().pad(images, padding, mode="edge")
    parts = (
        weight * padded[(slice(None),) * axis + (slice(start, start + side, 2),)]
        for start, weight in enumerate(BINOMIAL)
    )
    return sum(parts)


def maxima(scores: Sequence[Float[Any, "B _ _"]]) -> Bool[Any, "B P"]:
    """Mark the scores that none exceeds in any octave, within APART pixels of the finest."""
    xp, marks = scores[0].__array_namespace__(), []
    *finer, highest = scores
    for own in finer[::-1]:
        coarser = _fit(highest.repeat(2, axis=1).repeat(2, axis=2), own.shape[1:])
        highest = xp.maximum(own, coarser)
    highest = _highest_around(highest)
    for octave, own in enumerate(scores):
        if octave:
            height, width = highest.shape[1:]
            blocks = highest.reshape(-1, height // 2, 2, width // 2, 2)
            highest = _fit(blocks.max(axis=(2, 4)), own.shape[1:])
        marks.append((own >= highest).reshape(len(own), -1))
    return xp.concatenate(marks, axis=1)


def _highest_around(scores: Float[Any, "B h w"]) -> Float[Any, "B h w"]:
    xp = scores.__array_namespace__()
    for axis in (1, 2):
        side, before = scores.shape[axis], (slice(None),) * axis
        padding = [(APART, APART) if one == axis else (0, 0) for one in range(3)]
        padded = xp.pad(scores, padding, mode="edge")
        shifted = (padded[(*before, slice(i, i + side))] for i in range(2 * APART + 1))
        scores = functools.reduce(xp.maximum, shifted)
    return scores


def _fit(maps: Shaped[Any, "B _ _"], sides: tuple[int, ...]) -> Shaped[Any, "B h w"]:
    """Cut to a size, or repeat the border."""
    maps = maps[:, : sides[0], : sides[1]]
    missing = [(0, side - have) for side, have in zip(sides, maps.shape[1:], strict=True)]
    return maps.__array_namespace__().pad(maps, [(0, 0), *missing], mode="edge")


def flatten(maps: Sequence[ScoreMaps]) -> tuple[Float[Any, "B P"], Float[Any, "B F 3"]]:
    """Concatenate the scores and the frames of all octaves."""
    xp = maps[0].scores.__array_namespace__()
    scores = [one.scores.reshape(len(one.scores), -1) for one in maps]
    frames = [one.frames.reshape(len(one.frames), -1, 3) for one in maps]
    return xp.concatenate(scores, axis=1), xp.concatenate(frames, axis=1)


class Grid(NamedTuple):
    """Where the flat scores of octaves begin, and the octaves' sizes."""

    starts: Int[np.ndarray, " octaves"]
    heights: Int[np.ndarray, " octaves"]
    widths: Int[np.ndarray, " octaves"]

    @classmethod
    def of(cls, scores: Sequence[Any]) -> "Grid":
        """Return the grid of octaves' scores [B, h, w]."""
        areas = [math.prod(one.shape[1:]) for one in scores]
        starts = np.cumsum([0, *areas[:-1]]).astype(np.int32)
        sides = np.array([one.shape[1:] for one in scores], np.int32)
        return cls(starts, sides[:, 0], sides[:, 1])

    def place(self, index: Int[Any, " K"]) -> tuple[Any, Any, Any]:
        """Return octave, row and column of flat scores."""
        xp = index.__array_namespace__()
        octave = xp.searchsorted(xp.asarray(self.starts), index, side="right") - 1
        pixel = index - xp.asarray(self.starts)[octave]
        return octave, *xp.divmod(pixel, xp.asarray(self.widths)[octave])


def allowed(grid: Grid, where: Bool[Any, "B H W"], size: Sequence[Any]) -> Bool[Any, "B P"]:
    """Mark the flat scores of images where a mask is true and the border is not near.

    Images have this width and height; the mask may be larger.
    """
    xp, marks = where.__array_namespace__(), []
    sides = zip(grid.heights.tolist(), grid.widths.tolist(), strict=True)
    for octave, (height, width) in enumerate(sides):
        step = 2**octave
        shown = _fit(where[:, ::step, ::step], (height, width))
        across, down = (
            (place >= MARGIN) & ((place + MARGIN) * step <= side - 1)
            for place, side in zip(map(np.arange, (width, height)), size, strict=True)
        )
        shown = shown & across[None, None] & down[None, :, None]
        marks.append(shown.reshape(len(where), -1))
    return xp.concatenate(marks, axis=1)


def strongest(
    grid: Grid, wanted: Float[Array, "B P"], count: int
) -> tuple[Float[Array, "B K"], Int[Array, "B K"]]:
    """Return the highest flat values, best first, and where they are.

    Of 2×2 pixels one is taken: there are no more maxima, and less to sort.
    """
    best, numbers = [], []
    ends = [*grid.starts[1:], wanted.shape[1]]
    for start, end, height, width in zip(grid.starts, ends, grid.heights, grid.widths, strict=True):
        blocks = (-1, height // 2, 2, width // 2, 2)
        values = wanted[:, start:end].reshape(blocks)
        highest = values.max(axis=(2, 4), keepdims=True)
        number = np.arange(start, end, dtype=np.int32).reshape(blocks)
        first = jnp.where(values == highest, number, end).min(axis=(2, 4))
        best.append(highest.reshape(len(wanted), -1))
        numbers.append(first.reshape(len(wanted), -1))
    top, index = jax.lax.top_k(jnp.concatenate(best, axis=1), count)
    return top, jnp.take_along_axis(jnp.concatenate(numbers, axis=1), index, axis=1)


def score_octaves(
    network: DetectorNetwork,
    params: Any,
    octaves: Sequence[Float[Array, "B _ _"]],
    where: Bool[Array, "B H W"],
    size: Sequence[Any],
) -> tuple[
    Grid, Float[Array, "B P"], Float[Array, "B F 3"], Bool[Array, "B P"], Bool[Array, "B P"]
]:
    """Return flat scores and frames, which scores are `allowed`, and which of them maxima."""
    maps = score_images(network, params, octaves)
    grid, (scores, frames) = Grid.of([one.scores for one in maps]), flatten(maps)
    shown = allowed(grid, where, size)
    peaks = maxima([jax.lax.stop_gradient(one.scores) for one in maps]) & shown
    return grid, scores, frames, shown, peaks


def locate(
    grid: Grid,
    scores: Float[Any, " P"],
    frames: Float[Any, "F 3"],
    index: Int[Any, " K"],
    *,
    smallest: float,
) -> Located:
    """Return the keypoints at flat scores, which are not on a border of an octave.

    Positions are means over 3×3 pixels, weighted by the softmax of their scores.
    """
    xp = scores.__array_namespace__()
    octave, row, column = grid.place(index)
    width = xp.asarray(grid.widths)[octave]
    steps = NEIGHBOURS[None, :, 0] * width[:, None] + NEIGHBOURS[None, :, 1]
    around = scores[index[:, None] + steps]
    weights = xp.exp(around - around.max(axis=1, keepdims=True))
    weights = weights / weights.sum(axis=1, keepdims=True)
    offset = weights @ NEIGHBOURS[:, ::-1].astype(np.float32)
    zoom = xp.exp2(octave.astype(np.float32))
    # A frame is in the middle of four pixels.
    place = xp.stack([row, column]).astype(np.float32) / 2 - np.float32(0.25)
    first = xp.floor(place).astype(np.int32)
    (down, across), width = (place - first)[..., None], width // 2
    start = xp.asarray(grid.starts)[octave] // 4 + first[0] * width + first[1]
    above, below = (
        frames[own] * (1 - across) + frames[own + 1] * across for own in (start, start + width)
    )
    frame = above * (1 - down) + below * down
    return Located(
        xy=(xp.stack([column, row], axis=1).astype(np.float32) + offset) * zoom[:, None],
        sizes=smallest * zoom * xp.exp2(frame[:, 0]),
        scores=scores[index],
        directions=frame[:, 1:],
    )
