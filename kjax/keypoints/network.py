"""The network that scores pixels as keypoints: a small feature pyramid, shared by all octaves.

A photograph is halved again and again. In each octave, the network gives every pixel a score, and
every four a frame: a size and a direction, which change with the photograph's. It computes at half
the octave's resolution, and coarser; only its last layers, for scores, see every pixel.
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
    """The network's size, and that of keypoints.

    Attributes:
        widths: channels at 1/2, 1/4, … of an octave's resolution.
        fine: channels at an octave's full resolution, from which scores are computed.
        octaves: maximum number of octaves.
        smallest: usual diameter of the finest octave's keypoints, in pixels.
    """

    widths: tuple[int, ...] = (24, 32, 48, 64)
    fine: int = 8
    octaves: int = 5
    smallest: float = 4.0

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise InputError(f"model.widths must be positive numbers, not {self.widths}")
        for name in ("fine", "octaves"):
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

    scores: Float[Any, "B h w"]
    frames: Float[Any, "B half_h half_w 3"]  # log₂ of the size over the octave's; direction


class DetectorNetwork(nn.Module):
    """Scores and frames of one octave's pixels."""

    config: DetectorConfig
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, grey: Float[Array, "B h w"], shown: Bool[np.ndarray, "h w"] | None = None
    ) -> ScoreMaps:
        """Score grey values from 0 to 1 whose sides are multiples of `config.multiple`.

        Where `shown` is false is outside of all images, as beyond the border.
        """
        height, width = grey.shape[1:]
        config = self.config
        shown = np.ones((height, width), bool) if shown is None else shown
        whole, *masks = (
            jnp.asarray(shown[None, :: 2**level, :: 2**level, None], self.dtype)
            for level in range(len(config.widths) + 1)
        )
        centred = 4 * (grey.astype(self.dtype) - 0.5)[..., None]
        x = _blocks(centred, joined=True) * masks[0]
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
        # Small: a detector from chance prefers nothing.
        small = nn.initializers.variance_scaling(1e-3, "fan_in", "truncated_normal")
        # Rounded to bfloat16, neighbours would have equal scores.
        frames = nn.Conv(3, (1, 1), kernel_init=small)(x.astype(jnp.float32))
        fine = _spread(nn.Conv(4 * config.fine, (1, 1), dtype=self.dtype)(x))
        fine += nn.Conv(config.fine, (3, 3), dtype=self.dtype)(centred * whole)
        fine = self._layer(nn.relu(fine) * whole, config.fine, whole)
        scores = nn.Conv(1, (3, 3), kernel_init=small)(fine.astype(jnp.float32))[..., 0]
        frames = jnp.concatenate([jnp.tanh(frames[..., :1]), frames[..., 1:]], axis=-1)
        return ScoreMaps(scores, frames)

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


def _spread(x: Float[Array, "B h w c4"]) -> Float[Array, "B h2 w2 c"]:
    """Give every second pixel a quarter of the channels: the inverse of joined blocks."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height, width, 2, 2, channels // 4).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, 2 * height, 2 * width, channels // 4)


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
        found.append(ScoreMaps(scores, maps.frames[:, *halves]))
    return found


def init_params(config: DetectorConfig, key: Key[Array, ""]) -> Any:
    """Return random parameters."""
    grey = jnp.zeros((1, config.multiple, config.multiple))
    return jax.jit(DetectorNetwork(config).init)(key, grey)["params"]
