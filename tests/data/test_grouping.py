"""Batches that hold several points of one photograph."""

import numpy as np
import pytest

from kjax.data.grouping import by_photograph
from kjax.data.phototour import read_phototour, write_phototour
from kjax.data.sampler import make_point_table, sample_pairs_on_host
from kjax.errors import InputError

POINTS, VIEWS, PHOTOGRAPHS = 40, 2, 5


def written_set(folder, rng, *, interest=True):
    """A set whose point p is seen twice, first in photograph p % 5 and then in the next one."""
    points = np.repeat(np.arange(POINTS), VIEWS)
    patches = rng.integers(0, 256, (len(points), 64, 64), dtype=np.uint8)
    places = np.zeros((len(points), 5))
    places[:, 0] = (points + np.tile(np.arange(VIEWS), POINTS)) % PHOTOGRAPHS
    write_phototour(folder, patches, points, interest=places if interest else None)
    return read_phototour(folder, cache_dir=folder.parent / "cache", progress=False)


def test_groups_come_from_one_photograph_and_pairs_from_one_point(tmp_path, rng):
    patches = written_set(tmp_path / "set", rng)
    table = make_point_table(by_photograph(patches).point_ids)

    rows = sample_pairs_on_host(table, 3, np.arange(20), pairs=16, group=4)

    points = patches.point_ids[rows]
    np.testing.assert_array_equal(points[..., 0], points[..., 1])
    photographs = points[..., 0].reshape(20, 4, 4) % PHOTOGRAPHS
    assert (photographs == photographs[..., :1]).all()
    assert all(len(set(batch)) == 16 for batch in points[..., 0].tolist())


def test_points_of_a_photograph_are_shuffled_alike_every_time(tmp_path, rng):
    patches = written_set(tmp_path / "set", rng)

    once, again = by_photograph(patches).point_ids, by_photograph(patches).point_ids

    np.testing.assert_array_equal(once, again)
    first_photograph = np.argsort(once[::VIEWS])[: POINTS // PHOTOGRAPHS]
    assert (first_photograph % PHOTOGRAPHS == 0).all()
    assert (np.diff(first_photograph) < 0).any()


def test_a_set_without_places_is_refused(tmp_path, rng):
    patches = written_set(tmp_path / "set", rng, interest=False)

    with pytest.raises(InputError, match=r"lacks interest\.txt.*config\.train\.group=1"):
        by_photograph(patches)
