import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from kjax.errors import InputError
from kjax.runs.config import LOSSES, LossConfig
from kjax.train.losses import (
    ViewDistances,
    distance_matrix,
    hardest_in_batch_triplets,
    hardest_in_both_views,
    hardest_negatives,
    pair_loss,
    second_order_neighbours,
    sosnet_triplets,
    view_distances,
)


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


def test_copies_of_a_patch_are_never_mined():
    distances = jnp.asarray([[0.1, 0.007, 0.9], [0.4, 0.2, 0.5], [0.3, 0.8, 0.1]])
    np.testing.assert_allclose(hardest_negatives(distances, anchor_swap=False), [0.9, 0.4, 0.3])
    np.testing.assert_allclose(hardest_negatives(distances, anchor_swap=True), [0.3, 0.4, 0.3])


# Within the views, in degrees: anchors 0 50 180, positives 20 60 65.
TWO_VIEWS = unit([0, 50, 180]), unit([20, 60, 65])


def test_both_views_are_mined():
    """Pair 0: its positive to anchor 1, 30°. Pairs 1 and 2: their positives, 5° apart."""
    hardest = hardest_in_both_views(view_distances(*TWO_VIEWS))
    np.testing.assert_allclose(hardest, chord([30, 5, 5]), atol=1e-5)


def test_sosnet_by_hand():
    """One neighbour: anchors' nearest 0→1, 1→0, 2→1; positives' nearest 0→1, 1→2, 2→1."""
    triplets = sosnet_triplets(*TWO_VIEWS, neighbours=1)
    positive, negative = chord([20, 10, 115]), chord([30, 5, 5])
    first_order = np.maximum(1 + positive - negative, 0) ** 2
    anchors, positives = chord([50, 130]), chord([40, 5])  # between 0 and 1, between 1 and 2
    near, far = (anchors - positives) ** 2
    second_order = np.sqrt([near, near + far, far])
    np.testing.assert_allclose(triplets.loss, first_order + second_order, atol=1e-4)
    np.testing.assert_allclose(triplets.positive, positive, atol=1e-5)
    np.testing.assert_allclose(triplets.negative, negative, atol=1e-5)


