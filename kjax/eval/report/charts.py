"""Charts of a report, drawn by matplotlib as SVG images on transparent ground.

They use the colours of a light page; on a dark page the template inverts them.
"""

import base64
import functools
import io
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kjax.eval.hpatches.scores import LEVELS, TASKS, HPatchesScores
from kjax.eval.phototour import RECALL
from kjax.eval.report import tables
from kjax.eval.report.published import is_hand_crafted
from kjax.eval.report.tables import Scored, finite, percent
from kjax.eval.results import Curve, Histogram, PhototourScores, Result
from kjax.extras import require

WIDTH = 320
"""Width of a panel, in CSS pixels and points of matplotlib."""
INK, SOFT, RULE = "#1a2230", "#566377", "#dde3ea"
OURS, BASELINE, WASH = "#3d72e2", "#93a1b3", "#dfe5ec"
MATCHING, NON_MATCHING = "#2a6fdb", "#d4610e"
SERIES = (
    "#2563eb", "#c2570c", "#15803d", "#d6338f", "#1e293b",
    "#808000", "#5b21b6", "#408080", "#9f1d1d", "#7d6b8a",
)  # fmt: skip
"""Colours of curves, chosen to differ on light and, inverted, on dark ground."""
STROKES: dict[str, Any] = {"line": "-", "dashed": "--", "dotted": ":", "dashdot": "-."}
MARKERS = {"circle": "o", "square": "s", "cross": "X", "diamond": "D", "triangle": ">"}
LEVEL_COLOURS = dict(zip(LEVELS, ("#14853f", "#d98a06", "#c8261f"), strict=True))
LEVEL_MARKS = dict(zip(LEVELS, ("circle", "square", "cross"), strict=True))
"""Shapes besides colours, for readers who cannot distinguish green from red."""
TRAINING_TITLES = {
    "loss": "Loss",
    "fpr95": "FPR@95 on the test sets, %",
    "distance": "Mean distances in a batch",
    "learning_rate": "Learning rate",
    "norm": "Norms",
}
_ABOVE, _BELOW = 26, 37
"""Room for a panel's title, and for the labels below it, in CSS pixels."""
_TICKS = {
    "labelsize": 10, "color": RULE, "labelcolor": SOFT, "major.pad": 5, "major.size": 0,
    "minor.size": 0,
}  # fmt: skip
_STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.labelsize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.titley": 1.0,
    "axes.edgecolor": RULE,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()},
    "xtick.major.pad": 8,  # clear of the lowest label of the other axis
    "text.color": INK,
    "text.parse_math": False,  # names may contain dollar signs
    "hatch.linewidth": 1.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "kjax",  # the same figures give the same file
}


class Key(NamedTuple):
    """An entry of a legend: a label, a colour, and a stroke, marker, "bar" or "hatched"."""

    label: str
    colour: str
    mark: str


class Charts(NamedTuple):
    """Panels side by side, as pairs of alternative text and SVG address, with one legend."""

    caption: str
    panels: Sequence[tuple[str, str]]
    legend: Sequence[Key] = ()


def panel(
    title: str, alt: str, draw: Callable[[Any], None], height: int, left: int = 46, right: int = 12
) -> tuple[str, str]:
    """Draw one chart, with room left and right of the axis; lengths in CSS pixels."""
    mpl = require("matplotlib", "drawing charts")
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), mpl.rc_context(_STYLE):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure((WIDTH / 72, height / 72))
        # Fixed margins: a layout engine would draw everything several times.
        box = (left, _BELOW, WIDTH - left - right, height - _ABOVE - _BELOW)
        axis = figure.add_axes(tuple(np.divide(box, (WIDTH, height, WIDTH, height))))
        axis.set_title(printable(title), x=(8 - left) / box[2])
        draw(axis)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return alt, f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def printable(text: str, longest: int | None = None) -> str:
    """Replace control characters by spaces, and shorten long text."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


def looks(results: Iterable[Result]) -> dict[str, Key]:
    """Choose a colour for every descriptor; ours have solid lines, baselines broken ones."""
    found = {}
    for place, one in enumerate(results):
        marks = ("line", "dashdot") if one.ours else ("dashed", "dotted")
        turn, colour = divmod(place, len(SERIES))
        found[one.name] = Key(one.name, SERIES[colour], marks[turn % 2])
    return found


def finite_points(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """The points of a curve that can be drawn."""
    x, y = np.asarray(curve.x, np.float64), np.asarray(curve.y, np.float64)
    drawable = np.isfinite(x) & np.isfinite(y)
    return x[drawable], y[drawable]


def plot_line(axis: Any, key: Key, x: np.ndarray, y: np.ndarray) -> None:
    """Draw a curve in its key's colour and stroke."""
    axis.plot(x, y, color=key.colour, linestyle=STROKES[key.mark], linewidth=1.7)


