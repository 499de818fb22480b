"""The paper's two bar charts of HPatches: all descriptors, and the variants of our own."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from kjax.eval.report.hpatches_tables import HPatchesSetting, Scored
from kjax.eval.report.page_parts import Charts, Key, Mark, Panel
from kjax.eval.report.phrases import (
    count,
    finite,
    letters_width,
    percent_with_std,
    printable,
    shortened,
    slugged,
)
from kjax.eval.report.published import is_hand_crafted
from kjax.eval.report.render import MARKERS
from kjax.eval.report.theme import light
from kjax.eval.results import LEVELS, MEAN, NEGATIVES, HPatchesScores

_BAR_HEIGHT = 26
_LEVEL_MARKS: dict[str, Mark] = dict(zip(LEVELS, ("circle", "square", "cross"), strict=True))
"""Shapes besides colours, for those who cannot tell green from red."""
_NEGATIVES: dict[str, Mark] = dict(zip(NEGATIVES, ("triangle", "diamond"), strict=True))
_CATEGORIES: dict[str, Mark] = {"i": "triangle", "v": "diamond"}
"""Sequences under changing light are called i_…, those under changing viewpoint v_…."""


class Spot(NamedTuple):
    """A part of a score, marked on its bar: a share, a level's colour and a marker."""

    share: float | None
    level: str
    mark: Mark


Kind = Literal["ours", "learned", "hand-crafted"]


class Bar(NamedTuple):
    """A descriptor's score: its name, the mean, whose it is, its parts, and the spread."""

    name: str
    share: float | None
    kind: Kind
    spots: Sequence[Spot]
    std: float | None


def comparison_charts(benchmark: HPatchesSetting, scored: Sequence[Scored]) -> Charts:
    """All descriptors, best on top in each task; hand-crafted ones are striped."""
    tasks = {
        task: sorted(bars, key=lambda bar: -(finite(bar.share) or 0))
        for task, bars in _bars(scored).items()
    }
    return Charts(
        f"hpatches-comparison-{_slug(benchmark)}",
        f"Comparison on {benchmark.caption}: mean average precision. {_MARKS}",
        [_bar_panel(task, bars) for task, bars in tasks.items()],
        [*_bar_legend(tasks["verification"]), *_spot_legend(tasks)],
    )


def variants_charts(benchmark: HPatchesSetting, scored: Sequence[Scored]) -> Charts | None:
    """Our own descriptors, the one with the fewest parameters on top; None for fewer than two."""
    ours = sorted(
        (one for one in scored if one.result.ours), key=lambda one: one.result.parameters or 0
    )
    if len(ours) < 2:
        return None
    sizes = [
        f"{shortened(one.result.name)} {count(one.result.parameters)}"
        for one in ours
        if one.result.parameters
    ]
    order = f" (parameters: {', '.join(sizes)})" if sizes else ""
    tasks = _bars(ours)
    return Charts(
        f"hpatches-variants-{_slug(benchmark)}",
        f"Our own variants on {benchmark.caption}: mean average precision. Sorted by the number "
        f"of parameters, fewest on top{order}. {_MARKS}",
        [_bar_panel(task, bars) for task, bars in tasks.items()],
        _spot_legend(tasks),
    )


def _bars(scored: Sequence[Scored]) -> dict[str, list[Bar]]:
    """The bars of each task, in the order given."""
    return {
        task: [
            Bar(
                one.result.name,
                getattr(one.scores, f"{task}_map"),
                _kind(one),
                [spot for spot in spots(one.scores) if finite(spot.share) is not None],
                one.scores.map_std.get(task),
            )
            for one in scored
        ]
        for task, spots in _SPOTS.items()
    }


