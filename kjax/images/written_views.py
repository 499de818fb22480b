"""Views of photographs as pictures, for extractors of others; and their features for a training.

A folder of them has `views.json`, which tells what they are views of, and pictures that it names.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from kjax.data.cutting.photographs import in_order
from kjax.data.phototour import SetPhotograph
from kjax.data.selfsupervised import ViewConfig, WarpedPhoto
from kjax.errors import InputError
from kjax.files.atomic import sha256, write_json, write_whole
from kjax.files.json import parse_json
from kjax.files.typed_values import Schema
from kjax.images.features import Features
from kjax.images.matchable import matchable
from kjax.images.view_features import VIEWS, as_columns, make_views, plane_geometry, stacked
from kjax.matcher.view_set import ViewSet
from kjax.weights.info import Provenance

VIEWS_FILE = "views.json"
FORMAT = "kjax written views 1"
Row = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class WrittenView:
    """A picture.

    Attributes:
        file: below the folder.
        size: width and height.
        homography: from the photograph's pixels to the view's.
    """

    file: str
    size: tuple[int, int]
    homography: tuple[Row, Row, Row]


@dataclasses.dataclass(frozen=True)
class WrittenPhotograph:
    """A photograph and its views, of which the first is itself."""

    name: str
    sha256: str
    views: list[WrittenView]


@dataclasses.dataclass(frozen=True)
class WrittenViews:
    """The content of `views.json`."""

    format: str
    photographs: list[WrittenPhotograph]


_SCHEMA = Schema(WrittenViews, "list of views")


def write_views(
    folder: Path,
    photographs: Sequence[Path],
    names: Sequence[str],
    *,
    config: ViewConfig = VIEWS,
    seed: int,
    progress: bool = True,
) -> tuple[WrittenViews, list[str]]:
    """Writes each photograph and random views of it, those that `describe_views` describes.

    Args:
        folder: to write into; its list of views comes last.
        photographs: files to read.
        names: what to call them.
        config: how views differ.
        seed: of all chance.
        progress: show a bar.

    Returns:
        What was written, and the names of photographs that cannot be read.

    Raises:
        InputError: none can be read.
    """
    (folder / VIEWS_FILE).unlink(missing_ok=True)

    def write(number: int) -> WrittenPhotograph | None:
        path, name = photographs[number], names[number]
        views = make_views(path, name, config=config, seed=seed)
        if views is None:
            return None
        pictures = [_write(folder, f"{number:05d}/{i}.png", view) for i, view in enumerate(views)]
        return WrittenPhotograph(name, sha256(path), pictures)

    written, unreadable = [], []
    total = len(photographs)
    work = in_order(write, range(total), os.cpu_count() or 1)
    for number, future in tqdm(work, "views", total, unit=" photographs", disable=not progress):
        photograph = future.result()
        if photograph is None:
            unreadable.append(names[number])
        else:
            written.append(photograph)
    if not written:
        raise InputError(f"none of the {total} photographs could be read: give other photographs")
    made = WrittenViews(FORMAT, written)
    write_json(folder / VIEWS_FILE, dataclasses.asdict(made))
    return made, unreadable


def views_of_features(
    folder: Path,
    read: Callable[[str], Features],
    *,
    descriptor: str,
    max_keypoints: int,
    progress: bool = True,
) -> ViewSet:
    """The features that any extractor found in written views.

    Args:
        folder: that `write_views` wrote.
        read: returns the features of a picture by its name.
        descriptor: what to call it.
        max_keypoints: of a view, those of the highest scores.
        progress: show a bar.

    Raises:
        InputError: a file is absent or damaged, or they do not fit each other.
    """
    written = _read(folder).photographs
    groups = [
        [_of_view(view, read(view.file), max_keypoints) for view in one.views]
        for one in tqdm(written, "views", unit=" photographs", disable=not progress)
    ]
    dimensions = sorted({view["descriptors"].shape[-1] for views in groups for view in views})
    if len(dimensions) > 1:
        raise InputError(f"descriptors of {dimensions} numbers in one set: extract them again")
    listed = tuple(SetPhotograph(i, one.name, one.sha256) for i, one in enumerate(written))
    origin = Provenance(descriptor, "", *dimensions)
    made = stacked([stacked(views) for views in groups])
    return ViewSet(photographs=listed, described_with=origin, **made)


def feature_columns(features: Features, room: int) -> dict[str, np.ndarray]:
    """What a `ViewSet` tells of a view, but for what is seen; the surest keypoints first."""
    scores = features.scores
    order = np.arange(len(features)) if scores is None else np.argsort(-scores, kind="stable")
    rows = [column[order[:room]] for column in (features.xy, *matchable(features))]
    return as_columns((rows[0], rows[1], rows[2], rows[3]), features.image_size, room)


def _of_view(view: WrittenView, features: Features, room: int) -> dict[str, np.ndarray]:
    """A view's part of a `ViewSet`."""
    if features.image_size != view.size:
        raise InputError(
            f"{view.file} is of {view.size} pixels, but its features of {features.image_size}: "
            "extract from the pictures as they are"
        )
    columns = feature_columns(features, room)
    columns |= plane_geometry(np.array(view.homography), columns["xy"], view.size)
    if features.angles is None:
        columns["turns"] = np.array(np.nan, "f4")
    return columns


def _write(folder: Path, name: str, view: WarpedPhoto) -> WrittenView:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, Image.fromarray(view.pixels).save)
    height, width = view.pixels.shape
    first, second, third = ((float(x), float(y), float(z)) for x, y, z in view.homography)
    return WrittenView(name, (width, height), (first, second, third))


def _read(folder: Path) -> WrittenViews:
    """The list of a folder.

    Raises:
        InputError: it is absent, damaged, or something else.
    """
    path = folder / VIEWS_FILE
    again = "write them with kjax build-views --write-views"
    if not path.is_file():
        raise InputError(f"{folder} has no {VIEWS_FILE}, so no whole set of views: {again}")
    try:
        written = _SCHEMA.read(parse_json(path.read_bytes()))
        if written.format != FORMAT:
            raise InputError(f"its format is {written.format!r}")
        several = {len(one.views) for one in written.photographs}
        if len(several) != 1 or several < {0, 1}:
            raise InputError("it has not as many views, two at least, of each photograph")
    except (InputError, ValueError) as error:
        raise InputError(f"{path} is damaged or no list of views ({error}): {again}") from None
    return written
