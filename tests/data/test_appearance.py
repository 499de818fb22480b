"""Changes of grey values against OpenCV, scipy and NumPy."""

import dataclasses
import functools

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.fft import dctn, idctn

from kjax.data import appearance
from kjax.runs.config import AugmentConfig
from kjax.train.augment import augment_pairs

SIZE = 32
GREY = 255.0
ROUNDING = 2e-6 * GREY
ALL_ON = AugmentConfig(max_blur=1.5, max_gamma=2.0, saturation=0.2, max_noise=0.2, compression=1.0)
EFFECTS = ("max_blur", "max_gamma", "saturation", "max_noise", "compression")
OFF = AugmentConfig()


def alone(effect):
    return dataclasses.replace(OFF, **{effect: getattr(ALL_ON, effect)})


@pytest.fixture
def patch(rng):
    """Smooth enough to have both coarse and fine structure."""
    noise = rng.uniform(0, GREY, (SIZE, SIZE)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 1.0)


@pytest.fixture
def pairs(rng):
    return jnp.asarray(rng.integers(0, 256, (6, 2, SIZE, SIZE), dtype=np.uint8), jnp.float32)


@functools.partial(jax.jit, static_argnums=2)
def distorted(keys, pairs, config):
    return jax.vmap(lambda key, pair: appearance.distort_pair(key, pair, config))(keys, pairs)


@functools.partial(jax.jit, static_argnums=1)
def strengths_of(keys, config):
    return jax.vmap(lambda key: appearance.random_strengths(key, config))(keys)


blurred = jax.jit(functools.partial(appearance.blur, radius=6))
CURVES = appearance.tone_curve, appearance.saturate, appearance.compress
curved, saturated, compressed = map(jax.jit, CURVES)
KEYS = jax.random.split(jax.random.key(7), 6)


# Each effect, against an independent computation


def opencv_blur(patch, sigma, radius):
    side = 2 * radius + 1
    return cv2.GaussianBlur(patch, (side, side), sigma, borderType=cv2.BORDER_REPLICATE)


def numpy_tone(patch, gamma):
    low, high = patch.min(), patch.max()
    return low + (high - low) * ((patch - low) / (high - low)) ** gamma


def numpy_saturate(patch, dark, bright):
    low, high = patch.min(), patch.max()
    return np.clip(patch, low + dark * (high - low), high - bright * (high - low))


@pytest.mark.parametrize(
    ("effect", "reference", "strengths"),
    [
        *((blurred, lambda patch, sigma: opencv_blur(patch, sigma, 6), [s]) for s in (0.3, 1, 2)),
        *((curved, numpy_tone, [gamma]) for gamma in (0.5, 2.2)),
        (saturated, numpy_saturate, [0.2, 0.1]),
    ],
)
def test_effects_equal_opencv_and_numpy(patch, effect, reference, strengths):
    ours = np.asarray(effect(patch, *map(np.float32, strengths)))
    np.testing.assert_allclose(ours, reference(patch, *strengths), rtol=0, atol=2 * ROUNDING)
    assert (ours != patch).any()


def numpy_compress(patch, step, phase):
    """Block by block with scipy's transform."""
    size = len(patch)
    row, column = phase
    padding = [(first, 16 - first - size % 8) for first in phase]
    padded = np.pad(patch.astype(np.float64), padding, "edge")
    steps = step * appearance.LUMINANCE_TABLE / 16
    for top in range(0, len(padded) - 7, 8):
        for left in range(0, len(padded) - 7, 8):
            block = padded[top : top + 8, left : left + 8]
            rounded = np.rint(dctn(block, norm="ortho") / steps) * steps
            padded[top : top + 8, left : left + 8] = idctn(rounded, norm="ortho")
    return padded[row : row + size, column : column + size]


@pytest.mark.parametrize(("phase", "size"), [((0, 0), 32), ((3, 7), 32), ((7, 1), 20)])
def test_compression_equals_scipy_block_by_block(patch, phase, size):
    patch = patch[:size, :size]
    ours = compressed(patch, jnp.float32(13.0), jnp.array(phase))
    expected = numpy_compress(patch, np.float32(13.0), phase)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=10 * ROUNDING)


def test_compression_is_like_a_real_jpeg_of_quality_50(patch):
    grey = np.rint(patch).astype(np.uint8)
    _, file = cv2.imencode(".jpg", grey, [cv2.IMWRITE_JPEG_QUALITY, 50])
    real = cv2.imdecode(file, cv2.IMREAD_GRAYSCALE).astype(np.float32)
    # JPEG takes 128 off first, so that the mean coefficients are rounded alike.
    ours = 128 + compressed(grey.astype(np.float32) - 128, jnp.float32(16.0), jnp.zeros(2, int))
    lost = np.abs(real - grey).mean()
    assert np.abs(np.asarray(ours) - real).mean() < 0.2 * lost


