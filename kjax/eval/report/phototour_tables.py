"""Tables of verification on PhotoTourism sets, in the paper's layout."""

from collections.abc import Sequence

import numpy as np

from kjax.eval.report.page_parts import Column, Table, TableCell, TableRow
from kjax.eval.report.phototour_settings import (
    Arrangement,
    PhototourSetting,
    is_training_set,
    training_sets,
)
from kjax.eval.report.phrases import (
    NOTHING,
    count,
    finite,
    interval,
    joined,
    percent,
    percent_with_std,
)
from kjax.eval.report.published import (
    PAPER_PHOTOTOUR,
    PAPER_SOURCE,
    PublishedFpr,
    paper_counterpart,
)
from kjax.eval.report.table_cells import count_cell, difference_cell, mark_best, share_cell
from kjax.eval.results import DescriptorResult, PhototourScores

SHORT_SETS = {"liberty": "Li", "notredame": "No", "yosemite": "Yo"}


def fpr_table(arrangement: Arrangement) -> Table:
    """FPR@95 of every descriptor in every column, their mean, and the paper's rows where they fit.

    The paper's rows and the difference to them appear only if all test sets are the paper's own.
    """
    rows = [_result_row(arrangement, result) for result in arrangement.results]
    rows = mark_best(rows, lower_is_better=True)
    if _with_paper(arrangement):
        rows += [row for one in PAPER_PHOTOTOUR for row in _paper_rows(arrangement, one)]
    below = " Below the test sets: the training sets." if arrangement.by_training_set else ""
    return Table(
        "False positive rate at 95 % recall (FPR@95), %: lower is better. "
        f"Rule: {arrangement.rule}.{below}",
        _columns(arrangement),
        rows,
        _notes(arrangement),
    )


def areas_table(arrangement: Arrangement) -> Table:
    """Areas under the curves, one row per descriptor and column of the table above."""
    columns = [
        Column("Descriptor", numeric=False),
        Column("Test set", numeric=False),
        Column("Trained on", numeric=False),
        Column("FPR@95"),
        Column("ROC area"),
        Column("Average precision"),
        Column("Matching pairs"),
        Column("Non-matching pairs"),
    ]
    rows = [
        _areas_row(result, scores)
        for result in arrangement.results
        for scores in result.phototour
        if scores.rule == arrangement.rule
    ]
    return Table(f"Areas under the curves, %. Rule of FPR@95: {arrangement.rule}.", columns, rows)


def paper_difference(arrangement: Arrangement, result: DescriptorResult) -> float | None:
    """How much larger a descriptor's mean FPR@95 is than the paper's, over the columns of both."""
    paper = paper_counterpart(result)
    if paper is None or not arrangement.on_paper_sets:
        return None
    differences = []
    for setting in arrangement.settings:
        scores = arrangement.scores(result, setting)
        key = _published_key(setting, scores.train if scores else None)
        if scores is not None and key in paper.fpr95:
            differences.append(scores.fpr95 - paper.fpr95[key])
    return finite(float(np.mean(differences))) if differences else None


def _with_paper(arrangement: Arrangement) -> bool:
    return arrangement.on_paper_sets and any(
        _paper_rows(arrangement, paper) for paper in PAPER_PHOTOTOUR
    )


def _has_differences(arrangement: Arrangement) -> bool:
    return any(paper_difference(arrangement, one) is not None for one in arrangement.results)


def _has_mean(arrangement: Arrangement) -> bool:
    return len(arrangement.settings) > 1


def _columns(arrangement: Arrangement) -> list[Column]:
    columns = [Column("Descriptor", numeric=False), Column("Parameters")]
    if not arrangement.by_training_set:
        columns.append(Column("Trained on", numeric=False))
    if _has_mean(arrangement):
        columns.append(Column("Mean"))
    if _has_differences(arrangement):
        columns.append(Column("vs. paper"))
    return columns + [_setting_column(setting) for setting in arrangement.settings]


def _setting_column(setting: PhototourSetting) -> Column:
    if setting.train is None:
        return Column(setting.test)
    return Column(setting.train, group=f"Tested on {setting.test}", flat=setting.label)


def _result_row(arrangement: Arrangement, result: DescriptorResult) -> TableRow:
    cells = [TableCell(result.name), count_cell(result.parameters)]
    if not arrangement.by_training_set:
        cells.append(TableCell(", ".join(training_sets(result)) or NOTHING))
    if _has_mean(arrangement):
        cells.append(_mean_cell(arrangement, result))
    if _has_differences(arrangement):
        cells.append(difference_cell(paper_difference(arrangement, result)))
    cells += [_fpr_cell(arrangement.scores(result, setting)) for setting in arrangement.settings]
    return TableRow(cells, "ours" if result.ours else "rival")


