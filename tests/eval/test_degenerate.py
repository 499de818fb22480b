import numpy as np

from kjax.eval.degenerate import degeneracies, scorable


def varied(rng, count=20):
    return rng.normal(size=(16 * count, 5)).astype(np.float32)


def test_good_descriptors_give_no_warning(rng):
    rows = varied(rng)
    rows[:2] = rows[2]  # 3 of 320: fewer than 1 %
    assert degeneracies(rows) == []


def test_useless_descriptors_give_a_warning(rng):
    def warnings(change):
        rows = varied(rng)
        change(rows)
        return degeneracies(rows)

    def spoil(rows):
        rows[7, 2], rows[9, 0] = np.nan, np.inf

    def flatten(rows):
        rows[3:5] = [[2], [3]]

    def repeat(rows):
        rows[:4] = rows[4]
        rows[0] *= 1 + 1e-3  # one of them differs after all

    def negative_zero(rows):
        rows[:4] = [[0, 1, 2, 3, 4], [-0.0, 1, 2, 3, 4]] * 2

    assert warnings(spoil)[0].startswith("2 of 320 descriptors hold NaN or an infinity")
    assert warnings(lambda rows: rows.fill(0.1))[0].startswith("all descriptors are the same")
    assert warnings(flatten)[0].startswith("2 of 320 descriptors are constant")
    assert warnings(repeat)[0].startswith("4 of 320 patches share their descriptor")
    assert warnings(negative_zero)[0].startswith("4 of 320 patches share their descriptor")


def test_what_cannot_be_scored(rng):
    rows = varied(rng)
    assert scorable(rows)
    assert scorable(rows[:1])
    assert not scorable(np.ones_like(rows))
    rows[3, 1] = np.nan
    assert not scorable(rows)
