"""A page about a reconstruction: figures, cameras and points from two sides, the weakest pairs."""

import functools
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kjax.data.colmap import NO_POINT, PIXEL_CENTRE, Model, read_keypoints, read_model
from kjax.data.cutting.photographs import grey_values, read_photograph, whole_greys
from kjax.errors import counted
from kjax.eval.report import page_parts as parts
from kjax.eval.report.html import to_html
from kjax.eval.report.phrases import decimal
from kjax.eval.report.theme import light
from kjax.files.atomic import write_text
from kjax.images.collection.build import Built, Summary
from kjax.images.draw import draw_matches
from kjax.images.exchange.colmap_database import read_matches

MOST_POINTS = 3000
"""Of those that are drawn: more make a heavy page."""
WEAKEST = 6
"""Pairs that are shown."""
PICTURE_WIDTH = 900
SHOWN = (2, 98)
"""Percentiles of the points, beyond which they do not widen the picture: some lie far out."""
_HEIGHT = 340


class Scene(NamedTuple):
    """A model in the axes of its mean camera: right, down, and into the picture."""

    points: Float[np.ndarray, "P 3"]
    centres: Float[np.ndarray, "N 3"]
    directions: Float[np.ndarray, "N 3"]


def write_page(path: Path, photos: Path, built: Built, summary: Summary, command: str) -> None:
    """Writes a page that needs no other file, whole or not at all.

    Args:
        path: of the page.
        photos: the folder of the photographs.
        built: what to show.
        summary: of it.
        command: that made it.
    """
    model = read_model(built.models[0]) if built.models else None
    sections = [
        parts.Section("summary", "Summary", list(_summary(built, summary))),
        parts.Section("scene", "Cameras and points", [] if model is None else [_charts(model)]),
        parts.Section("weakest", "Weakest pairs", list(_weakest(photos, built.database))),
        parts.Section("photographs", "Photographs", [_table(built.database, model)]),
    ]
    filled = [section for section in sections if section.blocks]
    write_text(path, to_html(parts.Document("Reconstruction", "", command, {}, filled)))


def _summary(built: Built, summary: Summary) -> Iterator[parts.Block]:
    if built.left_out:
        yield parts.Warnings([f"left out: {line}" for line in built.left_out])
    if summary.images < summary.photos and "map" in built.seconds:
        missing = summary.photos - summary.images
        yield parts.Warnings([f"{missing} of {summary.photos} photographs are not registered"])
    items = [
        f"{summary.photos} photographs with {summary.keypoints:,} keypoints",
        f"{summary.pairs:,} pairs matched, {summary.verified_pairs:,} verified, with "
        f"{summary.verified_matches:,} matches",
    ]
    if built.models:
        items += [
            f"{summary.images} photographs registered, {summary.points:,} points",
            f"track length {summary.track_length:.2f}, reprojection error "
            f"{decimal(summary.error)} pixels",
        ]
    times = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in built.seconds.items())
    yield parts.Items([*items, f"seconds of the last run: {times}"])


# Cameras and points


def scene_of(model: Model) -> Scene:
    """Points, and where cameras stand and look, seen from the mean camera."""
    images = list(model.images.values())
    rotations = np.stack([image.rotation for image in images])
    translations = np.stack([image.translation for image in images])
    centres = -np.einsum("nij,ni->nj", rotations, translations)
    # The rotation nearest to the mean of all: they may look anywhere, and their mean be none.
    left, _, right = np.linalg.svd(rotations.mean(axis=0))
    axes = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    chosen = np.linspace(0, len(model.points.xyz) - 1, min(len(model.points.xyz), MOST_POINTS))
    points = model.points.xyz[chosen.round().astype(int)]
    return Scene(points @ axes.T, centres @ axes.T, rotations[:, 2] @ axes.T)


