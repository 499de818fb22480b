"""The records of a model, its seeds and training sets, as one result: means, and their spread."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from experiments.records import Record
from kjax.errors import InputError
from kjax.eval.averages import mean_of_columns
from kjax.eval.results import (
    MEAN,
    DescriptorResult,
    HPatchesScores,
    MisalignmentScores,
    PhototourScores,
)

Scores = TypeVar("Scores", PhototourScores, HPatchesScores, MisalignmentScores)


def model_results(records: Iterable[Record], *, apart: bool = False) -> list[DescriptorResult]:
    """A result for each model, in the order met. Ablations' rows name no models.

    A rival that is called like one of ours is told apart by its name.

    Args:
        records: of one experiment, and of rivals.
        apart: a result for each training set of a model instead, named after both where there are
            several.

    Raises:
        InputError: two records of one seed disagree, so they come from different experiments.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if not record.group:
            key = record.train_label if apart or not record.train else "ours"
            groups.setdefault((record.row, key), []).append(record)
    ours = {row for row, train in groups if train}
    sets = {train for _, train in groups if train}

    def name(row: str, train: str) -> str:
        if not train:
            return f"{row} (rival)" if row in ours else row
        return f"{row}, {train}" if len(sets) > 1 else row

    return [mean_result(name(*key), group) for key, group in groups.items()]


def mean_result(name: str, records: Sequence[Record]) -> DescriptorResult:
    """The means of one model's records over seeds and, but for FPR@95, training sets."""
    return dataclasses.replace(
        records[0].result,
        name=name,
        phototour=_means(
            records,
            _rates,
            lambda one: f"FPR@95 on {one.test} by the rule {one.rule}, trained on {one.train}",
        ),
        hpatches=_means(
            records,
            lambda record: record.result.hpatches,
            lambda one: f"HPatches, {one.split}, {one.protocol}, {one.tasks}, {one.sequences}",
        ),
        misaligned=_means(
            records,
            _misaligned,
            lambda one: f"matching on {one.test}{' for validation' if one.validation else ''}",
        ),
    )


def _rates(record: Record) -> Iterable[PhototourScores]:
    """False positive rates on other sets than were trained on."""
    for scores in record.result.phototour:
        if scores.test not in record.train:
            yield dataclasses.replace(scores, train="+".join(record.train) or None)


def _misaligned(record: Record) -> Iterable[MisalignmentScores]:
    """With the mean over levels among the levels."""
    for scores in record.result.misaligned:
        levels = scores.by_level
        mean = {MEAN: float(np.mean(list(levels.values())))} if levels else {}
        yield dataclasses.replace(scores, by_level=mean | levels)


def _means(
    records: Sequence[Record],
    scores_of: Callable[[Record], Iterable[Scores]],
    what: Callable[[Scores], str],
) -> list[Scores]:
    """The scores' means; `what` tells those apart that are of different things."""
    found: dict[str, dict[str, dict[str, Scores]]] = {}
    names: dict[tuple[str, str], str] = {}
    for record in records:
        train, seed = record.train_label, str(record.seed)
        for scores in scores_of(record):
            column = found.setdefault(what(scores), {}).setdefault(train, {})
            if column.setdefault(seed, scores) != scores:
                raise InputError(
                    f"records {names[train, seed]!r} and {record.name!r} both tell "
                    f"{what(scores)} of {record.row!r} and disagree: give the records of one "
                    "experiment at a time"
                )
        names.setdefault((train, seed), record.name)
    return [mean_of_columns(list(columns.values())) for columns in found.values()]
