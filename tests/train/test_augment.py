"""Augmentation against OpenCV, scipy and itself."""

import functools

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import map_coordinates
from scipy.stats import ks_2samp

from kjax.data.hpatches import NOISE, Noise
from kjax.eval.misalignment import random_maps
from kjax.model.patches import resize_patches, warp_patch
from kjax.runs.config import AugmentConfig
from kjax.train.augment import augment_pair, augment_pairs, random_pair_matrices

GREY = 255.0
# A coordinate below 64 is a sum of three terms, each rounded by up to half of 2**-18; a pixel reads
# two of them, and neighbouring noise pixels differ by up to 255.
ROUNDING = 2 * 3 * 2.0**-19 * GREY

# Every coordinate these produce is a multiple of 1/32, to which OpenCV 4 rounds them.
KNOWN_MAPS = {
    "resize": [[2, 0, 0.5], [0, 2, 0.5]],
    "flip": [[-2, 0, 62.5], [0, 2, 0.5]],
    "transpose": [[0, 2, 0.5], [2, 0, 0.5]],
    "quarter turn": [[0, -2, 62.5], [2, 0, 0.5]],
    "turn and crop": [[1.875, -0.25, 3.5], [0.25, 1.875, -0.25]],
    "shear": [[1.75, 0.15625, 1.03125], [-0.09375, 2.0625, 2.0]],
    "over the border": [[2.5, 0.5, -12.25], [-0.5, 2.5, 9.0]],
}


@pytest.fixture
def patch(rng):
    return rng.integers(0, 256, (64, 64), dtype=np.uint8)


@pytest.fixture
def pairs(rng):
    return jnp.asarray(rng.integers(0, 256, (16, 2, 64, 64), dtype=np.uint8))


augmented = jax.jit(augment_pairs, static_argnames=("size", "config"))
resized = jax.jit(resize_patches, static_argnames=("size", "rounded"))
warped_patch = jax.jit(warp_patch, static_argnames="size")


@functools.partial(jax.jit, static_argnums=1)
def matrices_of(keys, config):
    draw = functools.partial(random_pair_matrices, shape=(64, 64), size=32, config=config)
    return jax.vmap(draw)(keys)


def draw_matrices(count, config):
    return np.asarray(matrices_of(jax.random.split(jax.random.key(5), count), config), np.float64)


@pytest.mark.parametrize("name", KNOWN_MAPS)
def test_known_maps_equal_opencv_warp_affine(patch, name):
    ours = warped_patch(patch, np.array(KNOWN_MAPS[name], np.float32), size=32)
    how = {"flags": cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, "borderMode": cv2.BORDER_REPLICATE}
    matrix = np.array(KNOWN_MAPS[name], np.float64)
    theirs = cv2.warpAffine(patch.astype(np.float32), matrix, (32, 32), **how)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


def test_random_maps_equal_exact_bilinear_sampling(pairs):
    """And a pair depends on its own key alone, not on the batch."""
    keys = jax.random.split(jax.random.key(3), len(pairs))
    matrices = matrices_of(keys, AugmentConfig())[4]
    ours = augmented(jax.random.key(3), pairs, size=32, config=AugmentConfig())[4]
    own = jax.jit(lambda key, pair: augment_pair(key, pair, size=32, config=AugmentConfig()))
    np.testing.assert_allclose(own(keys[4], pairs[4]), ours, rtol=0, atol=2 * ROUNDING)
    assert ours.dtype == jnp.float32
    rows, columns = np.mgrid[:32, :32]
    homogeneous = np.stack([columns, rows, np.ones_like(rows)]).reshape(3, -1)
    for patch, matrix, warped in zip(pairs[4], matrices, ours, strict=True):
        x, y = np.asarray(matrix, np.float64) @ homogeneous
        exact = map_coordinates(np.asarray(patch, np.float64), [y, x], order=1, mode="nearest")
        np.testing.assert_allclose(warped, exact.reshape(32, 32), rtol=0, atol=2 * ROUNDING)


@pytest.mark.parametrize("size", [16, 48])
def test_resize_equals_opencv_and_jax_and_when_rounded_bit_for_bit(rng, patch, size):
    """HardNet's test input is rounded."""
    grey = patch.astype(np.float32)
    opencv = cv2.resize(grey, (size, size), interpolation=cv2.INTER_LINEAR)
    theirs = jax.image.resize(grey, (size, size), "linear", antialias=False)
    for other in (opencv, theirs):
        np.testing.assert_allclose(resized(patch, size), other, rtol=0, atol=ROUNDING)
    patches = rng.integers(0, 256, (50, 64, 64), dtype=np.uint8)
    whole = [cv2.resize(patch, (32, 32), interpolation=cv2.INTER_LINEAR) for patch in patches]
    np.testing.assert_array_equal(resized(patches, 32, rounded=True), whole)


STILL = dict.fromkeys(("flip_probability", "transpose_probability", "max_rotation_degrees"), 0.0)
OFF = AugmentConfig(area=(1.0, 1.0), aspect_ratio=(1.0, 1.0), **STILL)


def test_off_is_the_plain_resize(pairs):
    off = augmented(jax.random.key(0), pairs, size=48, config=OFF)
    np.testing.assert_allclose(off, resized(pairs, 48), rtol=0, atol=2 * ROUNDING)