def _charts(model: Model) -> parts.Charts:
    scene = scene_of(model)
    sides = {"From above": (0, 2, False), "From the cameras": (0, 1, True)}
    panels = [
        parts.Panel(
            title,
            f"{len(scene.centres)} cameras and the points that they see, {title.lower()}",
            functools.partial(_draw, scene, across=across, along=along, turned=turned),
            height=_HEIGHT,
        )
        for title, (across, along, turned) in sides.items()
    ]
    legend = [parts.Key("camera", "series-1", "circle"), parts.Key("point", "series-0", "circle")]
    return parts.Charts(
        "scene",
        "The largest model, in the axes of its mean camera; the unit of length is arbitrary. "
        "Lines show where cameras look.",
        panels,
        legend,
    )


def _draw(scene: Scene, axis: Any, *, across: int, along: int, turned: bool) -> None:
    sides = [across, along]
    points, centres = scene.points[:, sides], scene.centres[:, sides]
    ends = [np.percentile(points, SHOWN, axis=0)] if len(points) else []
    shown = np.concatenate([*ends, centres])
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, reach = (low + high) / 2, 0.55 * max((high - low).max(), 1e-6)
    seen = (np.abs(points - middle[None]) <= reach).all(axis=1)
    axis.plot(*points[seen].T, ".", color=light("series-0"), markersize=1.2, alpha=0.6)
    tips = centres + 0.15 * reach * scene.directions[:, sides]
    for centre, tip in zip(centres, tips, strict=True):
        axis.plot(*np.stack([centre, tip]).T, color=light("series-1"), linewidth=1)
    axis.plot(*centres.T, "o", color=light("series-1"), markersize=3)
    axis.set_xlim(middle[0] - reach, middle[0] + reach)
    axis.set_ylim(middle[1] - reach, middle[1] + reach)
    axis.set_aspect("equal")
    if turned:  # down is down
        axis.invert_yaxis()


# Pairs and photographs


def weakest_pairs(database: Path) -> dict[tuple[str, str], np.ndarray]:
    """The verified pairs with the fewest matches, and these."""
    verified = read_matches(database, verified=True)
    kept = {pair: matches for pair, matches in verified.items() if len(matches)}
    return dict(sorted(kept.items(), key=lambda item: len(item[1]))[:WEAKEST])


def _weakest(photos: Path, database: Path) -> Iterator[parts.Picture]:
    tables = read_keypoints(database)
    for number, (pair, matches) in enumerate(weakest_pairs(database).items()):
        left, right = (
            whole_greys(grey_values(read_photograph(photos / name, upright=False))) for name in pair
        )
        ends = [tables[name][matches[:, side], :2] - PIXEL_CENTRE for side, name in enumerate(pair)]
        drawn = draw_matches(left, right, *ends, max_width=PICTURE_WIDTH)
        buffer = io.BytesIO()
        drawn.save(buffer, format="PNG")
        caption = f"{pair[0]} and {pair[1]}: {counted(len(matches), 'verified match')}"
        yield parts.Picture(f"pair-{number}", caption, caption, buffer.getvalue())


def _table(database: Path, model: Model | None) -> parts.Table:
    partners: dict[str, int] = {}
    for pair, matches in read_matches(database, verified=True).items():
        for name in pair:
            partners[name] = partners.get(name, 0) + bool(len(matches))
    registered = {} if model is None else {one.name: one for one in model.images.values()}
    seen = {name: int((one.point_ids != NO_POINT).sum()) for name, one in registered.items()}
    columns = ("photograph", "keypoints", "verified pairs", "points seen")
    return parts.Table(
        "Photographs; one that is not registered sees no points.",
        [parts.Column(title, numeric=place > 0) for place, title in enumerate(columns)],
        [
            parts.TableRow([parts.TableCell(name), *_cells(len(table), name, partners, seen)])
            for name, table in read_keypoints(database).items()
        ],
    )


def _cells(
    keypoints: int, name: str, partners: Mapping[str, int], seen: Mapping[str, int]
) -> Iterator[parts.TableCell]:
    for value in (keypoints, partners.get(name, 0), seen.get(name)):
        yield parts.TableCell("–" if value is None else f"{value:,}", value)
