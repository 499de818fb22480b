"""Records to tables, as Markdown. Pure: nothing is read or written here."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kjax.errors import unknown_name
from kjax.eval.report.markdown import table_text
from kjax.eval.report.page_parts import Column, Table, TableCell, TableRow
from kjax.eval.report.phrases import NOTHING, percent, plural
from kjax.eval.report.table_cells import count_cell, mark_best
from kjax.eval.results import LEVELS
from kjax.experiments.phototour_tables import phototour_table, published_comparison
from kjax.experiments.records import Record
from kjax.experiments.statistics import Spread, pooled_std
from kjax.experiments.table_rows import (
    TASKS,
    Figure,
    Model,
    by_train,
    hpatches,
    jittered,
    misaligned,
    models_of,
    noisy,
    on_hpatches,
    seeds_words,
    spread_cell,
)
from kjax.experiments.trainings import DEFAULT

__all__ = [
    "ablation_table",
    "cost_table",
    "hpatches_table",
    "misaligned_table",
    "noisy_table",
    "phototour_table",
    "published_comparison",
]

_MISALIGNED = {
    "moved 15 % of the side": misaligned("translation", "0.15"),
    "turned 30°": misaligned("rotation", "30"),
    "scaled by 2^±0.45": misaligned("scale", "0.45"),
}
"""Of the amounts that are measured those at which descriptors differ most."""


def hpatches_table(records: Sequence[Record], split: str, rule: str = "python") -> str:
    """The three HPatches tasks on one split or folder, and matching by level; "" without any."""
    models = models_of(records, lambda record: on_hpatches(record, split, rule))
    lines = [Model(model.name, group) for model in models for group in by_train(model.records)]
    if not lines:
        return ""
    caption = f"HPatches, {split}, {rule} rules"
    headline = _matching_part(
        f"{caption}: mean average precision, %{seeds_words(lines)}; higher is better.",
        lines,
        {task.capitalize(): hpatches(split, rule, task) for task in TASKS},
        name_train=_several_sets(lines),
        sizes=True,
    )
    by_level = _matching_part(
        f"{caption}: matching by level of geometric noise, %{_sets_words(lines)}.",
        models,
        {name: hpatches(split, rule, "matching", level) for level, name in LEVELS.items()},
        name_train=False,
        sizes=False,
    )
    return "\n\n".join(table_text(table) for table in (headline, by_level) if table.rows)


def noisy_table(records: Sequence[Record], name: str) -> str:
    """Matching of patches that are cut askew, of one set of patches; "" without any."""
    models = models_of(records, lambda record: noisy(name).of(record) is not None)
    if not models:
        return ""
    figures = {"mean": noisy(name)} | {level: noisy(name, level) for level in LEVELS.values()}
    caption = (
        f"Matching on {name} with patches cut askew, as strongly as in HPatches: mean average "
        f"precision, %{_sets_words(models)}{seeds_words(models)}; higher is better."
    )
    return table_text(_matching_part(caption, models, figures, name_train=False, sizes=True))


def misaligned_table(records: Sequence[Record]) -> str:
    """Matching of patches that are cut askew in one way, by a known amount; "" without any."""
    models = jittered(records)
    caption = (
        "Matching when the second patch is cut askew in one way: mean average precision, "
        f"%{_sets_words(models)}{seeds_words(models)}; higher is better."
    )
    table = _matching_part(caption, models, _MISALIGNED, name_train=False, sizes=False)
    return table_text(table) if table.rows else ""


def ablation_table(records: Sequence[Record], group: str, default: str | None = None) -> str:
    """What each value of one choice gives on the validation pairs, and whether it matters.

    Args:
        records: of any experiments; those of the group are taken, and those of the group
            `DEFAULT`, which stand for the default of every question.
        group: the question.
        default: the value that kjax takes unless told otherwise.
    """
    groups = {record.group for record in records if record.group}
    if group not in groups:
        raise unknown_name("ablation", group, sorted(groups))
    values: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: one.group != DEFAULT):
        if record.group in (group, DEFAULT) and noisy().of(record) is not None:
            own = record.row if record.group == group else default or DEFAULT
            values.setdefault(own, []).append(record)
    columns = [Column("Value", numeric=False), Column("Seeds"), Column("Parameters")]
    columns += [Column(name) for name in ("Matching", *LEVELS.values())]
    rows = [_ablation_row(name, found, default) for name, found in values.items()]
    caption = (
        f"{group}: matching on the validation pairs, mean average precision in %, mean ± standard "
        "deviation over seeds; higher is better."
    )
    spreads = {name: noisy().spread(found) for name, found in values.items()}
    verdict = _verdict({name: one for name, one in spreads.items() if one})
    best = [_name_of_best(row) for row in mark_best(rows, lower_is_better=False)]
    return table_text(Table(caption, columns, best, verdict))


def cost_table(records: Sequence[Record]) -> str:
    """What the trainings took, by row, and in total by hardware; "" if nothing was trained."""
    trained = [record for record in records if record.pairs > 0]
    if not trained:
        return ""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in trained:
        # Values of an ablation share an architecture, or nearly: one row for the question.
        name = record.group or record.row
        groups.setdefault((record.experiment, name, record.hardware), []).append(record)
    columns = [
        Column("Experiment", numeric=False),
        Column("Row", numeric=False),
        *map(Column, ("Trainings", "Pairs seen", "Wall time, s", "Pairs/s", "Compiling, s")),
        Column("Hardware", numeric=False),
    ]
    rows = [_cost_row(key, found) for key, found in groups.items()]
    caption = (
        "Cost of the trainings: means over those of a row. Those that differ in their seed only "
        "share a compilation."
    )
    return table_text(Table(caption, columns, rows, _cost_totals(trained)))


def _several_sets(models: Sequence[Model]) -> bool:
    return len({one.train_label for model in models for one in model.records if one.train}) > 1


def _sets_words(models: Sequence[Model]) -> str:
    return ", means over training sets" if _several_sets(models) else ""


def _matching_part(
    caption: str,
    lines: Sequence[Model],
    figures: dict[str, Figure],
    *,
    name_train: bool,
    sizes: bool,
) -> Table:
    """A table of models, each on one training set if that is to be named."""
    columns = [Column("Model", numeric=False)]
    columns += [Column("Trained on", numeric=False)] if name_train else []
    columns += [Column("Dimension"), Column("Parameters")] if sizes else []
    columns += [Column(title) for title in figures]
    rows = []
    for line in lines:
        spreads = [figure.spread(line.records) for figure in figures.values()]
        if not any(spreads):
            continue
        cells = [TableCell(line.name)]
        cells += [TableCell(line.records[0].train_label or NOTHING)] if name_train else []
        if sizes:
            cells += [count_cell(line.records[0].result.dimension), count_cell(line.parameters)]
        rows.append(TableRow([*cells, *(spread_cell(one, 1) for one in spreads)]))
    return Table(caption, columns, mark_best(rows, lower_is_better=False))


def _ablation_row(name: str, records: Sequence[Record], default: str | None) -> TableRow:
    spreads = [noisy(level=level).spread(records) for level in (None, *LEVELS.values())]
    return TableRow(
        [
            TableCell(f"{name} (default)" if name == default else name),
            count_cell(spreads[0].seeds if spreads[0] else 0),
            count_cell(records[0].result.parameters),
            *(spread_cell(one) for one in spreads),
        ]
    )


def _name_of_best(row: TableRow) -> TableRow:
    """The row, its name in bold too if it wins the first figure."""
    name, seeds, parameters, headline, *levels = row.cells
    name = dataclasses.replace(name, best=headline.best)
    return TableRow([name, seeds, parameters, headline, *levels], row.kind)


def _verdict(spreads: dict[str, Spread]) -> list[str]:
    """Whether the winner's lead is more than chance between seeds gives."""
    if len(spreads) < 2:
        return []
    (winner, best), (second, other), *_ = sorted(
        spreads.items(), key=lambda item: item[1].mean, reverse=True
    )
    lead = best.mean - other.mean
    if lead == 0:
        return [f"{winner} and {second} are level."]
    words = f"{winner} leads {second} by {percent(lead)} points"
    pooled = pooled_std(best, other)
    if pooled is None:
        return [f"{words}; with one seed each, nothing tells how much of it is chance."]
    judged = "more" if lead > pooled else "not more"
    return [f"{words}: {judged} than one pooled standard deviation ({percent(pooled)})."]


