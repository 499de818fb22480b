"""Rows of tables: which records belong together, which of their numbers, and cells of the means."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kjax.errors import InputError
from kjax.eval.report.page_parts import TableCell
from kjax.eval.report.phrases import NOTHING
from kjax.eval.report.table_cells import share_cell
from kjax.eval.results import HPatchesScores, MisalignmentScores
from kjax.experiments.records import Record
from kjax.experiments.statistics import BySeed, Spread, spread_over_seeds

TASKS = ("verification", "matching", "retrieval")
"""Of HPatches."""


class Figure(NamedTuple):
    """One number among a record's scores: its name, and how to find it; None if it is not there."""

    name: str
    of: Callable[[Record], float | None]

    def by_seed(self, records: Iterable[Record]) -> BySeed:
        """Its values in the records of one model, trained on one set; finite ones only.

        Raises:
            InputError: two records of one seed disagree, so they come from different experiments.
        """
        names: dict[int | None, str] = {}
        values: BySeed = {}
        for record in records:
            value = self.of(record)
            if value is None or not math.isfinite(value):
                continue
            if values.get(record.seed, value) != value:
                raise InputError(
                    f"records {names[record.seed]!r} and {record.name!r} both tell {self.name} of "
                    f"{record.row!r} and disagree: give the records of one experiment at a time"
                )
            values[record.seed], names[record.seed] = value, record.name
        return values

    def spread(self, records: Iterable[Record]) -> Spread | None:
        """The mean over training sets and seeds of one model's records."""
        return spread_over_seeds([self.by_seed(group) for group in by_train(records)])


def fpr95(test: str) -> Figure:
    """The false positive rate at 95 % recall on one test set."""

    def find(record: Record) -> float | None:
        return next((one.fpr95 for one in record.result.phototour if one.test == test), None)

    return Figure(f"FPR@95 on {test}", find)


def on_hpatches(record: Record, split: str, rule: str) -> HPatchesScores | None:
    """A record's scores on one split, by one protocol's rules."""
    wanted = (split, rule)
    found = (one for one in record.result.hpatches if (one.split, one.protocol) == wanted)
    return next(found, None)


def hpatches(split: str, rule: str, task: str, level: str | None = None) -> Figure:
    """A task's headline, or its part of one level (e, h or t)."""

    def find(record: Record) -> float | None:
        scores = on_hpatches(record, split, rule)
        if scores is None:
            return None
        if level is None:
            return float(getattr(scores, f"{task}_map"))
        part = getattr(scores, task)[level]
        return float(np.mean(list(part.values()))) if isinstance(part, dict) else part

    return Figure(f"{task} on HPatches, {split}, {rule} rules", find)


def askew(record: Record, *, validation: bool = False) -> Iterable[MisalignmentScores]:
    """A record's scores on misaligned patches: the reported ones, or those that decide."""
    return (one for one in record.result.misaligned if one.validation == validation)


def noisy(test: str | None = None, level: str | None = None) -> Figure:
    """Matching under noise on a set, or on the validation set: the mean, or one level (easy, …)."""

    def find(record: Record) -> float | None:
        for one in askew(record, validation=test is None):
            if test in (None, one.test) and one.by_level:
                values = list(one.by_level.values())
                return float(np.mean(values)) if level is None else one.by_level.get(level)
        return None

    return Figure(f"matching on {test or 'the validation pairs'}", find)


def misaligned(kind: str, amount: str) -> Figure:
    """Matching with one kind of misalignment, by one amount."""

    def find(record: Record) -> float | None:
        found = (one.by_amount.get(kind, {}).get(amount) for one in askew(record))
        return next((value for value in found if value is not None), None)

    return Figure(f"matching under {kind} by {amount}", find)


class Model(NamedTuple):
    """A row of a table: its name, and the records of it."""

    name: str
    records: list[Record]

    @property
    def trained(self) -> bool:
        """Whether it is ours; rivals were trained elsewhere, or not at all."""
        return bool(self.records[0].train)

    @property
    def parameters(self) -> int | None:
        """Learned ones."""
        return self.records[0].result.parameters


def models_of(records: Iterable[Record], scored: Callable[[Record], object]) -> list[Model]:
    """The rows of the records that are scored, in the order met. Ablations' rows name no models.

    A rival that is called like one of ours is told apart by its name.
    """
    found: dict[tuple[str, bool], Model] = {}
    for record in records:
        if not record.group and scored(record):
            key = (record.row, bool(record.train))
            found.setdefault(key, Model(record.row, [])).records.append(record)
    return [
        Model(f"{model.name} (rival)", model.records)
        if not model.trained and (model.name, True) in found
        else model
        for model in found.values()
    ]


def verified(records: Iterable[Record]) -> list[Model]:
    """The models that have false positive rates."""
    return models_of(records, lambda record: record.result.phototour)


def jittered(records: Iterable[Record]) -> list[Model]:
    """The models that were matched with known misalignments."""
    return models_of(records, lambda record: any(one.by_amount for one in askew(record)))


def spread_cell(spread: Spread | None, digits: int = 2) -> TableCell:
    """A mean share in per cent with its deviation."""
    if spread is None:
        return TableCell(NOTHING)
    return share_cell(spread.mean, std=spread.std, digits=digits)


def seeds_words(models: Iterable[Model]) -> str:
    """What ± means, if it appears."""
    seeds = {record.seed for model in models for record in model.records if model.trained}
    return f", mean ± standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else ""


def by_train(records: Iterable[Record]) -> Sequence[list[Record]]:
    """The records apart by their training sets, in the order met."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.train_label, []).append(record)
    return list(groups.values())
