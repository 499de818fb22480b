"""Charts of how descriptors were trained: colours tell runs apart, strokes metrics."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from kjax.eval.report.page_parts import Charts, Key, Mark, Panel
from kjax.eval.report.phrases import printable
from kjax.eval.report.render import proxy
from kjax.eval.report.theme import SERIES
from kjax.eval.report.verification_charts import Look, finite_points, plot_line
from kjax.eval.results import Curve, TrainingCurves

_STROKES: tuple[Mark, ...] = ("line", "dashed", "dotted", "dashdot")
_TITLES = {
    "loss": "Loss",
    "fpr95": "FPR@95 on the test sets, %",
    "distance": "Mean distances in a batch",
    "learning_rate": "Learning rate",
    "norm": "Norms",
}
_SHARES = "fpr95"
_SPREAD = 100
"""Values that differ by more than this factor are drawn on a logarithmic axis."""


class Line(NamedTuple):
    """One curve of one run."""

    key: Key
    curve: Curve


def training_charts(runs: Sequence[TrainingCurves], look: Look) -> Charts | None:
    """A panel per family of metrics; None if there is no curve."""
    families: dict[str, list[str]] = {}
    for run in runs:
        for metric, curve in run.curves.items():
            names = families.setdefault(_family(metric), [])
            if metric not in names and len(finite_points(curve)[0]):
                names.append(metric)
    keys = _run_keys(runs, look)
    order = [*_TITLES, *families]
    panels = [
        _panel(family, families[family], runs, keys)
        for family in sorted(families, key=order.index)
        if families[family]
    ]
    if not panels:
        return None
    caption = "Metrics over the steps of training, as logged by each run."
    return Charts("training", caption, panels, list(keys.values()))


def _family(metric: str) -> str:
    """Metrics that share a panel: test sets of one measure, distances, norms."""
    head = metric.split("/")[0]
    tail = head.rpartition("_")[2]
    return tail if tail in ("distance", "norm") else head


def _run_keys(runs: Sequence[TrainingCurves], look: Look) -> dict[str, Key]:
    """A run has the colour of its descriptor; one that was not evaluated takes a spare one."""
    return {
        run.name: Key(run.name, look[run.name].colour if run.name in look else spare, "line")
        for run, spare in zip(runs, SERIES[::-1] * len(runs), strict=False)
    }


def _panel(
    family: str, metrics: Sequence[str], runs: Sequence[TrainingCurves], keys: dict[str, Key]
) -> Panel:
    strokes = dict(zip(metrics, _STROKES * len(metrics), strict=False))
    lines = [
        Line(Key(metric, keys[run.name].colour, stroke), run.curves[metric])
        for run in runs
        for metric, stroke in strokes.items()
        if metric in run.curves
    ]
    title = _TITLES.get(family, family)
    legend = [Key(metric, "soft", stroke) for metric, stroke in strokes.items()]
    draw = functools.partial(
        _draw, lines=lines, legend=legend if len(metrics) > 1 else [], percent=family == _SHARES
    )
    return Panel(title, f"{title}: {', '.join(metrics)} over training steps.", draw, 230)


def _draw(axis: Any, lines: Sequence[Line], legend: Sequence[Key], percent: bool) -> None:
    values = []
    for line in lines:
        steps, numbers = finite_points(line.curve)
        numbers = 100 * numbers if percent else numbers
        values += numbers.tolist()
        plot_line(axis, line.key, steps, numbers)
        if len(steps) == 1:
            axis.plot(steps, numbers, "o", color=axis.lines[-1].get_color(), markersize=4)
    if values and min(values) > 0 and max(values) > _SPREAD * min(values) and not percent:
        axis.set_yscale("log")
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif values and min(values) >= 0:
        axis.set_ylim(bottom=0)
    axis.set_xlabel("step")
    if legend:
        labels = [printable(key.label) for key in legend]
        handles = [proxy(key) for key in legend]
        axis.legend(
            handles, labels, fontsize=9.5, frameon=False, loc="best", labelcolor="linecolor"
        )
