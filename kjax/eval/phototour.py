"""The PhotoTourism protocol: verification of patch pairs, scored by FPR at 95 % recall.

Train on one set, test on the others. Distances come from `kjax.metrics.pair_distances`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, UInt8

from kjax.errors import InputError
from kjax.eval.results import Curve, HardPairs, Histogram, PhototourScores
from kjax.metrics import fpr_at_recall, precision_recall_curve, roc_curve

RECALL = 0.95
SUSPICIOUS_FPR = 0.5
"""The rate above which labels or distances are swapped: even broken descriptors do better."""
_CURVE_POINTS = 200
_BINS = 80
_INTERVAL_DRAWS = 4000


def score_pairs(
    distances: Float[np.ndarray, " pairs"],
    matching: Bool[np.ndarray, " pairs"],
    *,
    test: str,
    train: str | None = None,
    rule: str = "hardnet",
) -> PhototourScores:
    """Everything that the protocol and its report say about one descriptor on one set.

    Args:
        distances: one per pair.
        matching: whether the pair matches.
        test: name of the set.
        train: name of the set that the descriptor was trained on.
        rule: of FPR@95, see `kjax.metrics.fpr_at_recall`.
    """
    fpr = fpr_at_recall(distances, matching, recall=RECALL, rule=rule)
    roc = roc_curve(-distances, matching)
    precision_recall = precision_recall_curve(-distances, matching)
    return PhototourScores(
        test=test,
        train=train,
        rule=rule,
        matching_pairs=int(matching.sum()),
        non_matching_pairs=int((~matching).sum()),
        fpr95=fpr,
        fpr95_interval=fpr_interval(distances, matching),
        fpr95_std=None,
        auc=roc.auc,
        average_precision=precision_recall.average_precision,
        roc=_thinned(roc.false_positive_rate, roc.true_positive_rate),
        precision_recall=_thinned(precision_recall.recall, precision_recall.precision),
        distances=_histogram(distances, matching),
    )


def mean_of_seeds(scores: Sequence[PhototourScores]) -> PhototourScores:
    """Means over seeds, with the standard deviation of FPR@95; the curves are the first seed's.

    The interval is the mean of the seeds' own: how sure each is, given the pairs.
    """
    first = scores[0]
    if any(
        (one.test, one.train, one.rule) != (first.test, first.train, first.rule) for one in scores
    ):
        raise InputError("seeds can be averaged on one test set, training set and rule only")
    if len(scores) == 1:
        return first
    return dataclasses.replace(
        first,
        fpr95=float(np.mean([one.fpr95 for one in scores])),
        fpr95_std=float(np.std([one.fpr95 for one in scores], ddof=1)),
        fpr95_interval=_mean([one.fpr95_interval for one in scores]),
        auc=_mean([one.auc for one in scores]),
        average_precision=_mean([one.average_precision for one in scores]),
    )


def _mean(values: Sequence[Any]) -> Any:
    """The mean of numbers or of tuples of them; None where one is unknown."""
    if any(value is None for value in values):
        return None
    mean = np.mean(values, axis=0).tolist()
    return tuple(mean) if isinstance(mean, list) else mean


def fpr_interval(
    distances: Float[np.ndarray, " pairs"],
    matching: Bool[np.ndarray, " pairs"],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """The interval in which FPR at 95 % recall lies, as far as so many pairs can tell.

    Both the threshold, a quantile of the matching distances, and the share of non-matching pairs
    below it are uncertain. Draws the quantile's place from its Beta distribution and the share from
    its own, with Jeffreys' prior, so that no false positive at all still leaves some room.
    """
    of_matches, of_others = np.sort(distances[matching]), np.sort(distances[~matching])
    rank = int(np.ceil(RECALL * len(of_matches)))
    rng = np.random.default_rng(seed)
    quantiles = rng.beta(rank, len(of_matches) - rank + 1, _INTERVAL_DRAWS)
    places = np.minimum((quantiles * len(of_matches)).astype(int), len(of_matches) - 1)
    accepted = np.searchsorted(of_others, of_matches[places])
    shares = rng.beta(accepted + 0.5, len(of_others) - accepted + 0.5)
    low, high = np.quantile(shares, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def hardest_pairs(
    distances: Float[np.ndarray, " pairs"],
    matching: Bool[np.ndarray, " pairs"],
    patches: UInt8[np.ndarray, "patches height width"],
    first: Integer[np.ndarray, " pairs"],
    second: Integer[np.ndarray, " pairs"],
    *,
    descriptor: str,
    test: str,
    count: int = 6,
) -> tuple[HardPairs, HardPairs]:
    """The matching pairs that are farthest apart, and the non-matching ones that are closest."""

    def chosen(kind: bool) -> HardPairs:
        candidates: Int[np.ndarray, " candidates"] = np.flatnonzero(matching == kind)
        order = np.argsort(distances[candidates] * (-1 if kind else 1), kind="stable")
        worst = candidates[order[:count]]
        pairs = np.stack([patches[first[worst]], patches[second[worst]]], axis=1)
        return HardPairs(descriptor, test, kind, pairs, distances[worst])

    return chosen(True), chosen(False)


def warnings_of(scores: PhototourScores) -> list[str]:
    """What a reader should know before believing the figure."""
    if scores.fpr95 > SUSPICIOUS_FPR:
        return [
            f"FPR@95 on {scores.test} is {100 * scores.fpr95:.1f} %: worse than any working "
            "descriptor; check weights, patches and labels"
        ]
    return []


def _thinned(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> Curve:
    """A few hundred of the points, dense at both ends, where logarithmic axes look closely."""
    last = len(x) - 1
    steps = np.geomspace(1, last + 1, _CURVE_POINTS).astype(int) - 1
    kept = np.unique(np.concatenate([steps, last - steps, np.linspace(0, last, 100).astype(int)]))
    return Curve(x[kept].tolist(), y[kept].tolist())


def _histogram(
    distances: Float[np.ndarray, " pairs"], matching: Bool[np.ndarray, " pairs"]
) -> Histogram:
    edges = np.linspace(0, max(float(distances.max()), 1e-6), _BINS + 1)
    counts = [np.histogram(distances[kind], edges)[0].tolist() for kind in (matching, ~matching)]
    return Histogram(edges.tolist(), *counts)
