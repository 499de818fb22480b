"""Assignment of keypoints: the scores of a layer, the true matches, and the loss.

The score of keypoints i and j is softmaxⱼ(s) · softmaxᵢ(s) · m(i) · m(j): both must choose each
other, and both must have a match at all.

In views of a flat photograph the 3-D point of every keypoint is known; in a reconstructed scene,
that of some. For the others, epipolar lines exclude keypoints that they cannot match.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from kjax.matcher.network import LayerOutput

LEAST_SCORE = 0.1
"""Minimum score of a match."""
NONE = -1
"""Index of a keypoint without a match."""
MATCH, FAR = 3.0, 5.0
"""Distance in pixels, in both views, up to which keypoints match, and from which they do not."""
OFF_LINE = 8.0
"""Minimum distance in pixels from the epipolar lines, in both views, of keypoints that differ."""
UNLIKE = 1.5
"""Pixels added to the distance of keypoints with opposite descriptors: SIFT may give one point
several angles, and the one that agrees is the match."""
_NEVER = -1e30
_NEARLY_ONE = 1 - 1e-6
_BEYOND = 1e6
"""Pixel coordinate of points behind the camera."""


class Assignment(NamedTuple):
    """Log-domain assignment of each pair of images."""

    similarity: Float[Array, "B N N"]
    """Similarity of keypoints in the first and the second image; very low for padding."""
    over_second: Float[Array, "B N"]
    """Normaliser of the first image's choices among the second's keypoints."""
    over_first: Float[Array, "B N"]
    matchability: Float[Array, "B 2 N"]
    """Logits."""


class MutualMatches(NamedTuple):
    """The match of each keypoint: its index in the other image, or `NONE`."""

    first: Int32[Array, "B N"]
    second: Int32[Array, "B N"]
    scores: Float[Array, "B N"]
    """Scores of the first image's keypoints."""


class Truth(NamedTuple):
    """Known matches of pairs of views; nothing is known of some keypoints."""

    partners: Int32[Array, "B N"]
    """The match of each of the first view's keypoints, or `NONE`."""
    alone: Bool[Array, "B 2 N"]
    """Keypoints that surely have no match."""
    off_line: Bool[Array, "B N N"] | None = None
    """Pairs with an unknown 3-D point that cannot match; None if all points are known."""


class Seen(NamedTuple):
    """Keypoints of pairs of views and what they see; padding comes last."""

    xy: Float[Array, "B 2 N 2"]
    """Pixels of a camera without distortion."""
    places: Float[Array, "B 2 N 3"]
    """3-D points; NaN if unknown."""
    cameras: Float[Array, "B 2 3 4"]
    """From 3-D points to pixels."""


def assign(output: LayerOutput, counts: Int32[Array, "B 2"]) -> Assignment:
    """Compute the assignment from a layer's output."""
    alike = _similarity(*_masked(output, counts))
    over_second, over_first = (jax.nn.logsumexp(alike, axis=axis) for axis in (2, 1))
    return Assignment(alike, over_second, over_first, output.matchability)


def _masked(output: LayerOutput, counts: Int32[Array, "B 2"]) -> tuple[Array, Array]:
    """Return both images' vectors; two more entries mask the padding in their products."""
    there = jnp.arange(output.projected.shape[2])[None, None] < counts[:, :, None]
    padding = jnp.where(there, 0.0, _NEVER).astype(output.projected.dtype)[..., None]
    ones = jnp.ones_like(padding)
    first = jnp.concatenate([output.projected[:, 0], padding[:, 0], ones[:, 0]], axis=-1)
    return first, jnp.concatenate([output.projected[:, 1], ones[:, 1], padding[:, 1]], axis=-1)


def _similarity(first: Float[Array, "B n d"], second: Float[Array, "B N d"]) -> Array:
    return jnp.einsum("bnd,bmd->bnm", first, second, preferred_element_type=jnp.float32)


def log_scores(made: Assignment) -> Float[Array, "B N N"]:
    """Compute the logarithms of all scores."""
    own = jax.nn.log_sigmoid(made.matchability)
    rows, columns = own[:, 0] - made.over_second, own[:, 1] - made.over_first
    return 2 * made.similarity + rows[:, :, None] + columns[:, None, :]


_Best = tuple[Float[Array, "B _"], Int32[Array, "B _"]]
"""The largest log score of each keypoint, and its index in the other image."""


def mutual_matches(made: Assignment, least: float = LEAST_SCORE) -> MutualMatches:
    """Return mutual best matches of at least the minimum score."""
    ahead, (_, back) = _best_of_some(log_scores(made))
    return _mutual(*ahead, back, least)


