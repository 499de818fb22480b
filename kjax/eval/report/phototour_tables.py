"""Tables of verification on PhotoTourism sets, in the paper's layout."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from kjax.eval.phototour import fpr_interval_of_counts
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
    SettingName,
    paper_counterpart,
    paper_parameters,
)
from kjax.eval.report.table_cells import (
    NAME,
    count_cell,
    difference_cell,
    mark_best,
    result_row,
    share_cell,
)
from kjax.eval.results import DescriptorResult, PhototourScores

Part = TypeVar("Part")

REFERENCE = "RootSIFT"
"""The rival that false positive rates are compared with."""


def fpr_table(arrangement: Arrangement) -> Table:
    """FPR@95 of every descriptor in every column, their mean, and the paper's rows where they fit.

    The paper's rows and the difference to them appear only if all test sets are the paper's own.
    """
    rows = [_result_row(arrangement, result) for result in arrangement.results]
    columns = _chosen(
        arrangement,
        Column("Parameters"),
        Column("Trained on", numeric=False),
        Column("Mean"),
        Column("vs. paper"),
        [_setting_column(setting) for setting in arrangement.settings],
    )
    grouped = " Columns: training set → test set, grouped by test set."
    return Table(
        "False positive rate at 95 % recall (FPR@95), %: lower is better. "
        f"Rule: {arrangement.rule}.{grouped if arrangement.by_training_set else ''}",
        [NAME, *columns],
        mark_best(rows, lower_is_better=True) + _paper_rows(arrangement),
        _notes(arrangement),
    )


def areas_table(arrangement: Arrangement) -> Table:
    """Areas under the curves, one row per descriptor and column of the table above."""
    columns = [
        NAME,
        Column("Test set", numeric=False),
        Column("Trained on", numeric=False),
        *map(Column, ("FPR@95", "ROC area", "Average precision")),
        *map(Column, ("Matching pairs", "Non-matching pairs")),
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
    rates = [(scores, paper.fpr95.get(key)) for scores, key in _keyed(arrangement, result)]
    differences = [ours.fpr95 - theirs for ours, theirs in rates if ours and theirs is not None]
    return finite(float(np.mean(differences))) if differences else None


def _keyed(
    arrangement: Arrangement, result: DescriptorResult
) -> Iterator[tuple[PhototourScores | None, SettingName]]:
    """A descriptor's scores in every column, and what the paper's table calls it."""
    for setting in arrangement.settings:
        scores = arrangement.scores(result, setting)
        yield scores, _published_key(setting, scores.train if scores else None)


def _has_differences(arrangement: Arrangement) -> bool:
    return any(paper_difference(arrangement, one) is not None for one in arrangement.results)


def _chosen(
    arrangement: Arrangement,
    size: Part,
    train: Part,
    mean: Part,
    difference: Part,
    rates: list[Part],
) -> list[Part]:
    """Columns, or a row's cells, after the name: those that the table has."""
    optional = (
        (train, not arrangement.by_training_set),
        (mean, len(arrangement.settings) > 1),
        (difference, _has_differences(arrangement)),
    )
    return [size, *(part for part, shown in optional if shown), *rates]


def _setting_column(setting: PhototourSetting) -> Column:
    if setting.train is None:
        return Column(setting.test)
    return Column(setting.train, group=f"Tested on {setting.test}", flat=setting.label)


def _result_row(arrangement: Arrangement, result: DescriptorResult) -> TableRow:
    cells = _chosen(
        arrangement,
        count_cell(result.parameters),
        TableCell(", ".join(training_sets(result)) or NOTHING),
        _mean_cell(arrangement, result),
        difference_cell(paper_difference(arrangement, result)),
        [_fpr_cell(arrangement.scores(result, setting)) for setting in arrangement.settings],
    )
    return result_row(result, cells)


def _mean_cell(arrangement: Arrangement, result: DescriptorResult) -> TableCell:
    mean = arrangement.mean(result)
    if mean is None:
        return TableCell(NOTHING)
    spread, columns = mean
    cell = share_cell(spread.mean, std=spread.std)
    if columns == len(arrangement.settings):
        return cell
    # A mean over fewer columns stands for something else: shown, but out of the contest.
    detail = f"over {columns} of {len(arrangement.settings)}"
    return dataclasses.replace(cell, detail=detail, contends=False)


