"""Records to the paper's bar charts of HPatches, and to curves of misaligned patches."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kjax.errors import InputError, unknown_name
from kjax.eval.report.bars import Bar, Kind, Spot, bar_legend, bar_panel, best_first
from kjax.eval.report.curves import plot_line
from kjax.eval.report.page_parts import Charts, Key, Mark, Panel
from kjax.eval.report.phrases import percent
from kjax.eval.report.published import names_hand_crafted
from kjax.eval.report.render import charts_image
from kjax.eval.report.theme import light
from kjax.eval.results import LEVELS
from kjax.experiments.records import Record
from kjax.experiments.table_rows import (
    TASKS,
    Model,
    askew,
    hpatches,
    jittered,
    misaligned,
    models_of,
    on_hpatches,
)
from kjax.files.atomic import write_whole

_LEVEL_MARKS: tuple[Mark, ...] = ("circle", "diamond", "triangle")
"""Shapes besides colours, for those who cannot tell green from red."""
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


class Band(NamedTuple):
    """A curve with its standard deviation, which is 0 where it is unknown."""

    amounts: Float[np.ndarray, " points"]
    means: Float[np.ndarray, " points"]
    stds: Float[np.ndarray, " points"]


def bar_chart(
    records: Sequence[Record],
    split: str,
    rule: str,
    rows: Sequence[str],
    path: str | Path,
    *,
    sort: bool = False,
) -> None:
    """Draws verification, matching and retrieval on HPatches as horizontal bars.

    The mean over training sets and seeds is written beside each bar, with its standard deviation
    over seeds; marks show its parts by level.

    Args:
        records: of one experiment, and of rivals.
        split: or the folder's name.
        rule: python or matlab.
        rows: names, top down.
        path: file to write, .svg or .png.
        sort: put the best on top in each panel instead.
    """
    models = _chosen(models_of(records, lambda one: on_hpatches(one, split, rule)), rows)
    panels = []
    for task in TASKS:
        bars = [_bar(model, split, rule, task) for model in models]
        panels.append(bar_panel(task.capitalize(), best_first(bars) if sort else bars))
    kinds = {_kind(model) for model in models}
    legend = bar_legend(kinds) if len(kinds) > 1 else []
    levels = [
        Key(name, name, mark) for name, mark in zip(LEVELS.values(), _LEVEL_MARKS, strict=True)
    ]
    _write(Charts("bars", "", panels, [*legend, *levels]), path)


def jitter_curves(
    records: Sequence[Record], path: str | Path, rows: Sequence[str] | None = None
) -> None:
    """Draws matching against misalignment, a line per row, in a band of ± its deviation over seeds.

    Args:
        records: of one experiment, and of rivals; those without such metrics are passed over.
        path: file to write, .svg or .png.
        rows: names, in the legend's order; all by default. More than eight are hard to tell apart.
    """
    models = _chosen(jittered(records), rows)
    keys = [Key(model.name, *_look(place)) for place, model in enumerate(models)]
    drawn = {
        kind: [(key, _band(model, kind)) for key, model in zip(keys, models, strict=True)]
        for kind in JITTERS
    }
    tops = [max(band.means + band.stds, default=0) for bands in drawn.values() for _, band in bands]
    panels = [
        _jitter_panel(kind, bands, max(tops))
        for kind, every in drawn.items()
        if (bands := [(key, band) for key, band in every if len(band.amounts)])
    ]
    if not panels:
        raise InputError(f"misalignments are {', '.join(JITTERS)}: the records tell of none")
    _write(Charts("jitter", "", panels, keys), path)


def _look(place: int) -> tuple[str, Mark]:
    """Colour and line of a curve; when the colours begin anew, each gets another line."""
    again, colour = divmod(place, len(_COLOURS))
    return _COLOURS[colour], _LINES[(colour + again) % len(_LINES)]


def _chosen(models: Sequence[Model], rows: Sequence[str] | None) -> list[Model]:
    """The models of some rows; all without a choice."""
    known = {model.name: model for model in models}
    names = list(known) if rows is None else rows
    if not names:
        raise InputError("no record has such figures: there is nothing to draw")
    for name in names:
        if name not in known:
            raise unknown_name("row", name, known)
    return [known[name] for name in names]


def _bar(model: Model, split: str, rule: str, task: str) -> Bar:
    spread = hpatches(split, rule, task).spread(model.records)
    spots = [
        Spot(part.mean, name, mark)
        for (level, name), mark in zip(LEVELS.items(), _LEVEL_MARKS, strict=True)
        if (part := hpatches(split, rule, task, level).spread(model.records))
    ]
    mean, std = (spread.mean, spread.std) if spread else (None, None)
    return Bar(model.name, mean, _kind(model), spots, std)


def _kind(model: Model) -> Kind:
    if model.trained:
        return "ours"
    return "hand-crafted" if names_hand_crafted(model.name) else "learned"


def _band(model: Model, kind: str) -> Band:
    found = (one.by_amount.get(kind, {}) for record in model.records for one in askew(record))
    points = []
    for amount in {name for amounts in found for name in amounts}:
        spread = misaligned(kind, amount).spread(model.records)
        if spread:
            points.append((float(amount), spread.mean, spread.std or 0.0))
    return Band(*np.asarray(sorted(points), np.float64).reshape(-1, 3).T)


def _jitter_panel(kind: str, drawn: Sequence[tuple[Key, Band]], top: float) -> Panel:
    words = JITTERS[kind]
    largest = max(band.amounts[-1] for _, band in drawn)
    figures = [f"{key.label} {percent(float(band.means[-1]), 1)} %" for key, band in drawn]
    return Panel(
        kind.capitalize(),
        f"Matching by {kind}, at {words.factor * largest:g} {words.axis}: {', '.join(figures)}.",
        functools.partial(_draw_bands, words=words, drawn=drawn, top=top),
        270,
    )


def _draw_bands(axis: Any, words: Jitter, drawn: Sequence[tuple[Key, Band]], top: float) -> None:
    for key, band in drawn:
        x, low, high = words.factor * band.amounts, band.means - band.stds, band.means + band.stds
        axis.fill_between(x, 100 * low, 100 * high, color=light(key.colour), alpha=0.2, linewidth=0)
        plot_line(axis, key, x, 100 * band.means)
    axis.set(ylim=(0, 104 * top))
    axis.margins(x=0.02)
    axis.set_xlabel(words.axis)
    axis.set_ylabel("matching mAP, %")


def _write(charts: Charts, path: str | Path) -> None:
    path = Path(path)
    match path.suffix:
        case ".svg":
            image = charts_image(charts, "svg")
        case ".png":
            image = charts_image(charts, "png")
        case suffix:
            raise unknown_name("kind of figure", suffix, (".svg", ".png"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda partial: partial.write_bytes(image))
