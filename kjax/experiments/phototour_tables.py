"""Records to the paper's PhotoTourism table, and to the comparison with it, as Markdown."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kjax.errors import unknown_name
from kjax.eval.report.markdown import table_text
from kjax.eval.report.page_parts import Column, Table, TableCell, TableRow
from kjax.eval.report.phototour_settings import PhototourSetting
from kjax.eval.report.phrases import NOTHING, count, interval, joined, percent
from kjax.eval.report.published import (
    PAPER_PHOTOTOUR,
    PAPER_SETS,
    PAPER_SOURCE,
    PublishedFpr,
    SettingName,
    paper_parameters,
    paper_row,
)
from kjax.eval.report.table_cells import count_cell, difference_cell, mark_best, share_cell
from kjax.experiments.records import Record
from kjax.experiments.statistics import BySeed, fpr_interval_of_counts, spread_over_seeds
from kjax.experiments.table_rows import Model, fpr95, seeds_words, spread_cell, verified

REFERENCE = "RootSIFT"
"""The rival that false positive rates are compared with."""


def phototour_table(records: Sequence[Record], interval_rows: Sequence[str] | None = None) -> str:
    """FPR@95 in the paper's layout, and below it how sure the figures are.

    Args:
        records: of one experiment, and of rivals. "" comes back if they hold no FPR@95.
        interval_rows: rows of the second table; all by default.
    """
    models = verified(records)
    if not models:
        return ""
    tables = [_fpr_table(models), _interval_table(models, interval_rows)]
    return "\n\n".join(table_text(table) for table in tables)


def published_comparison(records: Sequence[Record]) -> str:
    """Ours, the paper's and the difference; "" unless all test sets are the paper's own."""
    models = verified(records)
    tests = {setting.test.lower() for setting in _settings(models)}
    if not tests or not tests <= set(PAPER_SETS):
        return ""
    pairs = [
        (model, paper)
        for model in models
        if model.trained and (paper := paper_row(model.name, model.parameters))
    ]
    settings = [
        setting
        for setting in _paper_settings(models)
        if any(_fpr(model, setting) for model, _ in pairs)
    ]
    if not settings:
        return ""
    columns = [Column("Model", numeric=False), Column("Parameters"), Column("Mean")]
    columns += [_setting_column(setting) for setting in settings]
    rows = [row for model, paper in pairs for row in _comparison_rows(model, paper, settings)]
    caption = (
        "FPR@95 beside the paper's, %; the difference in percentage points, below zero where ours "
        "is better."
    )
    return table_text(Table(caption, columns, rows, [PAPER_SOURCE]))


def _settings(models: Sequence[Model]) -> list[PhototourSetting]:
    """The columns: training sets in the order met, for each its test sets."""
    records = [record for model in models for record in model.records]
    trained = [record for record in records if record.train]
    names = dict.fromkeys(record.train_label for record in trained)
    found: dict[PhototourSetting, None] = {}
    for name in names:
        for record in trained:
            if record.train_label == name:
                tests = [test for test in _tests(record) if test not in record.train]
                found.update(dict.fromkeys(PhototourSetting(test, name) for test in tests))
    if not found:
        found = dict.fromkeys(
            PhototourSetting(test, None) for one in records for test in _tests(one)
        )
    return list(found)


def _paper_settings(models: Sequence[Model]) -> list[PhototourSetting]:
    """Those of our columns that the paper's table has, in its order."""
    ours = {(str(one.train).lower(), one.test.lower()): one for one in _settings(models)}
    return [ours[key] for key in PAPER_PHOTOTOUR[0].fpr95 if key in ours]


def _tests(record: Record) -> list[str]:
    return [one.test for one in record.result.phototour]


def _fpr(model: Model, setting: PhototourSetting) -> BySeed:
    """What a model gets in a column; a rival the same whatever the training set."""
    return fpr95(setting.test).by_seed(
        one for one in model.records if not one.train or one.train_label == setting.train
    )


def _fpr_table(models: Sequence[Model]) -> Table:
    settings = _settings(models)
    columns = [Column("Model", numeric=False), Column("Parameters")]
    if len(settings) > 1:
        columns.append(Column("Mean"))
    columns += [_setting_column(setting) for setting in settings]
    rows = [_fpr_row(model, settings) for model in models]
    arrow = " Columns: training set → test set." if settings[0].train is not None else ""
    return Table(
        f"False positive rate at 95 % recall (FPR@95), %{seeds_words(models)}; lower is better."
        f"{arrow}",
        columns,
        mark_best(rows, lower_is_better=True),
        _fpr_notes(models, settings),
    )


def _setting_column(setting: PhototourSetting) -> Column:
    if setting.train is None:
        return Column(setting.test)
    return Column(setting.test, group=setting.train, flat=setting.label)


def _fpr_row(model: Model, settings: Sequence[PhototourSetting]) -> TableRow:
    columns = [_fpr(model, setting) for setting in settings]
    cells = [TableCell(model.name), count_cell(model.parameters)]
    if len(settings) > 1:
        cells.append(_mean_cell(columns))
    cells += [spread_cell(spread_over_seeds([column])) for column in columns]
    return TableRow(cells)


