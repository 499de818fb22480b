"""Means over seeds, and how sure a false positive rate is: what tables and figures are made of."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import betainc, betaincinv, ndtr, ndtri

from kjax.eval.phototour import RECALL

BySeed = dict[int | None, float]
"""Values of one figure by seed; rivals have the seed None."""
_QUANTILES = 128
_HALVINGS = 40


class Spread(NamedTuple):
    """A mean, the standard deviation over seeds (None for one seed), and the number of seeds."""

    mean: float
    std: float | None
    seeds: int


def spread_over_seeds(columns: Sequence[BySeed]) -> Spread | None:
    """The mean over columns and seeds; the deviation is that of each seed's mean over columns.

    Only seeds that every column has tell the deviation. None without any value.
    """
    columns = [column for column in columns if column]
    if not columns:
        return None
    mean = float(np.mean([np.mean(list(column.values())) for column in columns]))
    shared = [seed for seed in columns[0] if all(seed in column for column in columns)]
    means = [np.mean([column[seed] for column in columns]) for seed in shared]
    std = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return Spread(mean, std, len(shared))


def pooled_std(first: Spread, second: Spread) -> float | None:
    """The common standard deviation of two groups; None if neither has one."""
    weighted = [(one.seeds - 1, one.std**2) for one in (first, second) if one.std is not None]
    if not weighted:
        return None
    return math.sqrt(sum(n * variance for n, variance in weighted) / sum(n for n, _ in weighted))


def fpr_interval_of_counts(
    fpr: float, matching: int, non_matching: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Between which values FPR at 95 % recall lies, as far as so many pairs can tell.

    As `kjax.eval.phototour.fpr_interval`, for when the distances are gone: the threshold is a
    quantile of the matching distances, whose place follows a Beta distribution, and the share of
    non-matching pairs below it another, with Jeffreys' prior. How the share moves with the
    threshold must then be assumed: as if both kinds of distances were normal and equally wide.
    """
    rank = math.ceil(RECALL * matching)
    levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    recalls = betaincinv(rank, matching - rank + 1, levels)
    accepted = non_matching * np.asarray(ndtr(ndtri(recalls) + ndtri(fpr) - ndtri(RECALL)))
    return (
        _mixed_quantile(accepted, non_matching, (1 - confidence) / 2),
        _mixed_quantile(accepted, non_matching, (1 + confidence) / 2),
    )


def _mixed_quantile(accepted: Float[np.ndarray, " draws"], total: int, level: float) -> float:
    """Quantile of a share of which `accepted` of `total` were seen, each draw as likely."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = np.mean(betainc(accepted + 0.5, total - accepted + 0.5, middle))
        low, high = (middle, high) if below < level else (low, middle)
    return high
