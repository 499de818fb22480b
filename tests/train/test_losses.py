import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, random_patches

from kjax.runs.config import LOSSES, LossConfig
from kjax.train.losses import (
    ViewDistances,
    distance_matrix,
    hardest_in_both_views,
    hardest_negatives,
    pair_loss,
    second_order_neighbours,
    view_distances,
)
from kjax.train.step import StepConfig, loss_and_stats

jit_loss = jax.jit(pair_loss, static_argnums=2)


def unit(degrees):
    radians = np.deg2rad(np.asarray(degrees, np.float32))
    return jnp.asarray(np.stack([np.cos(radians), np.sin(radians)], axis=1))


def chord(degrees):
    return 2 * np.sin(np.deg2rad(degrees) / 2)


ANCHORS, POSITIVES = VIEWS = unit([0, 90, 180]), unit([10, 60, 200])
ANGLES = [[10, 60, 160], [80, 30, 110], [170, 120, 20]]
OWN, OTHERS = chord([10, 30, 20]), chord([60, 80, 120])  # to positives of other pairs only
SWAPPED = chord([60, 60, 110])  # to other pairs' anchors too
# Within the views, in degrees: anchors 0 50 180, positives 20 60 65. The hardest in both views:
# pair 0's positive to anchor 1, 30°; the positives of pairs 1 and 2, 5° apart.
TWO_VIEWS = unit([0, 50, 180]), unit([20, 60, 65])
FAR, NEAR = chord([20, 10, 115]), chord([30, 5, 5])
# One neighbour: anchors' nearest 0→1, 1→0, 2→1; positives' nearest 0→1, 1→2, 2→1.
FIRST, LAST = (chord([50, 130]) - chord([40, 5])) ** 2  # between 0 and 1, between 1 and 2
RAW = jnp.asarray([[3.0, 4.0], [0, 2], [1, 0]]), jnp.asarray([[0, 4.0], [2, 0], [0, 4]])


def likely(degrees):
    return np.exp(np.cos(np.deg2rad(degrees)))


INFONCE = [
    (np.log(sum(likely(ANGLES[i]))) + np.log(sum(likely(np.transpose(ANGLES)[i])))) / 2
    - np.log(likely(ANGLES[i][i]))
    for i in range(3)
]
SOSNET = (1 + FAR - NEAR) ** 2 + np.sqrt([FIRST, FIRST + LAST, LAST])
HYNET = 1.2 + FAR**2 + FAR - NEAR**2 - NEAR + 0.1 * np.array([1, 0, 9])


@pytest.mark.parametrize(
    ("name", "options", "views", "expected", "negative"),
    [
        ("triplet", {}, VIEWS, [1 + OWN[0] - OTHERS[0], 1 + OWN[1] - OTHERS[1], 0], OTHERS),
        ("triplet", {"margin": 2.0, "anchor_swap": True}, VIEWS, 2 + OWN - SWAPPED, SWAPPED),
        ("softmax", {}, VIEWS, np.log(1 + np.exp(OWN - OTHERS)), OTHERS),
        ("softmax", {}, (unit([0, 180]), unit([90, 90])), [np.log(2)] * 2, chord([90, 90])),
        ("softmax", {"anchor_swap": True}, VIEWS, np.log(1 + np.exp(OWN - SWAPPED)), SWAPPED),
        ("contrastive", {}, VIEWS, OWN, OTHERS),
        ("contrastive", {"margin": 1.2}, VIEWS, OWN + np.array([1.2 - OTHERS[0], 0, 0]), OTHERS),
        ("infonce", {"temperature": 1.0}, VIEWS, INFONCE, OTHERS),
        ("sosnet", {"neighbours": 1}, TWO_VIEWS, SOSNET, NEAR),
        ("hynet", {}, TWO_VIEWS, HYNET, NEAR),
    ],
)
def test_values_by_hand(name, options, views, expected, negative):
    """Margins that are not given are the published ones: 1, and 1.2 for HyNet."""
    unnormalized = RAW if name == "hynet" else None
    triplets = jit_loss(*views, LossConfig(name=name, **options), unnormalized=unnormalized)
    np.testing.assert_allclose(triplets.loss, expected, atol=1e-4)
    np.testing.assert_allclose(triplets.negative, negative, atol=1e-5)


def test_distances_and_mined_negatives_by_hand():
    """A copy of a patch is never mined; a negative inside the anchors' view is."""
    np.testing.assert_allclose(distance_matrix(ANCHORS, POSITIVES), chord(ANGLES), atol=1e-5)
    distances = jnp.asarray([[0.1, 0.007, 0.9], [0.4, 0.2, 0.5], [0.3, 0.8, 0.1]])
    np.testing.assert_allclose(hardest_negatives(distances, anchor_swap=False), [0.9, 0.4, 0.3])
    np.testing.assert_allclose(hardest_negatives(distances, anchor_swap=True), [0.3, 0.4, 0.3])
    # Anchors 5° apart; every other candidate is at least 85° away.
    hardest = hardest_in_both_views(view_distances(unit([0, 5]), unit([90, -90])))
    np.testing.assert_allclose(hardest, chord([5, 5]), atol=1e-5)


