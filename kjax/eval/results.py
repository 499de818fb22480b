"""Results of an evaluation as plain data, kept as JSON and drawn by reports; and their means.

Every number is a fraction (0…1), not a percentage.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, UInt8

from kjax.errors import InputError
from kjax.eval.hpatches.scores import TASKS, HPatchesScores
from kjax.files.json import parse_json
from kjax.files.typed_values import Schema


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve to draw, thinned to few points."""

    x: list[float] = dataclasses.field(default_factory=list)
    y: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of pair distances in shared bins."""

    edges: list[float] = dataclasses.field(default_factory=list)
    matching: list[int] = dataclasses.field(default_factory=list)
    non_matching: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhototourScores:
    """Verification on one PhotoTourism set.

    Attributes:
        train: names of the training sets, joined by +; None if untrained or unknown.
        rule: rule of FPR@95 for its last rank: hardnet or hynet.
        fpr95: false positive rate at 95 % recall; the mean over seeds if there are several.
        fpr95_interval: its 95 % confidence interval from the number of pairs.
        fpr95_std: standard deviation over seeds; None for one seed.
    """

    test: str
    train: str | None
    rule: str
    matching_pairs: int
    non_matching_pairs: int
    fpr95: float
    fpr95_interval: tuple[float, float] | None = None
    fpr95_std: float | None = None
    fpr95_by_seed: dict[str, float] = dataclasses.field(default_factory=dict)
    auc: float | None = None
    average_precision: float | None = None
    roc: Curve = dataclasses.field(default_factory=Curve)
    precision_recall: Curve = dataclasses.field(default_factory=Curve)
    distances: Histogram = dataclasses.field(default_factory=Histogram)

    @property
    def on_training_set(self) -> bool:
        """Whether the descriptor was trained on the test set."""
        return self.train is not None and self.test.lower() in self.train.lower().split("+")


@dataclasses.dataclass(frozen=True)
class Result:
    """Scores of one descriptor: a row of the tables.

    Attributes:
        name: short and unique in the evaluation, e.g. "combined_star s=2" or "RootSIFT".
        ours: whether it is a kjax model rather than a baseline.
        source: origin: a workdir, a weights file, "OpenCV 5.0.0", a folder of CSV files.
        parameters: number of learned parameters; None if unknown or none.
        distance: "L2" or "L1" (Hamming distance for bits).
        missing: reason why the descriptor is unavailable, or None. If set, there are no scores.
    """

    name: str
    ours: bool
    source: str
    dimension: int | None
    parameters: int | None
    distance: str
    missing: str | None
    warnings: list[str]
    phototour: list[PhototourScores]
    hpatches: list[HPatchesScores]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The content of `results.json`; `created` is an ISO 8601 date and time, UTC."""

    title: str
    command: str
    created: str
    versions: dict[str, str]
    descriptors: list[Result]

    def to_json(self) -> str:
        """Convert to text that `from_json` reads back to an equal object."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Read the text that `to_json` wrote."""
        schema = Schema(cls, "file", wrong="{value} is not right: {path} {must}")
        try:
            return schema.read(parse_json(text))
        except ValueError as error:  # an InputError, or not JSON
            raise InputError(f"these are not the results of an evaluation: {error}") from error


@dataclasses.dataclass(frozen=True)
class HardPairs:
    """The worst errors of one descriptor on one set, worst first.

    These are matching pairs with the largest distances, or non-matching ones with the smallest.
    """

    descriptor: str
    test: str
    matching: bool
    patches: UInt8[np.ndarray, "pairs 2 height width"]
    distances: Float[np.ndarray, " pairs"]


@dataclasses.dataclass(frozen=True)
class Illustrations:
    """Pictures of a report, not part of `results.json`; each field may be empty.

    Similarity maps are PNG files by the descriptors' names; training curves are by the
    descriptor's name and metric.
    """

    hard_pairs: list[HardPairs] = dataclasses.field(default_factory=list)
    similarity: dict[str, bytes] = dataclasses.field(default_factory=dict)
    training: dict[str, dict[str, Curve]] = dataclasses.field(default_factory=dict)


# Means

_AVERAGED: dict[type, tuple[str, ...]] = {
    PhototourScores: ("fpr95", "fpr95_interval", "auc", "average_precision"),
    HPatchesScores: (
        *TASKS,
        *(f"{task}_map" for task in TASKS),
        "verification_auc",
        "retrieval_by_pool",
        "matching_by_sequence",
    ),
}
"""Fields that are averaged."""

Scores = TypeVar("Scores", PhototourScores, HPatchesScores)


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
    mean = _mean_scores(scores)
    if len(scores) < 2:
        return mean
    seeds: Sequence[Any] = scores
    deviations: dict[str, Any] = {"seeds": len(scores)}
    if isinstance(mean, PhototourScores):
        rates = {str(seed): one.fpr95 for seed, one in enumerate(seeds)}
        deviations = {"fpr95_by_seed": rates, "fpr95_std": _deviation(rates.values())}
    else:
        for field, ending in (("map_std", "_map"), ("part_std", "")):
            figures = [
                _flat({task: getattr(one, f"{task}{ending}") for task in TASKS}) for one in scores
            ]
            shared = [name for name in figures[0] if all(name in one for one in figures)]
            deviations[field] = {name: _deviation(one[name] for one in figures) for name in shared}
    return dataclasses.replace(mean, **deviations)


def mean_of_splits(scores: Sequence[HPatchesScores]) -> HPatchesScores:
    """Average over splits, as papers report it over a, b and c; the result is named "abc"."""
    by_sequence: dict[str, dict[str, float]] = {}
    for one in scores:
        by_sequence |= one.matching_by_sequence
    return dataclasses.replace(
        _mean_scores(scores),
        split="".join(one.split for one in scores),
        tasks=", ".join(dict.fromkeys(one.tasks for one in scores)),
        sequences=len(by_sequence),
        matching_by_sequence=by_sequence,
    )


def _mean_scores(scores: Sequence[Scores]) -> Scores:
    """The first of the scores with the means of all."""
    names = _AVERAGED[type(scores[0])]
    means = {name: _mean([getattr(one, name) for one in scores]) for name in names}
    return dataclasses.replace(scores[0], **means)


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


def _deviation(values: Iterable[float]) -> float:
    return float(np.std(list(values), ddof=1))


def _flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Flatten nested dictionaries to paths, e.g. "matching/e"."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        path = f"{prefix}{name}"
        found |= _flat(value, f"{path}/") if isinstance(value, dict) else {path: value}
    return found
