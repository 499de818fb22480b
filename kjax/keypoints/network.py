"""The network that scores pixels as keypoints: a small feature pyramid, shared by all octaves.

A photograph is halved again and again. In each octave, the network gives every pixel a score for
each of a few scales and a direction, which turns with the photograph. It computes at half the
octave's resolution, and coarser; its last layer gives the scores of four pixels.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Key

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
    def __call__(self, grey: Float[Array, "B h w"]) -> ScoreMaps:
        """Score grey values from 0 to 1 whose sides are multiples of `config.multiple`."""
        batch, height, width = grey.shape
        config = self.config
        x = 4 * (grey.astype(self.dtype) - 0.5)
        # Blocks of 2×2 pixels become channels.
        x = x.reshape(batch, height // 2, 2, width // 2, 2).transpose(0, 1, 3, 2, 4)
        x = x.reshape(batch, height // 2, width // 2, 4)
        levels = []
        for number, channels in enumerate(config.widths):
            if number:
                x = nn.avg_pool(x, (2, 2), strides=(2, 2))
            x = self._layer(self._layer(x, channels), channels)
            levels.append(x)
        for finer in reversed(levels[:-1]):
            channels = finer.shape[-1]
            x = nn.Conv(channels, (1, 1), dtype=self.dtype)(x)
            x = self._layer(finer + x.repeat(2, axis=1).repeat(2, axis=2), channels)
        x = self._layer(x, config.widths[0])
        count = config.scales
        out = nn.Conv(6 * count, (1, 1), dtype=self.dtype)(x).astype(jnp.float32)
        scores = out[..., : 4 * count].reshape(batch, height // 2, width // 2, 2, 2, count)
        scores = scores.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height, width, count)
        return ScoreMaps(scores, out[..., 4 * count :].reshape(*out.shape[:-1], count, 2))

    def _layer(self, x: Float[Array, "B h w c"], channels: int) -> Float[Array, "B h w c2"]:
        kernel = nn.initializers.he_normal()
        return nn.relu(nn.Conv(channels, (3, 3), dtype=self.dtype, kernel_init=kernel)(x))


def init_params(config: DetectorConfig, key: Key[Array, ""]) -> Any:
    """Return random parameters."""
    grey = jnp.zeros((1, config.multiple, config.multiple))
    return jax.jit(DetectorNetwork(config).init)(key, grey)["params"]
