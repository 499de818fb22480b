"""Tables of a report: PhotoTourism in the paper's layout, and the three HPatches tasks."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kjax.eval.hpatches.scores import LEVELS, NEGATIVES, TASKS, HPatchesScores
from kjax.eval.report import published
from kjax.eval.results import PhototourScores, Result, spread_over_seeds

DASH = "–"


class Cell(NamedTuple):
    """One cell of a table: text, sort key, small print, and whether it may be or is the best."""

    text: str = DASH
    value: float | None = None
    detail: str = ""
    contends: bool = False
    best: bool = False


Cells = Mapping[Any, Cell]
"""Cells by the column's heading, or by its group's heading and its own."""
Row = tuple[str, Cells]
"""Style of a row ("ours", "rival" or "published") and its cells."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with a caption above it and notes below; the first column names the rows."""

    caption: str
    columns: list[tuple[str, str]]
    rows: list[tuple[str, list[Cell]]]
    notes: Sequence[str]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Group headings, with the number of columns that each spans."""
        runs = itertools.groupby(group for group, _ in self.columns)
        return [(group, len(list(run))) for group, run in runs]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has values to sort by."""
        columns = zip(*(cells for _, cells in self.rows), strict=True)
        return [any(cell.value is not None for cell in column) for column in columns]


def make_table(
    caption: str, rows: Sequence[Row], notes: Sequence[str] = (), *, lower_is_better: bool = False
) -> Table:
    """Build a table, and mark the best of each column if two or more contend."""
    columns = list(dict.fromkeys(column for _, cells in rows for column in cells))
    made = [(kind, [cells.get(column, Cell()) for column in columns]) for kind, cells in rows]
    for place in range(len(columns)):
        contenders = [cells for _, cells in made if cells[place].contends]
        values = [cells[place].value or 0.0 for cells in contenders]
        best = (min if lower_is_better else max)(values) if len(values) > 1 else None
        for cells in contenders:
            cells[place] = cells[place]._replace(best=cells[place].value == best)
    heads = [column if isinstance(column, tuple) else ("", column) for column in columns]
    return Table(caption, heads, made, notes)


def finite(value: float | None) -> float | None:
    """The value, or None if it is not finite."""
    return None if value is None or not math.isfinite(value) else value


def percent(share: float | None, std: float | None = None, digits: int = 2) -> str:
    """Format a fraction as a percentage without the sign, with its standard deviation if given."""
    text = DASH if finite(share) is None else f"{100 * (share or 0):.{digits}f}"
    return text if finite(std) is None else f"{text} ± {100 * (std or 0):.{digits}f}"


def interval(bounds: tuple[float, float] | None) -> str:
    """Format a confidence interval of a fraction in percent; empty if unknown or not finite."""
    if bounds is None or not all(map(math.isfinite, bounds)):
        return ""
    return f"[{percent(bounds[0])}, {percent(bounds[1])}]"


def joined(parts: Sequence[str]) -> str:
    """Join with commas and "and"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def share_cell(
    share: float | None, std: float | None = None, detail: str = "", *, contends: bool = True
) -> Cell:
    """A fraction in percent, which contends for the best of its column."""
    known = finite(share)
    return Cell(percent(share, std), known, detail, contends and known is not None)


def count_cell(number: int | None) -> Cell:
    """An integer with thousands separators."""
    return Cell() if number is None else Cell(f"{number:,}", number)


def result_row(result: Result, cells: Cells) -> Row:
    """A descriptor's row."""
    return "ours" if result.ours else "rival", {"Descriptor": Cell(result.name), **cells}


# PhotoTourism


