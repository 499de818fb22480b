import jax.numpy as jnp
import numpy as np
import pytest

from kjax.data.hpatches import NOISE
from kjax.data.phototour import PatchSet
from kjax.eval.misalignment import matching_scores, noisy_set, random_maps

SIZE = 32


@pytest.fixture(scope="module")
def patch_set(tmp_path_factory) -> PatchSet:
    """Random patches, three of each of ten points, which are the same up to their grey."""
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(40, 200, (10, 16, 16)), np.ones((1, 4, 4), int))
    patches = np.concatenate([coarse, coarse + 10, coarse + 20]).astype(np.uint8)
    return PatchSet("coarse", patches, np.tile(np.arange(10), 3), tmp_path_factory.mktemp("set"))


def test_random_maps_have_the_spread_of_their_noise():
    maps = random_maps(NOISE["tough"], 20_000, np.random.default_rng(0))
    assert np.std(maps[:, :, 2]) == pytest.approx(0.26, rel=0.02)
    log_scale = np.log2(np.linalg.det(maps[:, :, :2])) / 2
    assert np.std(log_scale) == pytest.approx(0.26, rel=0.02)


def test_scores_of_perfect_and_of_shifted_descriptors(patch_set):
    made = noisy_set(patch_set, size=SIZE, points=10, group=5)
    assert made.groups == (5, 5)
    assert made.names[::5] == ("easy", "hard", "tough")
    own = np.eye(5, dtype=np.float32)
    images = np.tile(own, (32, 1, 1)).reshape(2, 16, 5, 5)
    images[:, 11:] = np.roll(images[:, 11:], 1, axis=2)  # the last five images are the tough ones
    scores = matching_scores(jnp.asarray(images.reshape(-1, 5)), made)
    assert scores == {"easy": 1.0, "hard": 1.0, "tough": 0.0}


def test_a_set_is_the_same_every_time_and_another_with_another_seed(patch_set):
    first, again = (noisy_set(patch_set, size=SIZE, points=4, group=4) for _ in range(2))
    other = noisy_set(patch_set, size=SIZE, points=4, group=4, seed=1)
    assert np.array_equal(first.patches, again.patches)
    assert not np.array_equal(first.patches, other.patches)