# Verification


def curve_charts(arrangement: tables.Arrangement, look: Mapping[str, Key]) -> dict[str, Charts]:
    """ROC curves with a logarithmic axis of false positives, and precision against recall."""
    keys = [look[result.name] for result in arrangement.results]
    charts = {}
    roc = (
        "ROC curves. Dots: 95 % recall, where FPR@95 is read. The axis of false positives is "
        "logarithmic; further left is better."
    )
    precision = "Precision against recall; nearer to the upper right corner is better."
    for title, field, figures, draw, caption in (
        ("ROC", "fpr95", "False positives at 95 % recall", _draw_roc, roc),
        ("Precision and recall", "average_precision", "Areas", _draw_precision_recall, precision),
    ):
        panels = []
        for setting in arrangement.settings:
            scores = [arrangement.scores(one, setting) for one in arrangement.results]
            drawn = [(k, s) for k, s in zip(keys, scores, strict=True) if s is not None and s.roc.x]
            if drawn:
                shares = [f"{k.label} {percent(getattr(s, field))} %" for k, s in drawn]
                alt = f"{title}, {setting.label}. {figures}: {', '.join(shares)}."
                panels.append(panel(setting.label, alt, functools.partial(draw, drawn), 270))
        if panels:
            charts[title] = Charts(caption, panels, keys)
    return charts


def _draw_roc(drawn: Sequence[tuple[Key, PhototourScores]], axis: Any) -> None:
    pairs = max(scores.non_matching_pairs for _, scores in drawn)
    lowest = max(1e-5, 10 ** np.floor(np.log10(1 / max(pairs, 10))))  # below one pair
    for key, scores in drawn:
        rate, recall = finite_points(scores.roc)
        # Recall without any false positive is drawn at the edge of the logarithmic axis.
        start = recall[rate <= lowest].max(initial=0)
        shown = rate > lowest
        plot_line(axis, key, np.append(lowest, rate[shown]), np.append(start, recall[shown]))
        dot = {"marker": "o", "markersize": 6, "zorder": 3, "markeredgecolor": "white"}
        axis.plot(max(scores.fpr95, lowest), RECALL, color=key.colour, clip_on=False, **dot)
    axis.axhline(RECALL, color=SOFT, linewidth=0.8, linestyle=":", zorder=1)
    axis.set_xscale("log")
    _finish(axis, "false positives", "recall", lowest, 0.5)


def _draw_precision_recall(drawn: Sequence[tuple[Key, PhototourScores]], axis: Any) -> None:
    lowest = 1.0
    for key, scores in drawn:
        recall, precision = finite_points(scores.precision_recall)
        plot_line(axis, key, recall, precision)
        lowest = min(lowest, precision.min(initial=1))
    bottom = np.clip(np.floor(10 * lowest) / 10, 0, 0.9)
    _finish(axis, "recall", "precision", 0.0, bottom)


def _finish(axis: Any, x: str, y: str, left: float, bottom: float) -> None:
    axis.set(xlim=(left, 1), ylim=(bottom, 1.005), xlabel=f"{x}, %", ylabel=f"{y}, %")
    axis.minorticks_off()
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_formatter(lambda share, _: f"{100 * share:.10g}")


def distance_charts(arrangement: tables.Arrangement, setting: tables.PhototourSetting) -> Charts:
    """Distances of matching and non-matching pairs, by descriptor."""

    def draw(axis: Any, histogram: Histogram, unit: str) -> None:
        kinds = ((histogram.matching, MATCHING), (histogram.non_matching, NON_MATCHING))
        for counts, colour in kinds:
            shares = 100 * np.asarray(counts) / max(sum(counts), 1)
            axis.stairs(shares, histogram.edges, fill=True, color=colour, alpha=0.55)
        if (threshold := distance_at_recall(histogram)) is not None:
            axis.axvline(threshold, color=INK, linewidth=1, linestyle=":")
        axis.set(xlim=(histogram.edges[0], histogram.edges[-1]), ylim=(0, None))
        axis.set(xlabel=f"{unit} distance", ylabel="% of pairs")
        axis.locator_params(nbins=5)

    panels = []
    for one in arrangement.results:
        scores = arrangement.scores(one, setting)
        if scores is not None and len(scores.distances.edges) > 1:
            rate = percent(scores.fpr95)
            alt = f"Distances of pairs by {one.name}; FPR@95 {rate} %."
            drawing = functools.partial(draw, histogram=scores.distances, unit=one.distance)
            panels.append(panel(f"{printable(one.name, 21)}: {rate} %", alt, drawing, 185))
    caption = (
        f"Distances of pairs, {setting.label}; less overlap is better. Beside the names: FPR@95. "
        "Dotted: the distance that 95 % of the matching pairs stay below."
    )
    kinds = {"matching pairs": MATCHING, "non-matching pairs": NON_MATCHING}
    return Charts(caption, panels, [Key(name, colour, "bar") for name, colour in kinds.items()])


