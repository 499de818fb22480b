"""Features of views, to train a matcher on: random homographies, or a reconstructed scene.

For extractors of other projects, `write_views` writes the views as pictures, with `views.json` as
their list, and `views_of_features` reads what the extractor found.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from scipy.spatial import cKDTree
from tqdm import tqdm

from kjax.data.colmap import NO_POINT, PIXEL_CENTRE, Model, ModelImage, read_model
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.data.cutting.photographs import in_order, read_grey_or_none, read_photograph
from kjax.data.phototour import SetPhotograph
from kjax.data.selfsupervised import (
    ViewConfig,
    WarpedPhoto,
    random_view,
    reduce_photo,
    transform_keypoints,
)
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import sha256, write_json, write_whole
from kjax.images.describer import Describer
from kjax.images.features import Features
from kjax.images.sift import RootSift
from kjax.matcher.view_set import ViewSet
from kjax.weights.info import Provenance

VIEWS = ViewConfig(
    views=7,
    max_rotation_degrees=180.0,
    max_zoom=1.6,
    max_stretch=2.0,
    max_perspective=0.35,
    max_gamma=1.8,
    max_contrast=1.6,
    max_brightness=30.0,
    max_blur=1.5,
    max_noise=8.0,
    max_side=800,
)
"""Default views: more varied than those of patch sets, since a matcher sees the surroundings."""
VIEWS_FILE = "views.json"
FORMAT = "kjax written views 1"
SAME_KEYPOINT = 1.0
"""Maximum distance of a keypoint from COLMAP's, in pixels of the reduced photograph."""
LEAST_SHARED = 30
"""Minimum number of points that two photographs of a group share."""
UNTURNED = {"turns": np.array(np.nan, "f4")}
"""Column of views whose keypoints have no orientation: training does not rotate them."""
MOST_DISTORTION = 5.0
"""Maximum plausible distortion coefficient: larger values mean another camera model."""


def make_views(path: Path, name: str, *, config: ViewConfig, seed: int) -> list[WarpedPhoto] | None:
    """Make the photograph and random views by its name and the seed; None if unreadable."""
    photo = read_grey_or_none(path)
    if photo is None:
        return None
    rng = np.random.default_rng([seed, *name.encode()])
    photo = reduce_photo(photo, config.max_side)
    views = [WarpedPhoto(photo, np.eye(3))]
    if config.appearance:  # another sensor sees other colours
        photo = reduce_photo(read_photograph(path), config.max_side)
    return views + [random_view(rng, photo, config=config) for _ in range(config.views)]


def describe_views(
    photographs: Sequence[Path],
    names: Sequence[str],
    describer: Describer | RootSift,
    *,
    config: ViewConfig = VIEWS,
    max_keypoints: int,
    seed: int,
    progress: bool = True,
) -> tuple[ViewSet, list[str]]:
    """Describe each photograph and random views; return the set and the unreadable names."""

    def find(number: int) -> list[tuple[WarpedPhoto, Keypoints]] | None:
        views = make_views(photographs[number], names[number], config=config, seed=seed)
        if views is None:
            return None
        return [(one, find_keypoints(one.pixels, describer, max_keypoints)) for one in views]

    described: list[dict[str, np.ndarray]] = []

    def describe(number: int, found: list[tuple[WarpedPhoto, Keypoints]]) -> SetPhotograph:
        views = []
        for view, keypoints in found:
            columns = describe_columns(view.pixels, keypoints, describer, max_keypoints)
            size = view.pixels.shape[1], view.pixels.shape[0]
            columns |= plane_geometry(view.homography, columns["xy"], size)
            views.append(columns | (UNTURNED if describer.upright else {}))
        described.append(_stacked(views))
        return SetPhotograph(len(described) - 1, names[number], sha256(photographs[number]))

    kept, unreadable = _for_each(find, describe, names, progress=progress)
    made = _stacked(described)
    return ViewSet(photographs=kept, described_with=describer.provenance, **made), unreadable