def matches_in_blocks(
    output: LayerOutput, counts: Int32[Array, "B 2"], least: float | Array, *, block: int
) -> MutualMatches:
    """Return the `mutual_matches` of a layer's output, in memory linear in the keypoints.

    `block` is the number of the first image's keypoints at a time, a divisor of all.
    """
    first, second = _masked(output, counts)
    own = jax.nn.log_sigmoid(output.matchability)

    def in_blocks(rows: Float[Array, "B N *d"]) -> Float[Array, "blocks B n *d"]:
        return jnp.moveaxis(rows.reshape(len(rows), -1, block, *rows.shape[2:]), 1, 0)

    def sums(some: Float[Array, "B n d"]) -> tuple[Array, Array]:
        alike = _similarity(some, second)
        return jax.nn.logsumexp(alike, axis=1), jax.nn.logsumexp(alike, axis=2)

    over_first, over_second = jax.lax.map(sums, in_blocks(first))
    columns = own[:, 1] - jax.nn.logsumexp(over_first, axis=0)

    def look(some: tuple[Array, Array]) -> tuple[_Best, _Best]:
        alike, rows = _similarity(some[0], second), some[1]
        return _best_of_some(2 * alike + rows[:, :, None] + columns[:, None, :])

    rows = in_blocks(own[:, 0]) - over_second
    ahead, (largest, places) = jax.lax.map(look, (in_blocks(first), rows))
    highest, best = (jnp.moveaxis(part, 0, 1).reshape(columns.shape) for part in ahead)
    which = largest.argmax(axis=0).astype(jnp.int32)
    back = block * which + jnp.take_along_axis(places, which[None], axis=0)[0]
    return _mutual(highest, best, back, least)


def _mutual(highest: Array, best: Array, back: Array, least: float | Array) -> MutualMatches:
    places = jnp.arange(best.shape[1], dtype=jnp.int32)[None]
    scores = jnp.exp(highest)
    mutual = (jnp.take_along_axis(back, best, axis=1) == places) & (scores >= least)
    first = jnp.where(mutual, best, NONE)
    chosen = jnp.take_along_axis(mutual, back, axis=1)
    kept = chosen & (jnp.take_along_axis(best, back, axis=1) == places)
    return MutualMatches(first, jnp.where(kept, back, NONE), jnp.where(mutual, scores, 0.0))


def _best_of_some(scores: Float[Array, "B n N"]) -> tuple[_Best, _Best]:
    """Take `max` and `argmax` along both axes, by plain reductions, which are faster on CPUs."""
    # Computed once: scores computed anew for each use may differ from their own maximum.
    scores = jax.lax.optimization_barrier(scores)
    found = []
    for axis in (2, 1):
        largest = scores.max(axis=axis)
        places = jax.lax.broadcasted_iota(jnp.float32, scores.shape, axis)
        among = jnp.where(scores == jnp.expand_dims(largest, axis), places, scores.shape[axis] - 1)
        found.append((largest, among.min(axis=axis).astype(jnp.int32)))
    return found[0], found[1]


def assignment_loss(made: Assignment, truth: Truth) -> Float[Array, " B"]:
    """Compute the negative log-likelihood of each pair's matches and of unmatched keypoints.

    Both are means, so that pairs with few matches weigh as much as those with many. Where 3-D
    points are unknown, a third term of the same weight punishes matches off the epipolar line.
    """
    partner = jnp.maximum(truth.partners, 0)
    own = jax.nn.log_sigmoid(made.matchability)
    # Only the scores of true matches are needed, not the whole matrix.
    alike = jnp.take_along_axis(made.similarity, partner[:, :, None], axis=2)[..., 0]
    choices = 2 * alike - made.over_second - jnp.take_along_axis(made.over_first, partner, axis=1)
    scores = choices + own[:, 0] + jnp.take_along_axis(own[:, 1], partner, axis=1)
    matched = _mean(-scores, truth.partners != NONE)
    alone = -jax.nn.log_sigmoid(-made.matchability)
    loss = 0.5 * matched + 0.5 * _mean(alone, truth.alone).mean(axis=1)
    if truth.off_line is None:
        return loss
    wrong = jnp.where(truth.off_line, jnp.exp(log_scores(made)), 0).sum(axis=2)
    unlikely = -jnp.log1p(-jnp.minimum(wrong, _NEARLY_ONE))
    return loss + 0.5 * _mean(unlikely, truth.off_line.any(axis=2))


def _mean(values: Float[Array, "*B N"], chosen: Bool[Array, "*B N"]) -> Float[Array, "*B"]:
    """Average over the chosen values; 0 if there are none."""
    return jnp.where(chosen, values, 0).sum(axis=-1) / jnp.maximum(chosen.sum(axis=-1), 1)


