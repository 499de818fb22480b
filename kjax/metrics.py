"""Verification metrics: FPR at a recall, precision–recall and ROC curves, pair distances.

NumPy in, NumPy out. Distances are small for a match. The curves take scores, which are large for a
match: give them negated distances. Curves and areas follow the official HPatches evaluator: ties
keep the input's order, and areas are sums of trapezoids.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Integer, Num, Shaped

from kjax.errors import InputError, unknown_name

FPR_RULES = ("hardnet", "hynet")
METRICS = {"L2": 2, "L1": 1}
"""Distances by name, with the order of their norm."""
_SMALL = 1e-10
"""Replaces zero in a denominator, so that precision is 1 before anything is retrieved."""


class PrecisionRecall(NamedTuple):
    """One point per retrieved item, after the first point with precision 1 at recall 0."""

    precision: Float[np.ndarray, " points"]
    recall: Float[np.ndarray, " points"]
    average_precision: float
    """Area under the curve."""


class Roc(NamedTuple):
    """One point per retrieved item, after the first point (0, 0)."""

    false_positive_rate: Float[np.ndarray, " points"]
    true_positive_rate: Float[np.ndarray, " points"]
    auc: float
    """Area under the curve."""


def fpr_at_recall(
    distances: Num[np.ndarray, " pairs"],
    matching: Shaped[np.ndarray, " labels"],
    *,
    recall: float = 0.95,
    rule: str = "hardnet",
) -> float:
    """Return the false positive rate at the threshold that accepts `recall` of the matches.

    Args:
        distances: one per pair.
        matching: whether the pair matches, as booleans or as ones and zeros.
        recall: above 0, at most 1.
        rule: how the threshold is found, which matters for small sets and ties.
            `hardnet`: sort by distance, keep the order of ties (HardNet's own code does not define
            it), and count the non-matching pairs before the first rank that reaches the recall.
            `hynet`: count the non-matching pairs at most as far as the matching pair of rank
            ⌈recall·M⌉ + 1 among M; M must exceed ⌈recall·M⌉ (M ≥ 20 at recall 0.95).
    """
    distances, labels = _checked(distances, matching, "distances")
    if not 0 < recall <= 1:
        raise InputError(f"recall must lie in 0…1, zero excluded, not {recall}")
    for kind, present in (("matching", labels.any()), ("non-matching", not labels.all())):
        if not present:
            raise InputError(f"no {kind} pair: FPR at a recall needs pairs of both kinds")
    if rule == "hardnet":
        ordered = labels[np.argsort(distances, kind="stable")]
        rank = int(np.argmax(np.cumsum(ordered) >= recall * labels.sum()))
        accepted = int((~ordered[:rank]).sum())
    elif rule == "hynet":
        of_matches = np.sort(distances[labels])
        rank = math.ceil(len(of_matches) * recall)
        if rank == len(of_matches):
            raise InputError(
                f"HyNet's rule needs more than {rank} matching pairs at recall {recall}: "
                "use the hardnet rule"
            )
        accepted = int((distances[~labels] <= of_matches[rank]).sum())
    else:
        raise unknown_name("FPR rule", rule, FPR_RULES)
    return accepted / int((~labels).sum())


def precision_recall_curve(
    scores: Num[np.ndarray, " items"],
    matching: Shaped[np.ndarray, " labels"],
    *,
    positives: int | None = None,
) -> PrecisionRecall:
    """Compute the precision–recall curve and its area.

    Items with a score of −∞ are never retrieved. Without positives, recall and area are 0.

    Args:
        scores: one per item, large for a match.
        matching: whether the item is a match, as booleans or as ones and zeros.
        positives: number of matches to find, if more than `matching` holds.
    """
    true, false, positive_count, _ = _retrieved(scores, matching, positives)
    precision = np.maximum(true, _SMALL) / np.maximum(true + false, _SMALL)
    recall = true / max(positive_count, _SMALL)
    return PrecisionRecall(precision, recall, float(np.trapezoid(precision, recall)))


def roc_curve(
    scores: Num[np.ndarray, " items"],
    matching: Shaped[np.ndarray, " labels"],
    *,
    positives: int | None = None,
) -> Roc:
    """Compute the ROC curve and its area, with the arguments of `precision_recall_curve`.

    Without positives or without negatives, the undefined rate and the area are 0.
    """
    true, false, positive_count, negative_count = _retrieved(scores, matching, positives)
    true_rate = true / max(positive_count, _SMALL)
    false_rate = false / max(negative_count, _SMALL)
    return Roc(false_rate, true_rate, float(np.trapezoid(true_rate, false_rate)))


def pair_distances(
    descriptors: Num[np.ndarray, "patches dim"],
    first: Integer[np.ndarray, " pairs"],
    second: Integer[np.ndarray, " others"],
    *,
    metric: str = "L2",
    pairs_at_once: int = 1 << 16,
) -> Float32[np.ndarray, " pairs"]:
    """Compute the distance between the descriptors of each pair of patches.

    Args:
        descriptors: one row per patch.
        first: row of each pair's first patch.
        second: row of its second patch.
        metric: "L2" or "L1"; for bits, L1 is the Hamming distance.
        pairs_at_once: bounds the memory.
    """
    if metric not in METRICS:
        raise unknown_name("distance", metric, METRICS)
    if len(first) != len(second):
        raise InputError(
            f"{len(first)} first patches and {len(second)} second ones: lengths differ"
        )
    for rows in (first, second):
        if rows.size and not 0 <= rows.min() <= rows.max() < len(descriptors):
            raise InputError(
                f"pairs name patches {rows.min()} to {rows.max()}, "
                f"but there are descriptors of patches 0 to {len(descriptors) - 1}"
            )
    distances = np.empty(len(first), np.float32)
    for start in range(0, len(first), pairs_at_once):
        block = slice(start, start + pairs_at_once)
        one, other = (descriptors[rows[block]].astype(np.float32) for rows in (first, second))
        distances[block] = np.linalg.norm(one - other, ord=METRICS[metric], axis=1)
    return distances


def _retrieved(
    scores: np.ndarray, matching: np.ndarray, positives: int | None
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return true and false positives after each retrieved item, and the total of each."""
    scores, labels = _checked(scores, matching, "scores")
    positive_count = int(labels.sum())
    negative_count = len(labels) - positive_count
    if positives is not None and positives < positive_count:
        raise InputError(f"positives is {positives}, but {positive_count} items are labelled so")
    order = np.argsort(-scores, kind="stable")
    ordered = labels[order][: np.count_nonzero(scores > -np.inf)]
    true, false = (np.concatenate([[0], np.cumsum(hits)]) for hits in (ordered, ~ordered))
    return true, false, positive_count if positives is None else positives, negative_count


def _checked(
    values: np.ndarray, matching: np.ndarray, name: str
) -> tuple[Float[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
    """Return values as floats and labels as booleans; raise if they do not make sense."""
    if len(values) != len(matching):
        raise InputError(f"{len(values)} {name} but {len(matching)} labels: one of each per pair")
    if not len(values):
        raise InputError(f"no {name}: there is nothing to measure")
    if not np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float64)
    bad = int(np.isnan(values).sum())
    if bad:
        raise InputError(f"{bad} of {len(values)} {name} are NaN: check the descriptors")
    labels = matching.astype(bool)
    if not np.array_equal(labels, matching):
        raise InputError("labels must be True or False, or 1 or 0")
    return values, labels
