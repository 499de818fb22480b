"""Charts of verification: ROC, precision against recall, and distances of pairs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from kjax.eval.phototour import RECALL
from kjax.eval.report.page_parts import Charts, Key, Mark, Panel
from kjax.eval.report.phototour_settings import Arrangement, PhototourSetting
from kjax.eval.report.phrases import percent, shortened, slugged
from kjax.eval.report.render import LINES
from kjax.eval.report.theme import SERIES, light
from kjax.eval.results import Curve, DescriptorResult, Evaluation, Histogram, PhototourScores

_LOWEST_RATE = 1e-5
_LOWEST_RECALL = 0.5

Look = dict[str, Key]
"""How each descriptor is drawn, by its name; the same in all charts."""
Drawn = Sequence[tuple[Key, PhototourScores]]


def looks(evaluation: Evaluation) -> Look:
    """A colour for every descriptor; ours are drawn with full lines, rivals with broken ones."""
    found: Look = {}
    for place, result in enumerate(evaluation.descriptors):
        turn = place // len(SERIES)
        ours: tuple[Mark, ...] = ("line", "dashdot")
        rivals: tuple[Mark, ...] = ("dashed", "dotted")
        mark = (ours if result.ours else rivals)[turn % 2]
        found[result.name] = Key(result.name, SERIES[place % len(SERIES)], mark)
    return found


def roc_charts(arrangement: Arrangement, look: Look) -> Charts:
    """ROC curves, the rate of false positives on a logarithmic axis so that its small end shows."""
    caption = (
        "ROC curves. Dots: 95 % recall, where FPR@95 is read. The axis of false positives is "
        "logarithmic; further left is better."
    )
    return _curve_charts("roc", caption, arrangement, look, _draw_roc, _roc_alt)


def precision_recall_charts(arrangement: Arrangement, look: Look) -> Charts:
    """Precision against recall."""
    caption = "Precision against recall; nearer to the upper right corner is better."
    return _curve_charts("precision-recall", caption, arrangement, look, _draw_pr, _pr_alt)


def _curve_charts(
    slug: str,
    caption: str,
    arrangement: Arrangement,
    look: Look,
    draw: Callable[..., None],
    alt: Callable[[PhototourSetting, Drawn], str],
) -> Charts:
    """A panel for each setting that has curves."""
    panels = [
        Panel(setting.label, alt(setting, drawn), functools.partial(draw, drawn=drawn), 270)
        for setting in arrangement.settings
        if (drawn := _drawn(arrangement, setting, look))
    ]
    return Charts(slug, caption, panels, [look[result.name] for result in arrangement.results])


def distance_charts(arrangement: Arrangement, setting: PhototourSetting) -> Charts | None:
    """Distances of matching and non-matching pairs, by descriptor; None if there are none."""
    panels = []
    for result in arrangement.results:
        scores = arrangement.scores(result, setting)
        if scores is not None and len(scores.distances.edges) > 1:
            panels.append(_distance_panel(result, scores))
    if not panels:
        return None
    caption = (
        f"Distances of pairs, {setting.label}; the less the two overlap, the better. Beside the "
        "names: FPR@95. Dotted: the distance that 95 % of the matching pairs stay below, to the "
        "width of a bin."
    )
    legend = [
        Key("matching pairs", "match", "bar"),
        Key("non-matching pairs", "non-match", "bar"),
    ]
    return Charts(f"distances-{slugged(setting.label)}", caption, panels, legend)


def finite_points(
    curve: Curve,
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """The points of a curve that can be drawn."""
    x, y = np.asarray(curve.x, np.float64), np.asarray(curve.y, np.float64)
    drawable = np.isfinite(x) & np.isfinite(y)
    return x[drawable], y[drawable]


def distance_at_recall(histogram: Histogram, recall: float = RECALL) -> float | None:
    """The distance that a share of the matching pairs stays below, between the bins' edges."""
    counts = np.asarray(histogram.matching, np.float64)
    if not counts.sum() > 0:
        return None
    reached = np.concatenate([[0], np.cumsum(counts) / counts.sum()])
    return float(np.interp(recall, reached, histogram.edges))


def plot_line(axis: Any, key: Key, x: np.ndarray, y: np.ndarray) -> None:
    """Draws a curve as its key says."""
    axis.plot(x, y, color=light(key.colour), linestyle=LINES[key.mark], linewidth=1.7)