def _cost_row(key: tuple[str, str, str], records: Sequence[Record]) -> TableRow:
    experiment, name, hardware = key
    pairs = [record.pairs for record in records]
    seconds = [record.seconds for record in records]
    speed = sum(pairs) / sum(seconds) if sum(seconds) > 0 else None
    return TableRow(
        [
            TableCell(experiment),
            TableCell(name),
            count_cell(len(records)),
            count_cell(round(np.mean(pairs))),
            TableCell(f"{np.mean(seconds):,.1f}"),
            count_cell(None if speed is None else round(speed)),
            TableCell(f"{np.mean([record.compile_seconds for record in records]):,.1f}"),
            TableCell(hardware),
        ]
    )


def _cost_totals(records: Sequence[Record]) -> list[str]:
    totals: dict[str, list[Record]] = {}
    for record in records:
        totals.setdefault(record.hardware, []).append(record)
    return [_cost_total(hardware, found) for hardware, found in totals.items()]


def _cost_total(hardware: str, records: Sequence[Record]) -> str:
    steps = sum(record.seconds for record in records)
    compiling = sum(record.compile_seconds for record in records)
    number = f"{len(records)} {plural('training', len(records))}"
    return (
        f"In total on {hardware}: {number}, {_hours(steps + compiling)}, of which "
        f"{_hours(compiling)} compiling."
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
