"""Who matches whom, by what a layer says: similarities, made exclusive, times matchabilities.

The score of keypoints i and j is softmaxⱼ(s) · softmaxᵢ(s) · m(i) · m(j): both must choose each
other, and both must have a match at all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from kjax.matcher.network import Said
from kjax.matcher.truth import NONE, Truth

LEAST_SCORE = 0.1
"""Of a match."""
_NEVER = -1e30
_NEARLY_ONE = 1 - 1e-6


class Assignment(NamedTuple):
    """Logarithms, for each pair of photographs."""

    similarity: Float[Array, "B N N"]
    """Of keypoints of the first and of the second; hardly any for padding."""
    over_second: Float[Array, "B N"]
    """What normalises the choice of each of the first among those of the second."""
    over_first: Float[Array, "B N"]
    matchability: Float[Array, "B 2 N"]
    """Logits."""


def assign(said: Said, counts: Int32[Array, "B 2"]) -> Assignment:
    """What a layer says about a pair of photographs as a whole."""
    first, second = said.projected[:, 0], said.projected[:, 1]
    alike = jnp.einsum("bnd,bmd->bnm", first, second, preferred_element_type=jnp.float32)
    there = jnp.arange(alike.shape[1])[None, None] < counts[:, :, None]
    alike = jnp.where(there[:, 0, :, None] & there[:, 1, None, :], alike, _NEVER)
    return Assignment(
        alike,
        jax.nn.logsumexp(alike, axis=2),
        jax.nn.logsumexp(alike, axis=1),
        said.matchability,
    )


def log_scores(made: Assignment) -> Float[Array, "B N N"]:
    """Logarithms of all scores."""
    own = jax.nn.log_sigmoid(made.matchability)
    choices = 2 * made.similarity - made.over_second[:, :, None] - made.over_first[:, None, :]
    return choices + own[:, 0, :, None] + own[:, 1, None, :]


class Partners(NamedTuple):
    """The match of each keypoint: its place in the other photograph, or `NONE`."""

    first: Int32[Array, "B N"]
    second: Int32[Array, "B N"]
    scores: Float[Array, "B N"]
    """Of the first photograph's keypoints."""


def mutual_partners(made: Assignment, least: float | Float[Array, ""] = LEAST_SCORE) -> Partners:
    """Matches: the best of each other, with a score that is high enough."""
    # Computed once: what is computed anew for each use may differ from its own largest value.
    scores = jax.lax.optimization_barrier(log_scores(made))
    places = jnp.arange(scores.shape[1], dtype=jnp.int32)[None]
    best, back = (_places_of_largest(scores, axis) for axis in (2, 1))
    highest = jnp.exp(scores.max(axis=2))
    mutual = (jnp.take_along_axis(back, best, axis=1) == places) & (highest >= least)
    first = jnp.where(mutual, best, NONE)
    chosen = jnp.take_along_axis(mutual, back, axis=1)
    kept = chosen & (jnp.take_along_axis(best, back, axis=1) == places)
    return Partners(first, jnp.where(kept, back, NONE), jnp.where(mutual, highest, 0.0))


def _places_of_largest(scores: Float[Array, "B N N"], axis: int) -> Int32[Array, "B N"]:
    """`argmax`, by plain reductions of floats: XLA's own is several times slower on a CPU."""
    places = jax.lax.broadcasted_iota(jnp.float32, scores.shape, axis)
    largest = scores == scores.max(axis=axis, keepdims=True)
    return jnp.where(largest, places, scores.shape[axis] - 1).min(axis=axis).astype(jnp.int32)


def assignment_loss(made: Assignment, truth: Truth) -> Float[Array, " B"]:
    """Negative log-likelihood of each pair: of its matches, and of keypoints that have none.

    Both are means, so that pairs with few matches weigh as much as those with many. Where places
    are not known, what is off the line must not match: as much again.
    """
    partner = jnp.maximum(truth.partners, 0)
    own = jax.nn.log_sigmoid(made.matchability)
    # Only the scores of true matches are needed, not the whole matrix of them.
    alike = jnp.take_along_axis(made.similarity, partner[:, :, None], axis=2)[..., 0]
    choices = 2 * alike - made.over_second - jnp.take_along_axis(made.over_first, partner, axis=1)
    scores = choices + own[:, 0] + jnp.take_along_axis(own[:, 1], partner, axis=1)
    matched = _mean(-scores, truth.partners != NONE)
    alone = -jax.nn.log_sigmoid(-made.matchability)
    loss = 0.5 * matched + 0.5 * _mean(alone, truth.alone).mean(axis=1)
    return loss if truth.off_line is None else loss + 0.5 * _off_line_loss(made, truth.off_line)


def _off_line_loss(made: Assignment, off_line: Bool[Array, "B N N"]) -> Float[Array, " B"]:
    """Of keypoints that match none of those that they cannot be, the negative log-likelihood."""
    wrong = jnp.where(off_line, jnp.exp(log_scores(made)), 0).sum(axis=2)
    return _mean(-jnp.log1p(-jnp.minimum(wrong, _NEARLY_ONE)), off_line.any(axis=2))


def _mean(values: Float[Array, "*B N"], chosen: Bool[Array, "*B N"]) -> Float[Array, "*B"]:
    """Over those chosen; 0 if there are none."""
    return jnp.where(chosen, values, 0).sum(axis=-1) / jnp.maximum(chosen.sum(axis=-1), 1)