def _mean_cell(arrangement: Arrangement, result: DescriptorResult) -> TableCell:
    mean = arrangement.mean(result)
    if mean is None:
        return TableCell(NOTHING)
    value, columns = mean
    if columns == len(arrangement.settings):
        return share_cell(value)
    # A mean over fewer columns stands for something else: shown, but out of the contest.
    return TableCell(percent(value), value, f"over {columns} of {len(arrangement.settings)}")


def _fpr_cell(scores: PhototourScores | None) -> TableCell:
    if scores is None or finite(scores.fpr95) is None:
        return TableCell(NOTHING)
    text = percent_with_std(scores.fpr95, scores.fpr95_std)
    if is_training_set(scores):
        return TableCell(text, scores.fpr95, "trained on this set")
    return TableCell(text, scores.fpr95, interval(scores.fpr95_interval), contends=True)


def _paper_rows(arrangement: Arrangement, paper: PublishedFpr) -> list[TableRow]:
    """The paper's figures as rows: one, or where rows name training sets, one for each."""
    if arrangement.by_training_set:
        row = _paper_row(arrangement, paper, None)
        return [row] if row else []
    sets = dict.fromkeys(name for one in arrangement.results for name in training_sets(one))
    rows = [_paper_row(arrangement, paper, name) for name in sets]
    return [row for row in rows if row]


def _paper_row(arrangement: Arrangement, paper: PublishedFpr, train: str | None) -> TableRow | None:
    keys = [_published_key(setting, train) for setting in arrangement.settings]
    rates = [paper.fpr95.get(key) for key in keys]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return None
    cells = [TableCell(f"{paper.name} (paper)"), count_cell(paper.parameters)]
    if train is not None:
        cells.append(TableCell(train))
    if _has_mean(arrangement):
        cells.append(_paper_mean(paper, known, len(rates)))
    if _has_differences(arrangement):
        cells.append(TableCell(NOTHING))
    for key, rate in zip(keys, rates, strict=True):
        text = NOTHING if rate is None else percent_with_std(rate, paper.fpr95_std.get(key))
        cells.append(TableCell(text, rate))
    return TableRow(cells, "published")


def _paper_mean(paper: PublishedFpr, known: Sequence[float], columns: int) -> TableCell:
    if len(known) == len(paper.fpr95):
        return TableCell(percent_with_std(paper.mean, paper.mean_std), paper.mean)
    detail = "" if len(known) == columns else f"over {len(known)} of {columns}"
    return TableCell(percent(float(np.mean(known))), float(np.mean(known)), detail)


def _published_key(setting: PhototourSetting, train: str | None) -> tuple[str, str]:
    return ((setting.train or train or "").lower(), setting.test.lower())


def _areas_row(result: DescriptorResult, scores: PhototourScores) -> TableRow:
    cells = [
        TableCell(result.name),
        TableCell(scores.test),
        TableCell(scores.train or NOTHING),
        share_cell(scores.fpr95),
        share_cell(scores.auc),
        share_cell(scores.average_precision),
        count_cell(scores.matching_pairs),
        count_cell(scores.non_matching_pairs),
    ]
    return TableRow(cells, "ours" if result.ours else "rival")


def _notes(arrangement: Arrangement) -> list[str]:
    notes = [_pairs_note(arrangement)]
    scores = [one for result in arrangement.results for one in result.phototour]
    notes.append(
        "Brackets: 95 % confidence interval, from the number of pairs."
        + (
            " ±: standard deviation over seeds."
            if any(one.fpr95_std is not None for one in scores)
            else ""
        )
    )
    if arrangement.by_training_set and any(one.train is None for one in scores):
        notes.append(
            "A descriptor that was trained on none of the sets has one figure per test set, "
            "repeated in its columns."
        )
    if any(is_training_set(one) for one in scores):
        notes.append("A set that the descriptor was trained on does not count.")
    if _with_paper(arrangement):
        notes.append(PAPER_SOURCE)
    if _has_differences(arrangement):
        notes.append(
            "vs. paper: mean difference to the paper's figures in percentage points, over the "
            "columns that both have; below zero is better than the paper."
        )
    return notes


def _pairs_note(arrangement: Arrangement) -> str:
    sizes: dict[str, list[str]] = {}
    for one in (scores for result in arrangement.results for scores in result.phototour):
        matching, others = count(one.matching_pairs), count(one.non_matching_pairs)
        tests = sizes.setdefault(f"{matching} matching and {others} non-matching pairs", [])
        tests += [] if one.test in tests else [one.test]
    return "; ".join(f"{joined(tests)}: {size}" for size, tests in sizes.items()) + "."
