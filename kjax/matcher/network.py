"""The network: keypoints of two images attend to their own image and to each other.

Both images go through the same layers, stacked on one axis; padding is masked. Positions enter only
as rotations of queries and keys, so that attention sees their differences: the origin of an image
does not matter. The same holds for log scales, and for angles at integer frequencies. Angles and
scales are part of the tokens, too: matching keypoints must agree on the images' relative rotation.

All layers have the same shapes, and their parameters a common leading axis. Training scans over
them. Matching compiles one layer for all and checks after each whether it may stop.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Key

from kjax.errors import InputError
from kjax.matcher.attention import Attention, attend, attend_across

TURNS = (1, 1, 2, 3)
"""Frequencies of the angle in the last rotations of each head; the others rotate by positions."""
LOWEST, HIGHEST = 1.0, 40.0
"""Range of the initial frequencies of positions, in radians per half side of an image."""


@dataclasses.dataclass(frozen=True)
class MatcherConfig:
    """Sizes of the network.

    Attributes:
        layers: maximum number of layers; matching may stop earlier.
        width: token size.
        heads: number of attention heads.
        dimension: descriptor size.
        head_size: size of a head's queries, keys and values; 0 for width / heads. Attention is most
            of the work, and grows with heads · size, not with the width.
        self_every: self-attention looks at every Nth keypoint; cross-attention at all.
    """

    layers: int = 9
    width: int = 128
    heads: int = 4
    dimension: int = 128
    head_size: int = 0
    self_every: int = 1

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            least = 0 if name == "head_size" else 1
            if value < least:
                raise InputError(f"model.{name} must be at least {least}, not {value}")
        if not self.head_size and self.width % (2 * self.heads):
            raise InputError(
                f"model.width must be an even multiple of model.heads, {self.heads}, not "
                f"{self.width}, or set model.head_size"
            )
        if self.size % 2 or self.size < 4 * len(TURNS):
            raise InputError(
                f"model.head_size, or model.width / model.heads, must be even and at least "
                f"{4 * len(TURNS)}, not {self.size}"
            )

    @property
    def size(self) -> int:
        """Size of a head."""
        return self.head_size or self.width // self.heads


class MatcherInput(NamedTuple):
    """Keypoints of pairs of images, as the network takes them; padding comes last."""

    positions: Float[Array, "B 2 N 2"]
    """From the image's centre, in halves of its longer side."""
    log_scales: Float[Array, "B 2 N"]
    """Logarithms of diameters in the same unit."""
    angles: Float[Array, "B 2 N"]
    """Radians."""
    descriptors: Float[Array, "B 2 N dim"]
    counts: Int32[Array, "B 2"]
    """Number of keypoints, without padding."""


class Rotation(NamedTuple):
    """Cosines and sines of the phases by which positions rotate queries and keys."""

    cosines: Float[Array, "B 2 N heads half"]
    sines: Float[Array, "B 2 N heads half"]

    def __call__(self, vectors: Float[Array, "B 2 N heads size"]) -> Float[Array, "..."]:
        """Rotate the halves of each vector into each other."""
        first, second = jnp.split(vectors, 2, axis=-1)
        cosines, sines = (part.astype(vectors.dtype) for part in self)
        turned = (first * cosines - second * sines, second * cosines + first * sines)
        return jnp.concatenate(turned, axis=-1)


class LayerOutput(NamedTuple):
    """Predictions of a layer."""

    projected: Float[Array, "B 2 N width"]
    """Vectors whose inner products are the similarities of keypoints."""
    matchability: Float[Array, "B 2 N"]
    """Logits of having a match."""
    confidence: Float[Array, "B 2 N"]
    """Logits of agreeing with the last layer."""


class Embedding(nn.Module):
    """Tokens of keypoints, and rotations of their positions."""

    config: MatcherConfig
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, points: MatcherInput) -> tuple[Float[Array, "B 2 N width"], Rotation]:
        """Return the tokens, and the rotation of queries and keys."""
        config = self.config
        extras = [points.log_scales, jnp.cos(points.angles), jnp.sin(points.angles)]
        inputs = jnp.concatenate([points.descriptors, jnp.stack(extras, axis=-1)], axis=-1)
        tokens = nn.Dense(config.width, dtype=self.dtype, name="input")(inputs)
        half = config.size // 2
        frequencies = self.param("frequencies", _initial_frequencies, (config.heads, half, 3))
        turns = jnp.pad(jnp.asarray(TURNS, jnp.float32), (half - len(TURNS), 0))
        places = jnp.concatenate([points.positions, points.log_scales[..., None]], axis=-1)
        # In full precision: on GPUs phases would otherwise depend on the origin.
        phases = jnp.einsum("bsnc,hpc->bsnhp", places, frequencies, precision="highest")
        phases = phases + points.angles[..., None, None] * turns[None, None, None, None]
        return tokens.astype(jnp.float32), Rotation(jnp.cos(phases), jnp.sin(phases))