class PhototourSetting(NamedTuple):
    """A column: a test set and, in the paper's layout, a training set."""

    test: str
    train: str | None

    @property
    def label(self) -> str:
        """The setting in one line."""
        return self.test if self.train is None else f"{self.train} → {self.test}"


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Columns and rows of the scores by one FPR rule.

    The paper's layout has a column per training and test set. It is used if some descriptor was
    trained on several sets. Otherwise there is a column per test set, and rows name training sets.
    """

    rule: str
    settings: list[PhototourSetting]
    results: list[Result]

    @property
    def on_paper_sets(self) -> bool:
        """Whether every test set is one of the paper's."""
        return all(setting.test.lower() in published.PAPER_SETS for setting in self.settings)

    def scores(self, result: Result, setting: PhototourSetting) -> PhototourScores | None:
        """The scores in a column; an untrained descriptor's stand in all columns of a test set."""
        own = [one for one in result.phototour if (one.test, one.rule) == (setting.test, self.rule)]
        exact = [one for one in own if setting.train in (None, one.train)]
        return next(iter(exact or [one for one in own if one.train is None]), None)

    def mean(self, result: Result) -> tuple[float, float | None, int] | None:
        """Mean FPR@95 over a row's columns, without training sets; its deviation; their number."""
        found = [self.scores(result, setting) for setting in self.settings]
        counted = [
            one
            for one in found
            if one is not None and not one.on_training_set and finite(one.fpr95) is not None
        ]
        by_seed = [one.fpr95_by_seed or {"": one.fpr95} for one in counted]
        return (*spread_over_seeds(by_seed), len(counted)) if counted else None

    def paper_difference(self, result: Result) -> float | None:
        """Mean FPR@95 minus the paper's, over the columns of both; None if not comparable."""
        paper = published.paper_counterpart(result)
        if paper is None or not self.on_paper_sets:
            return None
        differences = []
        for setting in self.settings:
            scores = self.scores(result, setting)
            key = (setting.train or (scores and scores.train) or "").lower(), setting.test.lower()
            if scores is not None and key in paper.fpr95:
                differences.append(scores.fpr95 - paper.fpr95[key])
        return finite(float(np.mean(differences))) if differences else None


def training_sets(result: Result) -> list[str]:
    """The sets that a descriptor was trained on, one run each."""
    return list(dict.fromkeys(one.train for one in result.phototour if one.train is not None))


def arrange(every: Sequence[Result]) -> list[Arrangement]:
    """Make one arrangement per FPR rule: scores by different rules are not comparable."""

    def in_paper_order(names: Iterable[str]) -> list[str]:
        order = {name: place for place, name in enumerate(published.PAPER_SETS)}
        return sorted(dict.fromkeys(names), key=lambda name: order.get(name.lower(), len(order)))

    arrangements = []
    for rule in dict.fromkeys(one.rule for result in every for one in result.phototour):
        results = [one for one in every if any(scores.rule == rule for scores in one.phototour)]
        scores = [one for result in results for one in result.phototour if one.rule == rule]
        several = any(len(training_sets(result)) > 1 for result in results)
        settings = []
        for test in in_paper_order(one.test for one in scores):
            # The areas' table alone shows scores on a descriptor's own training set.
            own = [one for one in scores if one.test == test and not one.on_training_set]
            trains = in_paper_order(one.train for one in own if one.train) if several else []
            columns = [PhototourSetting(test, train) for train in trains]
            settings += columns or [PhototourSetting(test, None)]
        arrangements.append(Arrangement(rule, settings, results))
    return arrangements


