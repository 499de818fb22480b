"""Tables of what no evaluation has: choices that were tried, and what the trainings took."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from experiments.model_results import mean_result
from experiments.records import Record
from experiments.trainings import DEFAULT
from kjax.counts import counted
from kjax.errors import unknown_name
from kjax.eval.averages import Spread, pooled_std
from kjax.eval.report.page_parts import Column, Table, TableCell, TableRow
from kjax.eval.report.phrases import percent
from kjax.eval.report.table_cells import count_cell, mark_best, share_cell
from kjax.eval.results import LEVELS, MEAN, DescriptorResult, MisalignmentScores


def ablation_table(records: Sequence[Record], group: str, default: str | None = None) -> Table:
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
        if record.group in (group, DEFAULT):
            own = record.row if record.group == group else default or DEFAULT
            values.setdefault(own, []).append(record)
    scored = [
        (result, scores)
        for result in (mean_result(name, found) for name, found in values.items())
        for scores in result.misaligned
        if scores.validation
    ]
    columns = [Column("Value", numeric=False), Column("Seeds"), Column("Parameters")]
    columns += [Column(name) for name in ("Matching", *LEVELS.values())]
    rows = mark_best([_ablation_row(*one, default) for one in scored], lower_is_better=False)
    return Table(
        f"{group}: matching on the validation pairs, mean average precision in %, mean ± standard "
        "deviation over seeds; higher is better.",
        columns,
        [_name_of_best(row) for row in rows],
        _verdict({result.name: _spread(scores) for result, scores in scored}),
    )


def cost_table(records: Sequence[Record]) -> Table | None:
    """What the trainings took, by row, and in total by hardware; None if nothing was trained."""
    trained = [record for record in records if record.pairs > 0]
    if not trained:
        return None
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
    return Table(caption, columns, rows, _cost_totals(trained))


def _ablation_row(
    result: DescriptorResult, scores: MisalignmentScores, default: str | None
) -> TableRow:
    name = result.name
    cells = [
        TableCell(f"{name} (default)" if name == default else name),
        count_cell(scores.seeds),
        count_cell(result.parameters),
    ]
    for level in (MEAN, *LEVELS.values()):
        cells.append(share_cell(scores.by_level.get(level), std=scores.std.get(level)))
    return TableRow(cells)


def _spread(scores: MisalignmentScores) -> Spread:
    return Spread(scores.by_level[MEAN], scores.std.get(MEAN), scores.seeds)


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
    return (
        f"In total on {hardware}: {counted(len(records), 'training')}, "
        f"{_hours(steps + compiling)}, of which {_hours(compiling)} compiling."
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
