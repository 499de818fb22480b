"""Before and after: a table for the terminal, and a page."""

import datetime
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from kjax.eval.report.page import render
from kjax.eval.report.tables import Cell, make_table, percent
from kjax.files.atomic import write_text
from kjax.runs.workdir import plain_versions
from kjax.tune.scores import EMBEDDED_PAIR, HELD_OUT, Scores
from kjax.tune.sets import OwnSets
from kjax.tune.settings import Settings
from kjax.tune.trained import Trained

REPORT_FILE = "report.html"
PLACES = {HELD_OUT: "held-out photographs", EMBEDDED_PAIR: "embedded pair"}


def _share(value: float) -> str:
    return percent(value, digits=1)


def _number(value: float) -> str:
    return f"{int(value):,}"


class Measure(NamedTuple):
    """A row of the table."""

    key: str
    words: str
    written: Callable[[float], str] = _share
    lower_is_better: bool = False


MEASURES = (
    *(
        measure
        for place, where in PLACES.items()
        for measure in (
            Measure(f"matching/{place}", f"Matching of patches cut askew, {where}, mAP in %"),
            *(
                Measure(f"matching {level}/{place}", f"… {level}")
                for level in ("easy", "hard", "tough")
            ),
            Measure(f"fpr95/{place}", f"False positives at 95 % recall, {where}, %", percent, True),
        )
    ),
    Measure("correct", "Correct matches with views of held-out photographs", _number),
    Measure("precision", "… share of all matches, %"),
    Measure("images", "Held-out photographs that COLMAP registers", _number),
    Measure("points", "… their 3-D points", _number),
)


def rows(before: Scores, after: Scores) -> list[tuple[Measure, float, float]]:
    """The figures that are there, in order."""
    known = [_with_precision(scores) for scores in (before, after)]
    return [
        (measure, known[0][measure.key], known[1][measure.key])
        for measure in MEASURES
        if measure.key in known[0] and measure.key in known[1]
    ]


def _with_precision(scores: Mapping[str, float]) -> Scores:
    matches = scores.get("matches")
    return {**scores, "precision": scores["correct"] / matches} if matches else dict(scores)


def table(before: Scores, after: Scores) -> str:
    """Lines for the terminal."""
    figures = rows(before, after)
    width = max(len(measure.words) for measure, _, _ in figures)
    lines = [f"{'':{width}}  {'before':>10}  {'after':>10}"]
    for measure, first, second in figures:
        cells = "".join(f"  {measure.written(value):>10}" for value in (first, second))
        lines.append(f"{measure.words:{width}}{cells}")
    return "\n".join(lines)


def warning(start: str, trained: Trained, before: Scores, after: Scores) -> str:
    """A line that says so if the weights got worse; empty if they did not.

    Args:
        start: the weights before.
        trained: what made the tuned ones of them.
        before: their scores.
        after: those of the tuned ones.
    """
    key = f"matching/{HELD_OUT}"
    if key not in before or after[key] >= before[key]:
        return ""
    return f"Worse on the held-out photographs: go on with {start}, or {trained.advice}."


def write_report(
    out: Path, settings: Settings, sets: OwnSets, trained: Trained, before: Scores, after: Scores
) -> None:
    """Writes `report.html`, which needs no other file."""
    compared = []
    for measure, *values in rows(before, after):
        best = (min if measure.lower_is_better else max)(values)
        cells = [
            Cell(measure.written(value), value, best=value == best != values[1 - place])
            for place, value in enumerate(values)
        ]
        named = {("", ""): Cell(measure.words), ("", "Before"): cells[0], ("", "After"): cells[1]}
        compared.append(("rival", named))
    worse = warning(settings.start, trained, before, after)
    page = render(
        f"Tuned to {settings.photos.resolve().name}",
        [
            {
                "title": "Before and after",
                "tables": [make_table("The weights before and after tuning.", compared)],
            },
            {"title": "How", "facts": [*filter(None, [worse]), *_facts(sets), *trained.how]},
        ],
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["kjax", "tune", str(settings.photos), "--from", settings.start]),
        versions=plain_versions(),
    )
    write_text(out / REPORT_FILE, page)


def _facts(sets: OwnSets) -> list[str]:
    held = len(sets.held_out_photos)
    return [
        f"Patches of {sets.points[0]:,} points to train on and of {sets.points[1]:,} held out, "
        f"from {sets.made_from}.",
        *([f"Held out: {held} photographs and every point that they see."] if held else []),
    ]
