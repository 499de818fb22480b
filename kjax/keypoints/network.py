"""The network that scores pixels as keypoints: a small feature pyramid, shared by all octaves.

A photograph is halved again and again. In each octave, the network gives every pixel a score for
each of a few scales and a direction, which turns with the photograph. It computes at half the
octave's resolution, and coarser; its last layer gives the scores of four pixels.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Key

from kjax.errors import InputError


@dataclasses.dataclass(frozen=True)
class DetectorConfig:
    """The network's size, and the scales of keypoints.

    Attributes:
        widths: channels at 1/2, 1/4, … of an octave's resolution.
        scales: number of scales in an octave.
        octaves: maximum number of octaves.
        smallest: diameter of the smallest keypoints, in pixels.
    """

    widths: tuple[int, ...] = (24, 32, 48, 64)
    scales: int = 3
    octaves: int = 5
    smallest: float = 3.0

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise InputError(f"model.widths must be positive numbers, not {self.widths}")
        for name in ("scales", "octaves"):
            if getattr(self, name) < 1:
                raise InputError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if not self.smallest > 0:
            raise InputError(f"model.smallest must be positive, not {self.smallest}")

    @property
    def multiple(self) -> int:
        """What the sides of the network's input are a multiple of."""
        return 2 ** len(self.widths)


class ScoreMaps(NamedTuple):
    """The network's output for one octave."""

    scores: Float[Any, "B h w scales"]
    directions: Float[Any, "B half_h half_w scales 2"]


class DetectorNetwork(nn.Module):
    """Scores and directions of one octave's pixels."""

    config: DetectorConfig
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, grey: Float[Array, "B h w"], shown: Bool[np.ndarray, "h w"] | None = None
    ) -> ScoreMaps:
        """Score grey values from 0 to 1 whose sides are multiples of `config.multiple`.

        Where `shown` is false is outside of all images, as beyond the border.
        """
        batch, height, width = grey.shape
        config = self.config
        shown = np.ones((height, width), bool) if shown is None else shown
        masks = [
            jnp.asarray(shown[None, :: 2**level, :: 2**level, None], self.dtype)
            for level in range(1, len(config.widths) + 1)
        ]
        x = _blocks(4 * (grey.astype(self.dtype) - 0.5)[..., None], joined=True) * masks[0]
        levels: list[Any] = []
        for mask, channels in zip(masks, config.widths, strict=True):
            x = _blocks(x, joined=False).mean(axis=3) if levels else x
            x = self._layer(self._layer(x, channels, mask), channels, mask)
            levels.append(x)
        for finer, mask in zip(levels[-2::-1], masks[-2::-1], strict=True):
            channels = finer.shape[-1]
            x = nn.Conv(channels, (1, 1), dtype=self.dtype)(x)
            x = x.repeat(2, axis=1).repeat(2, axis=2) * mask
            x = self._layer(finer + x, channels, mask)
        x = self._layer(x, config.widths[0], masks[0])
        count = config.scales
        # Small: a detector from chance prefers nothing.
        small = nn.initializers.variance_scaling(1e-3, "fan_in", "truncated_normal")
        last = nn.Conv(6 * count, (1, 1), dtype=self.dtype, kernel_init=small)
        out = last(x).astype(jnp.float32)
        scores = out[..., : 4 * count].reshape(batch, height // 2, width // 2, 2, 2, count)
        scores = scores.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height, width, count)
        return ScoreMaps(scores, out[..., 4 * count :].reshape(*out.shape[:-1], count, 2))

    def _layer(
        self, x: Float[Array, "B h w c"], channels: int, mask: Float[Array, "1 h w 1"]
    ) -> Float[Array, "B h w c2"]:
        kernel = nn.initializers.he_normal()
        return nn.relu(nn.Conv(channels, (3, 3), dtype=self.dtype, kernel_init=kernel)(x)) * mask


def _blocks(x: Float[Array, "B h w c"], *, joined: bool) -> Float[Array, "B half_h half_w *c4"]:
    """Collect 2×2 pixels: as channels, or along an axis of their own."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    shape = (batch, height // 2, width // 2)
    return x.reshape(*shape, 4 * channels) if joined else x.reshape(*shape, 4, channels)


def arrange(
    shapes: Sequence[tuple[int, ...]], gap: int
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Return the corners (top, left) of images on a canvas, and its height and width.

    The first is on the left, the others in a column on the right.
    """
    (height, width), top = shapes[0], 0
    corners = [(0, 0)]
    for shape in shapes[1:]:
        corners.append((top, width + gap))
        top += shape[0] + gap
    if len(shapes) > 1:
        width += gap + shapes[1][1]
    return corners, (max(height, top), width)


def score_images(
    network: DetectorNetwork, params: Any, images: Sequence[Float[Array, "B _ _"]]
) -> list[ScoreMaps]:
    """Score images of several sizes, the largest first, side by side on one canvas.

    The result is that of each image alone, and a program has the network once.
    """
    corners, sides = arrange([image.shape[1:] for image in images], network.config.multiple)
    canvas = jnp.zeros((len(images[0]), *sides), images[0].dtype)
    shown = np.zeros(sides, bool)
    for image, (top, left) in zip(images, corners, strict=True):
        place = slice(top, top + image.shape[1]), slice(left, left + image.shape[2])
        canvas = canvas.at[:, *place].set(image)
        shown[place] = True
    maps = network.apply({"params": params}, canvas, shown)
    found = []
    for image, (top, left) in zip(images, corners, strict=True):
        bottom, right = top + image.shape[1], left + image.shape[2]
        halves = slice(top // 2, bottom // 2), slice(left // 2, right // 2)
        scores = maps.scores[:, top:bottom, left:right]
        found.append(ScoreMaps(scores, maps.directions[:, *halves]))
    return found


def init_params(config: DetectorConfig, key: Key[Array, ""]) -> Any:
    """Return random parameters."""
    grey = jnp.zeros((1, config.multiple, config.multiple))
    return jax.jit(DetectorNetwork(config).init)(key, grey)["params"]
