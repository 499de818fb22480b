"""Means over seeds, and how sure a false positive rate is: what tables and figures are made of."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import betainc, betaincinv, ndtr, ndtri

from kjax.errors import InputError
from kjax.eval.phototour import RECALL
from kjax.experiments.records import Record

BySeed = dict[int | None, float]
"""Values of one metric by seed; rivals have the seed None."""
_QUANTILES = 128
_HALVINGS = 40


class Spread(NamedTuple):
    """A mean, the standard deviation over seeds (None for one seed), and the number of seeds."""

    mean: float
    std: float | None
    seeds: int


def train_label(record: Record) -> str:
    """The training sets in one name; empty for rivals."""
    return " + ".join(record.train)


def by_seed(records: Iterable[Record], metric: str) -> BySeed:
    """A metric of the records of one model, trained on one set; what is not finite is left out.

    Raises:
        InputError: two records of one seed disagree, so they come from different experiments.
    """
    cells: dict[int | None, str] = {}
    values: BySeed = {}
    for record in records:
        value = record.metrics.get(metric, math.nan)
        if not math.isfinite(value):
            continue
        if values.get(record.seed, value) != value:
            raise InputError(
                f"records {cells[record.seed]!r} and {record.cell!r} both tell {metric} of "
                f"{record.row!r} and disagree: give the records of one experiment at a time"
            )
        values[record.seed], cells[record.seed] = value, record.cell
    return values


def by_training_set(records: Iterable[Record], metric: str) -> list[BySeed]:
    """A metric of one model, by seed for each training set that has it."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(train_label(record), []).append(record)
    return [found for group in groups.values() if (found := by_seed(group, metric))]


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
