"""The PhotoTourism protocol: verification of patch pairs, scored by FPR at 95 % recall.

Train on one set, test on the others. Distances come from `kjax.metrics.pair_distances`.
"""

import functools
import math

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import betainc, betaincinv, ndtr, ndtri

from kjax.data.phototour import PatchSet
from kjax.eval.results import Curve, HardPairs, Histogram, PhototourScores
from kjax.metrics import fpr_at_recall, precision_recall_curve, roc_curve

RECALL = 0.95
SUSPICIOUS_FPR = 0.5
"""The rate above which labels or distances are swapped: even broken descriptors do better."""
_CURVE_POINTS = 200
_BINS = 80
_INTERVAL_DRAWS = 4000
_TAILS = (0.025, 0.975)
_QUANTILES = 128
_HALVINGS = 40


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
        auc=roc.auc,
        average_precision=precision_recall.average_precision,
        roc=_thinned(roc.false_positive_rate, roc.true_positive_rate),
        precision_recall=_thinned(precision_recall.recall, precision_recall.precision),
        distances=_histogram(distances, matching),
    )


def fpr_interval(
    distances: Float[np.ndarray, " pairs"], matching: Bool[np.ndarray, " pairs"]
) -> tuple[float, float]:
    """The 95 % interval in which FPR at 95 % recall lies, as far as so many pairs can tell.

    Both the threshold, a quantile of the matching distances, and the share of non-matching pairs
    below it are uncertain. Draws the quantile's place from its Beta distribution and the share from
    its own, with Jeffreys' prior, so that no false positive at all still leaves some room.
    """
    of_matches, of_others = np.sort(distances[matching]), np.sort(distances[~matching])
    rank = int(np.ceil(RECALL * len(of_matches)))
    rng = np.random.default_rng(0)
    quantiles = rng.beta(rank, len(of_matches) - rank + 1, _INTERVAL_DRAWS)
    places = np.minimum((quantiles * len(of_matches)).astype(int), len(of_matches) - 1)
    accepted = np.searchsorted(of_others, of_matches[places])
    shares = rng.beta(accepted + 0.5, len(of_others) - accepted + 0.5)
    low, high = np.quantile(shares, _TAILS)
    return float(low), float(high)


@functools.cache
def fpr_interval_of_counts(fpr: float, matching: int, non_matching: int) -> tuple[float, float]:
    """As `fpr_interval`, for when the distances are gone and only the numbers of pairs are known.

    How the share of non-matching pairs moves with the threshold must then be assumed: as if both
    kinds of distances were normal and equally wide.
    """
    rank = math.ceil(RECALL * matching)
    levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    recalls = betaincinv(rank, matching - rank + 1, levels)
    accepted = non_matching * np.asarray(ndtr(ndtri(recalls) + ndtri(fpr) - ndtri(RECALL)))
    low, high = (_mixed_quantile(accepted, non_matching, tail) for tail in _TAILS)
    return low, high


def _mixed_quantile(accepted: Float[np.ndarray, " draws"], total: int, level: float) -> float:
    """Quantile of a share of which `accepted` of `total` were seen, each draw as likely."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = np.mean(betainc(accepted + 0.5, total - accepted + 0.5, middle))
        low, high = (middle, high) if below < level else (low, middle)
    return high


def hardest_pairs(
    distances: Float[np.ndarray, " pairs"], test: PatchSet, *, descriptor: str, count: int = 6
) -> tuple[HardPairs, HardPairs]:
    """The matching pairs that are farthest apart, and the non-matching ones that are closest."""
    pairs = test.pairs

    def chosen(kind: bool) -> HardPairs:
        candidates: Int[np.ndarray, " candidates"] = np.flatnonzero(pairs.matching == kind)
        order = np.argsort(distances[candidates] * (-1 if kind else 1), kind="stable")
        worst = candidates[order[:count]]
        both = [test.patches[each[worst]] for each in (pairs.first, pairs.second)]
        return HardPairs(descriptor, test.name, kind, np.stack(both, axis=1), distances[worst])

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
