"""The network: padding has no say, positions count by their differences, attention is attention."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matcher_points import points, said_by
from refusals import assert_refused

from kjax.matcher import attention
from kjax.matcher.attention import attend, attend_across, exp_quickly
from kjax.matcher.network import MatcherConfig, MatcherInput, init_params

CONFIG = MatcherConfig(layers=2, width=32, heads=2, dimension=16)


@pytest.fixture(scope="module", params=[1, 2])
def say(request):
    """What the last layer says of some points."""
    config = dataclasses.replace(CONFIG, self_every=request.param)
    params = init_params(config, jax.random.key(1))
    return jax.jit(lambda given: said_by(config, params, given))


def assert_same(first, second, counts):
    for one, other in zip(first, second, strict=True):
        for side, count in enumerate(counts):
            np.testing.assert_allclose(one[0, side, :count], other[0, side, :count], atol=2e-5)


def test_padding_has_no_say(say, rng):
    given = points(rng)
    there = np.arange(16)[None, None] < np.asarray(given.counts)[:, :, None]

    def spoilt(column):
        mask = there.reshape(there.shape + (1,) * (column.ndim - 3))
        return jnp.where(mask, column, 7.0)

    other = MatcherInput(*(spoilt(column) for column in given[:4]), given.counts)
    assert_same(say(given), say(other), (9, 12))


def test_where_a_photographs_origin_lies_makes_no_difference(say, rng):
    given = points(rng)
    shifted = given._replace(positions=given.positions + jnp.array([0.4, -0.3])[None, None, None])
    assert_same(say(given), say(shifted), (9, 12))
    stretched = given._replace(positions=given.positions * 1.5)
    assert np.abs(say(given).matchability - say(stretched).matchability).max() > 1e-3


def test_photographs_may_change_places(say, rng):
    given = points(rng)
    swapped = say(MatcherInput(*(jnp.flip(column, axis=1) for column in given)))
    assert_same(say(given), [jnp.flip(part, axis=1) for part in swapped], (9, 12))


@pytest.mark.parametrize("rows", [16, 24, 512])
def test_attention_in_blocks_is_jaxs_own(rng, rows):
    query, key, value = jnp.asarray(rng.normal(size=(3, 2, rows, 2, 8)), jnp.float32)
    counts = jnp.array([rows, 5], jnp.int32)
    expected = attend(query, key, value, counts, "xla")
    np.testing.assert_allclose(attend(query, key, value, counts, "blocked"), expected, atol=2e-6)


def test_the_quick_exponential_has_five_digits():
    x = jnp.asarray(np.append(np.linspace(-86, 0, 100_001), [-1e-9, -500.0, -np.inf]), jnp.float32)
    found, expected = jax.jit(exp_quickly)(x), np.exp(np.asarray(x, np.float64))
    # x log₂e, below 2⁷, is off by half of its last bit, and by |x| times that of log₂e.
    rtol = (2**-18 + 86 * 2**-24) * np.log(2) + 4e-7
    np.testing.assert_allclose(found[:-2], expected[:-2], rtol=rtol)
    np.testing.assert_array_less(found[-2:], 1e-37)


@pytest.mark.parametrize("length", [1, 12])
@pytest.mark.parametrize("rows", [16, 2048])
def test_looking_both_ways_at_once_is_jaxs_own(rng, rows, length):
    """Also where lengths of keys differ by so much that floats cannot hold the shared factor."""
    key, value = jnp.asarray(rng.normal(size=(2, 2, 2, rows, 2, 8)), jnp.float32)
    key = key * jnp.linspace(1, length, rows)[None, None, :, None, None]
    counts = jnp.array([[rows, 5], [7, 0]], jnp.int32)
    there = jnp.arange(rows)[None, None] < counts[:, :, None]
    _, totals = attention._attend_both_ways(key[0, :, :, 0], value[0, :, :, 0], there[0])
    assert bool((jnp.where(there[0], totals, 1) > attention._LEAST_TOTAL).all()) == (length == 1)
    expected = attend_across(key, value, counts, "xla")
    seen = attend_across(key, value, counts, "blocked")
    np.testing.assert_allclose(seen[there], expected[there], atol=2e-6 * length**2)


@pytest.mark.slow
def test_a_keypoint_may_look_at_some_of_its_own_photograph_only(rng):
    config = dataclasses.replace(CONFIG, layers=1, self_every=2)
    params = init_params(config, jax.random.key(1))
    given = points(rng)

    def others_change(keypoint):
        changed = given.descriptors.at[0, 0, keypoint].add(1.0)
        before, after = (
            said_by(config, params, given._replace(descriptors=descriptors)).matchability[0, 0]
            for descriptors in (given.descriptors, changed)
        )
        return np.abs(np.delete(np.asarray(after - before)[:9], keypoint)).max()

    assert others_change(3) < 1e-6 < 1e-4 < others_change(4)


def test_networks_that_cannot_be():
    sizes = ({"head_size": 17}, {"head_size": -2})
    for fields in ({"layers": 0}, {"width": 36}, {"width": 32, "heads": 4}, *sizes):
        assert_refused(r"^model\.", MatcherConfig, **fields)
