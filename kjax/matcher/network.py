"""The network: keypoints of two photographs attend to their own and to each other.

Both photographs go through the same layers, stacked on one axis; what pads the shorter one has no
say. Positions enter only as rotations of queries and keys, so attention sees their differences:
where a photograph's origin lies makes no difference. So do log scales, and angles at whole
frequencies. Angles and scales are part of the tokens, too: keypoints that match must agree on how
the photographs are turned to each other.

Layers have the same shapes, and their parameters one leading axis: a training scans over them, and
matching compiles one for all, looking after each whether it may stop.
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
"""Frequencies of the angle in the last rotations of each head; the others are of positions."""
LOWEST, HIGHEST = 1.0, 40.0
"""Radians per half side of a photograph: the range of initial frequencies of positions."""


@dataclasses.dataclass(frozen=True)
class MatcherConfig:
    """What the network is.

    Attributes:
        layers: at most so many; matching may stop earlier.
        width: of a token.
        heads: of attention.
        dimension: of descriptors.
        head_size: numbers of a head's queries, keys and values; 0: width / heads. Attention is most
            of the work, and grows with heads · size, not with the width.
        self_every: a keypoint looks at one in so many of its own photograph; at all of the other.
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
        """Of a head."""
        return self.head_size or self.width // self.heads


class Points(NamedTuple):
    """Keypoints of pairs of photographs, as the network takes them. Those that count come first."""

    positions: Float[Array, "B 2 N 2"]
    """From the photograph's centre, in halves of its longer side."""
    log_scales: Float[Array, "B 2 N"]
    """Logarithms of diameters in the same unit."""
    angles: Float[Array, "B 2 N"]
    """Radians."""
    descriptors: Float[Array, "B 2 N dim"]
    counts: Int32[Array, "B 2"]
    """How many keypoints there are; the others are padding."""


class Rotation(NamedTuple):
    """Cosines and sines of the phases that positions give to queries and keys."""

    cosines: Float[Array, "B 2 N heads half"]
    sines: Float[Array, "B 2 N heads half"]

    def __call__(self, vectors: Float[Array, "B 2 N heads size"]) -> Float[Array, "..."]:
        """Turns the halves of each vector into each other."""
        first, second = jnp.split(vectors, 2, axis=-1)
        cosines, sines = (part.astype(vectors.dtype) for part in self)
        turned = (first * cosines - second * sines, second * cosines + first * sines)
        return jnp.concatenate(turned, axis=-1)


class Said(NamedTuple):
    """What a layer says about the keypoints."""

    projected: Float[Array, "B 2 N width"]
    """Whose inner products tell how alike two keypoints are."""
    matchability: Float[Array, "B 2 N"]
    """Logits of having a match at all."""
    confidence: Float[Array, "B 2 N"]
    """Logits of saying already what the last layer will say."""


class Embedding(nn.Module):
    """Keypoints to tokens, and their positions to rotations."""

    config: MatcherConfig
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, points: Points) -> tuple[Float[Array, "B 2 N width"], Rotation]:
        """Tokens, and what turns queries and keys."""
        config = self.config
        extras = [points.log_scales, jnp.cos(points.angles), jnp.sin(points.angles)]
        inputs = jnp.concatenate([points.descriptors, jnp.stack(extras, axis=-1)], axis=-1)
        tokens = nn.Dense(config.width, dtype=self.dtype, name="input")(inputs)
        half = config.size // 2
        frequencies = self.param("frequencies", _initial_frequencies, (config.heads, half, 3))
        turns = jnp.pad(jnp.asarray(TURNS, jnp.float32), (half - len(TURNS), 0))
        places = jnp.concatenate([points.positions, points.log_scales[..., None]], axis=-1)
        # In all digits: else, on GPUs, phases would depend on where the origin lies.
        phases = jnp.einsum("bsnc,hpc->bsnhp", places, frequencies, precision="highest")
        phases = phases + points.angles[..., None, None] * turns[None, None, None, None]
        return tokens.astype(jnp.float32), Rotation(jnp.cos(phases), jnp.sin(phases))