def fpr_table(arrangement: Arrangement) -> Table:
    """FPR@95 of every descriptor, and the paper's rows if all test sets are the paper's own."""
    settings, results = arrangement.settings, arrangement.results
    by_training_set = any(setting.train is not None for setting in settings)
    differences = {one.name: arrangement.paper_difference(one) for one in results}
    compared = any(value is not None for value in differences.values())
    heads = [(f"Tested on {one.test}", one.train) if one.train else one.test for one in settings]
    shown = {"Trained on": not by_training_set, "Mean": len(settings) > 1, "vs. paper": compared}
    columns = ["Descriptor", "Parameters", *(head for head in shown if shown[head]), *heads]
    rows: list[Row] = []
    for result in results:
        cells: dict[Any, Cell] = {
            "Parameters": count_cell(result.parameters),
            "Trained on": Cell(", ".join(training_sets(result)) or DASH),
        }
        if (found := arrangement.mean(result)) is not None:
            share, std, number = found
            whole = number == len(settings)  # a mean over fewer columns is not comparable
            detail = "" if whole else f"over {number} of {len(settings)}"
            cells["Mean"] = share_cell(share, std, detail, contends=whole)
        if (difference := differences[result.name]) is not None:
            cells["vs. paper"] = Cell(f"{100 * difference:+.2f}".replace("-", "−"), difference)
        for head, setting in zip(heads, settings, strict=True):
            if (one := arrangement.scores(result, setting)) is not None:
                own = one.on_training_set
                detail = "trained on this set" if own else interval(one.fpr95_interval)
                cells[head] = share_cell(one.fpr95, one.fpr95_std, detail, contends=not own)
        rows.append(result_row(result, cells))
    trains = dict.fromkeys(name for one in results for name in training_sets(one))
    for paper in published.PAPER_PHOTOTOUR if arrangement.on_paper_sets else ():
        for train in [""] if by_training_set else trains:
            keys = [((s.train or train).lower(), s.test.lower()) for s in settings]
            known = [paper.fpr95[key] for key in keys if key in paper.fpr95]
            if not known:
                continue
            detail = "" if len(known) == len(keys) else f"over {len(known)} of {len(keys)}"
            mean = share_cell(float(np.mean(known)), None, detail, contends=False)
            if len(known) == len(paper.fpr95):
                mean = share_cell(paper.mean, paper.mean_std, contends=False)
            cells = {
                "Descriptor": Cell(f"{paper.name} (paper)"),
                "Parameters": count_cell(paper.parameters),
                "Trained on": Cell(train or DASH),
                "Mean": mean,
            }
            for head, key in zip(heads, keys, strict=True):
                std = paper.fpr95_std.get(key)
                cells[head] = share_cell(paper.fpr95.get(key), std, contends=False)
            rows.append(("published", cells))
    scores = [one for result in results for one in result.phototour]
    tests: dict[str, dict[str, None]] = {}
    for one in scores:
        pairs = f"{one.matching_pairs:,} matching and {one.non_matching_pairs:,} non-matching pairs"
        tests.setdefault(pairs if one.matching_pairs else "pairs not recorded", {})[one.test] = None
    notes = {
        "; ".join(f"{joined(list(names))}: {pairs}" for pairs, names in tests.items()) + ".": True,
        "Brackets: 95 % confidence interval, from the number of pairs.": any(
            interval(one.fpr95_interval) for one in scores
        ),
        "±: standard deviation over seeds.": any(one.fpr95_std is not None for one in scores),
        "A descriptor that was not trained on any of the sets has one value per test set, repeated "
        "in its columns.": by_training_set and any(one.train is None for one in scores),
        "Scores on a descriptor's own training set do not count.": any(
            one.on_training_set for one in scores
        ),
        published.PAPER_SOURCE: rows[-1][0] == "published",
        "vs. paper: mean difference to the paper in percentage points, over the columns that both "
        "have; below zero is better than the paper.": compared,
    }
    grouped = " Columns: training set → test set, grouped by test set." if by_training_set else ""
    return make_table(
        "False positive rate at 95 % recall (FPR@95), %: lower is better. "
        f"Rule: {arrangement.rule}.{grouped}",
        [(kind, {head: row.get(head, Cell()) for head in columns}) for kind, row in rows],
        [note for note, holds in notes.items() if holds],
        lower_is_better=True,
    )


def areas_table(arrangement: Arrangement) -> Table:
    """Areas under the curves, one row per descriptor, training set and test set."""
    rows = []
    for result in arrangement.results:
        for one in result.phototour:
            if one.rule != arrangement.rule:
                continue
            cells = {
                "Test set": Cell(one.test),
                "Trained on": Cell(one.train or DASH),
                "FPR@95": share_cell(one.fpr95, contends=False),
                "ROC area": share_cell(one.auc, contends=False),
                "Average precision": share_cell(one.average_precision, contends=False),
                "Matching pairs": count_cell(one.matching_pairs),
                "Non-matching pairs": count_cell(one.non_matching_pairs),
            }
            rows.append(result_row(result, cells))
    return make_table(f"Areas under the curves, %. Rule of FPR@95: {arrangement.rule}.", rows)


# HPatches


class HPatchesSetting(NamedTuple):
    """Protocol, split and tasks, which scores of one table share."""

    protocol: str
    split: str
    tasks: str
    sequences: int

    @property
    def label(self) -> str:
        """Protocol and split in words."""
        split = "mean of splits a, b, c" if self.split == "abc" else f"split {self.split}"
        return f"protocol {self.protocol}, {split}"

    @property
    def caption(self) -> str:
        """All fields, for a caption."""
        return f"HPatches, {self.label} ({self.sequences} sequences, tasks: {self.tasks})"


Scored = list[tuple[Result, HPatchesScores]]


def scoreboard(results: Sequence[Result]) -> dict[HPatchesSetting, Scored]:
    """Group scores by setting; of each protocol the mean over a, b and c first, then full."""
    boards: dict[HPatchesSetting, Scored] = {}
    for result in results:
        for scores in result.hpatches:
            key = HPatchesSetting(scores.protocol, scores.split, scores.tasks, scores.sequences)
            boards.setdefault(key, []).append((result, scores))
    protocols = list(dict.fromkeys(key.protocol for key in boards))
    order = {"abc": 0, "full": 1}
    keys = sorted(boards, key=lambda k: (protocols.index(k.protocol), order.get(k.split, 2)))
    return {key: boards[key] for key in keys}


