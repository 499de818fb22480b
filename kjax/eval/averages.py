"""Means of scores over seeds, training sets or splits, with standard deviations over seeds."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from kjax.errors import InputError
from kjax.eval.hpatches.scores import TASKS, HPatchesScores
from kjax.eval.results import MisalignmentScores, PhototourScores

_FIGURES: dict[type, tuple[str, ...]] = {
    PhototourScores: ("fpr95", "fpr95_interval", "auc", "average_precision"),
    HPatchesScores: (
        *TASKS,
        *(f"{task}_map" for task in TASKS),
        "verification_auc",
        "retrieval_by_pool",
        "matching_by_sequence",
    ),
    MisalignmentScores: ("by_level", "by_amount"),
}
"""Fields that are averaged."""

Scores = TypeVar("Scores", PhototourScores, HPatchesScores, MisalignmentScores)


def spread_over_seeds(columns: Sequence[Mapping[str, float]]) -> tuple[float, float | None]:
    """Average over columns of values by seed, and compute the deviation of the seeds' means.

    Only seeds that every column has count for the deviation; it is None for fewer than two.
    """
    mean = float(np.mean([np.mean(list(column.values())) for column in columns]))
    shared = [seed for seed in columns[0] if all(seed in column for column in columns)]
    means = [float(np.mean([column[seed] for column in columns])) for seed in shared]
    return mean, _deviation(means) if len(means) > 1 else None


def mean_of_seeds(scores: Sequence[Scores]) -> Scores:
    """Average every figure over seeds, with standard deviations; curves are the first seed's.

    The interval of FPR@95 is the mean of the seeds' own.
    """
    mean = _mean_of_figures(scores)
    if len(scores) < 2:
        return mean
    seeds: Sequence[Any] = scores
    deviations: dict[str, Any]
    if isinstance(mean, PhototourScores):
        rates = {str(seed): one.fpr95 for seed, one in enumerate(seeds)}
        deviations = {"fpr95_by_seed": rates, "fpr95_std": _deviation(rates.values())}
    elif isinstance(mean, MisalignmentScores):
        figures = [_flat({**one.by_level, **one.by_amount}) for one in seeds]
        deviations = {"seeds": len(scores), "std": _deviation_of_each(figures)}
    else:
        headlines = [{task: getattr(one, f"{task}_map") for task in TASKS} for one in scores]
        parts = [_flat({task: getattr(one, task) for task in TASKS}) for one in scores]
        deviations = {
            "seeds": len(scores),
            "map_std": _deviation_of_each(headlines),
            "part_std": _deviation_of_each(parts),
        }
    return dataclasses.replace(mean, **deviations)


def mean_of_splits(scores: Sequence[HPatchesScores]) -> HPatchesScores:
    """Average over splits, as papers report it over a, b and c; the result is named "abc"."""
    if not scores:
        raise InputError("no split to average over")
    protocols = sorted({one.protocol for one in scores})
    if len(protocols) > 1:
        raise InputError(f"scores by the {' and the '.join(protocols)} protocol cannot be averaged")
    by_sequence: dict[str, dict[str, float]] = {}
    for one in scores:
        by_sequence |= one.matching_by_sequence
    return dataclasses.replace(
        _mean_of_figures(scores),
        split="".join(one.split for one in scores),
        tasks=", ".join(dict.fromkeys(one.tasks for one in scores)),
        sequences=len(by_sequence),
        matching_by_sequence=by_sequence,
    )


def _mean_of_figures(scores: Sequence[Scores]) -> Scores:
    """The first of the scores with the means of all."""
    first = scores[0]
    settings = {
        (one.test, one.train, one.rule) for one in scores if isinstance(one, PhototourScores)
    }
    if len(settings) > 1:
        raise InputError("seeds can be averaged on one test set, training set and rule only")
    names = _FIGURES[type(first)]
    means = {name: _mean([getattr(one, name) for one in scores]) for name in names}
    return dataclasses.replace(first, **means)


def _mean(values: Sequence[Any]) -> Any:
    """Average numbers, tuples, or dictionaries entry by entry; None if a value is None."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], dict):
        keys = dict.fromkeys(key for one in values for key in one)
        return {key: _mean([one[key] for one in values if key in one]) for key in keys}
    if isinstance(values[0], tuple):
        return tuple(_mean(each) for each in zip(*values, strict=True))
    return sum(values) / len(values)


def _deviation_of_each(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    shared = [name for name in figures[0] if all(name in one for one in figures)]
    return {name: _deviation(one[name] for one in figures) for name in shared}


def _deviation(values: Iterable[float]) -> float:
    return float(np.std(list(values), ddof=1))


def _flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Flatten nested dictionaries to paths, e.g. "matching/e"."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}/")
        else:
            found[prefix + name] = value
    return found
