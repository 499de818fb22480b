"""A linear map learned on descriptors that are computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, random_patches
from refusals import assert_refused

from kjax.eval.misalignment import mean_precision
from kjax.model.folding import remap
from kjax.train.refitting import agreeing_directions, learn_map
from kjax.weights.info import make_metadata
from kjax.weights.source import load_source, refitted_info

SMALL = {"patch_size": 8, "channels": (4, 4, 4, 4, 8, 8)}


def random_turn(rng, dim):
    return np.linalg.qr(rng.normal(size=(dim, dim)))[0]


def matching(views, matrix, width):
    rows = (views @ matrix.astype(np.float32))[..., :width]
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    rows = jnp.asarray(rows.reshape(-1, width))
    return mean_precision(rows, [views.shape[1]], targets=len(views) - 1).mean()


def test_rotated_weights_keep_all_distances(rng):
    model, variables = make_model("combined", dimension=16, **SMALL)
    matrix = random_turn(rng, 16)
    patches = random_patches(rng, 20, 8)
    describe = jax.jit(lambda variables: model.apply(variables, patches))
    both = variables, remap(variables, matrix)
    before, after = (np.asarray(describe(one), np.float64) for one in both)
    np.testing.assert_allclose(after, before @ matrix, atol=1e-4)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-4)
    assert np.abs(after - before).max() > 0.1


@pytest.mark.parametrize("head", ["hardnet", "sum"])
def test_heads_that_do_not_end_with_a_projection_are_refused(head):
    options = SMALL | ({"dimension": 16} if head == "hardnet" else {})
    _, variables = make_model(head, **options)
    assert_refused("end with", remap, variables, np.eye(16))


@pytest.fixture
def hidden(rng):
    """Views that agree in 8 of 32 entries and nowhere else, rotated so that this is hidden."""
    points = rng.normal(size=(1, 200, 8)) + 0.3 * rng.normal(size=(4, 200, 8))
    views = np.concatenate([points, 1.5 * rng.normal(size=(4, 200, 24))], axis=-1)
    views = views @ random_turn(rng, 32)
    return (views / np.linalg.norm(views, axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.slow
def test_a_rotation_puts_what_tells_points_apart_first(hidden):
    matrix = learn_map(hidden, [6, 8], turn=True, steps=100)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(32), atol=1e-12)
    same = np.eye(32)
    assert matching(hidden, same, 8) < 0.1
    assert matching(hidden, matrix, 8) > 0.8
    assert matching(hidden, matrix, 6) > matching(hidden, agreeing_directions(hidden), 6) + 0.01
    assert matching(hidden, matrix, 32) == pytest.approx(matching(hidden, same, 32), abs=0.02)


def test_a_free_map_also_improves_whole_descriptors(hidden):
    matrix = learn_map(hidden, [8], steps=300)
    assert matching(hidden, matrix, 32) > matching(hidden, np.eye(32), 32) + 0.2
    assert matching(hidden, matrix, 8) > 0.8


def test_a_map_is_pulled_to_the_identity(hidden):
    free, pulled, held = (
        learn_map(hidden, [], pull=pull, steps=100, learning_rate=0.01)
        for pull in (1e-9, 0.03, 10.0)
    )
    away = [np.linalg.norm(matrix - np.eye(32)) for matrix in (free, pulled, held)]
    assert away[0] > 1.5 * away[1] > 15 * away[2]
    assert matching(hidden, pulled, 32) > matching(hidden, np.eye(32), 32) + 0.02


def test_the_same_seed_gives_the_same_map(hidden):
    first, second = (learn_map(hidden, [8], steps=3, seed=1) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_refitted_weights_do_not_pass_for_shipped_ones():
    info = refitted_info(load_source("fast"), "fast", nested=(64,), sets=["mine"])
    metadata = make_metadata(info)
    assert metadata["refitted from"] == "fast"
    assert "seneca" in metadata["trained on"]
    assert not {"name", "sha256 of npz", "licence", "evaluated"} & set(metadata)