def find_truth(
    seen: Seen,
    descriptors: Float[Array, "B 2 N dim"],
    counts: Int32[Array, "B 2"],
    *,
    by_lines: bool = False,
) -> Truth:
    """Find the true matches: mutual nearest keypoints that are near in both views.

    Descriptors decide between keypoints at one position. `by_lines` also finds which keypoints with
    unknown points are off each other's lines.
    """
    first, second = seen.xy[:, 0], seen.xy[:, 1]
    there = project(seen.cameras[:, 1], seen.places[:, 0])
    back = project(seen.cameras[:, 0], seen.places[:, 1])
    ahead, behind = _distances(there, second), _distances(first, back)
    exist = jnp.arange(first.shape[1])[None, None] < counts[:, :, None]
    both = exist[:, 0, :, None] & exist[:, 1, None, :]
    # If one of the two is unknown, the other is a lower bound.
    apart = jnp.where(both, jnp.fmax(ahead, behind), jnp.inf)
    alike = jnp.einsum("bnd,bmd->bnm", descriptors[:, 0], descriptors[:, 1])
    known = jnp.isfinite(seen.places).all(axis=-1)
    certain = known[:, 0, :, None] & known[:, 1, None, :]
    cost = jnp.where(certain, apart + UNLIKE / 2 * (1 - alike), jnp.inf)
    best, returned = (jnp.argmin(cost, axis=axis).astype(jnp.int32) for axis in (2, 1))
    mutual = jnp.take_along_axis(returned, best, axis=1) == jnp.arange(first.shape[1])[None]
    nearest = jnp.take_along_axis(jnp.where(certain, apart, jnp.inf), best[:, :, None], axis=2)
    # `apart` is partly NaN for keypoints with unknown points, which `known` excludes below.
    finite = jnp.where(jnp.isnan(apart), jnp.inf, apart)
    far = jnp.stack([finite.min(axis=2) > FAR, finite.min(axis=1) > FAR], axis=1)
    partners = jnp.where(mutual & (nearest[..., 0] <= MATCH), best, NONE)
    off_line = both & ~certain & _off_line(seen) if by_lines else None
    return Truth(partners, exist & known & far, off_line)


def _off_line(seen: Seen) -> Bool[Array, "B N N"]:
    """Return which keypoints are far from each other's epipolar lines.

    Views from the same position have no lines: nothing is far from them.
    """
    first, second = (
        jnp.pad(one, ((0, 0), (0, 0), (0, 1)), constant_values=1)
        for one in (seen.xy[:, 0], seen.xy[:, 1])
    )
    # The fundamental matrix, from pixels of the first camera to lines of the second.
    own, other = seen.cameras[:, 0], seen.cameras[:, 1]
    back = jnp.linalg.inv(own[:, :, :3])
    centre = -jnp.einsum("bij,bj->bi", back, own[:, :, 3], precision="highest")
    epipole = jnp.einsum("bij,bj->bi", other[:, :, :3], centre, precision="highest")
    x, y, z = jnp.moveaxis(epipole + other[:, :, 3], -1, 0)
    zero = jnp.zeros_like(x)
    cross = jnp.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=-1).reshape(-1, 3, 3)
    parts = (cross, other[:, :, :3], back)
    fundamental = jnp.einsum("bij,bjk,bkl->bil", *parts, precision="highest")
    in_second = jnp.einsum("bij,bnj->bni", fundamental, first, precision="highest")
    in_first = jnp.einsum("bji,bmj->bmi", fundamental, second, precision="highest")
    residual = jnp.abs(jnp.einsum("bni,bmi->bnm", in_second, second, precision="highest"))
    slopes = [jnp.linalg.norm(lines[..., :2], axis=-1) for lines in (in_second, in_first)]
    return residual > OFF_LINE * jnp.maximum(slopes[0][:, :, None], slopes[1][:, None, :])


def project(cameras: Float[Array, "B 3 4"], places: Float[Array, "B N 3"]) -> Float[Array, "B N 2"]:
    """Project 3-D points; those behind the camera go far away, unknown ones stay NaN."""
    # In full precision: GPUs would get pixels wrong otherwise.
    mapped = jnp.einsum("bij,bnj->bni", cameras[:, :, :3], places, precision="highest")
    mapped = mapped + cameras[:, None, :, 3]
    depth = mapped[..., 2:]
    return jnp.where(depth <= 0, _BEYOND, mapped[..., :2] / jnp.where(depth <= 0, 1.0, depth))


def _distances(first: Float[Array, "B N 2"], second: Float[Array, "B M 2"]) -> Array:
    # Not by inner products: squared pixels have too many digits for float32.
    difference = first[:, :, None] - second[:, None]
    return jnp.sqrt((difference**2).sum(axis=-1))