def test_noise_is_white_with_the_drawn_deviation(pairs):
    config = alone("max_noise")
    added = np.asarray(distorted(KEYS, pairs, config) - pairs)
    # `distort_pair` splits its key into one for the strengths and one for the noise.
    own = np.asarray(strengths_of(jax.vmap(jax.random.split)(KEYS)[:, 0], config).noise)
    deviation = np.asarray(pairs).std(axis=(-1, -2))
    assert 0 < own.min() < own.max() <= 0.2
    np.testing.assert_allclose(added.std(axis=(-1, -2)), own * deviation, rtol=0.1)
    unit = added / added.std(axis=(-1, -2), keepdims=True)
    assert np.abs(unit.mean()) < 0.05
    assert np.abs((unit[..., 1:] * unit[..., :-1]).mean()) < 0.05
    assert np.abs((unit[:, 0] * unit[:, 1]).mean()) < 0.05  # nor do the two patches share it


def test_effects_come_in_the_order_of_a_camera(pairs):
    config = dataclasses.replace(ALL_ON, max_noise=0.0)
    ours = np.asarray(distorted(KEYS, pairs, config))
    own = jax.tree.map(np.asarray, strengths_of(jax.vmap(jax.random.split)(KEYS)[:, 0], config))
    for place in np.ndindex(6, 2):
        mine = jax.tree.map(lambda values, place=place: values[place], own)
        patch = opencv_blur(np.asarray(pairs)[place], float(mine.blur), radius=5)
        patch = numpy_saturate(numpy_tone(patch, mine.gamma), mine.dark, mine.bright)
        expected = numpy_compress(patch, mine.step * patch.std(), mine.phase)
        # A coefficient that lies just between two steps may be rounded to the other.
        near = np.abs(ours[place] - expected) < 20 * ROUNDING
        assert near.mean() > 0.9
        assert np.abs(expected - patch).mean() > 100 * ROUNDING  # or the order would not matter


# What is off


def test_nothing_is_drawn_or_computed_when_all_is_off(pairs):
    def program(config):
        augment = functools.partial(augment_pairs, size=SIZE, config=config)
        return str(jax.make_jaxpr(augment)(KEYS[0], pairs))

    never = AugmentConfig(**dataclasses.asdict(ALL_ON) | {"photometric_probability": 0.0})
    assert program(never) == program(AugmentConfig())
    assert program(AugmentConfig(max_noise=0.1)) != program(AugmentConfig())
    assert not AugmentConfig().changes_grey_values
    assert AugmentConfig().photometric_probability == 1


def test_zero_strength_is_the_identity_bit_for_bit(patch):
    patch = jnp.asarray(patch)
    zero, one = jnp.float32(0), jnp.float32(1)
    same = [blurred(patch, zero), curved(patch, one), saturated(patch, zero, zero)]
    for one in (*same, compressed(patch, zero, jnp.array([3, 5]))):
        np.testing.assert_array_equal(one, patch)


def test_effects_happen_with_their_probability_each_on_its_own(pairs):
    rare = dataclasses.replace(ALL_ON, photometric_probability=0.25)
    own = strengths_of(jax.random.split(jax.random.key(0), 1000), rare)
    drawn = [own.blur > 0, own.gamma != 1, own.dark > 0, own.noise > 0, own.step > 0]
    happens = np.stack(drawn).reshape(5, 2000)
    np.testing.assert_array_equal(own.dark > 0, own.bright > 0)
    np.testing.assert_allclose(happens.mean(axis=1), 0.25, atol=0.04)
    np.testing.assert_allclose(np.corrcoef(happens), np.eye(5), atol=0.1)
    assert abs(np.corrcoef(np.asarray(own.blur > 0).T)[0, 1]) < 0.1
    unlikely = dataclasses.replace(ALL_ON, photometric_probability=1e-9)
    np.testing.assert_array_equal(distorted(KEYS, pairs, unlikely), pairs)


def test_strengths_fill_their_ranges():
    own = jax.tree.map(np.asarray, strengths_of(jax.random.split(jax.random.key(0), 1000), ALL_ON))
    for name, highest in {"blur": 1.5, "dark": 0.2, "bright": 0.2, "noise": 0.2, "step": 1}.items():
        values = getattr(own, name) / highest
        found = [values.min(), values.mean(), values.max()]
        np.testing.assert_allclose(found, [0, 0.5, 1], 0, 0.02)
    powers = np.log2(own.gamma)
    np.testing.assert_allclose([powers.min(), powers.mean(), powers.max()], [-1, 0, 1], 0, 0.04)
    assert abs(np.corrcoef(own.dark.ravel(), own.bright.ravel())[0, 1]) < 0.1
    phases, counts = np.unique(own.phase.reshape(-1, 2), axis=0, return_counts=True)
    assert len(phases) == 64
    assert (phases.min(), phases.max()) == (0, 7)
    assert counts.min() > 10  # of 2000, a 64th each


def test_geometry_stays_as_it_was(pairs):
    @functools.partial(jax.jit, static_argnums=0)
    def augmented(config):
        return augment_pairs(jax.random.key(3), pairs, size=SIZE, config=config)

    plain = augmented(AugmentConfig())
    slight = augmented(AugmentConfig(max_noise=1e-6, saturation=1e-6))
    np.testing.assert_allclose(slight, plain, rtol=0, atol=20 * ROUNDING)
    assert (np.asarray(slight) != np.asarray(plain)).any()
    assert slight.dtype == jnp.float32


