"""What an evaluation found, as plain data: made by protocols, kept as JSON, drawn by reports.

Every number is a share (0…1), not a percentage. Nothing here computes.
"""

import dataclasses
import json
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from kjax.errors import InputError
from kjax.files.json import parse_json
from kjax.files.typed_values import Schema

LEVELS = {"e": "easy", "h": "hard", "t": "tough"}
"""HPatches' three levels of geometric noise."""
NEGATIVES = ("intra", "inter")
"""Non-matching pairs from one sequence, and from two."""
MEAN = "mean"
"""Stands for both kinds of negatives where they were not kept apart."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve to draw: few enough points for a page, not for computing areas."""

    x: list[float] = dataclasses.field(default_factory=list)
    y: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of pair distances in bins that both kinds share."""

    edges: list[float] = dataclasses.field(default_factory=list)
    matching: list[int] = dataclasses.field(default_factory=list)
    non_matching: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhototourScores:
    """Verification on one PhotoTourism set.

    Attributes:
        test: name of the set.
        train: names of the sets that the descriptor was trained on, joined by +; None if it was
            not, or unknown.
        rule: how FPR@95 treats its last rank: hardnet or hynet.
        matching_pairs: how many there are.
        non_matching_pairs: how many there are.
        fpr95: false positive rate at 95 % recall; the mean over seeds where there are several.
        fpr95_interval: 95 % confidence interval of it, from the number of pairs; None if unknown.
        fpr95_std: standard deviation over seeds; None for one seed.
        fpr95_by_seed: of each seed, by its number or place; empty for one seed.
        auc: area under the ROC curve; None if unknown.
        average_precision: area under the precision–recall curve; None if unknown.
        roc: false positive rate to true positive rate; empty if not kept.
        precision_recall: recall to precision; empty if not kept.
        distances: of all pairs; empty if not kept.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class HPatchesScores:
    """The three HPatches tasks on one split.

    Attributes:
        protocol: whose rules: "python" (the official evaluator) or "matlab" (the HPatches paper's).
        split: a, b, c, full, illum, view, "abc" (their mean over a, b and c), or the name of a
            folder whose sequences were all taken.
        tasks: where pairs and queries came from, e.g. "official" or "generated, seed 42".
        sequences: how many.
        verification: average precision by level and kind of negatives; or by level the `MEAN` of
            the kinds, where only that was kept.
        verification_auc: balanced ROC area by level and kind of negatives; empty if not kept.
        matching: mean average precision by level.
        matching_by_sequence: by sequence and level, the mean over the five target images; empty if
            not kept.
        retrieval: mean average precision by level, at the protocol's headline pool.
        retrieval_by_pool: by level and pool size (decimal digits, for JSON's sake); empty if not
            kept.
        verification_map: the headline: mean over levels and kinds.
        matching_map: the headline: mean over levels (python), or levels and categories (matlab).
        retrieval_map: the headline: mean over levels.
        seeds: how many were averaged.
        map_std: standard deviations of the three headlines over seeds, by task ("verification",
            "matching", "retrieval"); empty for one seed.
        part_std: standard deviations of their parts over seeds, by task, level and kind of
            negatives ("matching/e", "verification/e/intra"); empty for one seed.
    """

    protocol: str
    split: str
    tasks: str
    sequences: int
    verification: dict[str, dict[str, float]]
    verification_auc: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    matching: dict[str, float]
    matching_by_sequence: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    retrieval: dict[str, float]
    retrieval_by_pool: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    verification_map: float
    matching_map: float
    retrieval_map: float
    seeds: int = 1
    map_std: dict[str, float] = dataclasses.field(default_factory=dict)
    part_std: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MisalignmentScores:
    """Matching of patches that are cut askew: see `kjax.eval.misalignment`.

    Attributes:
        test: name of the set that they are cut from.
        validation: whether the set decides between settings, rather than reports.
        by_level: mean average precision under HPatches' levels of noise (easy, hard, tough).
        by_amount: mean average precision by kind of misalignment (translation, rotation, scale)
            and its amount (decimal digits, for JSON's sake); empty if not measured.
        seeds: how many were averaged.
        std: standard deviations over seeds, by level, or kind and amount ("rotation/30"); empty
            for one seed.
    """

    test: str
    validation: bool
    by_level: dict[str, float]
    by_amount: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    seeds: int = 1
    std: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DescriptorResult:
    """Everything about one descriptor: a row of the tables.

    Attributes:
        name: short, unique in the evaluation, e.g. "combined_star s=2" or "RootSIFT".
        ours: whether kjax trained it or holds its architecture's weights, rather than a rival.
        source: where it came from: a workdir, a weights file, "OpenCV 5.0.0", a folder of CSVs.
        dimension: of a descriptor; None if it could not be had.
        parameters: learned ones; None if unknown or none.
        distance: "L2" or "L1" (bits count as L1: Hamming).
        missing: why it could not be had; None if it was. Then the lists below are empty.
        warnings: e.g. that some descriptors are constant or NaN.
        phototour: one entry per test set (and training set, for a train/test table).
        hpatches: one entry per protocol and split.
        misaligned: one entry per set of patches that are cut askew.
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

    def concise(self) -> "DescriptorResult":
        """Without curves, histograms and figures by sequence: short enough for a line of a file."""
        blank: Any = {"roc": Curve(), "precision_recall": Curve(), "distances": Histogram()}
        return dataclasses.replace(
            self,
            phototour=[dataclasses.replace(one, **blank) for one in self.phototour],
            hpatches=[dataclasses.replace(one, matching_by_sequence={}) for one in self.hpatches],
        )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All of one evaluation: what `results.json` holds.

    Attributes:
        title: of the report.
        command: that made it, as typed.
        created: ISO 8601 date and time, UTC.
        versions: software and hardware, by name.
        descriptors: the rows, in the order asked for.
    """

    title: str
    command: str
    created: str
    versions: dict[str, str]
    descriptors: list[DescriptorResult]

    def to_json(self) -> str:
        """As text that `from_json` reads back to an equal object."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Reads what `to_json` wrote."""
        schema = Schema(cls, "file", wrong="{value} is not right: {path} {must}")
        try:
            return schema.read(parse_json(text))
        except ValueError as error:  # an InputError, or what is no JSON
            raise InputError(f"these are not the results of an evaluation: {error}") from error