def _initial_frequencies(key: Key[Array, ""], shape: tuple[int, int, int]) -> Float[Array, "..."]:
    """Of positions: all directions, from slow to fast; of scales and of what angles turn: none."""
    heads, half, columns = shape
    moving = half - len(TURNS)
    lengths = jnp.geomspace(LOWEST, HIGHEST, moving)
    directions = jax.random.uniform(key, (heads, moving), maxval=2 * math.pi)
    vectors = jnp.stack([jnp.cos(directions), jnp.sin(directions)], axis=-1)
    vectors = vectors * lengths[None, :, None]
    return jnp.pad(vectors, ((0, 0), (0, half - moving), (0, columns - 2)))


class Layer(nn.Module):
    """Self-attention, cross-attention, and what it says then."""

    config: MatcherConfig
    dtype: Any = jnp.float32
    attention: Attention = "xla"

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "B 2 N width"],
        rotation: Rotation,
        counts: Int32[Array, "B 2"],
    ) -> tuple[Float[Array, "B 2 N width"], Said]:
        """The tokens after the layer, and what they say."""
        query, key, value = jnp.split(self._heads(tokens, 3, "self_in"), 3, axis=-2)
        every = self.config.self_every
        key, value = rotation(key)[:, :, ::every], value[:, :, ::every]
        # Those that count come first, so they do among every second, too.
        seen = self._attend(rotation(query), key, value, -(-counts // every))
        tokens = tokens + self._digest(tokens, seen, "self")
        # One projection for queries and keys: likeness is the same from both sides.
        key, value = jnp.split(self._heads(tokens, 2, "cross_in"), 2, axis=-2)
        seen = attend_across(key, value, counts, self.attention)
        tokens = tokens + self._digest(tokens, seen, "cross")
        return tokens, self._say(tokens)

    def _heads(self, tokens: Array, parts: int, name: str) -> Float[Array, "B 2 N heads_parts s"]:
        heads, size = parts * self.config.heads, self.config.size
        made = nn.Dense(heads * size, dtype=self.dtype, name=name)(tokens)
        return made.reshape(*tokens.shape[:-1], heads, size)

    def _attend(self, query: Array, key: Array, value: Array, counts: Array) -> Array:
        # The kernels know one axis of photographs.
        flat = [part.reshape(-1, *part.shape[2:]) for part in (query, key, value)]
        seen = attend(flat[0], flat[1], flat[2], counts.reshape(-1), self.attention)
        return seen.reshape(query.shape)

    def _digest(self, tokens: Array, seen: Array, name: str) -> Float[Array, "B 2 N width"]:
        """What a token makes of what it has seen."""
        width = self.config.width
        seen = seen.reshape(*tokens.shape[:-1], -1)
        seen = nn.Dense(width, dtype=self.dtype, name=f"{name}_out")(seen)
        both = jnp.concatenate([tokens.astype(self.dtype), seen], axis=-1)
        hidden = nn.Dense(2 * width, dtype=self.dtype, name=f"{name}_wide")(both)
        hidden = nn.gelu(nn.LayerNorm(dtype=self.dtype, name=f"{name}_norm")(hidden))
        return nn.Dense(width, dtype=self.dtype, name=f"{name}_narrow")(hidden).astype(jnp.float32)

    def _say(self, tokens: Array) -> Said:
        width = self.config.width
        projected = nn.Dense(width, dtype=self.dtype, name="likeness")(tokens)
        matchability = nn.Dense(1, name="matchability")(tokens)[..., 0]
        # How sure a layer is must not change what it says.
        confidence = nn.Dense(1, name="confidence")(jax.lax.stop_gradient(tokens))[..., 0]
        return Said(projected / width**0.25, matchability, confidence)


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: MatcherConfig, key: Key[Array, ""]) -> dict[str, Any]:
    """Parameters by chance: of the embedding, and of all layers along a first axis."""
    own, *others = jax.random.split(key, 1 + config.layers)
    shape = (1, 2, 8)
    points = Points(
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
    """The parameters of one layer."""
    return jax.tree.map(lambda leaf: leaf[number], params["layers"])