def _fpr_cell(scores: PhototourScores | None) -> TableCell:
    if scores is None or finite(scores.fpr95) is None:
        return TableCell(NOTHING)
    text = percent_with_std(scores.fpr95, scores.fpr95_std)
    if is_training_set(scores):
        return TableCell(text, scores.fpr95, "trained on this set")
    return TableCell(text, scores.fpr95, interval(scores.fpr95_interval), contends=True)


def _paper_rows(arrangement: Arrangement) -> list[TableRow]:
    """The paper's figures as rows; where rows name training sets, one for each set."""
    if not arrangement.on_paper_sets:
        return []
    sets: list[str | None] = [None]
    if not arrangement.by_training_set:
        sets = list(
            dict.fromkeys(name for one in arrangement.results for name in training_sets(one))
        )
    rows = [_paper_row(arrangement, paper, name) for paper in PAPER_PHOTOTOUR for name in sets]
    return [row for row in rows if row is not None]


def _paper_row(arrangement: Arrangement, paper: PublishedFpr, train: str | None) -> TableRow | None:
    keys = [_published_key(setting, train) for setting in arrangement.settings]
    known = [paper.fpr95[key] for key in keys if key in paper.fpr95]
    if not known:
        return None
    cells = _chosen(
        arrangement,
        count_cell(paper.parameters),
        TableCell(train or NOTHING),
        _paper_mean(paper, known, len(keys)),
        TableCell(NOTHING),
        [_paper_cell(paper, key) for key in keys],
    )
    return TableRow([TableCell(f"{paper.name} (paper)"), *cells], "published")


def _paper_cell(paper: PublishedFpr, key: SettingName) -> TableCell:
    rate = paper.fpr95.get(key)
    return TableCell(percent_with_std(rate, paper.fpr95_std.get(key)), rate)


def _paper_mean(paper: PublishedFpr, known: Sequence[float], columns: int) -> TableCell:
    if len(known) == len(paper.fpr95):
        return TableCell(percent_with_std(paper.mean, paper.mean_std), paper.mean)
    detail = "" if len(known) == columns else f"over {len(known)} of {columns}"
    return TableCell(percent(float(np.mean(known))), float(np.mean(known)), detail)


def _published_key(setting: PhototourSetting, train: str | None) -> SettingName:
    return ((setting.train or train or "").lower(), setting.test.lower())


def _areas_row(result: DescriptorResult, scores: PhototourScores) -> TableRow:
    shares = (scores.fpr95, scores.auc, scores.average_precision)
    cells = [
        TableCell(scores.test),
        TableCell(scores.train or NOTHING),
        *map(share_cell, shares),
        count_cell(scores.matching_pairs),
        count_cell(scores.non_matching_pairs),
    ]
    return result_row(result, cells)


def _notes(arrangement: Arrangement) -> list[str]:
    scores = [one for result in arrangement.results for one in result.phototour]
    sure = {
        "Brackets: 95 % confidence interval, from the number of pairs.": any(
            interval(one.fpr95_interval) for one in scores
        ),
        "±: standard deviation over seeds.": any(one.fpr95_std is not None for one in scores),
    }
    others = {
        "A descriptor that was trained on none of the sets has one figure per test set, repeated "
        "in its columns.": arrangement.by_training_set and any(one.train is None for one in scores),
        "A set that the descriptor was trained on does not count.": any(
            is_training_set(one) for one in scores
        ),
        PAPER_SOURCE: bool(_paper_rows(arrangement)),
        "vs. paper: mean difference to the paper's figures in percentage points, over the columns "
        "that both have; below zero is better than the paper.": _has_differences(arrangement),
    }
    notes = [_pairs_note(arrangement), " ".join(note for note, holds in sure.items() if holds)]
    notes += [note for note, holds in others.items() if holds]
    return [note for note in [*notes, _sizes_note(arrangement)] if note]


def _sizes_note(arrangement: Arrangement) -> str:
    sizes = [
        f"{one.name} {count(one.parameters)} (paper: {count(published)})"
        for one in arrangement.results
        if one.ours
        and (published := paper_parameters(one.name))
        and one.parameters not in (None, published)
    ]
    if not sizes:
        return ""
    return f"Numbers of parameters that differ from the paper's: {', '.join(sizes)}."