# What a report shows besides numbers; not part of results.json.


@dataclasses.dataclass(frozen=True)
class HardPairs:
    """The worst errors of one descriptor on one set, worst first.

    Attributes:
        descriptor: its name.
        test: the set's name.
        matching: True: matching pairs with the largest distances; False: non-matching pairs with
            the smallest.
        patches: both patches of each pair.
        distances: one per pair.
    """

    descriptor: str
    test: str
    matching: bool
    patches: UInt8[np.ndarray, "pairs 2 height width"]
    distances: Float[np.ndarray, " pairs"]


@dataclasses.dataclass(frozen=True)
class SimilarityFigure:
    """Similarity maps of one descriptor, drawn already.

    Attributes:
        descriptor: its name.
        png: the picture's bytes.
    """

    descriptor: str
    png: bytes


@dataclasses.dataclass(frozen=True)
class TrainingCurves:
    """A run's metrics over its steps.

    Attributes:
        name: of the descriptor.
        curves: by metric ("loss", "fpr95/…", "learning_rate", …), steps to values.
    """

    name: str
    curves: dict[str, Curve]


@dataclasses.dataclass(frozen=True)
class Illustrations:
    """Pictures' contents for a report; each list may be empty."""

    hard_pairs: list[HardPairs] = dataclasses.field(default_factory=list)
    similarity: list[SimilarityFigure] = dataclasses.field(default_factory=list)
    training: list[TrainingCurves] = dataclasses.field(default_factory=list)
