"""The page about a reconstruction: numbers, cameras and points, and the weakest pairs."""

import functools
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kjax.data.colmap import NO_POINT, PIXEL_CENTRE, Model, read_keypoints, read_model
from kjax.data.cutting.photographs import grey_values, read_photograph, whole_greys
from kjax.errors import counted
from kjax.eval.report.charts import SERIES, Charts, Key, panel
from kjax.eval.report.page import png_address, render
from kjax.eval.report.tables import Cell, count_cell, make_table
from kjax.files.atomic import write_text
from kjax.images.collection.build import Built, Summary
from kjax.images.draw import draw_matches
from kjax.images.exchange.colmap_database import read_matches

MOST_POINTS = 3000
"""Maximum number of points drawn: more make a heavy page."""
WEAKEST = 6
"""Number of pairs shown."""
SHOWN = (2, 98)
"""Percentiles of the points that the drawing includes: some lie far out."""


class Viewpoints(NamedTuple):
    """A model in the axes of its mean camera: right, down, and into the picture."""

    points: Float[np.ndarray, "P 3"]
    centres: Float[np.ndarray, "N 3"]
    directions: Float[np.ndarray, "N 3"]


def write_page(path: Path, photos: Path, built: Built, summary: Summary, command: str) -> None:
    """Write a page about the reconstruction of a folder of photos; it needs no other file."""
    model = read_model(built.models[0]) if built.models else None
    warnings = [f"left out: {line}" for line in built.left_out]
    if summary.images < summary.photos and "map" in built.seconds:
        missing = summary.photos - summary.images
        warnings.append(f"{missing} of {summary.photos} images are not registered")
    facts = [
        f"{summary.photos} images with {summary.keypoints:,} keypoints",
        f"{summary.pairs:,} pairs matched, {summary.verified_pairs:,} verified, with "
        f"{summary.verified_matches:,} matches",
    ]
    if built.models:
        facts += [
            f"{summary.images} images registered, {summary.points:,} points",
            f"track length {summary.track_length:.2f}, reprojection error {summary.error:.3f} "
            "pixels",
        ]
    times = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in built.seconds.items())
    keypoints = read_keypoints(built.database)
    verified = read_matches(built.database, verified=True)
    partners = [name for pair, matches in verified.items() if len(matches) for name in pair]
    seen = {} if model is None else {
        one.name: int((one.point_ids != NO_POINT).sum()) for one in model.images.values()
    }  # fmt: skip
    rows = [
        {
            "Image": Cell(name),
            "Keypoints": count_cell(len(table)),
            "Verified pairs": count_cell(partners.count(name)),
            "Points seen": count_cell(seen.get(name)),
        }
        for name, table in keypoints.items()
    ]
    caption = "Images; those that are not registered see no points."
    sections: list[dict[str, Any]] = [
        {
            "title": "Summary",
            "warnings": warnings,
            "facts": [*facts, f"seconds of the last run: {times}"],
        },
        {"title": "Cameras and points", "charts": [] if model is None else [_charts(model)]},
        {"title": "Weakest pairs", "pictures": _weakest(photos, keypoints, verified)},
        {"title": "Images", "tables": [make_table(caption, [("rival", row) for row in rows])]},
    ]
    write_text(path, render("Reconstruction", sections, command=command))


def scene_of(model: Model) -> Viewpoints:
    """Compute points, camera centres and viewing directions as seen from the mean camera."""
    images = list(model.images.values())
    rotations = np.stack([image.rotation for image in images])
    translations = np.stack([image.translation for image in images])
    centres = -np.einsum("nij,ni->nj", rotations, translations)
    # The rotation nearest to the mean of all, which need not be a rotation itself.
    left, _, right = np.linalg.svd(rotations.mean(axis=0))
    axes = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    chosen = np.linspace(0, len(model.points.xyz) - 1, min(len(model.points.xyz), MOST_POINTS))
    points = model.points.xyz[chosen.round().astype(int)]
    return Viewpoints(points @ axes.T, centres @ axes.T, rotations[:, 2] @ axes.T)


def _charts(model: Model) -> Charts:
    scene = scene_of(model)
    panels = []
    for title, sides, turned in (("From above", [0, 2], False), ("From the cameras", [0, 1], True)):
        alt = f"{len(scene.centres)} cameras and the points that they see, {title.lower()}"
        draw = functools.partial(_draw, scene=scene, sides=sides, turned=turned)
        panels.append(panel(title, alt, draw, 340))
    caption = (
        "The largest model, in the axes of its mean camera; the unit of length is arbitrary. Lines "
        "show the viewing directions of cameras."
    )
    return Charts(
        caption, panels, [Key("camera", SERIES[1], "circle"), Key("point", SERIES[0], "circle")]
    )


def _draw(axis: Any, scene: Viewpoints, sides: list[int], turned: bool) -> None:
    points, centres = scene.points[:, sides], scene.centres[:, sides]
    ends = [np.percentile(points, SHOWN, axis=0)] if len(points) else []
    shown = np.concatenate([*ends, centres])
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, reach = (low + high) / 2, 0.55 * max((high - low).max(), 1e-6)
    inside = (np.abs(points - middle[None]) <= reach).all(axis=1)
    axis.plot(*points[inside].T, ".", color=SERIES[0], markersize=1.2, alpha=0.6)
    tips = centres + 0.15 * reach * scene.directions[:, sides]
    axis.plot(*np.stack([centres, tips]).transpose(2, 0, 1), color=SERIES[1], linewidth=1)
    axis.plot(*centres.T, "o", color=SERIES[1], markersize=3)
    axis.set_xlim(middle[0] - reach, middle[0] + reach)
    axis.set_ylim(middle[1] - reach, middle[1] + reach)
    axis.set_aspect("equal")
    if turned:  # down is down
        axis.invert_yaxis()


def _weakest(photos: Path, keypoints: Any, verified: Any) -> list[tuple[str, str]]:
    """Draw the verified pairs with the fewest matches."""
    kept = [(pair, matches) for pair, matches in verified.items() if len(matches)]
    pictures = []
    for pair, matches in sorted(kept, key=lambda item: len(item[1]))[:WEAKEST]:
        left, right = (
            whole_greys(grey_values(read_photograph(photos / name, upright=False))) for name in pair
        )
        ends = [
            keypoints[name][matches[:, side], :2] - PIXEL_CENTRE for side, name in enumerate(pair)
        ]
        buffer = io.BytesIO()
        draw_matches(left, right, *ends, max_width=900).save(buffer, format="PNG")
        caption = f"{pair[0]} and {pair[1]}: {counted(len(matches), 'verified match')}"
        pictures.append((caption, png_address(buffer.getvalue())))
    return pictures