def _drawn(arrangement: Arrangement, setting: PhototourSetting, look: Look) -> Drawn:
    found = [(look[one.name], arrangement.scores(one, setting)) for one in arrangement.results]
    return [(key, scores) for key, scores in found if scores is not None and scores.roc.x]


def _draw_roc(axis: Any, drawn: Drawn) -> None:
    pairs = max(scores.non_matching_pairs for _, scores in drawn)
    # A rate below one pair in all cannot be; a decade that holds no curve is left out.
    lowest = max(_LOWEST_RATE, 10 ** np.floor(np.log10(1 / max(pairs, 10))))
    for key, scores in drawn:
        rate, recall = finite_points(scores.roc)
        # Recall without any false positive has no place on a logarithmic axis but its edge.
        start = recall[rate <= lowest].max(initial=0)
        shown = rate > lowest
        plot_line(axis, key, np.append(lowest, rate[shown]), np.append(start, recall[shown]))
        axis.plot(
            [max(scores.fpr95, lowest)],
            [RECALL],
            marker="o",
            markersize=6,
            zorder=3,
            color=light(key.colour),
            markeredgecolor=light("paper"),
            clip_on=False,
        )
    axis.axhline(RECALL, color=light("soft"), linewidth=0.8, linestyle=":", zorder=1)
    axis.set_xscale("log")
    axis.set(xlim=(lowest, 1), ylim=(_LOWEST_RECALL, 1.005))
    axis.set_xlabel("false positives, %")
    axis.set_ylabel("recall, %")
    axis.minorticks_off()
    _percent_ticks(axis)


def _draw_pr(axis: Any, drawn: Drawn) -> None:
    for key, scores in drawn:
        plot_line(axis, key, *finite_points(scores.precision_recall))
    axis.set(xlim=(0, 1), ylim=(_lowest_precision(drawn), 1.005))
    axis.set_xlabel("recall, %")
    axis.set_ylabel("precision, %")
    _percent_ticks(axis)


def _lowest_precision(drawn: Drawn) -> float:
    """Where the axis begins: the interesting end of good curves is narrow."""
    lows = [finite_points(scores.precision_recall)[1].min(initial=1) for _, scores in drawn]
    return float(np.clip(np.floor(10 * min(lows)) / 10, 0, 0.9))


def _percent_ticks(axis: Any) -> None:
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_formatter(lambda share, _: f"{100 * share:.10g}")


def _roc_alt(setting: PhototourSetting, drawn: Drawn) -> str:
    parts = [f"{key.label} {percent(scores.fpr95)} %" for key, scores in drawn]
    return f"ROC curves, {setting.label}. False positives at 95 % recall: {', '.join(parts)}."


def _pr_alt(setting: PhototourSetting, drawn: Drawn) -> str:
    parts = [f"{key.label} {percent(scores.average_precision)} %" for key, scores in drawn]
    return f"Precision–recall curves, {setting.label}. Areas: {', '.join(parts)}."


def _distance_panel(result: DescriptorResult, scores: PhototourScores) -> Panel:
    threshold = distance_at_recall(scores.distances)
    known = "" if threshold is None else f" 95 % of the matching pairs lie below {threshold:.3g}."
    draw = functools.partial(
        _draw_distances, histogram=scores.distances, threshold=threshold, unit=result.distance
    )
    title = f"{shortened(result.name)}: {percent(scores.fpr95)} %"
    return Panel(title, f"Distances of pairs by {result.name}.{known}", draw, 185)


def _draw_distances(axis: Any, histogram: Histogram, threshold: float | None, unit: str) -> None:
    for counts, role in ((histogram.matching, "match"), (histogram.non_matching, "non-match")):
        total = max(sum(counts), 1)
        axis.stairs(
            [100 * number / total for number in counts],
            histogram.edges,
            fill=True,
            color=light(role),
            alpha=0.55,
        )
    if threshold is not None:
        axis.axvline(threshold, color=light("ink"), linewidth=1, linestyle=":")
    axis.set(xlim=(histogram.edges[0], histogram.edges[-1]), ylim=(0, None))
    axis.set_xlabel(f"{unit} distance")
    axis.set_ylabel("% of pairs")
    axis.locator_params(nbins=5)