def headline_table(setting: HPatchesSetting, scored: Scored) -> Table:
    """Mean average precision of the three tasks, with published rows if they are comparable."""
    rows: list[Row] = []
    for result, scores in scored:
        tasks = {
            task.capitalize(): share_cell(getattr(scores, f"{task}_map"), scores.map_std.get(task))
            for task in TASKS
        }
        rows.append(result_row(result, {**_sizes(result), **tasks}))
    notes = []
    if (setting.protocol, setting.split) == published.HPATCHES_SETTING:
        notes.append(published.HPATCHES_SOURCE)
        for name, shares in published.PUBLISHED_HPATCHES.items():
            cells: dict[Any, Cell] = {"Descriptor": Cell(f"{name} (published)")}
            for task, share in zip(TASKS, shares, strict=True):
                cells[task.capitalize()] = share_cell(share, contends=False)
            rows.append(("published", cells))
    if any(scores.map_std for _, scores in scored):
        notes.append("±: standard deviation over seeds.")
    caption = f"{setting.caption}: mean average precision, %: higher is better."
    return make_table(caption, rows, notes)


def detail_tables(setting: HPatchesSetting, scored: Scored) -> list[Table]:
    """Tables by level, pool and sequence, as far as the scores have them."""
    by_level: list[Row] = []
    areas: list[Row] = []
    pools: list[Row] = []
    by_sequence: dict[str, dict[Any, Cell]] = {}
    for result, scores in scored:
        parts: dict[Any, Cell] = {}
        roc: dict[Any, Cell] = {}
        for level, name in LEVELS.items():
            for kind in NEGATIVES:
                head = f"{name} {kind}"
                std = scores.part_std.get(f"verification/{level}/{kind}")
                if (share := scores.verification.get(level, {}).get(kind)) is not None:
                    parts["Verification", head] = share_cell(share, std)
                if (share := scores.verification_auc.get(level, {}).get(kind)) is not None:
                    roc["ROC area", head] = share_cell(share)
        for task in ("matching", "retrieval"):
            for level, name in LEVELS.items():
                std = scores.part_std.get(f"{task}/{level}")
                cell = share_cell(getattr(scores, task).get(level), std)
                parts[task.capitalize(), name] = cell
        by_level.append(result_row(result, parts))
        areas.append(result_row(result, roc))
        levels = list(scores.retrieval_by_pool.values())
        sizes = sorted({size for one in levels for size in one}, key=int)
        means = {
            ("Pool of", f"{int(size):,}"): _mean_cell([one[size] for one in levels if size in one])
            for size in sizes
        }
        pools.append(result_row(result, means))
        for name, shares in sorted(scores.matching_by_sequence.items()):
            row = by_sequence.setdefault(name, {"Sequence": Cell(name)})
            row[result.name] = _mean_cell(shares.values(), contends=False)
    sequences: list[Row] = [("rival", row) for row in by_sequence.values()]
    contents = {
        "by level, mAP in %": by_level,
        "verification, balanced ROC area in %": areas,
        "retrieval by pool, mean over levels, mAP in %": pools,
        "matching by sequence, mean over levels, mAP in %": sequences,
    }
    tables = [make_table(f"{setting.caption}: {what}.", rows) for what, rows in contents.items()]
    return [table for table in tables if len(table.columns) > 1]


def _mean_cell(shares: Iterable[float], *, contends: bool = True) -> Cell:
    known = [share for share in shares if math.isfinite(share)]
    return share_cell(float(np.mean(known)) if known else None, contends=contends)


def _sizes(result: Result) -> dict[Any, Cell]:
    return {
        "Dimension": count_cell(result.dimension),
        "Parameters": count_cell(result.parameters),
    }


def source_tables(results: Sequence[Result]) -> tuple[list[Table], list[Table]]:
    """The compared descriptors, and those that are unavailable; no table of none."""
    found: list[Row] = []
    missing: list[Row] = []
    for one in results:
        source = {"Source": Cell(one.source)}
        if one.missing is None:
            cells = {**_sizes(one), "Distance": Cell(one.distance), **source}
            found.append(result_row(one, cells))
        else:
            missing.append(result_row(one, {"Reason": Cell(one.missing), **source}))
    return (
        [make_table("Compared descriptors and their sources.", found)] if found else [],
        [make_table("Requested descriptors that are unavailable.", missing)] if missing else [],
    )
