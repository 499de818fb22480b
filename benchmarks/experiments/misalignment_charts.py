"""Matching of patches that are cut askew: tables, and curves over the amount."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kjax.eval.report.page_parts import Charts, Column, Key, Mark, Panel, Table, TableCell, TableRow
from kjax.eval.report.phrases import percent
from kjax.eval.report.table_cells import (
    NAME,
    SIZES,
    mark_best,
    result_row,
    share_cell,
    size_cells,
)
from kjax.eval.report.theme import light
from kjax.eval.report.verification_charts import plot_line
from kjax.eval.results import LEVELS, MEAN, DescriptorResult, MisalignmentScores

_LINES: tuple[Mark, ...] = ("line", "dashed", "dashdot", "dotted")
_COLOURS = tuple(f"series-{number}" for number in (0, 1, 2, 7, 6, 9, 4, 8))
"""Of curves. Two that share a line style, four places apart, are a bluish and a brownish one."""


class Jitter(NamedTuple):
    """A kind of misalignment: what its axis says, and by what amounts are multiplied for it."""

    axis: str
    factor: float


JITTERS = {
    "translation": Jitter("% of the patch side", 100),
    "rotation": Jitter("degrees", 1),
    "scale": Jitter("octaves (log2 of the factor)", 1),
}
_IN_TABLE = {
    "moved 15 % of the side": ("translation", "0.15"),
    "turned 30°": ("rotation", "30"),
    "scaled by 2^±0.45": ("scale", "0.45"),
}
"""Of the amounts that are measured those at which descriptors differ most."""


class Band(NamedTuple):
    """A curve with its standard deviation, which is 0 where it is unknown."""

    amounts: Float[np.ndarray, " points"]
    means: Float[np.ndarray, " points"]
    stds: Float[np.ndarray, " points"]


def noise_tables(results: Sequence[DescriptorResult], means: str = "") -> list[Table]:
    """Matching under HPatches' levels of noise, a table for each set of patches.

    Args:
        results: of which those that were scored so are shown; `by_level` holds the mean too.
        means: what figures are means of, in words.
    """
    scored = [(one, scores) for one in results for scores in _reported(one) if scores.by_level]
    tests = dict.fromkeys(scores.test for _, scores in scored)
    columns = [NAME, *SIZES, *map(Column, (MEAN, *LEVELS.values()))]
    return [
        Table(
            f"Matching on {test} with patches cut askew, as strongly as in HPatches: mean average "
            f"precision, %{means}; higher is better.",
            columns,
            mark_best(
                [_noise_row(one, scores) for one, scores in scored if scores.test == test],
                lower_is_better=False,
            ),
        )
        for test in tests
    ]


def amounts_table(results: Sequence[DescriptorResult], means: str = "") -> Table | None:
    """Matching with one kind of misalignment, by a known amount; None without any figure."""
    amounts = list(_IN_TABLE.values())
    rows = [
        result_row(result, [_amount_cell(scores, kind, amount) for kind, amount in amounts])
        for result in results
        for scores in _reported(result)
        if any(amount in scores.by_amount.get(kind, {}) for kind, amount in amounts)
    ]
    if not rows:
        return None
    return Table(
        "Matching when the second patch is cut askew in one way: mean average precision, "
        f"%{means}; higher is better.",
        [NAME, *map(Column, _IN_TABLE)],
        mark_best(rows, lower_is_better=False),
    )


def amount_charts(results: Sequence[DescriptorResult], means: str = "") -> Charts | None:
    """Matching against misalignment, a line each in a band of ± its deviation; None without any.

    More than eight lines are hard to tell apart.
    """
    shown = [one for one in results if any(scores.by_amount for scores in _reported(one))]
    keys = [Key(one.name, *look(place)) for place, one in enumerate(shown)]
    drawn = {
        kind: [
            (key, band) for key, one in zip(keys, shown, strict=True) if (band := _band(one, kind))
        ]
        for kind in JITTERS
    }
    tops = [max(band.means + band.stds) for bands in drawn.values() for _, band in bands]
    if not tops:
        return None
    return Charts(
        "jitter",
        "Matching when the second patch is moved, turned or scaled by a known amount"
        f"{means}. Bands: ± the standard deviation over seeds.",
        [_panel(kind, bands, max(tops)) for kind, bands in drawn.items() if bands],
        keys,
    )


def look(place: int) -> tuple[str, Mark]:
    """Colour and line of a curve; when the colours begin anew, each gets another line."""
    again, colour = divmod(place, len(_COLOURS))
    return _COLOURS[colour], _LINES[(colour + again) % len(_LINES)]


def _reported(result: DescriptorResult) -> list[MisalignmentScores]:
    return [one for one in result.misaligned if not one.validation]


def _noise_row(result: DescriptorResult, scores: MisalignmentScores) -> TableRow:
    shares = [
        share_cell(scores.by_level.get(level), std=scores.std.get(level), digits=1)
        for level in (MEAN, *LEVELS.values())
    ]
    return result_row(result, [*size_cells(result), *shares])


def _amount_cell(scores: MisalignmentScores, kind: str, amount: str) -> TableCell:
    share = scores.by_amount.get(kind, {}).get(amount)
    return share_cell(share, std=scores.std.get(f"{kind}/{amount}"), digits=1)


def _band(result: DescriptorResult, kind: str) -> Band | None:
    points = [
        (float(amount), mean, scores.std.get(f"{kind}/{amount}", 0.0))
        for scores in _reported(result)
        for amount, mean in scores.by_amount.get(kind, {}).items()
    ]
    return Band(*np.asarray(sorted(points), np.float64).T) if points else None


def _panel(kind: str, drawn: Sequence[tuple[Key, Band]], top: float) -> Panel:
    words = JITTERS[kind]
    largest = max(band.amounts[-1] for _, band in drawn)
    figures = [f"{key.label} {percent(float(band.means[-1]), 1)} %" for key, band in drawn]
    return Panel(
        kind.capitalize(),
        f"Matching by {kind}, at {words.factor * largest:g} {words.axis}: {', '.join(figures)}.",
        functools.partial(_draw, words=words, drawn=drawn, top=top),
        270,
    )


def _draw(axis: Any, words: Jitter, drawn: Sequence[tuple[Key, Band]], top: float) -> None:
    for key, band in drawn:
        x, low, high = words.factor * band.amounts, band.means - band.stds, band.means + band.stds
        axis.fill_between(x, 100 * low, 100 * high, color=light(key.colour), alpha=0.2, linewidth=0)
        plot_line(axis, key, x, 100 * band.means)
    axis.set(ylim=(0, 104 * top))
    axis.margins(x=0.02)
    axis.set_xlabel(words.axis)
    axis.set_ylabel("matching mAP, %")
