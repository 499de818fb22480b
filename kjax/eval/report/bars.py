"""The paper's two bar charts of HPatches: all descriptors, and the variants of our own.

`bar_panel` and `bar_legend` draw bars wherever their figures come from.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from kjax.eval.report.hpatches_tables import HPatchesSetting, Scored
from kjax.eval.report.page_parts import Charts, Key, Panel
from kjax.eval.report.phrases import (
    count,
    finite,
    percent_with_std,
    printable,
    shortened,
    slugged,
)
from kjax.eval.report.published import is_hand_crafted
from kjax.eval.report.render import MARKERS
from kjax.eval.report.theme import light
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


Kind = Literal["ours", "learned", "hand-crafted"]


@dataclasses.dataclass(frozen=True)
class Bar:
    """A descriptor's score: its name, the mean, whose it is, its parts, and the spread."""

    name: str
    share: float | None
    kind: Kind
    spots: Sequence[Spot]
    std: float | None = None


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the three: its headline, and the parts to mark."""

    title: str
    headline: Callable[[HPatchesScores], float]
    spots: Callable[[HPatchesScores], list[Spot]]


def comparison_charts(benchmark: HPatchesSetting, scored: Sequence[Scored]) -> Charts:
    """All descriptors, best on top in each task; hand-crafted ones are striped."""
    panels = [
        bar_panel(task.title, best_first([_bar(task, one) for one in scored])) for task in TASKS
    ]
    return Charts(
        f"hpatches-comparison-{_slug(benchmark)}",
        f"Comparison on {benchmark.caption}: mean average precision. {_MARKS}",
        panels,
        [*bar_legend(_kind(one) for one in scored), *_spot_legend()],
    )


def variants_charts(benchmark: HPatchesSetting, scored: Sequence[Scored]) -> Charts | None:
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
        [bar_panel(task.title, [_bar(task, one) for one in ours]) for task in TASKS],
        _spot_legend(),
    )


def bar_legend(kinds: Iterable[Kind]) -> list[Key]:
    """What the fills of those bars mean."""
    meanings: dict[Kind, Key] = {
        "ours": Key("kjax", "ours", "bar"),
        "learned": Key("learned rivals", "rival", "bar"),
        "hand-crafted": Key("hand-crafted", "rival", "hatched"),
    }
    found = set(kinds)
    return [key for kind, key in meanings.items() if kind in found]


def best_first(bars: Sequence[Bar]) -> list[Bar]:
    """Sorted by the mean, the largest on top."""
    return sorted(bars, key=lambda bar: -(finite(bar.share) or 0))


def bar_panel(title: str, bars: Sequence[Bar]) -> Panel:
    """A panel of bars in the order given, the mean beside each."""
    figures = [f"{bar.name} {percent_with_std(bar.share, bar.std)} %" for bar in bars]
    return Panel(
        title,
        f"{title}: {', '.join(figures)}.",
        functools.partial(_draw, bars=bars),
        72 + _BAR_HEIGHT * len(bars),
        left=18 + max(_letters_width(shortened(bar.name)) for bar in bars),
        right=44 if all(bar.std is None for bar in bars) else 72,
    )


def _bar(task: Task, one: Scored) -> Bar:
    return Bar(one.result.name, task.headline(one.scores), _kind(one), task.spots(one.scores))


def _kind(one: Scored) -> Kind:
    if one.result.ours:
        return "ours"
    return "hand-crafted" if is_hand_crafted(one.result) else "learned"


def _slug(benchmark: HPatchesSetting) -> str:
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


def _letters_width(text: str) -> int:
    """About how wide a label is, in CSS pixels."""
    return round(5.7 * len(text))


def _draw(axis: Any, bars: Sequence[Bar]) -> None:
    for place, bar in enumerate(bars):
        axis.barh(place, 100 * (finite(bar.share) or 0.0), height=0.72, **_fill(bar.kind))
        for spot in bar.spots:
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
            percent_with_std(bar.share, bar.std, 1),
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
            weight="bold" if bar.kind == "ours" else "normal",
        )
    axis.set(xlim=(0, 100), ylim=(len(bars) - 0.4, -0.6))
    axis.set_yticks(range(len(bars)), [printable(shortened(bar.name)) for bar in bars])
    axis.tick_params(axis="y", labelcolor=light("ink"))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("mAP, %")


def _fill(kind: Kind) -> dict[str, Any]:
    if kind == "ours":
        return {"color": light("ours")}
    if kind == "hand-crafted":
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
