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
    there = jnp.arange(said.projected.shape[2])[None, None] < counts[:, :, None]
    # Padding by two more numbers of each keypoint: the matrix of products need not be changed.
    padding = jnp.where(there, 0.0, _NEVER).astype(said.projected.dtype)[..., None]
    ones = jnp.ones_like(padding)
    first = jnp.concatenate([said.projected[:, 0], padding[:, 0], ones[:, 0]], axis=-1)
    second = jnp.concatenate([said.projected[:, 1], ones[:, 1], padding[:, 1]], axis=-1)
    alike = jnp.einsum("bnd,bmd->bnm", first, second, preferred_element_type=jnp.float32)
    return Assignment(
        alike,
        jax.nn.logsumexp(alike, axis=2),
        jax.nn.logsumexp(alike, axis=1),
        said.matchability,
    )


def log_scores(made: Assignment) -> Float[Array, "B N N"]:
    """Logarithms of all scores."""
    rows, columns = _own_terms(made)
    return _joined(made.similarity, rows, columns)


def _own_terms(made: Assignment) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """What a score has of its keypoint in the first photograph alone, and in the second."""
    own = jax.nn.log_sigmoid(made.matchability)
    return own[:, 0] - made.over_second, own[:, 1] - made.over_first


def _joined(
    similarity: Float[Array, "B n N"], rows: Float[Array, "B n"], columns: Float[Array, "B N"]
) -> Float[Array, "B n N"]:
    return 2 * similarity + rows[:, :, None] + columns[:, None, :]


class Partners(NamedTuple):
    """The match of each keypoint: its place in the other photograph, or `NONE`."""

    first: Int32[Array, "B N"]
    second: Int32[Array, "B N"]
    scores: Float[Array, "B N"]
    """Of the first photograph's keypoints."""


class _Best(NamedTuple):
    """Of keypoints: the largest logarithm of their scores, and where in the other photograph."""

    largest: Float[Array, "B N"]
    places: Int32[Array, "B N"]


def mutual_partners(
    made: Assignment, least: float | Float[Array, ""] = LEAST_SCORE, *, block: int | None = None
) -> Partners:
    """Matches: the best of each other, with a score that is high enough.

    Args:
        made: what a layer says.
        least: of scores.
        block: so many of the first photograph's keypoints at a time, which must divide them: in
            less memory, and on a CPU in less time. All at once if None.
    """
    (highest, best), (_, back) = _best_of_both(made, block)
    places = jnp.arange(best.shape[1], dtype=jnp.int32)[None]
    scores = jnp.exp(highest)
    mutual = (jnp.take_along_axis(back, best, axis=1) == places) & (scores >= least)
    first = jnp.where(mutual, best, NONE)
    chosen = jnp.take_along_axis(mutual, back, axis=1)
    kept = chosen & (jnp.take_along_axis(best, back, axis=1) == places)
    return Partners(first, jnp.where(kept, back, NONE), jnp.where(mutual, scores, 0.0))


def _best_of_both(made: Assignment, block: int | None) -> tuple[_Best, _Best]:
    """Of the first photograph's keypoints, and of the second's."""
    rows, columns = _own_terms(made)
    if block is None:
        return _best_of_some(_joined(made.similarity, rows, columns))

    def look(so_far: _Best, start: Array) -> tuple[_Best, _Best]:
        similarity, own = (
            jax.lax.dynamic_slice_in_dim(part, start, block, axis=1)
            for part in (made.similarity, rows)
        )
        ahead, back = _best_of_some(_joined(similarity, own, columns))
        better = back.largest > so_far.largest
        largest = jnp.where(better, back.largest, so_far.largest)
        return _Best(largest, jnp.where(better, back.places + start, so_far.places)), ahead

    start = _Best(jnp.full_like(columns, -jnp.inf), jnp.zeros(columns.shape, jnp.int32))
    starts = jnp.arange(0, rows.shape[1], block, dtype=jnp.int32)
    back, ahead = jax.lax.scan(look, start, starts)
    return _Best(*(jnp.moveaxis(part, 0, 1).reshape(rows.shape) for part in ahead)), back


def _best_of_some(scores: Float[Array, "B n N"]) -> tuple[_Best, _Best]:
    # Computed once: what is computed anew for each use may differ from its own largest value.
    scores = jax.lax.optimization_barrier(scores)
    return _best(scores, axis=2), _best(scores, axis=1)


def _best(scores: Float[Array, "B n N"], axis: int) -> _Best:
    """`max` and `argmax`, by plain reductions: XLA's own is several times slower on a CPU."""
    largest = scores.max(axis=axis)
    places = jax.lax.broadcasted_iota(jnp.float32, scores.shape, axis)
    among = jnp.where(scores == jnp.expand_dims(largest, axis), places, scores.shape[axis] - 1)
    return _Best(largest, among.min(axis=axis).astype(jnp.int32))


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