def test_neighbour_rules_by_hand():
    """Both views alike within, nearest 0→1, 1→0, 2→1, 3→2. Across, 0→3 and whatever is nearer."""
    within = jnp.asarray(
        [[0, 0.1, 0.9, 1.4], [0.1, 0, 0.5, 1.3], [0.9, 0.5, 0, 0.6], [1.4, 1.3, 0.6, 0]]
    )
    across = jnp.asarray(
        [[0.3, 1.2, 1.2, 0.2], [0.4, 0.3, 1.2, 1.2], [1.2, 0.4, 0.3, 1.2], [1.2, 1.2, 0.4, 0.3]]
    )
    distances = ViewDistances(across=across, anchors=within, positives=within)
    paper = second_order_neighbours(distances, count=1)
    np.testing.assert_array_equal(paper, [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    # 0–1, 1–2, 2–3 as before and 0–3 across, now each in both directions.
    release = second_order_neighbours(distances, count=1, rule="release")
    np.testing.assert_array_equal(release, [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])


def test_second_order_term_vanishes_when_one_view_is_a_turned_copy_of_the_other():
    angles = np.array([0, 40, 100, 190])
    triplets = sosnet_triplets(unit(angles), unit(angles + 3))
    first_order = np.maximum(1 + triplets.positive - triplets.negative, 0) ** 2
    np.testing.assert_allclose(triplets.loss - first_order, 1e-3, atol=1e-5)


jit_loss = jax.jit(pair_loss, static_argnums=2)


def random_views(rng, pairs=40, dim=16):
    anchors = rng.normal(size=(pairs, dim))
    positives = anchors + 0.7 * rng.normal(size=(pairs, dim))
    views = (view / np.linalg.norm(view, axis=1, keepdims=True) for view in (anchors, positives))
    return tuple(view.astype(np.float32) for view in views)


def loops(anchors, positives, *, k):
    """Distances, mined negatives and second-order sums, pair by pair in float64."""
    both = np.float64([anchors, positives])
    distance = np.linalg.norm(both[:, None, :, None] - both[None, :, None], axis=-1)
    pairs = range(both.shape[1])
    positive = np.array([distance[0, 1, i, i] for i in pairs])
    swapped, anywhere, second_order = [], [], []
    for i in pairs:
        others = [j for j in pairs if j != i]
        swapped.append(min(min(distance[0, 1, i, j], distance[0, 1, j, i]) for j in others))
        anywhere.append(min(distance[v, w, i, j] for v in (0, 1) for w in (0, 1) for j in others))
        chosen = {j for v in (0, 1) for j in sorted(others, key=distance[v, v, i].__getitem__)[:k]}
        squares = [(distance[0, 0, i, j] - distance[1, 1, i, j]) ** 2 for j in chosen]
        second_order.append(np.sqrt(sum(squares)))
    return positive, np.array(swapped), np.array(anywhere), np.array(second_order)


def infonce_by_loops(anchors, positives, *, temperature):
    likely = np.exp(anchors.astype(np.float64) @ positives.T / temperature)
    losses = []
    for i in range(len(anchors)):
        among_positives = likely[i, i] / sum(likely[i])
        among_anchors = likely[i, i] / sum(likely[:, i])
        losses.append(-(np.log(among_positives) + np.log(among_anchors)) / 2)
    return np.array(losses)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_plain_loops(name, rng):
    anchors, positives = random_views(rng)
    p, n, m, second_order = loops(anchors, positives, k=5)
    raw = rng.normal(size=(2, *anchors.shape)).astype(np.float32)
    norms = np.linalg.norm(raw, axis=-1)
    expected = {
        "triplet": np.maximum(0.8 + p - n, 0),
        "softmax": -np.log(np.exp(2 - p) / (np.exp(2 - p) + np.exp(2 - n) + 1e-8)),
        "contrastive": np.maximum(0.8 - n, 0) + p,
        "infonce": infonce_by_loops(anchors, positives, temperature=0.3),
        "sosnet": np.maximum(0.8 + p - m, 0) ** 2 + second_order,
        "hynet": np.maximum(0.8 + p + 0.75 * p**2 - m - 0.75 * m**2, 0)
        + 0.2 * (norms[0] - norms[1]) ** 2,
    }
    config = LossConfig(
        name=name,
        margin=0.8,
        anchor_swap=True,
        temperature=0.3,
        neighbours=5,
        alpha=1.5,
        norm_weight=0.2,
    )
    unnormalized = (jnp.asarray(raw[0]), jnp.asarray(raw[1]))
    views = jnp.asarray(anchors), jnp.asarray(positives)
    triplets = jit_loss(*views, config, unnormalized=unnormalized)
    np.testing.assert_allclose(triplets.loss, expected[name], atol=2e-5)
    assert np.ptp(expected[name]) > 0.1


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name, rng, double_precision):
    anchors, positives = (jnp.asarray(view, jnp.float64) for view in random_views(rng, 12, 6))
    direction = jnp.asarray(rng.normal(size=(2, *anchors.shape)))

    @jax.jit
    def loss(step):
        views = anchors + step * direction[0], positives + step * direction[1]
        return pair_loss(*views, LossConfig(name=name), unnormalized=views).loss.sum()

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert abs(slope) > 0.1
    np.testing.assert_allclose(jax.grad(loss)(0.0), slope, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("degrees", [[33, 33, 33], [0, 0, 120]], ids=["all", "two"])
def test_coincident_descriptors_have_finite_losses_and_gradients(name, degrees):
    vectors = unit(degrees)

    def loss(anchors, positives):
        triplets = pair_loss(
            anchors, positives, LossConfig(name=name), unnormalized=(0 * anchors, 0 * positives)
        )
        return triplets.loss.sum()

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(vectors, vectors)
    assert jnp.isfinite(value)
    assert jnp.isfinite(jnp.stack(gradients)).all()


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_descriptors_are_compared_in_float32(name, rng):
    views = [jnp.asarray(view, jnp.bfloat16) for view in random_views(rng)]
    triplets = jit_loss(*views, LossConfig(name=name))
    in_float32 = jit_loss(*(view.astype(jnp.float32) for view in views), LossConfig(name=name))
    for value, reference in zip(triplets, in_float32, strict=True):
        assert value.dtype == jnp.float32
        np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize("name", LOSSES)
def test_a_gathered_batch_does_not_show_the_number_of_devices(name, rng):
    views = [jnp.asarray(view) for view in random_views(rng)]
    config = LossConfig(name=name, neighbour_rule="release")

    def gathered_loss(anchors, positives):
        whole = (jax.lax.all_gather(view, "batch", tiled=True) for view in (anchors, positives))
        return pair_loss(*whole, config)

    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    shards, everywhere = PartitionSpec("batch"), PartitionSpec()
    on_four = jax.jit(
        jax.shard_map(
            gathered_loss, mesh=mesh, in_specs=shards, out_specs=everywhere, check_vma=False
        )
    )
    np.testing.assert_allclose(on_four(*views).loss, jit_loss(*views, config).loss, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_the_order_of_the_pairs_does_not_matter(name, rng):
    views = [jnp.asarray(view) for view in random_views(rng)]
    order = rng.permutation(len(views[0]))
    shuffled = jit_loss(*(view[order] for view in views), LossConfig(name=name)).loss
    np.testing.assert_allclose(
        shuffled, jit_loss(*views, LossConfig(name=name)).loss[order], atol=1e-5
    )


def test_a_batch_smaller_than_the_neighbourhood():
    whole = sosnet_triplets(*TWO_VIEWS, neighbours=2).loss
    np.testing.assert_array_equal(sosnet_triplets(*TWO_VIEWS, neighbours=8).loss, whole)
    alone = sosnet_triplets(unit([0]), unit([10])).loss
    np.testing.assert_allclose(alone, 1e-3, atol=1e-6)


def test_a_missing_margin_is_the_published_one(rng):
    views = [jnp.asarray(view) for view in random_views(rng)]
    for name, margin in {"triplet": 1.0, "contrastive": 1.0, "sosnet": 1.0, "hynet": 1.2}.items():
        config = LossConfig(name=name)
        explicit = dataclasses.replace(config, margin=margin)
        other = dataclasses.replace(config, margin=margin + 0.1)
        loss = jit_loss(*views, config).loss
        np.testing.assert_array_equal(loss, jit_loss(*views, explicit).loss)
        assert not np.array_equal(loss, jit_loss(*views, other).loss)


def test_an_unknown_neighbour_rule_is_refused():
    with pytest.raises(InputError, match="unknown neighbour rule"):
        sosnet_triplets(*TWO_VIEWS, neighbour_rule="both")
