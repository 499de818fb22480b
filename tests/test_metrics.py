import json
from pathlib import Path

import numpy as np
import pytest
from refusals import assert_refused

from kjax import metrics

GOLDEN = json.loads((Path(__file__).parent / "golden" / "metrics.json").read_text())


def generated(case):
    """The distances and labels of a golden case, by the recipe in the golden file."""
    rng = np.random.default_rng(case["seed"])
    matching = rng.normal(0.8, 0.2, case["npos"])
    others = rng.normal(1.3, 0.2, case["nneg"])
    distances = np.abs(np.concatenate([matching, others]))
    labels = np.concatenate([np.ones(case["npos"]), np.zeros(case["nneg"])])
    if case["mode"] == "rounded":
        distances = np.round(distances, 2)
    order = rng.permutation(len(distances))
    distances, labels = distances[order], labels[order]
    np.testing.assert_allclose(distances[:5], case["first5"], rtol=1e-12)
    np.testing.assert_array_equal(labels[:5], case["first5_labels"])
    assert distances.sum() == pytest.approx(case["sum_distances"], rel=1e-12)
    return distances, labels


@pytest.mark.parametrize("case", GOLDEN["fpr95"]["cases"], ids=lambda case: f"seed{case['seed']}")
def test_fpr_of_the_reference_codes_exactly(case):
    distances, labels = generated(case)
    assert metrics.fpr_at_recall(distances, labels) == case["hardnet_stable"]
    assert metrics.fpr_at_recall(distances, labels, rule="hynet") == case["hynet"]
    if case["mode"] == "plain":
        assert metrics.fpr_at_recall(distances, labels) == case["hardnet"]


def test_hardnets_own_order_lies_between_the_extremes_of_the_ties():
    """numpy's default sort leaves equal distances in any order; ours in the order given."""
    case = next(case for case in GOLDEN["fpr95"]["cases"] if case["mode"] == "rounded")
    distances, labels = generated(case)
    matches_first, matches_last = np.argsort(-labels, kind="stable"), np.argsort(labels)
    lowest, highest = (
        metrics.fpr_at_recall(distances[order], labels[order])
        for order in (matches_first, matches_last)
    )
    assert lowest < case["hardnet"] < highest
    assert lowest < case["hardnet_stable"] < highest


@pytest.mark.parametrize("case", GOLDEN["pr_roc"]["cases"], ids=lambda case: case["name"])
def test_curves_of_the_official_evaluator(case):
    scores, labels = np.array([float(x) for x in case["scores"]]), np.array(case["labels"])
    curve = metrics.precision_recall_curve(scores, labels, positives=case["numpos"])
    np.testing.assert_allclose(curve.precision, case["precision"], atol=1e-12)
    np.testing.assert_allclose(curve.recall, case["recall"], atol=1e-12)
    assert curve.average_precision == pytest.approx(case["ap"], abs=1e-12)
    roc = metrics.roc_curve(scores, labels, positives=case["numpos"])
    np.testing.assert_allclose(roc.false_positive_rate, case["fpr"], atol=1e-12)
    np.testing.assert_allclose(roc.true_positive_rate, case["tpr"], atol=1e-12)
    assert roc.auc == pytest.approx(case["auc"], abs=1e-12)


# Sorted: m n m m n n m n
DISTANCES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
MATCHING = np.array([True, False, True, True, False, False, True, False])


def test_rules_by_hand():
    """HyNet's threshold is the next matching pair after the recall is reached."""
    for recall, expected in ((0.25, 0), (0.5, 1 / 4), (0.75, 1 / 4), (1.0, 3 / 4)):
        assert metrics.fpr_at_recall(DISTANCES, MATCHING, recall=recall) == expected
    for recall, expected in ((0.25, 1 / 4), (0.5, 1 / 4), (0.75, 3 / 4)):
        assert metrics.fpr_at_recall(DISTANCES, MATCHING, recall=recall, rule="hynet") == expected


def test_ties_by_rule():
    """All equal: HardNet's rule follows the input's order, HyNet's accepts every pair."""
    distances = np.ones(40)
    matches_first = np.arange(40) < 20
    assert metrics.fpr_at_recall(distances, matches_first, recall=0.9) == 0
    assert metrics.fpr_at_recall(distances, ~matches_first, recall=0.9) == 1
    for matching in (matches_first, ~matches_first):
        assert metrics.fpr_at_recall(distances, matching, recall=0.9, rule="hynet") == 1


def test_perfect_and_reversed_distances():
    matching = np.arange(200) < 100
    distances = np.arange(200, dtype=np.float32)
    for rule in metrics.FPR_RULES:
        assert metrics.fpr_at_recall(distances, matching, rule=rule) == 0
        assert metrics.fpr_at_recall(-distances, matching, rule=rule) == 1
    assert metrics.roc_curve(-distances, matching).auc == 1
    assert metrics.roc_curve(distances, matching).auc == 0


