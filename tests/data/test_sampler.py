"""The stream of pairs: what each batch and each pass may and must hold."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from kjax.data import sampler

SHAPES = [(5, 5), (6, 3), (7, 3), (8, 5), (9, 5), (10, 5), (23, 5), (100, 7), (999, 512)]
SHAPES += [(1030, 512)]


def points(steps, *, seed=5, point_count, pairs):
    """Points of many steps, [steps, pairs]."""

    def one(step):
        return sampler.sample_points(seed, step, point_count=point_count, pairs=pairs)

    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(steps, jnp.uint32)))


@pytest.mark.parametrize(("point_count", "pairs"), SHAPES)
def test_every_pass_visits_every_point_once_and_no_batch_repeats_one(point_count, pairs):
    drawn = points(np.arange(5 * point_count // pairs + 40), point_count=point_count, pairs=pairs)
    assert all(len(set(batch)) == pairs for batch in drawn.tolist())
    passes = drawn.size // point_count
    in_passes = np.sort(drawn.ravel()[: passes * point_count].reshape(passes, point_count), axis=1)
    np.testing.assert_array_equal(in_passes, np.tile(np.arange(point_count), (passes, 1)))


def test_passes_are_ordered_differently_where_the_points_allow_it():
    many = points(np.arange(40), point_count=20, pairs=10).reshape(20, 20)
    few = points(np.arange(38), point_count=19, pairs=10).reshape(20, 19)
    assert len(np.unique(many, axis=0)) == 20
    # One cycle of 19 steps, in which 10 passes keep one order, then another cycle.
    assert len(np.unique(few, axis=0)) == 2


def test_counters_do_not_overflow_near_the_last_step():
    first = 4_000_000 * 1000  # passes and batches begin together every 1000 steps
    drawn = points(first + np.arange(1000), point_count=1000, pairs=7)
    in_passes = np.sort(drawn.reshape(7, 1000), axis=1)
    np.testing.assert_array_equal(in_passes, np.tile(np.arange(1000), (7, 1)))
    assert len({tuple(row) for row in drawn.reshape(7, 1000).tolist()}) == 7


def test_orders_are_even():
    """Any point at any place, and any two points in a batch, come up about equally often."""
    point_count, pairs, passes = 16, 4, 3000
    drawn = points(np.arange(passes * 4), point_count=point_count, pairs=pairs)
    places = np.zeros((point_count, point_count))
    for order in drawn.reshape(passes, point_count):
        places[np.arange(point_count), order] += 1
    expected = passes / point_count
    chi_square = ((places - expected) ** 2 / expected).sum()
    assert chi_square < 225 + 6 * np.sqrt(2 * 225)  # 15² degrees of freedom

    together = np.zeros((point_count, point_count))
    for batch in drawn:
        together[np.ix_(batch, batch)] += 1
    others = together[~np.eye(point_count, dtype=bool)]
    expected = passes * 4 * pairs * (pairs - 1) / (point_count * (point_count - 1))
    assert np.abs(others - expected).max() < 6 * np.sqrt(expected)


def table_of(*counts):
    return sampler.make_point_table(np.repeat(np.arange(len(counts)), counts))


def test_a_pair_is_two_patches_of_one_point(rng):
    point_ids = rng.permutation(np.repeat(rng.permutation(300)[:40], rng.integers(1, 6, 40)))
    table = sampler.make_point_table(point_ids)
    usable = np.flatnonzero(np.bincount(point_ids) >= 2)
    drawn = sampler.sample_pairs_on_host(table, 0, np.arange(100), pairs=8)
    assert (drawn[..., 0] != drawn[..., 1]).all()
    seen = point_ids[drawn]
    np.testing.assert_array_equal(seen[..., 0], seen[..., 1])
    assert all(len(set(batch)) == 8 for batch in seen[..., 0].tolist())
    assert set(seen.ravel()) == set(usable)


def test_all_ordered_pairs_of_a_point_come_equally_often():
    drawn = sampler.sample_pairs_on_host(table_of(3), 1, np.arange(6000), pairs=1)[:, 0]
    ordered = itertools.permutations(range(3), 2)
    counts = [int((drawn == pair).all(axis=1).sum()) for pair in ordered]
    assert sum(counts) == 6000
    assert max(abs(count - 1000) for count in counts) < 5 * np.sqrt(1000)


def test_the_stream_is_a_function_of_seed_and_step_alone():
    table = table_of(*[3] * 50)
    jitted = jax.jit(lambda t, seed, step: sampler.sample_pairs(t, seed, step, pairs=16))
    backwards = [np.asarray(jitted(table, 7, step)) for step in reversed(range(9))][::-1]
    host = sampler.sample_pairs_on_host(table, 7, np.arange(9), pairs=16)
    np.testing.assert_array_equal(np.stack(backwards), host)
    other_seed = sampler.sample_pairs_on_host(table, 8, np.arange(9), pairs=16)
    assert (other_seed != host).any(axis=(1, 2)).all()


def test_the_stream_stays_what_it_is():
    """A change here would silently change every run that is resumed or repeated."""
    drawn = sampler.sample_pairs_on_host(table_of(*[4] * 30), 2**32 - 1, np.array([0, 7]), pairs=8)
    anchors = [[76, 26, 28, 47, 9, 111, 34, 37], [34, 26, 59, 21, 36, 94, 102, 110]]
    positives = [[78, 25, 31, 46, 11, 109, 35, 38], [33, 25, 57, 23, 37, 95, 100, 108]]
    assert drawn[..., 0].tolist() == anchors
    assert drawn[..., 1].tolist() == positives


def test_points_with_a_single_patch_are_left_out():
    table = sampler.make_point_table(np.array([9, 4, 9, 5, 7, 7, 9]))
    assert [column.tolist() for column in table] == [[4, 5, 0, 2, 6], [0, 2], [2, 3]]
    assert_refused("none of the 4 points has two patches", sampler.make_point_table, np.arange(4))


def test_impossible_streams_are_refused():
    for arguments, message in (
        ({"pairs": 128}, "batch of 128 pairs .* choose a batch of 1 to 100"),
        ({"pairs": 0}, "choose a batch of 1 to 100"),
        ({"group": 4}, "not made of groups of 4"),
        *(({"seed": seed}, "seed must be from 0") for seed in (-1, 2**32)),
        ({"point_count": 20_000_003, "pairs": 512}, "32-bit counters"),
        ({"point_count": 480_369, "pairs": 16384}, "32-bit counters"),
    ):
        given = {"point_count": 100, "pairs": 10, "seed": 0, "shares": [1.0], **arguments}
        table = sampler.PointTable((), range(given.pop("point_count")), ())
        assert_refused(message, sampler.check_streams, [table], **given)
