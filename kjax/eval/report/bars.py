"""The paper's two bar charts of HPatches: all descriptors, and the variants of our own."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kjax.eval.report.blocks import Charts, Key, Panel
from kjax.eval.report.hpatches_tables import Benchmark, Scored
from kjax.eval.report.published import is_hand_crafted
from kjax.eval.report.render import MARKERS
from kjax.eval.report.theme import light
from kjax.eval.report.wording import count, finite, percent, printable, shortened, slugged
from kjax.eval.results import LEVELS, NEGATIVES, HPatchesScores

_BAR_HEIGHT = 26
_NEGATIVES = dict(zip(NEGATIVES, ("triangle", "diamond"), strict=True))
_CATEGORIES = {"i": "triangle", "v": "diamond"}
"""Sequences under changing light are called i_…, those under changing viewpoint v_…."""


@dataclasses.dataclass(frozen=True)
class Spot:
    """A part of a score, marked on its bar: a share, a level's colour and a marker."""

    share: float
    level: str
    marker: str


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the three: its headline, and the parts to mark."""

    title: str
    headline: Callable[[HPatchesScores], float]
    spots: Callable[[HPatchesScores], list[Spot]]


def comparison_charts(benchmark: Benchmark, scored: Sequence[Scored]) -> Charts:
    """All descriptors, best on top in each task; hand-crafted ones are striped."""
    legend = [Key("kjax", "ours", "bar")]
    if any(not one.result.ours and not is_hand_crafted(one.result) for one in scored):
        legend.append(Key("learned rivals", "rival", "bar"))
    if any(is_hand_crafted(one.result) for one in scored):
        legend.append(Key("hand-crafted", "rival", "hatched"))
    panels = [
        _panel(task, sorted(scored, key=lambda one: -(finite(task.headline(one.scores)) or 0)))
        for task in TASKS
    ]
    return Charts(
        f"hpatches-comparison-{_slug(benchmark)}",
        f"Comparison on {benchmark.caption}: mean average precision. {_MARKS}",
        panels,
        [*legend, *_spot_legend()],
    )


def variants_charts(benchmark: Benchmark, scored: Sequence[Scored]) -> Charts | None:
    """Our own descriptors, the one with the fewest parameters on top; None for fewer than two."""
    ours = [one for one in scored if one.result.ours]
    if len(ours) < 2:
        return None
    ours.sort(key=lambda one: one.result.parameters or 0)
    sizes = [
        f"{shortened(one.result.name)} {count(one.result.parameters)}"
        for one in ours
        if one.result.parameters
    ]
    order = f" (parameters: {', '.join(sizes)})" if sizes else ""
    return Charts(
        f"hpatches-variants-{_slug(benchmark)}",
        f"Our own variants on {benchmark.caption}: mean average precision. Sorted by the number "
        f"of parameters, fewest on top{order}. {_MARKS}",
        [_panel(task, ours) for task in TASKS],
        _spot_legend(),
    )


def _slug(benchmark: Benchmark) -> str:
    return slugged(f"{benchmark.protocol} {benchmark.split} {benchmark.tasks}")


def _spot_legend() -> list[Key]:
    return [
        *(Key(name, name, "circle") for name in LEVELS.values()),
        Key("intra / light", "soft", "triangle"),
        Key("inter / viewpoint", "soft", "diamond"),
    ]


_MARKS = (
    "Bars and figures: the mean. Marks: its parts by level; in verification by negatives from the "
    "same (intra) or another sequence (inter), in matching by change of light or of viewpoint."
)


def _panel(task: Task, scored: Sequence[Scored]) -> Panel:
    figures = [f"{one.result.name} {percent(task.headline(one.scores))} %" for one in scored]
    return Panel(
        task.title,
        f"{task.title}: {', '.join(figures)}.",
        functools.partial(_draw, task=task, scored=scored),
        72 + _BAR_HEIGHT * len(scored),
        left=18 + max(_letters_width(shortened(one.result.name)) for one in scored),
        right=44,
    )


def _letters_width(text: str) -> int:
    """About how wide a label is, in CSS pixels."""
    return round(5.7 * len(text))


def _draw(axis: Any, task: Task, scored: Sequence[Scored]) -> None:
    for place, one in enumerate(scored):
        share = finite(task.headline(one.scores)) or 0.0
        axis.barh(place, 100 * share, height=0.72, **_fill(one))
        for spot in task.spots(one.scores):
            axis.plot(
                100 * spot.share,
                place,
                marker=MARKERS[spot.marker],
                markersize=5.2,
                color=light(spot.level),
                markeredgecolor=light("paper"),
                markeredgewidth=0.6,
                linestyle="",
            )
        axis.annotate(
            percent(task.headline(one.scores), 1),
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
            weight="bold" if one.result.ours else "normal",
        )
    axis.set(xlim=(0, 100), ylim=(len(scored) - 0.4, -0.6))
    axis.set_yticks(range(len(scored)), [printable(shortened(one.result.name)) for one in scored])
    axis.tick_params(axis="y", labelcolor=light("ink"))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("mAP, %")


def _fill(one: Scored) -> dict[str, Any]:
    if one.result.ours:
        return {"color": light("ours")}
    if is_hand_crafted(one.result):
        return {
            "facecolor": light("rival-wash"),
            "edgecolor": light("rival"),
            "hatch": "////",
            "linewidth": 0,
        }
    return {"color": light("rival")}


def _verification_spots(scores: HPatchesScores) -> list[Spot]:
    return _finite_spots(
        (scores.verification.get(level, {}).get(kind), name, marker)
        for level, name in LEVELS.items()
        for kind, marker in _NEGATIVES.items()
    )


def _matching_spots(scores: HPatchesScores) -> list[Spot]:
    """By light and viewpoint if the sequences' names tell; otherwise by level only."""
    kinds = {name[:1] for name in scores.matching_by_sequence if name[1:2] == "_"}
    if kinds != set(_CATEGORIES):
        return _finite_spots(
            (scores.matching.get(level), name, "circle") for level, name in LEVELS.items()
        )
    return _finite_spots(
        (_category_mean(scores, kind, level), name, marker)
        for level, name in LEVELS.items()
        for kind, marker in _CATEGORIES.items()
    )


def _category_mean(scores: HPatchesScores, kind: str, level: str) -> float | None:
    found = [
        levels[level]
        for name, levels in scores.matching_by_sequence.items()
        if name.startswith(f"{kind}_") and level in levels
    ]
    return float(np.mean(found)) if found else None


def _retrieval_spots(scores: HPatchesScores) -> list[Spot]:
    return _finite_spots(
        (scores.retrieval.get(level), name, "circle") for level, name in LEVELS.items()
    )


def _finite_spots(parts: Any) -> list[Spot]:
    return [Spot(share, *rest) for share, *rest in parts if finite(share) is not None]


TASKS = (
    Task("Verification", lambda scores: scores.verification_map, _verification_spots),
    Task("Matching", lambda scores: scores.matching_map, _matching_spots),
    Task("Retrieval", lambda scores: scores.retrieval_map, _retrieval_spots),
)