def _initial_frequencies(key: Key[Array, ""], shape: tuple[int, int, int]) -> Float[Array, "..."]:
    """Initialise positions with all directions, from slow to fast, and scales and angles with 0."""
    heads, half, columns = shape
    moving = half - len(TURNS)
    lengths = jnp.geomspace(LOWEST, HIGHEST, moving)
    directions = jax.random.uniform(key, (heads, moving), maxval=2 * math.pi)
    vectors = jnp.stack([jnp.cos(directions), jnp.sin(directions)], axis=-1)
    vectors = vectors * lengths[None, :, None]
    return jnp.pad(vectors, ((0, 0), (0, half - moving), (0, columns - 2)))


class Layer(nn.Module):
    """Self-attention, cross-attention, and predictions."""

    config: MatcherConfig
    dtype: Any = jnp.float32
    attention: Attention = "xla"

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "B 2 N width"],
        rotation: Rotation,
        counts: Int32[Array, "B 2"],
    ) -> tuple[Float[Array, "B 2 N width"], LayerOutput]:
        """Return the tokens after the layer, and its predictions."""
        query, key, value = jnp.split(self._heads(tokens, 3, "self_in"), 3, axis=-2)
        every = self.config.self_every
        key, value = rotation(key)[:, :, ::every], value[:, :, ::every]
        # The kernels know one axis of images. Padding comes last, also among every Nth keypoint.
        flat = [part.reshape(-1, *part.shape[2:]) for part in (rotation(query), key, value)]
        own_counts = (-(-counts // every)).reshape(-1)
        seen = attend(flat[0], flat[1], flat[2], own_counts, self.attention)
        tokens = tokens + self._update(tokens, seen, "self")
        # One projection for queries and keys: similarity is symmetric.
        key, value = jnp.split(self._heads(tokens, 2, "cross_in"), 2, axis=-2)
        seen = attend_across(key, value, counts, self.attention)
        tokens = tokens + self._update(tokens, seen, "cross")
        width = self.config.width
        projected = nn.Dense(width, dtype=self.dtype, name="likeness")(tokens)
        matchability = nn.Dense(1, name="matchability")(tokens)[..., 0]
        # The confidence must not change the tokens.
        confidence = nn.Dense(1, name="confidence")(jax.lax.stop_gradient(tokens))[..., 0]
        return tokens, LayerOutput(projected / width**0.25, matchability, confidence)

    def _heads(self, tokens: Array, parts: int, name: str) -> Float[Array, "B 2 N heads_parts s"]:
        heads, size = parts * self.config.heads, self.config.size
        made = nn.Dense(heads * size, dtype=self.dtype, name=name)(tokens)
        return made.reshape(*tokens.shape[:-1], heads, size)

    def _update(self, tokens: Array, seen: Array, name: str) -> Float[Array, "B 2 N width"]:
        """Return the change of tokens after attention."""
        width = self.config.width
        seen = seen.reshape(*tokens.shape[:-1], -1)
        seen = nn.Dense(width, dtype=self.dtype, name=f"{name}_out")(seen)
        both = jnp.concatenate([tokens.astype(self.dtype), seen], axis=-1)
        hidden = nn.Dense(2 * width, dtype=self.dtype, name=f"{name}_wide")(both)
        hidden = nn.gelu(nn.LayerNorm(dtype=self.dtype, name=f"{name}_norm")(hidden))
        return nn.Dense(width, dtype=self.dtype, name=f"{name}_narrow")(hidden).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: MatcherConfig, key: Key[Array, ""]) -> dict[str, Any]:
    """Initialise the parameters: of the embedding, and of all layers along a first axis."""
    own, *others = jax.random.split(key, 1 + config.layers)
    shape = (1, 2, 8)
    points = MatcherInput(
        jnp.zeros((*shape, 2)),
        jnp.zeros(shape),
        jnp.zeros(shape),
        jnp.zeros((*shape, config.dimension)),
        jnp.full((1, 2), 8, jnp.int32),
    )
    embedding = Embedding(config)
    variables = embedding.init(own, points)
    tokens, rotation = embedding.apply(variables, points)
    layers = jax.vmap(lambda key: Layer(config).init(key, tokens, rotation, points.counts))(
        jnp.stack(others)
    )
    return {"embedding": variables["params"], "layers": layers["params"]}


def layer_of(params: dict[str, Any], number: int) -> Any:
    """Return the parameters of one layer."""
    return jax.tree.map(lambda leaf: leaf[number], params["layers"])
