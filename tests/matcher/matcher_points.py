"""Keypoints for a matcher's network, and what its last layer says of them."""

import jax.numpy as jnp

from kjax.matcher.network import Embedding, Layer, MatcherInput, layer_of


def points(rng, counts=(9, 12), room=16) -> MatcherInput:
    """Of one pair of photographs, with descriptors of 16 numbers."""
    shape = (1, 2, room)
    return MatcherInput(
        jnp.asarray(rng.uniform(-1, 1, (*shape, 2)), jnp.float32),
        jnp.asarray(rng.normal(-4, 1, shape), jnp.float32),
        jnp.asarray(rng.uniform(-3, 3, shape), jnp.float32),
        jnp.asarray(rng.normal(size=(*shape, 16)) / 4, jnp.float32),
        jnp.asarray([counts], jnp.int32),
    )


def said_by(config, params, given, layers=None):
    """What the last of the layers says, or an earlier one."""
    tokens, rotation = Embedding(config).apply({"params": params["embedding"]}, given)
    for number in range(layers or config.layers):
        layer = {"params": layer_of(params, number)}
        tokens, said = Layer(config).apply(layer, tokens, rotation, given.counts)
    return said