def _for_each(
    find: Callable[[int], Any],
    use: Callable[[int, Any], Any],
    names: Sequence[str],
    *,
    progress: bool,
) -> tuple[tuple[Any, ...], list[str]]:
    """Find in threads, use the results in order; also list the names where `find` gave None."""
    kept, unreadable, total = [], [], len(names)
    work = in_order(find, range(total), os.cpu_count() or 1)
    for number, future in tqdm(work, "views", total, unit=" photographs", disable=not progress):
        found = future.result()
        if found is None:
            unreadable.append(names[number])
        else:
            kept.append(use(number, found))
    if not kept:
        raise InputError(f"none of the {total} photographs could be read: give other photographs")
    return tuple(kept), unreadable


def _stacked(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Stack the columns of several views, or groups, along a new first axis."""
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def find_keypoints(
    pixels: UInt8[np.ndarray, "_ _"], describer: Describer | RootSift, count: int
) -> Keypoints:
    """Detect keypoints with the describer's detector."""
    return detect_in_grey(
        pixels, detector=describer.detector, max_keypoints=count, upright=describer.upright
    )


def describe_columns(
    pixels: UInt8[np.ndarray, "_ _"],
    keypoints: Keypoints,
    describer: Describer | RootSift,
    room: int,
) -> dict[str, np.ndarray]:
    """Describe at most `room` keypoints of a view, as columns of a `ViewSet`."""
    # The same number of keypoints in every view, so that few programs compile.
    everything = keypoints.padded(room)
    descriptors, kept = describer.describe_at(pixels, everything)
    found = everything.keep(kept)
    size = pixels.shape[1], pixels.shape[0]
    return _as_columns((found.xy, found.scales, found.radians, descriptors), size, room)


def _as_columns(
    rows: Sequence[np.ndarray], size: tuple[int, int], room: int
) -> dict[str, np.ndarray]:
    """Pad positions, scales, radians and descriptors of a view of some size to `room` rows."""
    xy, scales, radians, descriptors = rows

    def filled(rows: np.ndarray, dtype: str) -> np.ndarray:
        whole = np.zeros((room, *rows.shape[1:]), dtype)
        whole[: len(rows)] = rows
        return whole

    return {
        "xy": filled(xy, "f4"),
        # Padding has scale 1: the logarithm of scales is taken.
        "scales": filled(scales - 1, "f4") + np.float32(1),
        "angles": filled(radians, "f4"),
        "descriptors": filled(descriptors, "f2"),
        "counts": np.array(len(xy), np.int32),
        "sizes": np.array(size, np.int32),
    }


def plane_geometry(
    homography: Float[np.ndarray, "3 3"], xy: Float[np.ndarray, "K 2"], size: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Return what keypoints of a view see: the photograph is the plane z = 1, in its pixels."""
    homogeneous = np.column_stack([xy, np.ones(len(xy))]) @ np.linalg.inv(homography).T
    camera = np.column_stack([homography, np.zeros(3)]) / homography[2, 2]
    middle = Keypoints.of_sigma(np.array([size]) / 2, np.ones(1), np.zeros(1))
    (turn,) = transform_keypoints(middle, np.linalg.inv(homography)).radians
    return {
        "places": (homogeneous / homogeneous[:, 2:]).astype("f4"),
        "cameras": camera.astype("f4"),
        "turns": np.array(-turn, "f4"),
    }


def write_views(
    folder: Path,
    photographs: Sequence[Path],
    names: Sequence[str],
    *,
    config: ViewConfig = VIEWS,
    seed: int,
    progress: bool = True,
) -> tuple[int, list[str]]:
    """Write the views of `describe_views` as pictures; return their number and unreadable names."""
    (folder / VIEWS_FILE).unlink(missing_ok=True)

    def write(number: int) -> dict[str, Any] | None:
        views = make_views(photographs[number], names[number], config=config, seed=seed)
        if views is None:
            return None
        written = []
        for i, view in enumerate(views):
            path = folder / f"{number:05d}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, Image.fromarray(view.pixels).save)
            entry = {"file": f"{number:05d}/{i}.png", "size": list(view.pixels.shape[::-1])}
            written.append(entry | {"homography": view.homography.tolist()})
        digest = sha256(photographs[number])
        return {"name": names[number], "sha256": digest, "views": written}

    written, unreadable = _for_each(write, lambda _, entry: entry, names, progress=progress)
    write_json(folder / VIEWS_FILE, {"format": FORMAT, "photographs": list(written)})
    return len(written), unreadable


def views_of_features(
    folder: Path,
    read: Callable[[str], Features],
    *,
    descriptor: str,
    max_keypoints: int,
    progress: bool = True,
) -> ViewSet:
    """Read the features of written views, by `read` with a picture's name; best scores first."""
    path = folder / VIEWS_FILE
    again = "write them with kjax build-views --write-views"
    if not path.is_file():
        raise InputError(f"{folder} has no {VIEWS_FILE}, so its views are incomplete: {again}")
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        views: list[Any] = []
        listed: list[SetPhotograph] = []
        for photograph in content["photographs"]:
            listed.append(SetPhotograph(len(listed), photograph["name"], photograph["sha256"]))
            group = [
                (view["file"], tuple(view["size"]), np.reshape(view["homography"], (3, 3)))
                for view in photograph["views"]
            ]
            views.append(group)
        if len({len(group) for group in views}) != 1 or len(views[0]) < 2:
            raise ValueError("photographs need the same number of views, two at least")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} is damaged or not a list of views ({error}): {again}") from None
    groups: list[list[dict[str, np.ndarray]]] = []
    for group in tqdm(views, "views", unit=" photographs", disable=not progress):
        groups.append([])
        for file, size, homography in group:
            features = read(file)
            if features.image_size != size:
                raise InputError(
                    f"{file} has {size} pixels, but its features are of {features.image_size}: "
                    "extract from the pictures as they are"
                )
            scores = np.zeros(len(features)) if features.scores is None else features.scores
            best = np.argsort(-scores, kind="stable")[:max_keypoints]
            rows = [column[best] for column in (features.xy, *features.for_matcher())]
            made = _as_columns(rows, size, max_keypoints)
            made |= plane_geometry(homography, made["xy"], size)
            groups[-1].append(made | (UNTURNED if features.angles is None else {}))
    dimensions = sorted({view["descriptors"].shape[-1] for group in groups for view in group})
    if len(dimensions) > 1:
        raise InputError(f"descriptors of {dimensions} numbers in one set: extract them again")
    origin = Provenance(descriptor, "", *dimensions)
    whole = _stacked([_stacked(group) for group in groups])
    return ViewSet(photographs=tuple(listed), described_with=origin, **whole)


def describe_scene(
    model_folder: Path,
    photos: Path,
    describer: Describer | RootSift,
    *,
    views: int,
    max_keypoints: int,
    max_side: int,
    progress: bool = True,
) -> tuple[ViewSet, list[str]]:
    """Describe the photographs of COLMAP's sparse model in groups of one and `views` others.

    A keypoint gets the 3-D point of COLMAP's keypoint at its position, if there is one. Groups
    range from many shared points to few. Also return the names of photographs that cannot be read.
    """
    model = read_model(model_folder)
    images = [model.images[number] for number in sorted(model.images)]

    def find(number: int) -> tuple[np.ndarray, Keypoints] | None:
        photo = read_grey_or_none(photos / images[number].name)
        if photo is None:
            return None
        photo = reduce_photo(photo, max_side)
        return photo, find_keypoints(photo, describer, max_keypoints)

    described: list[dict[str, np.ndarray]] = []
    read: list[ModelImage] = []

    def describe(number: int, found: tuple[np.ndarray, Keypoints]) -> SetPhotograph:
        columns = describe_columns(*found, describer, max_keypoints)
        columns |= _geometry(model, images[number], columns)
        described.append(columns | (UNTURNED if describer.upright else {}))
        read.append(images[number])
        name = images[number].name
        return SetPhotograph(len(read) - 1, name, sha256(photos / name))

    names = [image.name for image in images]
    listed, unreadable = _for_each(find, describe, names, progress=progress)
    groups = _groups(read, views)
    if not len(groups):
        raise InputError(
            f"{model_folder}: no readable photograph shares {LEAST_SHARED} points with {views} "
            "others: give fewer --views"
        )
    made: dict[str, Any] = {
        name: np.stack([one[name] for one in described])[groups] for name in described[0]
    }
    return ViewSet(photographs=listed, described_with=describer.provenance, **made), unreadable


def _geometry(
    model: Model, image: ModelImage, columns: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return undistorted keypoints, their 3-D points, and the camera in the photograph's pixels."""
    cv2 = require("cv2", "undistorting keypoints")
    camera = model.cameras[image.camera_id]
    focal, x, y, *radial = [*camera.parameters, 0.0, 0.0][:5]
    if not 3 <= len(camera.parameters) <= 5:
        raise InputError(
            "the model has cameras other than SIMPLE_PINHOLE, SIMPLE_RADIAL or RADIAL: map with "
            "one of these"
        )
    if max(map(abs, radial)) > MOST_DISTORTION:
        raise InputError(
            f"the model distorts {image.name} by {max(radial, key=abs):.4g}, which no lens does: "
            "remove the photograph, or map again with --single-camera"
        )
    zoom = columns["sizes"] / [camera.width, camera.height]
    in_colmap = (columns["xy"].astype(np.float64) + PIXEL_CENTRE) / zoom
    matrix = np.array([[focal, 0, x], [0, focal, y], [0, 0, 1]])
    distortion = np.array([*radial, 0, 0])
    straight = cv2.undistortPoints(in_colmap[:, None], matrix, distortion, P=matrix)[:, 0]
    # Points of COLMAP's nearest keypoints; NaN where none is near.
    places = np.full((len(in_colmap), 3), np.nan)
    seeing = np.flatnonzero(image.point_ids != NO_POINT)
    if len(seeing):
        distances, nearest = cKDTree(image.xy[seeing]).query(in_colmap)
        rows = np.searchsorted(model.points.ids, image.point_ids[seeing[nearest]])
        near = distances <= SAME_KEYPOINT / zoom.min()
        places[near] = model.points.xyz[rows[near]]
    # From COLMAP's pixels to ours: zoomed, with the first pixel's centre at 0.
    to_ours = np.diag([*zoom, 1.0])
    to_ours[:2, 2] = -PIXEL_CENTRE
    pose = np.column_stack([image.rotation, image.translation])
    return {
        "xy": (straight * zoom - PIXEL_CENTRE).astype("f4"),
        "places": places.astype("f4"),
        "cameras": (to_ours @ matrix @ pose).astype("f4"),
        "turns": np.array(0, "f4"),
    }


def _groups(images: Sequence[ModelImage], views: int) -> Int64[np.ndarray, "P V"]:
    """Group each photograph with others, spread evenly from most to fewest shared points."""
    seen = [np.unique(image.point_ids[image.point_ids != NO_POINT]) for image in images]
    groups = []
    for number, own in enumerate(seen):
        shared = np.array([len(np.intersect1d(own, other)) for other in seen])
        shared[number] = 0
        order = np.argsort(-shared, kind="stable")[: int((shared >= LEAST_SHARED).sum())]
        if len(order) >= views:
            chosen = np.linspace(0, len(order) - 1, views).round().astype(int)
            groups.append([number, *order[chosen]])
    return np.array(groups, np.int64).reshape(-1, views + 1)