def _pairs_note(arrangement: Arrangement) -> str:
    sizes: dict[str, list[str]] = {}
    for one in (scores for result in arrangement.results for scores in result.phototour):
        matching, others = count(one.matching_pairs), count(one.non_matching_pairs)
        known = f"{matching} matching and {others} non-matching pairs"
        tests = sizes.setdefault(known if one.matching_pairs else "pairs not recorded", [])
        tests += [] if one.test in tests else [one.test]
    return "; ".join(f"{joined(tests)}: {size}" for size, tests in sizes.items()) + "."


def by_test_table(arrangement: Arrangement) -> Table:
    """FPR@95 by test set, the mean over training sets, beside the reference's."""
    tests = list(dict.fromkeys(setting.test for setting in arrangement.settings))
    found = [one for one in arrangement.results if one.name.lower() == REFERENCE.lower()]
    reference = found[0] if found else None
    columns = [NAME]
    for test in tests:
        columns.append(Column(test))
        if reference is not None:
            columns.append(Column(f"× {reference.name}", group=test, flat=f"× {reference.name}"))
    times = f"; ×: as a multiple of {reference.name}'s" if reference is not None else ""
    return Table(
        "FPR@95 by test set, %, the mean over training sets and seeds, with a 95 % confidence "
        f"interval from the number of tested pairs{times}.",
        columns,
        [_by_test_row(arrangement, one, tests, reference) for one in arrangement.results],
        [
            "The intervals hold for one training; they take the distances for normally "
            "distributed where they judge how far the threshold may be off.",
        ],
    )


def _by_test_row(
    arrangement: Arrangement,
    result: DescriptorResult,
    tests: Sequence[str],
    reference: DescriptorResult | None,
) -> TableRow:
    cells = []
    for test in tests:
        share, bounds = _by_test(arrangement, result, test)
        cells.append(TableCell(percent(share), share, bounds))
        if reference is not None:
            base, _ = _by_test(arrangement, reference, test)
            ratio = share / base if share is not None and base else None
            cells.append(TableCell(NOTHING if ratio is None else f"{ratio:.2f}", ratio))
    return result_row(result, cells)


def _by_test(
    arrangement: Arrangement, result: DescriptorResult, test: str
) -> tuple[float | None, str]:
    """The mean rate on a test set, and its interval in words."""
    scores = [
        one
        for one in result.phototour
        if (one.test, one.rule) == (test, arrangement.rule) and not is_training_set(one)
    ]
    if not scores:
        return None, ""
    share = float(np.mean([one.fpr95 for one in scores]))
    pairs = scores[0].matching_pairs, scores[0].non_matching_pairs
    return share, interval(fpr_interval_of_counts(share, *pairs)) if all(pairs) else ""


def paper_table(arrangement: Arrangement) -> Table | None:
    """Ours, the paper's and the difference, column by column; None where nothing is comparable."""
    compared = [
        one for one in arrangement.results if paper_difference(arrangement, one) is not None
    ]
    if not compared:
        return None
    columns = [NAME, Column("Parameters"), Column("Mean")]
    return Table(
        "FPR@95 beside the paper's, %; the difference in percentage points, below zero where ours "
        "is better.",
        columns + [_setting_column(setting) for setting in arrangement.settings],
        [row for one in compared for row in _comparison_rows(arrangement, one)],
        [PAPER_SOURCE],
    )


def _comparison_rows(arrangement: Arrangement, result: DescriptorResult) -> list[TableRow]:
    paper = paper_counterpart(result)
    assert paper is not None  # there is a difference to it
    differences, known = [], []
    columns = list(_keyed(arrangement, result))
    for scores, key in columns:
        rate = paper.fpr95.get(key)
        if scores is None or rate is None:
            differences.append(TableCell(NOTHING))
        else:
            differences.append(difference_cell(scores.fpr95 - rate))
            known.append(rate)
    ours = [_fpr_cell(scores) for scores, _ in columns]
    theirs = [_paper_cell(paper, key) for _, key in columns]
    size, published_size = count_cell(result.parameters), count_cell(paper.parameters)
    mean, published = _mean_cell(arrangement, result), _paper_mean(paper, known, len(known))
    total = difference_cell(paper_difference(arrangement, result))
    return [
        TableRow([TableCell(f"{result.name}, ours"), size, mean, *ours]),
        TableRow([TableCell(f"{paper.name}, paper"), published_size, published, *theirs]),
        TableRow([TableCell("difference"), TableCell(""), total, *differences]),
    ]
