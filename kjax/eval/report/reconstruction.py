"""The page about a reconstruction: numbers, cameras and points, and the weakest pairs."""

import functools
import io
from collections import Counter
from pathlib import Path
from typing import Any

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
    kept = {pair: matches for pair, matches in verified.items() if len(matches)}
    partners = Counter(name for pair in kept for name in pair)
    seen = {} if model is None else {
        one.name: int((one.point_ids != NO_POINT).sum()) for one in model.images.values()
    }  # fmt: skip
    rows = [
        {
            "Image": Cell(name),
            "Keypoints": count_cell(len(table)),
            "Verified pairs": count_cell(partners[name]),
            "Points seen": count_cell(seen.get(name)),
        }
        for name, table in keypoints.items()
    ]
    pictures = []
    for pair in sorted(kept, key=lambda one: len(kept[one]))[:WEAKEST]:
        photographs = [read_photograph(photos / name) for name in pair]
        ends = [
            keypoints[name][kept[pair][:, side], :2] - PIXEL_CENTRE
            for side, name in enumerate(pair)
        ]
        greys = [whole_greys(grey_values(one)) for one in photographs]
        buffer = io.BytesIO()
        draw_matches(*greys, *ends, max_width=900).save(buffer, format="PNG")
        caption = f"{pair[0]} and {pair[1]}: {counted(len(kept[pair]), 'verified match')}"
        pictures.append((caption, png_address(buffer.getvalue())))
    caption = "Images; those that are not registered see no points."
    sections: list[dict[str, Any]] = [
        {
            "title": "Summary",
            "warnings": warnings,
            "facts": [*facts, f"seconds of the last run: {times}"],
        },
        {"title": "Cameras and points", "charts": [] if model is None else [scene_charts(model)]},
        {"title": "Weakest pairs", "pictures": pictures},
        {"title": "Images", "tables": [make_table(caption, [("rival", row) for row in rows])]},
    ]
    write_text(path, render("Reconstruction", sections, command=command))


def scene_of(
    model: Model,
) -> tuple[Float[np.ndarray, "P 3"], Float[np.ndarray, "N 3"], Float[np.ndarray, "N 3"]]:
    """Compute points, camera centres and viewing directions as seen from the mean camera.

    The axes point to the right, down, and into the picture.
    """
    images = list(model.images.values())
    rotations = np.stack([image.rotation for image in images])
    translations = np.stack([image.translation for image in images])
    centres = -np.einsum("nij,ni->nj", rotations, translations)
    # The rotation nearest to the mean of all, which need not be a rotation itself.
    left, _, right = np.linalg.svd(rotations.mean(axis=0))
    axes = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    chosen = np.linspace(0, len(model.points.xyz) - 1, min(len(model.points.xyz), MOST_POINTS))
    points = model.points.xyz[chosen.round().astype(int)]
    return points @ axes.T, centres @ axes.T, rotations[:, 2] @ axes.T


def scene_charts(model: Model) -> Charts:
    """Draw the model from above and from its mean camera."""
    scene = scene_of(model)

    def draw(axis: Any, sides: list[int]) -> None:
        points, centres, directions = (one[:, sides] for one in scene)
        ends = [np.percentile(points, SHOWN, axis=0)] if len(points) else []
        shown = np.concatenate([*ends, centres])
        low, high = shown.min(axis=0), shown.max(axis=0)
        middle, reach = (low + high) / 2, 0.55 * max((high - low).max(), 1e-6)
        inside = (np.abs(points - middle[None]) <= reach).all(axis=1)
        axis.plot(*points[inside].T, ".", color=SERIES[0], markersize=1.2, alpha=0.6)
        tips = centres + 0.15 * reach * directions
        axis.plot(*np.stack([centres, tips]).transpose(2, 0, 1), color=SERIES[1], linewidth=1)
        axis.plot(*centres.T, "o", color=SERIES[1], markersize=3)
        axis.set_xlim(middle[0] - reach, middle[0] + reach)
        axis.set_ylim(middle[1] - reach, middle[1] + reach)
        axis.set_aspect("equal")
        if sides == [0, 1]:  # down is down
            axis.invert_yaxis()

    panels = []
    for title, sides in (("From above", [0, 2]), ("From the cameras", [0, 1])):
        alt = f"{len(model.images)} cameras and the points that they see, {title.lower()}"
        panels.append(panel(title, alt, functools.partial(draw, sides=sides), 340))
    caption = (
        "The largest model, in the axes of its mean camera; the unit of length is arbitrary. Lines "
        "show the viewing directions of cameras."
    )
    keys = [Key("camera", SERIES[1], "circle"), Key("point", SERIES[0], "circle")]
    return Charts(caption, panels, keys)