def test_a_pair_depends_on_its_own_key_and_grey_values_may_have_any_scale(pairs):
    together = distorted(KEYS, pairs, ALL_ON)
    few = distorted(KEYS[4:], pairs[4:].at[0].set(0), ALL_ON)
    np.testing.assert_allclose(few[1], together[5], rtol=0, atol=10 * ROUNDING)
    assert (np.asarray(distorted(KEYS[::-1], pairs, ALL_ON)) != np.asarray(together)).any()
    # A power of two, so that nothing is rounded otherwise.
    np.testing.assert_allclose(distorted(KEYS, pairs / 256, ALL_ON) * 256, together, rtol=1e-6)
    constant = jnp.full_like(pairs, 77.0)
    np.testing.assert_allclose(distorted(KEYS, constant, ALL_ON), constant, rtol=1e-6)
    np.testing.assert_array_equal(distorted(KEYS, 0 * pairs, ALL_ON), 0 * pairs)


def test_an_effect_is_drawn_alike_whatever_else_is_on():
    for effect, name in zip(EFFECTS, ("blur", "gamma", "dark", "noise", "step"), strict=True):
        both = (getattr(strengths_of(KEYS, one), name) for one in (alone(effect), ALL_ON))
        np.testing.assert_array_equal(*both)


# Changed appearance

RAMP = np.linspace(0, GREY, SIZE**2, dtype=np.float32).reshape(1, SIZE, SIZE)
STILL = {"occluder", "light", "shadow", "blur", "noise"}
"""Kinds that mix positions."""


def changed(draws, channels, **options):
    """The grey values that a sensor without noise gives, in NumPy or JAX."""
    change = appearance.draw_change(draws, **{"strength": 1.0, "probability": 1.0} | options)
    no_noise = np.zeros(channels.shape[1:], np.float32)
    return appearance.respond(appearance.see(channels, change), change, no_noise)


def test_numpy_and_jax_change_alike(rng):
    colours = rng.uniform(0, GREY, (3, SIZE, SIZE)).astype(np.float32)
    for draws in rng.random((20, appearance.DRAWS), np.float32):
        own = changed(draws, colours)
        assert own.std() > 0.01
        in_jax = jax.jit(changed)(jnp.asarray(draws), jnp.asarray(colours))
        np.testing.assert_allclose(own, in_jax, atol=2e-4)


def test_kinds_reorder_grey_values_unless_they_are_omitted(rng):
    draws = rng.random((300, appearance.DRAWS), np.float32)

    def orders(*more):
        slopes = (np.diff(changed(one, RAMP, without=(*STILL, *more)).ravel()) for one in draws)
        return [(bool((s >= -1e-6).all()), bool((s <= 1e-6).all())) for s in slopes]

    rises, falls = zip(*orders(), strict=True)
    assert 0.07 < np.mean(falls) < 0.2  # inverted
    assert 0.03 < 1 - np.mean(rises) - np.mean(falls) < 0.15  # folded
    assert all(rises for rises, _ in orders("inverted", "folded"))
    assert all(rises for rises, _ in orders("inverted", "folded", "channels", "gamma", "curve"))


def test_light_and_occluders_change_a_part_of_a_patch(rng):
    flat = np.concatenate([np.full((1, 16, SIZE), 50.0), np.full((1, 16, SIZE), 200.0)], axis=1)
    flat = flat.astype(np.float32)
    for kind in ("light", "shadow", "occluder"):
        without = tuple(set(appearance.KINDS) - {kind})
        shares = []
        for draws in rng.random((60, appearance.DRAWS), np.float32):
            options = {"strength": 1.0, "probability": 1.0, "without": without}
            seen = appearance.see(flat, appearance.draw_change(draws, **options))
            shares.append(np.mean(np.abs(seen - (flat[0] > 100)) > 0.02))
        untouched = np.mean(np.array(shares) == 0)
        assert abs(untouched - (1 - appearance.KINDS[kind])) < 0.25, kind
        assert 0.05 < np.mean([share for share in shares if share]) < 0.9


def test_patches_that_do_not_change_keep_their_structure(rng):
    patch = cv2.GaussianBlur(rng.uniform(0, GREY, (SIZE, SIZE)).astype(np.float32), (0, 0), 2.0)
    views = jnp.broadcast_to(patch, (2, 2, 1, SIZE, SIZE))

    def similarity(probability):
        config = AugmentConfig(appearance=1.0, appearance_probability=probability)
        own = jax.jit(lambda key: appearance.change_views(key, views, config))
        rows = [np.asarray(own(jax.random.key(i))).reshape(4, -1) for i in range(20)]
        return np.mean([[np.corrcoef(row, patch.ravel())[0, 1] for row in four] for four in rows])

    assert similarity(0.0) > 0.98
    assert similarity(1.0) < 0.8
