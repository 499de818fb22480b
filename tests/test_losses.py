import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kjax.losses import distance_matrix, hardest_in_batch_triplets, hardest_negatives


def unit(degrees):
    radians = np.deg2rad(np.asarray(degrees, np.float32))
    return jnp.asarray(np.stack([np.cos(radians), np.sin(radians)], axis=1))


def chord(degrees):
    return 2 * np.sin(np.deg2rad(degrees) / 2)


ANCHORS, POSITIVES = unit([0, 90, 180]), unit([10, 60, 200])
#            positives:   10   60  200
# anchors:    0           10   60  160
#            90           80   30  110
#           180          170  120   20


def test_distances_by_hand():
    angles = [[10, 60, 160], [80, 30, 110], [170, 120, 20]]
    np.testing.assert_allclose(distance_matrix(ANCHORS, POSITIVES), chord(angles), atol=1e-5)


def test_distance_of_equal_vectors_is_finite_with_finite_gradient():
    vectors = unit([33, 33])
    assert distance_matrix(vectors, vectors)[0, 0] == pytest.approx(1e-3, rel=1e-2)
    gradient = jax.grad(lambda v: distance_matrix(v, vectors).sum())(vectors)
    assert jnp.isfinite(gradient).all()


def test_the_papers_triplets_by_hand():
    """Only other pairs' positives are candidates."""
    triplets = hardest_in_batch_triplets(ANCHORS, POSITIVES)
    np.testing.assert_allclose(triplets.positive, chord([10, 30, 20]), atol=1e-5)
    np.testing.assert_allclose(triplets.negative, chord([60, 80, 120]), atol=1e-5)
    expected = np.maximum(1 + chord([10, 30, 20]) - chord([60, 80, 120]), 0)
    np.testing.assert_allclose(triplets.loss, expected, atol=1e-5)
    assert (triplets.loss[:2] > 0).all()
    assert triplets.loss[2] == 0


def test_hardnets_triplets_by_hand():
    """Other pairs' anchors, seen from the positive, are candidates too."""
    triplets = hardest_in_batch_triplets(ANCHORS, POSITIVES, anchor_swap=True)
    np.testing.assert_allclose(triplets.negative, chord([60, 60, 110]), atol=1e-5)


def test_margin():
    wide, narrow = (
        hardest_in_batch_triplets(ANCHORS, POSITIVES, margin=margin).loss for margin in (2.0, 1.5)
    )
    np.testing.assert_allclose(wide - narrow, 0.5, atol=1e-6)


def test_copies_of_a_patch_are_never_mined():
    distances = jnp.asarray([[0.1, 0.007, 0.9], [0.4, 0.2, 0.5], [0.3, 0.8, 0.1]])
    np.testing.assert_allclose(hardest_negatives(distances, anchor_swap=False), [0.9, 0.4, 0.3])
    np.testing.assert_allclose(hardest_negatives(distances, anchor_swap=True), [0.3, 0.4, 0.3])
