"""Rows of tables: which records belong together, and cells of their means."""

from collections.abc import Iterable
from typing import NamedTuple

from kjax.eval.report.blocks import Cell
from kjax.eval.report.cells import share_cell
from kjax.eval.report.wording import NOTHING
from kjax.experiments.records import Record
from kjax.experiments.statistics import Spread, train_label

TASKS = ("verification", "matching", "retrieval")
"""Of HPatches."""


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
        return self.records[0].parameters


def models_of(records: Iterable[Record], metric_prefix: str) -> list[Model]:
    """The rows that have such metrics, in the order met. Ablations' rows name no models.

    A rival that is called like one of ours is told apart by its name.
    """
    found: dict[tuple[str, bool], Model] = {}
    for record in records:
        if not record.group and any(name.startswith(metric_prefix) for name in record.metrics):
            key = (record.row, bool(record.train))
            found.setdefault(key, Model(record.row, [])).records.append(record)
    return [
        Model(f"{model.name} (rival)", model.records)
        if not model.trained and (model.name, True) in found
        else model
        for model in found.values()
    ]


def spread_cell(spread: Spread | None, digits: int = 2) -> Cell:
    """A mean share in per cent with its deviation."""
    if spread is None:
        return Cell(NOTHING)
    return share_cell(spread.mean, std=spread.std, digits=digits)


def seeds_words(models: Iterable[Model]) -> str:
    """What ± means, if it appears."""
    seeds = {record.seed for model in models for record in model.records if model.trained}
    return f", mean ± standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else ""


def by_train(records: Iterable[Record]) -> list[list[Record]]:
    """The records apart by their training sets, in the order met."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(train_label(record), []).append(record)
    return list(groups.values())
