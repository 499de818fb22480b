"""Training losses on ℓ2-normalised descriptors: distances, hardest-in-batch mining, margins.

Row i of `anchors` and of `positives` are the two views of one 3-D point. No point occurs twice in a
batch, so every other row is a candidate negative. Losses are per pair; the caller reduces them. On
several devices, pass the gathered batch.

`pair_loss` selects a loss by `LossConfig`:

    triplet      [margin + p − n]₊, the paper's and HardNet's
    softmax      −log(e^(2−p) / (e^(2−p) + e^(2−n) + 1e-8)), HardNet's
    contrastive  [margin − n]₊ + p, HardNet's
    infonce      −log(e^(s/τ) / Σⱼ e^(sⱼ/τ)), all negatives of the batch instead of the hardest
    sosnet       [margin + p − n]₊² + second-order term (SOSNet, CVPR 2019)
    hynet        [margin + h(p) − h(n)]₊ + norm term, h(d) = α d²/2 + d (HyNet, NeurIPS 2020)

where p is the distance between anchor and positive, n the distance to the hardest negative, and s
an inner product.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Bool, Float

from kjax.model.aggregation import l2_normalize
from kjax.model.kernels.convolution import at_least_float32
from kjax.runs.config import LossConfig

HYNET_MARGIN = 1.2
IDENTICAL_DISTANCE = 0.008
"""Pairs closer than this count as copies of one patch, not as negatives."""
OUT_OF_REACH = 10.0
"""Distance added to exclude pairs from mining; unit vectors are at most 2 apart."""
ROOT_EPSILON = 1e-6
"""ε of HardNet, SOSNet and HyNet under square roots, whose slope at zero is infinite."""

RawViews = tuple[Float[Array, "pairs raw"], Float[Array, "pairs raw"]]
"""Both views before ℓ2 normalisation."""


class Triplets(NamedTuple):
    """One triplet per pair of the batch."""

    loss: Float[Array, " pairs"]
    positive: Float[Array, " pairs"]
    """Distance between anchor and positive."""
    negative: Float[Array, " pairs"]
    """Distance to the hardest negative."""


def distance_matrix(
    anchors: Float[Array, "pairs dim"], positives: Float[Array, "others dim"]
) -> Float[Array, "pairs others"]:
    """Compute √(‖a−b‖² + 1e-6) + 1e-8 for all pairs, as in the HardNet release.

    The squared distance comes from inner products in full precision, and is clipped at zero.
    """
    dtype = at_least_float32(jnp.promote_types(anchors.dtype, positives.dtype))
    anchors, positives = anchors.astype(dtype), positives.astype(dtype)
    products = jnp.matmul(anchors, positives.T, precision=Precision.HIGHEST)
    squares_a = jnp.sum(anchors * anchors, axis=-1)
    squares_b = jnp.sum(positives * positives, axis=-1)
    squared = squares_a[:, None] + squares_b[None, :] - 2 * products
    return jnp.sqrt(jnp.maximum(squared, 0) + ROOT_EPSILON) + 1e-8


def distances_between(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    excluded: Bool[Array, "pairs pairs"] | None,
) -> Float[Array, "pairs pairs"]:
    """Compute `distance_matrix`, with pairs that are `excluded` as negatives out of reach."""
    distances = distance_matrix(anchors, positives)
    if excluded is None:
        return distances
    others = excluded & ~jnp.eye(len(excluded), dtype=bool)
    return distances + OUT_OF_REACH * others.astype(distances.dtype)


def hardest_negatives(
    distances: Float[Array, "pairs pairs"], *, anchor_swap: bool
) -> Float[Array, " pairs"]:
    """Return the distance from each anchor to the closest positive of another pair (the paper).

    With `anchor_swap` (the HardNet release), it is the minimum of this and the distance from the
    positive to the closest other anchor. Near-identical patches are never mined.
    """
    candidates = _exclude_non_negatives(distances)
    hardest = candidates.min(axis=1)
    return jnp.minimum(hardest, candidates.min(axis=0)) if anchor_swap else hardest


def infonce(distances: Float[Array, "pairs pairs"], temperature: float) -> Triplets:
    """Compute the mean of InfoNCE along rows and columns, with all negatives of the batch.

    Lower temperatures give hard negatives more weight. Near-identical patches do not count.
    """

    def similarity(distances: Array) -> Array:
        """Return inner products of unit vectors, 1 − d²/2, over the temperature."""
        return (1 - jnp.square(distances) / 2) / temperature

    positive = jnp.diagonal(distances)
    candidates = _exclude_non_negatives(distances)
    own = similarity(positive)
    others = jnp.where(candidates < OUT_OF_REACH, similarity(distances), -jnp.inf)
    shares = [jnp.logaddexp(own, jax.nn.logsumexp(others, axis=axis)) - own for axis in (0, 1)]
    return Triplets((shares[0] + shares[1]) / 2, positive, candidates.min(axis=1))


class ViewDistances(NamedTuple):
    """All distances within a batch: SOSNet and HyNet also compare within each view."""

    across: Float[Array, "pairs pairs"]
    """Distance from anchor i to positive j."""
    anchors: Float[Array, "pairs pairs"]
    positives: Float[Array, "pairs pairs"]


def view_distances(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    excluded: Bool[Array, "pairs pairs"] | None = None,
) -> ViewDistances:
    """Compute the three distance matrices of a batch."""
    return ViewDistances(
        across=distances_between(anchors, positives, excluded),
        anchors=distances_between(anchors, anchors, excluded),
        positives=distances_between(positives, positives, excluded),
    )


def hardest_in_both_views(distances: ViewDistances) -> Float[Array, " pairs"]:
    """Return the distance from either view of each pair to the closest view of another pair.

    This is the mining rule of SOSNet and HyNet. Near-identical patches are never mined.
    """
    across = hardest_negatives(distances.across, anchor_swap=True)
    anchors = hardest_negatives(distances.anchors, anchor_swap=False)
    positives = hardest_negatives(distances.positives, anchor_swap=False)
    return jnp.minimum(across, jnp.minimum(anchors, positives))


def sosnet_triplets(distances: ViewDistances, config: LossConfig, margin: float) -> Triplets:
    """Compute SOSNet's loss: a first-order and a second-order term with equal weight.

    The first-order term is the quadratic hinge [margin + p − n]₊², with the hardest negative of
    both views. The second-order term is √(Σⱼ (d(aᵢ, aⱼ) − d(pᵢ, pⱼ))² + 1e-6), over the
    neighbours j of each pair i.
    """
    positive = jnp.diagonal(distances.across)
    negative = hardest_in_both_views(distances)
    first_order = jnp.square(jnp.maximum(margin + positive - negative, 0))
    chosen = second_order_neighbours(distances, config.neighbours, config.neighbour_rule)
    difference = jnp.where(chosen, distances.anchors - distances.positives, 0)
    second_order = jnp.sqrt(jnp.sum(jnp.square(difference), axis=1) + ROOT_EPSILON)
    return Triplets(first_order + second_order, positive, negative)


def second_order_neighbours(
    distances: ViewDistances, count: int, rule: str
) -> Bool[Array, "pairs pairs"]:
    """Mark the pairs j in the second-order term of pair i. Ties for the last place all count.

    Args:
        distances: of the whole batch.
        count: number of nearest neighbours, k; all of them if the batch has fewer.
        rule: `paper`: j is among the k nearest of i in the anchors' view or in the positives'.
            `release`: the rule of the authors' code, published with HyNet. It also compares one
            view with the other, and is symmetric in i and j.
    """
    within = _nearest(distances.anchors, count) | _nearest(distances.positives, count)
    if rule == "paper":
        return within
    across = _nearest(distances.across, count) | _nearest(distances.across.T, count).T
    chosen = within | across
    return chosen | chosen.T


def hynet_triplets(
    distances: ViewDistances, config: LossConfig, margin: float, unnormalized: RawViews | None
) -> Triplets:
    """Compute HyNet's loss: a triplet margin on a hybrid of inner product and ℓ2 distance.

    It is [margin + h(p) − h(n)]₊ with h(d) = α(1 − s) + d, where s is the inner product of two unit
    vectors, so that 1 − s = d²/2. The hardest negative is that of both views. As in the authors'
    code, h is not divided by a constant Z. The triplets have plain ℓ2 distances.

    The norm term is `norm_weight`·(‖x‖ − ‖y‖)², where `unnormalized` holds x and y, both views
    before ℓ2 normalisation; without them there is none.
    """
    positive = jnp.diagonal(distances.across)
    negative = hardest_in_both_views(distances)
    hybrid = [config.alpha * jnp.square(d) / 2 + d for d in (positive, negative)]
    loss = jnp.maximum(margin + (hybrid[0] - hybrid[1]), 0)
    if unnormalized is not None:
        raw = (view.astype(at_least_float32(view.dtype)) for view in unnormalized)
        norms = [jnp.sqrt(jnp.sum(jnp.square(view), axis=1) + ROOT_EPSILON) for view in raw]
        loss = loss + config.norm_weight * jnp.square(norms[0] - norms[1])
    return Triplets(loss, positive, negative)


def nested_pair_loss(
    anchors: Float[Array, "pairs raw"],
    positives: Float[Array, "pairs raw"],
    config: LossConfig,
    *,
    excluded: Bool[Array, "pairs pairs"] | None = None,
) -> Triplets:
    """Compute the weighted mean loss of whole descriptors and of their leading entries.

    Descriptors come unnormalised. The triplets have the distances of whole descriptors.
    """
    losses = []
    for width in (anchors.shape[1], *config.nested):
        raw = anchors[:, :width], positives[:, :width]
        anchor, positive = (l2_normalize(view) for view in raw)
        losses.append(pair_loss(anchor, positive, config, unnormalized=raw, excluded=excluded))
    whole = losses[0]
    if not config.nested:
        return whole
    nested = sum((one.loss for one in losses[2:]), start=losses[1].loss)
    weight = config.nested_weight
    mean = (whole.loss + weight * nested) / (1 + weight * len(config.nested))
    return whole._replace(loss=mean)


def pair_loss(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    config: LossConfig,
    *,
    unnormalized: RawViews | None = None,
    excluded: Bool[Array, "pairs pairs"] | None = None,
) -> Triplets:
    """Compute the loss that `config` names, for every pair of the whole batch.

    Both views are ℓ2-normalised. `unnormalized` has them before that, for the norm term of `hynet`.
    `excluded` marks pairs that are not negatives of each other.
    """
    published = HYNET_MARGIN if config.name == "hynet" else 1.0
    margin = published if config.margin is None else config.margin
    if config.name in ("sosnet", "hynet"):
        both = view_distances(anchors, positives, excluded)
        if config.name == "sosnet":
            return sosnet_triplets(both, config, margin)
        return hynet_triplets(both, config, margin, unnormalized)
    distances = distances_between(anchors, positives, excluded)
    if config.name == "infonce":
        return infonce(distances, config.temperature)
    positive = jnp.diagonal(distances)
    negative = hardest_negatives(distances, anchor_swap=config.anchor_swap)
    match config.name:
        case "softmax":
            # With the fraction cancelled, which keeps the digits of small losses.
            loss = jnp.log1p(jnp.exp(positive - negative) + 1e-8 * jnp.exp(positive - 2))
        case "contrastive":
            loss = jnp.maximum(margin - negative, 0) + positive
        case _:  # triplet, with the signs of p and n that the paper misprints
            loss = jnp.maximum(margin + positive - negative, 0)
    return Triplets(loss, positive, negative)


def _exclude_non_negatives(
    distances: Float[Array, "pairs pairs"],
) -> Float[Array, "pairs pairs"]:
    """Increase the distances of a pair to itself and between copies beyond all others."""
    own = OUT_OF_REACH * jnp.eye(distances.shape[0], dtype=distances.dtype)
    candidates = distances + own
    return candidates + jnp.where(candidates < IDENTICAL_DISTANCE, OUT_OF_REACH, 0.0)


def _nearest(distances: Float[Array, "pairs pairs"], count: int) -> Bool[Array, "pairs pairs"]:
    """Mark in each row the `count` smallest distances to other pairs."""
    candidates = jax.lax.stop_gradient(_exclude_non_negatives(distances))
    smallest = -jax.lax.top_k(-candidates, min(count, candidates.shape[1]))[0]
    return (candidates <= smallest[:, -1:]) & (candidates < OUT_OF_REACH)
