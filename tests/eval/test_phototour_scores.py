"""The PhotoTourism protocol, and warnings about degenerate descriptors."""

from pathlib import Path

import numpy as np
import pytest

from kjax.data.phototour import PatchSet, TestPairs
from kjax.eval.phototour import degeneracies, fpr_interval, hardest_pairs, scorable, score_pairs
from kjax.eval.results import mean_of_seeds
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
    assert scores.matching_pairs == matching.sum() == sum(scores.distances.matching)
    assert scores.non_matching_pairs == (~matching).sum() == sum(scores.distances.non_matching)
    hynet = score_pairs(distances, matching, test="castle", rule="hynet")
    assert hynet.fpr95 == fpr_at_recall(distances, matching, rule="hynet")
    # Thinned curves keep their ends and their area.
    for curve in (scores.roc, scores.precision_recall):
        assert len(curve.x) < 600
        assert (curve.x[0], curve.x[-1]) == (0, 1)
    np.testing.assert_allclose(np.trapezoid(scores.roc.y, scores.roc.x), scores.auc, atol=1e-4)


def test_interval_covers_the_truth_in_95_percent_of_draws():
    # At this gap the threshold is 1 + 1.645 σ, and a non-matching pair is below it with Φ(1.645−4).
    truth = 0.00926
    intervals = [fpr_interval(*draw_pairs(seed, count=4000)) for seed in range(200)]
    covered = sum(low <= truth <= high for low, high in intervals)
    assert 0.90 <= covered / 200 <= 0.99
    low, high = fpr_interval(*draw_pairs(0, gap=20.0))
    assert 0 <= low < 1e-4 < high < 1e-3, "no false positive still leaves room"


def test_seeds_are_averaged():
    several = [score_pairs(*draw_pairs(seed), test="castle") for seed in range(3)]
    mean = mean_of_seeds(several)
    values = [one.fpr95 for one in several]
    assert mean.fpr95 == pytest.approx(np.mean(values))
    assert mean.fpr95_std == pytest.approx(np.std(values, ddof=1))
    assert mean.roc == several[0].roc
    assert mean_of_seeds(several[:1]) == several[0]


def test_hardest_pairs_by_hand():
    distances = np.array([0.1, 0.9, 0.5, 0.3, 0.2], np.float32)
    matching = np.array([True, True, True, False, False])
    patches = np.arange(6, dtype=np.uint8)[:, None, None] * np.ones((1, 64, 64), np.uint8)
    pairs = TestPairs(np.arange(5), np.arange(1, 6), matching)
    test = PatchSet("t", patches, np.arange(6), Path("t"), pairs)
    far, near = hardest_pairs(distances, test, descriptor="d", count=2)
    assert (far.descriptor, far.test, far.matching, near.matching) == ("d", "t", True, False)
    assert far.patches[:, :, 0, 0].tolist() == [[1, 2], [2, 3]]
    np.testing.assert_allclose(far.distances, [0.9, 0.5])
    assert near.patches[:, :, 0, 0].tolist() == [[4, 5], [3, 4]]


def test_degenerate_descriptors_are_reported(rng):
    for rows, values, warning in (
        (slice(0, 2), "copy", None),  # 3 of 320: fewer than 1 %
        ([7, 9], [[np.nan], [np.inf]], "2 of 320 descriptors hold NaN or infinity"),
        (slice(None), 0.1, "all descriptors are the same"),
        (slice(3, 5), [[2], [3]], "2 of 320 descriptors are constant"),
        (slice(0, 3), "copy", "4 of 320 patches share their descriptor"),
        (slice(0, 4), [[0, 1, 2, 3, 4], [-0.0, 1, 2, 3, 4]] * 2, "4 of 320 patches share"),
    ):
        descriptors = rng.normal(size=(320, 5)).astype(np.float32)
        descriptors[rows] = descriptors[4] if values == "copy" else values
        found = degeneracies(descriptors)
        assert [line[: len(warning or "")] for line in found] == ([warning] if warning else [])
        broken = warning is not None and ("NaN" in warning or "all" in warning)
        assert scorable(descriptors) == (not broken)
        assert scorable(np.ones((1, 5), np.float32))