def distance_at_recall(histogram: Histogram) -> float | None:
    """Interpolate the distance that 95 % of the matching pairs stay below."""
    counts = np.asarray(histogram.matching, np.float64)
    if not counts.sum() > 0:
        return None
    reached = np.concatenate([[0], np.cumsum(counts) / counts.sum()])
    return float(np.interp(RECALL, reached, histogram.edges))


# HPatches


def hpatches_charts(setting: tables.HPatchesSetting, scored: Scored) -> list[Charts]:
    """The paper's two bar charts: all descriptors, best on top; and ours, smallest on top."""
    marks = (
        "Bars and numbers: the mean. Marks: its parts by level; in verification by negatives from "
        "the same (intra) or another sequence (inter), in matching by change of light or of "
        "viewpoint, if these are known."
    )
    kinds = {_kind(result) for result, _ in scored}
    spots = {mark for _, scores in scored for task in TASKS for _, _, mark in _spots(scores, task)}
    levels = [Key(LEVELS[level], LEVEL_COLOURS[level], LEVEL_MARKS[level]) for level in LEVELS]
    if "triangle" in spots:
        levels.append(Key("intra / light", SOFT, "triangle"))
        levels.append(Key("inter / viewpoint", SOFT, "diamond"))
    best = {
        task: sorted(scored, key=lambda one: -(finite(getattr(one[1], f"{task}_map")) or 0))
        for task in TASKS
    }
    legend = [*(key for key in _BARS if key in kinds), *levels]
    where = f"on {setting.caption}: mean average precision."
    panels = [_bar_panel(task, rows) for task, rows in best.items()]
    boards = [Charts(f"Comparison {where} {marks}", panels, legend)]
    ours = sorted((one for one in scored if one[0].ours), key=lambda one: one[0].parameters or 0)
    if len(ours) > 1:
        named = [f"{printable(r.name, 21)} {r.parameters:,}" for r, _ in ours if r.parameters]
        sizes = f" (parameters: {', '.join(named)})" if named else ""
        order = f"Sorted by the number of parameters, fewest on top{sizes}. "
        panels = [_bar_panel(task, ours) for task in TASKS]
        boards.append(Charts(f"Our variants {where} {order}{marks}", panels, levels))
    return boards


_BARS: dict[Key, dict[str, Any]] = {
    Key("kjax", OURS, "bar"): {"color": OURS},
    Key("learned baselines", BASELINE, "bar"): {"color": BASELINE},
    Key("hand-crafted", BASELINE, "hatched"): {
        "facecolor": WASH, "edgecolor": BASELINE, "hatch": "////", "linewidth": 0,
    },
}  # fmt: skip
"""How the bars of each kind of descriptor are filled."""


def _kind(result: Result) -> Key:
    return list(_BARS)[0 if result.ours else 2 if is_hand_crafted(result) else 1]


def _spots(scores: HPatchesScores, task: str) -> list[tuple[float, str, str]]:
    """The parts of a score: fraction, level and marker."""
    pairs = {"intra": "triangle", "inter": "diamond", "i": "triangle", "v": "diamond"}
    parts: dict[str, dict[str, float]] = {}
    by_sequence = scores.matching_by_sequence
    if task == "verification":
        parts = dict(scores.verification)
    elif task == "matching" and {name[:2] for name in by_sequence} == {"i_", "v_"}:
        # Sequences under changing light are called i_…, under changing viewpoint v_….
        for level, kind in itertools.product(LEVELS, "iv"):
            shares = [one[level] for name, one in by_sequence.items() if name[0] == kind]
            parts.setdefault(level, {})[kind] = float(np.mean(shares))
    else:
        parts = {level: {"": share} for level, share in getattr(scores, task).items()}
    return [
        (share, level, pairs.get(kind, LEVEL_MARKS[level]))
        for level, kinds in parts.items()
        for kind, share in kinds.items()
        if np.isfinite(share)
    ]