def _bar_panel(task: str, bars: Sequence[Bar]) -> Panel:
    """A panel of bars in the order given, the mean beside each."""
    title = task.capitalize()
    figures = [f"{bar.name} {percent_with_std(bar.share, bar.std)} %" for bar in bars]
    return Panel(
        title,
        f"{title}: {', '.join(figures)}.",
        functools.partial(_draw, bars=bars),
        72 + _BAR_HEIGHT * len(bars),
        left=18 + max(letters_width(shortened(bar.name)) for bar in bars),
        right=44 if all(bar.std is None for bar in bars) else 72,
    )


def _bar_legend(bars: Iterable[Bar]) -> list[Key]:
    """What the fills of bars mean."""
    meanings: dict[Kind, Key] = {
        "ours": Key("kjax", "ours", "bar"),
        "learned": Key("learned rivals", "rival", "bar"),
        "hand-crafted": Key("hand-crafted", "rival", "hatched"),
    }
    found = {bar.kind for bar in bars}
    return [key for kind, key in meanings.items() if kind in found]


def _spot_legend(tasks: Mapping[str, Sequence[Bar]]) -> list[Key]:
    """What the marks on bars mean."""
    found = {spot.mark for bars in tasks.values() for bar in bars for spot in bar.spots}
    kinds = (
        Key("intra / light", "soft", "triangle"),
        Key("inter / viewpoint", "soft", "diamond"),
    )
    return [
        *(Key(name, name, _LEVEL_MARKS[level]) for level, name in LEVELS.items()),
        *(key for key in kinds if key.mark in found),
    ]


def _kind(one: Scored) -> Kind:
    if one.result.ours:
        return "ours"
    return "hand-crafted" if is_hand_crafted(one.result) else "learned"


def _slug(benchmark: HPatchesSetting) -> str:
    return slugged(f"{benchmark.protocol} {benchmark.split} {benchmark.tasks}")


_MARKS = (
    "Bars and figures: the mean. Marks: its parts by level; in verification by negatives from the "
    "same (intra) or another sequence (inter), in matching by change of light or of viewpoint, "
    "where these are known."
)


def _draw(axis: Any, bars: Sequence[Bar]) -> None:
    for place, bar in enumerate(bars):
        axis.barh(place, 100 * (finite(bar.share) or 0.0), height=0.72, **_fill(bar.kind))
        for spot in bar.spots:
            axis.plot(
                100 * (spot.share or 0.0),
                place,
                marker=MARKERS[spot.mark],
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
    """By kind of negatives if they were kept apart; otherwise by level only."""
    parts = scores.verification
    if any(MEAN in by_kind for by_kind in parts.values()):
        return _level_spots(
            {level: by_kind[MEAN] for level, by_kind in parts.items() if MEAN in by_kind}
        )
    return [
        Spot(parts.get(level, {}).get(kind), name, mark)
        for level, name in LEVELS.items()
        for kind, mark in _NEGATIVES.items()
    ]


def _matching_spots(scores: HPatchesScores) -> list[Spot]:
    """By light and viewpoint if the sequences' names tell; otherwise by level only."""
    kinds = {name[:1] for name in scores.matching_by_sequence if name[1:2] == "_"}
    if kinds != set(_CATEGORIES):
        return _level_spots(scores.matching)
    return [
        Spot(_category_mean(scores, kind, level), name, mark)
        for level, name in LEVELS.items()
        for kind, mark in _CATEGORIES.items()
    ]


def _category_mean(scores: HPatchesScores, kind: str, level: str) -> float | None:
    found = [
        levels[level]
        for name, levels in scores.matching_by_sequence.items()
        if name.startswith(f"{kind}_") and level in levels
    ]
    return float(np.mean(found)) if found else None


def _level_spots(shares: Mapping[str, float]) -> list[Spot]:
    return [Spot(shares.get(level), name, _LEVEL_MARKS[level]) for level, name in LEVELS.items()]


_SPOTS: dict[str, Callable[[HPatchesScores], list[Spot]]] = {
    "verification": _verification_spots,
    "matching": _matching_spots,
    "retrieval": lambda scores: _level_spots(scores.retrieval),
}
