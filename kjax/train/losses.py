"""Training losses on ℓ2-normalised descriptors: distances, hardest-in-batch mining, margins.

Row i of `anchors` and of `positives` are the two views of one 3-D point, and no point comes twice
in a batch, so every other row is a candidate negative. Values are per example; the caller reduces.
Mining sees the rows it is given: on several devices, give it the gathered batch.

`pair_loss` selects by `LossConfig`; each loss is also a function of its own:

    triplet      [margin + p − n]₊, the paper's and HardNet's
    softmax      −log(e^(2−p) / (e^(2−p) + e^(2−n) + 1e-8)), HardNet's
    contrastive  [margin − n]₊ + p, HardNet's
    infonce      −log(e^(s/τ) / Σⱼ e^(sⱼ/τ)), all negatives of the batch instead of the hardest
    sosnet       [margin + p − n]₊² + second-order term (SOSNet, CVPR 2019)
    hynet        [margin + h(p) − h(n)]₊ + norm term, h(d) = α d²/2 + d (HyNet, NeurIPS 2020)

with p the distance between anchor and positive, n that to the hardest negative, and s inner
products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Bool, Float

from kjax.errors import unknown_name
from kjax.model.aggregation import l2_normalize
from kjax.model.kernels.convolution import at_least_float32
from kjax.runs.config import NEIGHBOUR_RULES, LossConfig

HYNET_MARGIN = 1.2
IDENTICAL_DISTANCE = 0.008
"""Pairs closer than this are taken for copies of one patch, not for negatives."""
OUT_OF_REACH = 10.0
"""Distance added to pairs that must not be mined; unit vectors are at most 2 apart."""
ROOT_EPSILON = 1e-6
"""The ε of HardNet, SOSNet and HyNet under square roots, whose slope at zero is infinite."""


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
    """√(‖a−b‖² + 1e-6) + 1e-8 for all pairs, as in the HardNet release.

    The squared distance comes from inner products; it is kept from falling below zero, which their
    rounding could otherwise turn into NaN, and they are not taken in reduced precision.
    """
    dtype = at_least_float32(jnp.promote_types(anchors.dtype, positives.dtype))
    anchors, positives = anchors.astype(dtype), positives.astype(dtype)
    products = jnp.matmul(anchors, positives.T, precision=Precision.HIGHEST)
    squares_a = jnp.sum(anchors * anchors, axis=-1)
    squares_b = jnp.sum(positives * positives, axis=-1)
    squared = squares_a[:, None] + squares_b[None, :] - 2 * products
    return jnp.sqrt(jnp.maximum(squared, 0) + ROOT_EPSILON) + 1e-8


def hardest_negatives(
    distances: Float[Array, "pairs pairs"], *, anchor_swap: bool
) -> Float[Array, " pairs"]:
    """Distance from each anchor to the closest positive of another pair (the paper's rule).

    With `anchor_swap`, or from the positive to the closest other anchor if that is smaller (the
    HardNet release's rule). Near-identical patches are never mined.
    """
    candidates = _out_of_reach_unless_negative(distances)
    hardest = candidates.min(axis=1)
    return jnp.minimum(hardest, candidates.min(axis=0)) if anchor_swap else hardest


def hardest_in_batch_triplets(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    *,
    margin: float = 1.0,
    anchor_swap: bool = False,
) -> Triplets:
    """[margin + d(anchor, positive) − d(hardest negative)]₊ for every pair.

    (The paper prints the two distances with their signs swapped: a misprint.)
    """
    distances = distance_matrix(anchors, positives)
    positive = jnp.diagonal(distances)
    negative = hardest_negatives(distances, anchor_swap=anchor_swap)
    return Triplets(jnp.maximum(margin + positive - negative, 0), positive, negative)


def hardest_in_batch_softmax(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    *,
    anchor_swap: bool = False,
) -> Triplets:
    """−log(e^(2−p) / (e^(2−p) + e^(2−n) + 1e-8)) for every pair: HardNet's `softmax` loss.

    p is the distance between anchor and positive, n that to the hardest negative.
    """
    distances = distance_matrix(anchors, positives)
    positive = jnp.diagonal(distances)
    negative = hardest_negatives(distances, anchor_swap=anchor_swap)
    # The same number, with the fraction cancelled: small losses keep their digits.
    loss = jnp.log1p(jnp.exp(positive - negative) + 1e-8 * jnp.exp(positive - 2))
    return Triplets(loss, positive, negative)


def hardest_in_batch_contrastive(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    *,
    margin: float = 1.0,
    anchor_swap: bool = False,
) -> Triplets:
    """[margin − d(hardest negative)]₊ + d(anchor, positive): HardNet's `contrastive` loss."""
    distances = distance_matrix(anchors, positives)
    positive = jnp.diagonal(distances)
    negative = hardest_negatives(distances, anchor_swap=anchor_swap)
    return Triplets(jnp.maximum(margin - negative, 0) + positive, positive, negative)


def infonce(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    *,
    temperature: float = 0.1,
) -> Triplets:
    """−log of the share of the pair's own e^(s/τ) among all of its row and of its column, halved.

    s is the inner product of unit vectors. The colder, the more the hardest negatives count; unlike
    the losses above it learns from all of them. Near-identical patches are no negatives.
    """
    distances = distance_matrix(anchors, positives)
    positive = jnp.diagonal(distances)
    candidates = _out_of_reach_unless_negative(distances)
    own = _scaled_similarity(positive, temperature)
    others = jnp.where(
        candidates < OUT_OF_REACH, _scaled_similarity(distances, temperature), -jnp.inf
    )
    shares = [jnp.logaddexp(own, jax.nn.logsumexp(others, axis=axis)) - own for axis in (0, 1)]
    return Triplets((shares[0] + shares[1]) / 2, positive, candidates.min(axis=1))


def _scaled_similarity(distances: Array, temperature: float) -> Array:
    """Inner products of unit vectors at some distances, 1 − d²/2, over the temperature."""
    return (1 - jnp.square(distances) / 2) / temperature


class ViewDistances(NamedTuple):
    """All distances within a batch: SOSNet and HyNet also look inside each view."""

    across: Float[Array, "pairs pairs"]
    """Distances from anchor i to positive j."""
    anchors: Float[Array, "pairs pairs"]
    positives: Float[Array, "pairs pairs"]


def view_distances(
    anchors: Float[Array, "pairs dim"], positives: Float[Array, "pairs dim"]
) -> ViewDistances:
    """The three distance matrices of a batch."""
    return ViewDistances(
        across=distance_matrix(anchors, positives),
        anchors=distance_matrix(anchors, anchors),
        positives=distance_matrix(positives, positives),
    )


def hardest_in_both_views(distances: ViewDistances) -> Float[Array, " pairs"]:
    """Distance from either view of each pair to the closest view of another pair.

    The mining rule of SOSNet and HyNet: the minimum over anchor to positives, positive to anchors,
    anchor to anchors and positive to positives. Near-identical patches are never mined.
    """
    across = hardest_negatives(distances.across, anchor_swap=True)
    anchors = hardest_negatives(distances.anchors, anchor_swap=False)
    positives = hardest_negatives(distances.positives, anchor_swap=False)
    return jnp.minimum(across, jnp.minimum(anchors, positives))


def sosnet_triplets(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    *,
    margin: float = 1.0,
    neighbours: int = 8,
    neighbour_rule: str = "paper",
) -> Triplets:
    """SOSNet's loss: a first-order and a second-order term, added with equal weight.

    First order: the quadratic hinge [margin + p − n]₊², with the hardest negative taken over both
    views (`hardest_in_both_views`). Second order: `second_order_difference`.

    Args:
        anchors: one view of each pair.
        positives: the other view.
        margin: of the hinge, before it is squared.
        neighbours: how many nearest neighbours the second-order term compares.
        neighbour_rule: whose neighbours count, see `second_order_neighbours`.
    """
    distances = view_distances(anchors, positives)
    positive = jnp.diagonal(distances.across)
    negative = hardest_in_both_views(distances)
    first_order = jnp.square(jnp.maximum(margin + positive - negative, 0))
    chosen = second_order_neighbours(distances, count=neighbours, rule=neighbour_rule)
    return Triplets(first_order + second_order_difference(distances, chosen), positive, negative)


def second_order_neighbours(
    distances: ViewDistances, *, count: int, rule: str = "paper"
) -> Bool[Array, "pairs pairs"]:
    """Marks the pairs j in the second-order term of pair i. Ties at the last place all enter.

    Args:
        distances: of the whole batch.
        count: k, how many nearest neighbours; all of them if the batch has fewer.
        rule: `paper`: j is among the k nearest of i in the anchors' view or in the positives'.
            `release`: as the code that SOSNet's authors published with HyNet has it, also if it is
            so from one view to the other, and then in either direction between i and j.
    """
    within = _nearest(distances.anchors, count) | _nearest(distances.positives, count)
    match rule:
        case "paper":
            return within
        case "release":
            across = _nearest(distances.across, count) | _nearest(distances.across.T, count).T
            chosen = within | across
            return chosen | chosen.T
        case _:
            raise unknown_name("neighbour rule", rule, NEIGHBOUR_RULES)


def second_order_difference(
    distances: ViewDistances, neighbours: Bool[Array, "pairs pairs"]
) -> Float[Array, " pairs"]:
    """√(Σⱼ (d(aᵢ, aⱼ) − d(pᵢ, pⱼ))² + 1e-6) over the neighbours j of each pair i.

    Zero, up to the 1e-6, where a point lies among its neighbours alike in both views.
    """
    difference = jnp.where(neighbours, distances.anchors - distances.positives, 0)
    return jnp.sqrt(jnp.sum(jnp.square(difference), axis=1) + ROOT_EPSILON)


def hynet_triplets(
    anchors: Float[Array, "pairs dim"],
    positives: Float[Array, "pairs dim"],
    *,
    margin: float = HYNET_MARGIN,
    alpha: float = 2.0,
    norm_weight: float = 0.1,
    unnormalized: tuple[Float[Array, "pairs raw"], Float[Array, "pairs raw"]] | None = None,
) -> Triplets:
    """HyNet's loss: a triplet margin on a hybrid of inner product and ℓ2 distance.

    [margin + h(p) − h(n)]₊ with h(d) = α(1 − s) + d, where s is the inner product of two unit
    vectors, so that 1 − s = d²/2. The hardest negative is taken over both views
    (`hardest_in_both_views`). As in the authors' code, h is not divided by a constant Z.

    Args:
        anchors: one view of each pair.
        positives: the other view.
        margin: between hybrid values, which reach 2α + 2.
        alpha: weight of the inner product.
        norm_weight: of the norm term (‖x‖ − ‖y‖)².
        unnormalized: anchors x and positives y before ℓ2 normalisation. Without them the loss has
            no norm term.

    Returns:
        The loss, and the plain ℓ2 distances of the triplets.
    """
    distances = view_distances(anchors, positives)
    positive = jnp.diagonal(distances.across)
    negative = hardest_in_both_views(distances)
    gap = hybrid_distance(positive, alpha=alpha) - hybrid_distance(negative, alpha=alpha)
    loss = jnp.maximum(margin + gap, 0)
    if unnormalized is not None:
        loss = loss + norm_weight * squared_norm_difference(*unnormalized)
    return Triplets(loss, positive, negative)


def hybrid_distance(distance: Float[Array, " pairs"], *, alpha: float) -> Float[Array, " pairs"]:
    """α d²/2 + d: HyNet's hybrid of inner product and ℓ2 distance d between unit vectors."""
    return alpha * jnp.square(distance) / 2 + distance


def squared_norm_difference(
    anchors: Float[Array, "pairs raw"], positives: Float[Array, "pairs raw"]
) -> Float[Array, " pairs"]:
    """(‖x‖ − ‖y‖)² of descriptors before normalisation, with 1e-6 under each root."""

    def norms(vectors: Array) -> Array:
        vectors = vectors.astype(at_least_float32(vectors.dtype))
        return jnp.sqrt(jnp.sum(jnp.square(vectors), axis=1) + ROOT_EPSILON)

    return jnp.square(norms(anchors) - norms(positives))


def nested_pair_loss(
    anchors: Float[Array, "pairs raw"], positives: Float[Array, "pairs raw"], config: LossConfig
) -> Triplets:
    """The weighted mean loss of whole descriptors and of their first entries, as `config` says.

    Args:
        anchors: descriptors of one view of each pair before ℓ2, of the whole batch.
        positives: those of the other view.
        config: which loss, and which first entries.

    Returns:
        The loss, and the distances of the whole descriptors' triplets.
    """
    losses = []
    for width in (anchors.shape[1], *config.nested):
        raw = anchors[:, :width], positives[:, :width]
        anchor, positive = (l2_normalize(view) for view in raw)
        losses.append(pair_loss(anchor, positive, config, unnormalized=raw))
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
    unnormalized: tuple[Float[Array, "pairs raw"], Float[Array, "pairs raw"]] | None = None,
) -> Triplets:
    """The loss that `config` names, for every pair.

    Args:
        anchors: ℓ2-normalised descriptors of one view of each pair, of the whole batch.
        positives: those of the other view.
        config: which loss, and its constants.
        unnormalized: both before normalisation; only `hynet` reads them, and without them it
            leaves out its norm term.
    """
    published = HYNET_MARGIN if config.name == "hynet" else 1.0
    margin = published if config.margin is None else config.margin
    swap = config.anchor_swap
    match config.name:
        case "triplet":
            return hardest_in_batch_triplets(anchors, positives, margin=margin, anchor_swap=swap)
        case "softmax":
            return hardest_in_batch_softmax(anchors, positives, anchor_swap=swap)
        case "contrastive":
            return hardest_in_batch_contrastive(anchors, positives, margin=margin, anchor_swap=swap)
        case "infonce":
            return infonce(anchors, positives, temperature=config.temperature)
        case "sosnet":
            return sosnet_triplets(
                anchors,
                positives,
                margin=margin,
                neighbours=config.neighbours,
                neighbour_rule=config.neighbour_rule,
            )
        case _:  # hynet: LossConfig admits no other name
            return hynet_triplets(
                anchors,
                positives,
                margin=margin,
                alpha=config.alpha,
                norm_weight=config.norm_weight,
                unnormalized=unnormalized,
            )


def _out_of_reach_unless_negative(
    distances: Float[Array, "pairs pairs"],
) -> Float[Array, "pairs pairs"]:
    """Moves a pair's own distance, and those of copies of one patch, beyond all others."""
    own = OUT_OF_REACH * jnp.eye(distances.shape[0], dtype=distances.dtype)
    candidates = distances + own
    return candidates + jnp.where(candidates < IDENTICAL_DISTANCE, OUT_OF_REACH, 0.0)


def _nearest(distances: Float[Array, "pairs pairs"], count: int) -> Bool[Array, "pairs pairs"]:
    """Marks in each row the `count` smallest distances to other pairs."""
    candidates = jax.lax.stop_gradient(_out_of_reach_unless_negative(distances))
    smallest = -jax.lax.top_k(-candidates, min(count, candidates.shape[1]))[0]
    return (candidates <= smallest[:, -1:]) & (candidates < OUT_OF_REACH)