def _mean_cell(columns: Sequence[BySeed]) -> TableCell:
    cell = spread_cell(spread_over_seeds(columns))
    there = sum(bool(column) for column in columns)
    if there == len(columns):
        return cell
    # A mean over fewer columns stands for something else: shown, but out of the contest.
    return dataclasses.replace(cell, detail=f"over {there} of {len(columns)}", contends=False)


def _fpr_notes(models: Sequence[Model], settings: Sequence[PhototourSetting]) -> list[str]:
    notes = []
    if settings[0].train is not None and not all(model.trained for model in models):
        notes.append("Rivals have one figure per test set, repeated in its columns.")
    other = [
        f"{model.name} {count(model.parameters)} (paper: {count(published)})"
        for model in models
        if model.trained
        and (published := paper_parameters(model.name))
        and model.parameters not in (None, published)
    ]
    if other:
        notes.append(f"Numbers of parameters that differ from the paper's: {', '.join(other)}.")
    return notes


def _interval_table(models: Sequence[Model], rows: Sequence[str] | None) -> Table:
    known = [model.name for model in models]
    for name in rows or ():
        if name not in known:
            raise unknown_name("row", name, known)
    tests = list(dict.fromkeys(setting.test for setting in _settings(models)))
    references = [one for one in models if one.name.lower() == REFERENCE.lower()]
    reference = references[0] if references else None
    columns = [Column("Model", numeric=False)]
    for test in tests:
        columns.append(Column(test))
        if reference:
            columns.append(Column(f"× {reference.name}", group=test, flat=f"× {reference.name}"))
    shown = [model for model in models if rows is None or model.name in rows]
    lines = [_interval_row(model, tests, reference) for model in shown]
    times = f"; ×: as a multiple of {reference.name}'s" if reference else ""
    return Table(
        "FPR@95 by test set, %, the mean over training sets and seeds, with a 95 % confidence "
        f"interval from the number of tested pairs{times}.",
        columns,
        lines,
        [
            _pairs_note(models, tests),
            "The intervals hold for one training; they take the distances for normally "
            "distributed where they judge how far the threshold may be off.",
        ],
    )


def _interval_row(model: Model, tests: Sequence[str], reference: Model | None) -> TableRow:
    cells = [TableCell(model.name)]
    for test in tests:
        found = _test_mean(model, test)
        cells.append(_interval_cell(model, test, found))
        if reference:
            base = _test_mean(reference, test)
            ratio = found / base if found is not None and base else None
            cells.append(TableCell(NOTHING if ratio is None else f"{ratio:.2f}", ratio))
    return TableRow(cells)


def _test_mean(model: Model, test: str) -> float | None:
    found = fpr95(test).spread(one for one in model.records if test not in one.train)
    return found.mean if found else None


def _interval_cell(model: Model, test: str, fpr: float | None) -> TableCell:
    if fpr is None:
        return TableCell(NOTHING)
    matching, others = _tested(model, test)
    bounds = interval(fpr_interval_of_counts(fpr, matching, others)) if matching and others else ""
    return TableCell(percent(fpr), fpr, bounds)


def _tested(model: Model, test: str) -> tuple[int, int]:
    """Tested pairs, matching and not; 0 if the records do not tell."""
    for record in model.records:
        for one in record.result.phototour:
            if one.test == test:
                return one.matching_pairs, one.non_matching_pairs
    return 0, 0


def _pairs_note(models: Sequence[Model], tests: Sequence[str]) -> str:
    sizes: dict[str, list[str]] = {}
    for test in tests:
        found = [_tested(model, test) for model in models]
        matching, others = next((one for one in found if all(one)), (0, 0))
        words = f"{count(matching)} matching and {count(others)} non-matching pairs"
        sizes.setdefault(words if matching else "pairs not recorded", []).append(test)
    return "; ".join(f"{joined(names)}: {size}" for size, names in sizes.items()) + "."


def _comparison_rows(
    model: Model, paper: PublishedFpr, settings: Sequence[PhototourSetting]
) -> tuple[TableRow, TableRow, TableRow]:
    ours = [spread_over_seeds([_fpr(model, setting)]) for setting in settings]
    keys: list[SettingName] = [(str(one.train).lower(), one.test.lower()) for one in settings]
    shared = [place for place, one in enumerate(ours) if one]
    mean = spread_over_seeds([_fpr(model, settings[place]) for place in shared])
    published = float(np.mean([paper.fpr95[keys[place]] for place in shared])) if shared else None
    std = None
    if len(shared) == len(paper.fpr95):
        published, std = paper.mean, paper.mean_std
    theirs = [
        share_cell(paper.fpr95[key], std=paper.fpr95_std.get(key), contends=False) for key in keys
    ]
    differences = [
        difference_cell(one.mean - paper.fpr95[key] if one else None)
        for one, key in zip(ours, keys, strict=True)
    ]
    total = mean.mean - published if mean and published is not None else None
    return (
        TableRow(
            [
                TableCell(f"{model.name}, ours"),
                count_cell(model.parameters),
                *(spread_cell(one) for one in (mean, *ours)),
            ],
        ),
        TableRow(
            [
                TableCell(f"{paper.name}, paper"),
                count_cell(paper.parameters),
                share_cell(published, std=std, contends=False),
                *theirs,
            ],
        ),
        TableRow([TableCell("difference"), TableCell(""), difference_cell(total), *differences]),
    )
