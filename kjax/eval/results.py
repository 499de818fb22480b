"""Results of an evaluation as plain data: kept as JSON, drawn by reports.

Every number is a fraction (0…1), not a percentage.
"""

import dataclasses
import json
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from kjax.errors import InputError
from kjax.eval.hpatches.scores import HPatchesScores
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
        auc: area under the ROC curve.
        average_precision: area under the precision–recall curve.
        distances: of all pairs.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class MisalignmentScores:
    """Matching of misaligned patches: see `kjax.eval.misalignment`.

    Attributes:
        validation: whether the set selects settings rather than reports.
        by_level: mean average precision under HPatches' levels of noise (easy, hard, tough).
        by_amount: by kind of misalignment (translation, rotation, scale) and its amount.
        std: standard deviations over seeds, by level, or kind and amount ("rotation/30").
    """

    test: str
    validation: bool
    by_level: dict[str, float]
    by_amount: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    seeds: int = 1
    std: dict[str, float] = dataclasses.field(default_factory=dict)


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
        phototour: one entry per test set (and training set, for a train/test table).
        hpatches: one entry per protocol and split.
        misaligned: one entry per set of misaligned patches.
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
    misaligned: list[MisalignmentScores] = dataclasses.field(default_factory=list)

    def concise(self) -> "Result":
        """Drop curves, histograms and scores by sequence, to fit on one line of a file."""
        blank: Any = {"roc": Curve(), "precision_recall": Curve(), "distances": Histogram()}
        return dataclasses.replace(
            self,
            phototour=[dataclasses.replace(one, **blank) for one in self.phototour],
            hpatches=[dataclasses.replace(one, matching_by_sequence={}) for one in self.hpatches],
        )


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

    Attributes:
        matching: True for matching pairs with the largest distances, False for non-matching pairs
            with the smallest.
    """

    descriptor: str
    test: str
    matching: bool
    patches: UInt8[np.ndarray, "pairs 2 height width"]
    distances: Float[np.ndarray, " pairs"]


@dataclasses.dataclass(frozen=True)
class Illustrations:
    """Pictures of a report, not part of `results.json`; each field may be empty.

    Attributes:
        hard_pairs: the worst errors.
        similarity: similarity maps as PNG, by the descriptors' names.
        training: curves of metrics over steps, by the descriptor's name and metric.
    """

    hard_pairs: list[HardPairs] = dataclasses.field(default_factory=list)
    similarity: dict[str, bytes] = dataclasses.field(default_factory=dict)
    training: dict[str, dict[str, Curve]] = dataclasses.field(default_factory=dict)
