"""Training losses on ℓ2-normalised descriptors: distances, hardest-in-batch mining, triplet margin.

Row i of `anchors` and of `positives` are the two views of one 3-D point, and no point comes twice
in a batch, so every other row is a candidate negative. Values are per example; the caller reduces.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float

IDENTICAL_DISTANCE = 0.008
"""Pairs closer than this are taken for copies of one patch, not for negatives."""
OUT_OF_REACH = 10.0
"""Added to the distance of pairs that must not be mined; unit vectors are at most 2 apart."""


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
    products = jnp.matmul(anchors, positives.T, precision=Precision.HIGHEST)
    squares_a = jnp.sum(anchors * anchors, axis=-1)
    squares_b = jnp.sum(positives * positives, axis=-1)
    squared = squares_a[:, None] + squares_b[None, :] - 2 * products
    return jnp.sqrt(jnp.maximum(squared, 0) + 1e-6) + 1e-8


def hardest_negatives(
    distances: Float[Array, "pairs pairs"], *, anchor_swap: bool
) -> Float[Array, " pairs"]:
    """Distance from each anchor to the closest positive of another pair (the paper's rule).

    With `anchor_swap`, or from the positive to the closest other anchor if that is smaller (the
    HardNet release's rule). Near-identical patches are never mined.
    """
    own = OUT_OF_REACH * jnp.eye(distances.shape[0], dtype=distances.dtype)
    candidates = distances + own
    candidates = candidates + jnp.where(candidates < IDENTICAL_DISTANCE, OUT_OF_REACH, 0.0)
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