def test_flip_and_transpose_act_on_the_result_and_on_both_patches(pairs):
    def augment(flip, transpose):
        config = AugmentConfig(flip_probability=flip, transpose_probability=transpose)
        return np.asarray(augmented(jax.random.key(2), pairs, size=32, config=config))

    plain = augment(0.0, 0.0)
    for flip, transpose, expected in (
        (1.0, 0.0, plain[..., ::-1]),
        (1.0, 1.0, plain.swapaxes(-1, -2)[..., ::-1]),
    ):
        np.testing.assert_allclose(augment(flip, transpose), expected, rtol=0, atol=2 * ROUNDING)


def decompose(config, count=400):
    """Of `count` random pairs: which flip and transpose, then angle, sides and offset of crops."""
    matrices = draw_matrices(count, config)
    linear = matrices[..., :2] / 2
    transposed = np.abs(linear[..., 0, 0]) < np.abs(linear[..., 0, 1])
    linear = np.where(transposed[..., None, None], linear[..., ::-1], linear)
    flipped = np.linalg.det(linear) < 0
    linear = np.abs(linear)
    angle = np.arctan2(linear[..., 1, 0], linear[..., 0, 0])
    sides = np.linalg.norm(linear, axis=-2)
    centre = np.einsum("...ij,j->...i", matrices[..., :2], [15.5, 15.5]) + matrices[..., 2] - 31.5
    return flipped, transposed, np.rad2deg(angle), sides, centre / 64


def test_pairs_share_flips_and_differ_in_small_warps():
    flipped, transposed, angle, sides, _ = decompose(AugmentConfig())
    assert (flipped[:, 0] == flipped[:, 1]).all()
    assert (transposed[:, 0] == transposed[:, 1]).all()
    combinations, counts = np.unique(2 * flipped[:, 0] + transposed[:, 0], return_counts=True)
    assert len(combinations) == 4
    assert counts.min() > 60  # of 400, a quarter each
    assert (np.abs(angle[:, 0] - angle[:, 1]) > 1e-3).mean() > 0.99
    assert (np.abs(sides[:, 0] - sides[:, 1]) > 1e-4).any(axis=-1).mean() > 0.99


def test_ranges_are_respected_and_used():
    config = AugmentConfig(flip_probability=0.0, transpose_probability=0.0)
    _, _, angle, sides, centre = decompose(config)
    assert 4.5 < angle.max() <= 5 + 1e-3
    area, ratio = sides.prod(axis=-1), sides[..., 0] / sides[..., 1]
    assert 0.9 - 1e-5 <= area.min() < 0.91
    assert 0.98 < area.max() <= 1 + 1e-5
    assert 0.9 - 1e-5 <= ratio.min() < 0.93
    assert 1.07 < ratio.max() <= 1.1 + 1e-5
    assert sides.max() <= 1 + 1e-6
    # Before its turn by 5° at most, the crop lies within the patch.
    assert (np.linalg.norm(centre, axis=-1) <= np.linalg.norm(1 - sides, axis=-1) / 2 + 1e-6).all()
    assert np.abs(centre).max() > 0.01


def relative_maps(count, **changes):
    """Where second patches look, in half sides of the first; how these look does not matter."""
    first, second = draw_matrices(count, AugmentConfig(**changes)).swapaxes(0, 1)
    inverse = np.linalg.inv(first[:, :, :2])
    linear = inverse @ second[:, :, :2]
    centre = np.full((2, 1), 15.5)
    looked_at = second[:, :, :2] @ centre + second[:, :, 2:]
    shift = (inverse @ (looked_at - first[:, :, 2:]) - centre) / 16
    return np.concatenate([linear, shift], axis=2)


def shapes_of(maps):
    """Turn in degrees, logarithms of scale and stretch, and shift along both sides."""
    turn = np.degrees(np.arctan2(maps[:, 1, 0] - maps[:, 0, 1], maps[:, 0, 0] + maps[:, 1, 1]))
    longest, shortest = np.linalg.svd(maps[:, :, :2])[1].T
    scale, ratio = np.log2(longest * shortest) / 2, np.log2(longest / shortest)
    return np.stack([turn, scale, ratio, *maps[:, :, 2].T])


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_second_patches_have_the_noise_of_hpatches(strength):
    count = 9000
    upright = {"flip_probability": 0.0, "transpose_probability": 0.0}
    ours = relative_maps(count, misalignment=strength, **upright)
    rng = np.random.default_rng(0)
    theirs = [
        random_maps(Noise(*(strength * np.array(noise))), count // len(NOISE), rng)
        for noise in NOISE.values()
    ]
    for mine, other in zip(shapes_of(ours), shapes_of(np.concatenate(theirs)), strict=True):
        assert ks_2samp(mine, other).pvalue > 1e-3


def test_misaligned_pairs_share_their_crop():
    nearly = relative_maps(200, misalignment=1e-5)
    np.testing.assert_allclose(nearly, np.tile(np.eye(2, 3), (200, 1, 1)), atol=1e-3)
    assert np.abs(relative_maps(200, misalignment=0.0) - np.eye(2, 3)).max(axis=(1, 2)).min() > 1e-3


def test_grey_values_may_be_floats_of_any_scale(pairs):
    bytes_, floats = (
        augmented(jax.random.key(3), patches, size=32, config=AugmentConfig())
        for patches in (pairs, pairs.astype(jnp.float32) / GREY)
    )
    np.testing.assert_allclose(floats, bytes_ / GREY, rtol=0, atol=1e-5)
