from pathlib import Path

import numpy as np
import pytest

from kjax.data.phototour import PatchSet, TestPairs
from kjax.errors import InputError
from kjax.eval.averages import mean_of_seeds
from kjax.eval.phototour import (
    fpr_interval,
    hardest_pairs,
    score_pairs,
    warnings_of,
)
from kjax.metrics import fpr_at_recall, roc_curve


def draw_pairs(seed, *, count=20_000, gap=1.0):
    """Normal distances: matches around 1, others `gap` farther."""
    rng = np.random.default_rng(seed)
    matching = rng.random(count) < 0.5
    distances = rng.normal(1 + gap * ~matching, 0.25).clip(0).astype(np.float32)
    return distances, matching


def test_scores_are_those_of_the_metrics():
    distances, matching = draw_pairs(0)
    scores = score_pairs(distances, matching, test="castle", train="fountain")
    assert scores.fpr95 == fpr_at_recall(distances, matching)
    assert scores.auc == roc_curve(-distances, matching).auc
    assert (scores.test, scores.train, scores.rule) == ("castle", "fountain", "hardnet")
    assert scores.matching_pairs == matching.sum()
    assert scores.non_matching_pairs == (~matching).sum()
    assert sum(scores.distances.matching) == matching.sum()
    assert sum(scores.distances.non_matching) == (~matching).sum()
    hynet = score_pairs(distances, matching, test="castle", rule="hynet")
    assert hynet.fpr95 == fpr_at_recall(distances, matching, rule="hynet")


def test_curves_are_thin_but_keep_their_ends_and_their_area():
    distances, matching = draw_pairs(0)
    scores = score_pairs(distances, matching, test="castle")
    for curve in (scores.roc, scores.precision_recall):
        assert len(curve.x) < 600
        assert curve.x[0] == 0
        assert curve.x[-1] == 1
    np.testing.assert_allclose(np.trapezoid(scores.roc.y, scores.roc.x), scores.auc, atol=1e-4)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    # At this gap the threshold is 1 + 1.645 σ, and a non-matching pair is below it with Φ(1.645−4).
    truth = 0.00926
    covered = 0
    for seed in range(200):
        low, high = fpr_interval(*draw_pairs(seed, count=4000))
        covered += low <= truth <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_without_a_false_positive_the_interval_still_has_room():
    low, high = fpr_interval(*draw_pairs(0, gap=20.0))
    assert 0 <= low < 1e-4 < high < 1e-3


def test_seeds_are_averaged():
    several = [score_pairs(*draw_pairs(seed), test="castle") for seed in range(3)]
    mean = mean_of_seeds(several)
    values = [one.fpr95 for one in several]
    assert mean.fpr95 == pytest.approx(np.mean(values))
    assert mean.fpr95_std == pytest.approx(np.std(values, ddof=1))
    assert mean.roc == several[0].roc
    assert mean_of_seeds(several[:1]) == several[0]
    with pytest.raises(InputError, match="one test set"):
        mean_of_seeds([several[0], score_pairs(*draw_pairs(0), test="garden")])


def test_hardest_pairs_by_hand():
    distances = np.array([0.1, 0.9, 0.5, 0.3, 0.2], np.float32)
    matching = np.array([True, True, True, False, False])
    patches = np.arange(6, dtype=np.uint8)[:, None, None] * np.ones((1, 64, 64), np.uint8)
    pairs = TestPairs(np.arange(5), np.arange(1, 6), matching)
    test = PatchSet("t", patches, np.arange(6), Path("t"), pairs)
    far, near = hardest_pairs(distances, test, descriptor="d", count=2)
    assert (far.descriptor, far.test) == ("d", "t")
    assert far.matching
    assert far.patches[:, :, 0, 0].tolist() == [[1, 2], [2, 3]]
    np.testing.assert_allclose(far.distances, [0.9, 0.5])
    assert not near.matching
    assert near.patches[:, :, 0, 0].tolist() == [[4, 5], [3, 4]]


def test_worse_than_chance_is_pointed_out():
    distances, matching = draw_pairs(0)
    assert warnings_of(score_pairs(distances, matching, test="castle")) == []
    (warning,) = warnings_of(score_pairs(-distances + 3, matching, test="castle"))
    assert "castle" in warning