def test_labels_of_any_kind_give_the_same_rate_and_whole_numbers_are_distances_too():
    for dtype in (bool, np.int64, np.uint8, np.float32):
        assert metrics.fpr_at_recall(DISTANCES, MATCHING.astype(dtype), recall=1.0) == 3 / 4
    hamming = np.array([3, 1, 2, 7], np.uint8)
    assert metrics.fpr_at_recall(hamming, np.array([1, 1, 0, 0])) == 1 / 2
    # Negated as they are, unsigned scores would turn round at zero.
    assert metrics.roc_curve(np.array([2, 1, 0], np.uint8), np.array([1, 1, 0])).auc == 1


def test_auc_is_the_share_of_correctly_ordered_pairs(rng):
    matching = rng.random(300) < 0.4
    scores = rng.normal(size=300) + matching
    ordered = scores[matching][:, None] > scores[~matching][None, :]
    assert metrics.roc_curve(scores, matching).auc == pytest.approx(ordered.mean(), abs=1e-12)


def test_nothing_retrieved():
    curve = metrics.precision_recall_curve(np.full(3, -np.inf), np.array([1, 0, 1]))
    np.testing.assert_array_equal(curve.precision, [1])
    assert curve.average_precision == 0


MEASURES = [metrics.fpr_at_recall, metrics.precision_recall_curve, metrics.roc_curve]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        ([0.1, 0.2, 0.3], [1, 0], "^3 (distances|scores) but 2 labels"),
        ([0.1, np.nan, np.nan], [1, 0, 1], "^2 of 3 (distances|scores) are NaN"),
        ([0.1, 0.2], [1, 2], "^labels must be True or False"),
        ([], [], "^no (distances|scores)"),
    ],
)
def test_bad_input_is_refused_in_one_line(measure, values, labels, message):
    assert_refused(message, measure, np.array(values, float), np.array(labels, float))


@pytest.mark.parametrize("rule", metrics.FPR_RULES)
def test_pairs_of_one_kind_are_refused(rule):
    distances = np.arange(30.0)
    assert_refused("no non-matching pair", metrics.fpr_at_recall, distances, np.ones(30), rule=rule)
    assert_refused("no matching pair", metrics.fpr_at_recall, distances, np.zeros(30), rule=rule)


def test_hynets_rule_refuses_too_few_matches():
    distances = np.arange(40.0)
    few = distances, distances < 19
    message = "needs more than 19 matching pairs"
    assert_refused(message, metrics.fpr_at_recall, *few, rule="hynet")
    assert metrics.fpr_at_recall(distances, distances < 20, rule="hynet") == 0


def test_other_bad_options_are_refused():
    for measure, options, message in (
        (metrics.fpr_at_recall, {"rule": "hynets"}, "unknown FPR rule 'hynets': did you mean 'hyn"),
        *((metrics.fpr_at_recall, {"recall": r}, "recall must lie in") for r in (0.0, 1.5, np.nan)),
        (metrics.roc_curve, {"positives": 1}, "positives is 1, but 4 items"),
    ):
        assert_refused(message, measure, DISTANCES, MATCHING, **options)


def test_pair_distances_by_hand():
    descriptors = np.array([[0, 0], [3, 4], [0, 1]], np.float32)
    first, second = np.array([0, 1, 2, 0, 1]), np.array([1, 1, 0, 2, 0])
    for pairs_at_once in (1, 2, 5, 100):
        distances = metrics.pair_distances(descriptors, first, second, pairs_at_once=pairs_at_once)
        np.testing.assert_array_equal(distances, np.float32([5, 0, 1, 1, 5]))
    # Binary descriptors do not wrap round.
    distances = metrics.pair_distances(np.array([[0], [1]], np.uint8), np.array([0]), np.array([1]))
    np.testing.assert_array_equal(distances, [1])


def test_pairs_of_missing_patches_are_refused():
    for rows, message in (
        *((rows, "there are descriptors of patches 0 to 1") for rows in ([0, 2], [-1, 0])),
        ([0], "2 first patches and 1 second"),
    ):
        given = np.zeros((2, 4)), np.array([0, 1]), np.array(rows)
        assert_refused(message, metrics.pair_distances, *given)


def test_nan_descriptors_reach_the_metrics_as_one_line():
    descriptors = np.array([[0.0], [np.nan], [1.0]])
    distances = metrics.pair_distances(descriptors, np.array([0, 0, 1]), np.array([1, 2, 2]))
    message = "2 of 3 distances are NaN: check the descriptors"
    assert_refused(message, metrics.fpr_at_recall, distances, np.array([1, 0, 1]))
