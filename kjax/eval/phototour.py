"""The PhotoTourism protocol: verification of patch pairs, scored by FPR at 95 % recall.

Train on one set, test on the others. Distances come from `kjax.metrics.pair_distances`.
"""

import collections

import numpy as np
from jaxtyping import Bool, Float, Float32

from kjax.data.phototour import PatchSet
from kjax.eval.results import Curve, HardPairs, Histogram, PhototourScores
from kjax.metrics import fpr_at_recall, precision_recall_curve, roc_curve

RECALL = 0.95
MANY_DUPLICATES = 0.01
"""Fraction of patches with a shared descriptor that is worth a warning."""
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
    """Score one descriptor on one set; `rule` as in `kjax.metrics.fpr_at_recall`."""
    roc = roc_curve(-distances, matching)
    precision_recall = precision_recall_curve(-distances, matching)
    edges = np.linspace(0, max(float(distances.max()), 1e-6), _BINS + 1)
    counts = [np.histogram(distances[kind], edges)[0].tolist() for kind in (matching, ~matching)]
    return PhototourScores(
        test=test,
        train=train,
        rule=rule,
        matching_pairs=int(matching.sum()),
        non_matching_pairs=int((~matching).sum()),
        fpr95=fpr_at_recall(distances, matching, recall=RECALL, rule=rule),
        fpr95_interval=fpr_interval(distances, matching),
        auc=roc.auc,
        average_precision=precision_recall.average_precision,
        roc=_thinned(roc.false_positive_rate, roc.true_positive_rate),
        precision_recall=_thinned(precision_recall.recall, precision_recall.precision),
        distances=Histogram(edges.tolist(), *counts),
    )


def fpr_interval(
    distances: Float[np.ndarray, " pairs"], matching: Bool[np.ndarray, " pairs"]
) -> tuple[float, float]:
    """Estimate the 95 % confidence interval of FPR at 95 % recall from the number of pairs.

    Both the threshold, a quantile of the matching distances, and the fraction of non-matching
    pairs below it are uncertain. The quantile's rank is drawn from its Beta distribution, the
    fraction from its own with Jeffreys' prior.
    """
    of_matches, of_others = np.sort(distances[matching]), np.sort(distances[~matching])
    rank = int(np.ceil(RECALL * len(of_matches)))
    rng = np.random.default_rng(0)
    quantiles = rng.beta(rank, len(of_matches) - rank + 1, _INTERVAL_DRAWS)
    places = np.minimum((quantiles * len(of_matches)).astype(int), len(of_matches) - 1)
    accepted = np.searchsorted(of_others, of_matches[places])
    shares = rng.beta(accepted + 0.5, len(of_others) - accepted + 0.5)
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def hardest_pairs(
    distances: Float[np.ndarray, " pairs"], test: PatchSet, *, descriptor: str, count: int = 6
) -> list[HardPairs]:
    """Select the farthest matching pairs and the closest non-matching pairs."""
    found = []
    for kind, sign in ((True, -1), (False, 1)):
        candidates = np.flatnonzero(test.pairs.matching == kind)
        order = np.argsort(sign * distances[candidates], kind="stable")
        worst = candidates[order[:count]]
        sides = [test.patches[each[worst]] for each in (test.pairs.first, test.pairs.second)]
        both = np.stack(sides, axis=1)
        found.append(HardPairs(descriptor, test.name, kind, both, distances[worst]))
    return found


def _thinned(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> Curve:
    """Keep a few hundred points, dense at both ends, which logarithmic axes magnify."""
    last = len(x) - 1
    steps = np.geomspace(1, last + 1, _CURVE_POINTS).astype(int) - 1
    kept = np.unique(np.concatenate([steps, last - steps, np.linspace(0, last, 100).astype(int)]))
    return Curve(x[kept].tolist(), y[kept].tolist())


# Degenerate descriptors


def scorable(rows: Float32[np.ndarray, "rows dim"]) -> bool:
    """Whether descriptors are finite and not all equal, so that a score means something."""
    return bool(np.isfinite(rows).all()) and (len(rows) < 2 or bool((rows != rows[0]).any()))


def degeneracies(rows: Float32[np.ndarray, "rows dim"]) -> list[str]:
    """List warnings about descriptors that are not finite, constant or duplicated.

    The official rules forgive ties: in retrieval, a constant descriptor finds everything.
    """
    total = len(rows)
    broken = int((~np.isfinite(rows).all(axis=1)).sum())
    if broken:
        return [f"{broken} of {total} descriptors hold NaN or infinity: they cannot be scored"]
    if not scorable(rows):
        return ["all descriptors are the same: they cannot be scored"]
    warnings = []
    flat = int((rows == rows[:, :1]).all(axis=1).sum()) if rows.shape[1] > 1 else 0
    if flat:
        warnings.append(f"{flat} of {total} descriptors are constant: all their values are equal")
    # Adding zero gives -0 and 0, which are equal, the same bits.
    copies = collections.Counter(hash((row + np.float32(0)).tobytes()) for row in rows)
    duplicates = sum(count for count in copies.values() if count > 1)
    if duplicates > MANY_DUPLICATES * total:
        warnings.append(
            f"{duplicates} of {total} patches share their descriptor with another: ties count as "
            "found in retrieval, so scores may be too high"
        )
    return warnings