def _bar_panel(task: str, scored: Scored) -> tuple[str, str]:
    """Bars in the given order, the mean beside each."""
    names = [printable(result.name, 21) for result, _ in scored]
    shares = [(getattr(s, f"{task}_map"), s.map_std.get(task)) for _, s in scored]

    def draw(axis: Any) -> None:
        for place, (result, scores) in enumerate(scored):
            share, std = shares[place]
            axis.barh(place, 100 * (finite(share) or 0.0), height=0.72, **_BARS[_kind(result)])
            for part, level, mark in _spots(scores, task):
                edge = {"markeredgecolor": "white", "markeredgewidth": 0.6, "linestyle": ""}
                spot = {"marker": MARKERS[mark], "markersize": 5.2, "color": LEVEL_COLOURS[level]}
                axis.plot(100 * part, place, **spot, **edge)
            style = {"va": "center", "weight": "bold" if result.ours else "normal"}
            text, units = percent(share, std, 1), ("axes fraction", "data")
            axis.annotate(text, (1.02, place), xycoords=units, **style)
        axis.set(xlim=(0, 100), ylim=(len(scored) - 0.4, -0.6), xlabel="mAP, %")
        axis.set_yticks(range(len(scored)), names)
        axis.tick_params(axis="y", labelcolor=INK)
        axis.grid(visible=False, axis="y")

    numbers = [f"{r.name} {percent(*one)} %" for (r, _), one in zip(scored, shares, strict=True)]
    left = 18 + round(5.7 * max(map(len, names)))
    right = 44 if all(std is None for _, std in shares) else 72
    title, height = task.capitalize(), 72 + 26 * len(scored)
    return panel(title, f"{title}: {', '.join(numbers)}.", draw, height, left, right)


# Training


def training_charts(
    runs: Mapping[str, Mapping[str, Curve]], look: Mapping[str, Key]
) -> list[Charts]:
    """A panel per family of metrics; colours distinguish runs, strokes metrics."""
    families: dict[str, dict[str, str]] = {}
    for curves in runs.values():
        for metric, curve in curves.items():
            head = metric.split("/")[0]
            tail = head.rpartition("_")[2]
            metrics = families.setdefault(tail if tail in ("distance", "norm") else head, {})
            if metric not in metrics and len(finite_points(curve)[0]):
                metrics[metric] = list(STROKES)[len(metrics) % len(STROKES)]
    # A run that was not evaluated gets a spare colour.
    spare = iter(SERIES[::-1] * len(runs))
    colours = {name: look[name].colour if name in look else next(spare) for name in runs}
    order = [*TRAINING_TITLES, *families]

    def draw(axis: Any, family: str, strokes: Mapping[str, str]) -> None:
        values: list[float] = []
        for name, curves in runs.items():
            for metric in (one for one in strokes if one in curves):
                steps, numbers = finite_points(curves[metric])
                numbers = 100 * numbers if family == "fpr95" else numbers
                values += numbers.tolist()
                plot_line(axis, Key(metric, colours[name], strokes[metric]), steps, numbers)
                if len(steps) == 1:
                    axis.plot(steps, numbers, "o", color=colours[name], markersize=4)
        if values and min(values) > 0 and max(values) > 100 * min(values) and family != "fpr95":
            axis.set_yscale("log")
            axis.minorticks_off()
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        elif values and min(values) >= 0:
            axis.set_ylim(bottom=0)
        axis.set_xlabel("step")
        if len(strokes) > 1:
            from matplotlib.lines import Line2D

            lines = [Line2D([], [], color=SOFT, linestyle=STROKES[one]) for one in strokes.values()]
            labels = [printable(metric) for metric in strokes]
            axis.legend(lines, labels, fontsize=9.5, frameon=False, labelcolor="linecolor")

    panels = []
    for family in sorted(families, key=order.index):
        if strokes := families[family]:
            title = TRAINING_TITLES.get(family, family)
            alt = f"{title}: {', '.join(strokes)} over training steps."
            drawing = functools.partial(draw, family=family, strokes=strokes)
            panels.append(panel(title, alt, drawing, 230))
    keys = [Key(name, colour, "line") for name, colour in colours.items()]
    caption = "Metrics over the steps of training, as logged by each run."
    return [Charts(caption, panels, keys)] if panels else []