def test_neighbour_rules_by_hand():
    """Both views alike within, nearest 0→1, 1→0, 2→1, 3→2. Across, 0→3 and whatever is nearer."""
    within = jnp.asarray(
        [[0, 0.1, 0.9, 1.4], [0.1, 0, 0.5, 1.3], [0.9, 0.5, 0, 0.6], [1.4, 1.3, 0.6, 0]]
    )
    across = jnp.asarray(
        [[0.3, 1.2, 1.2, 0.2], [0.4, 0.3, 1.2, 1.2], [1.2, 0.4, 0.3, 1.2], [1.2, 1.2, 0.4, 0.3]]
    )
    distances = ViewDistances(across=across, anchors=within, positives=within)
    paper = second_order_neighbours(distances, 1, "paper")
    np.testing.assert_array_equal(paper, [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    # 0–1, 1–2, 2–3 as before and 0–3 across, now each in both directions.
    release = second_order_neighbours(distances, 1, "release")
    np.testing.assert_array_equal(release, [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])


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


@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_plain_loops(name, rng):
    anchors, positives = random_views(rng)
    p, n, m, second_order = loops(anchors, positives, k=5)
    raw = rng.normal(size=(2, *anchors.shape)).astype(np.float32)
    norms = np.linalg.norm(raw, axis=-1)
    likely = np.exp(anchors.astype(np.float64) @ positives.T / 0.3)
    expected = {
        "triplet": np.maximum(0.8 + p - n, 0),
        "softmax": -np.log(np.exp(2 - p) / (np.exp(2 - p) + np.exp(2 - n) + 1e-8)),
        "contrastive": np.maximum(0.8 - n, 0) + p,
        "infonce": np.log(likely.sum(axis=0) * likely.sum(axis=1)) / 2 - np.log(np.diag(likely)),
        "sosnet": np.maximum(0.8 + p - m, 0) ** 2 + second_order,
        "hynet": np.maximum(0.8 + p + 0.75 * p**2 - m - 0.75 * m**2, 0)
        + 0.2 * (norms[0] - norms[1]) ** 2,
    }
    shared = {"margin": 0.8, "anchor_swap": True, "temperature": 0.3}
    config = LossConfig(name=name, neighbours=5, alpha=1.5, norm_weight=0.2, **shared)
    triplets = jit_loss(anchors, positives, config, unnormalized=tuple(raw))
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
        raw = 0 * anchors, 0 * positives
        return pair_loss(anchors, positives, LossConfig(name=name), unnormalized=raw).loss.sum()

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


def test_a_batch_smaller_than_the_neighbourhood():
    whole, more = (LossConfig(name="sosnet", neighbours=count) for count in (2, 8))
    losses = [jit_loss(*TWO_VIEWS, config).loss for config in (whole, more)]
    np.testing.assert_array_equal(*losses)
    np.testing.assert_allclose(jit_loss(unit([0]), unit([10]), more).loss, 1e-3, atol=1e-6)


def test_hynets_norm_term_reaches_the_loss_of_a_step(rng):
    model, variables = make_model("sum", patch_size=8, channels=(4, 4, 4, 4, 8, 8), dropout=0.0)
    pairs = jnp.asarray(random_patches(rng, 8, 8).reshape(4, 2, 8, 8))

    @jax.jit
    def losses():
        terms = (LossConfig(name="hynet", norm_weight=weight) for weight in (0.0, 0.5))
        state = variables["params"], variables["batch_stats"], pairs, jax.random.key(0)
        options = {"train": True, "normalize": False, "mutable": ["batch_stats"]}
        raw = [model.apply(variables, pairs[:, view], **options)[0] for view in (0, 1)]
        found = [loss_and_stats(*state, model=model, config=StepConfig(one))[0] for one in terms]
        return found, raw

    (without, with_norms), raw = losses()
    lengths = np.linalg.norm(raw, axis=-1)
    expected = 0.5 * np.square(lengths[0] - lengths[1]).mean()
    assert expected > 1e-3
    np.testing.assert_allclose(with_norms - without, expected, rtol=1e-3)


@pytest.mark.parametrize("name", LOSSES)
def test_excluded_pairs_are_not_negatives(name):
    views, config = (unit([0, 5, 120, 180]), unit([10, 12, 140, 200])), LossConfig(name)
    plain, itself = jit_loss(*views, config), np.eye(4, dtype=bool)
    np.testing.assert_array_equal(plain.loss, jit_loss(*views, config, excluded=itself).loss)
    close = itself.copy()
    close[0, 1] = close[1, 0] = True
    spared = jit_loss(*views, config, excluded=close)
    assert (spared.negative[:2] > plain.negative[:2] + 1).all()
    assert (spared.loss[:2] < plain.loss[:2]).all()
    np.testing.assert_allclose(spared.negative[2:], plain.negative[2:])
