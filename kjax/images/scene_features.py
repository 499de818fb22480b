"""Keypoints and descriptors of photographs of a reconstructed scene, for the training of a matcher.

A keypoint sees what COLMAP's own keypoint at its place sees, if that one is of a 3-D point. Each
photograph makes a group with some that see points of it, from many to few.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from scipy.spatial import cKDTree
from tqdm import tqdm

from kjax.data.colmap import NO_POINT, PIXEL_CENTRE, Camera, Model, ModelImage, read_model
from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.photographs import in_order, read_grey_or_none
from kjax.data.phototour import SetPhotograph
from kjax.data.selfsupervised import reduce_photo
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import sha256
from kjax.images.describer import Describer
from kjax.images.view_features import VIEWS, describe_columns, steadiest
from kjax.matcher.view_set import ViewSet

SAME_KEYPOINT = 1.0
"""Pixels of the reduced photograph: farther from COLMAP's keypoint, ours is another."""
LEAST_SHARED = 30
"""Points that two photographs of a group see both."""
MOST_DISTORTION = 5.0
"""What is larger is no coefficient of a lens: the camera is of another model."""


def describe_scene(
    model_folder: Path,
    photos: Path,
    describer: Describer,
    *,
    views: int,
    max_keypoints: int,
    max_side: int,
    progress: bool = True,
) -> tuple[ViewSet, list[str]]:
    """The features of a scene's photographs in groups.

    Args:
        model_folder: a sparse model of COLMAP's.
        photos: folder that its names are below.
        describer: of keypoints.
        views: of a group, besides the first.
        max_keypoints: of a photograph.
        max_side: longer photographs are reduced to this many pixels.
        progress: show a bar.

    Returns:
        The set, and the names of photographs that cannot be read.

    Raises:
        InputError: the model cannot be read or used, or no photographs see enough of each other.
    """
    model = read_model(model_folder)
    images = [model.images[number] for number in sorted(model.images)]

    def find(image: ModelImage) -> tuple[np.ndarray, Keypoints] | None:
        photo = read_grey_or_none(photos / image.name)
        if photo is None:
            return None
        photo = reduce_photo(photo, max_side)
        return photo, steadiest(photo, max_keypoints, VIEWS.contrast_threshold)

    described: list[dict[str, np.ndarray]] = []
    read: list[ModelImage] = []
    unreadable: list[str] = []
    work = in_order(find, images, os.cpu_count() or 1)
    for image, future in tqdm(work, "photographs", len(images), disable=not progress):
        found = future.result()
        if found is None:
            unreadable.append(image.name)
            continue
        photo, keypoints = found
        columns = describe_columns(photo, keypoints, describer, max_keypoints)
        described.append(columns | _geometry(model, image, columns))
        read.append(image)
    groups = _groups(read, views)
    if not len(groups):
        raise InputError(
            f"{model_folder}: no photograph that can be read shares {LEAST_SHARED} points with "
            f"{views} others: give fewer --views"
        )
    made: dict[str, Any] = {
        name: np.stack([one[name] for one in described])[groups] for name in described[0]
    }
    listed = tuple(
        SetPhotograph(number, image.name, sha256(photos / image.name))
        for number, image in enumerate(read)
    )
    return ViewSet(photographs=listed, described_with=describer.provenance, **made), unreadable


def _geometry(
    model: Model, image: ModelImage, columns: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What keypoints see, the camera in pixels of the reduced photograph, and where it has them."""
    camera = model.cameras[image.camera_id]
    zoom = columns["sizes"] / [camera.width, camera.height]
    in_colmap = (columns["xy"].astype(np.float64) + PIXEL_CENTRE) / zoom
    matrix, straight = _straightened(camera, in_colmap)
    # Back to our pixels: zoomed, and the first one's centre at 0.
    to_ours = np.diag([*zoom, 1.0])
    to_ours[:2, 2] = -PIXEL_CENTRE
    pose = np.column_stack([image.rotation, image.translation])
    return {
        "xy": (straight * zoom - PIXEL_CENTRE).astype("f4"),
        "places": _places(model, image, in_colmap, SAME_KEYPOINT / zoom.min()).astype("f4"),
        "cameras": (to_ours @ matrix @ pose).astype("f4"),
        "turns": np.array(0, "f4"),
    }


def _straightened(
    camera: Camera, xy: Float[np.ndarray, "K 2"]
) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "K 2"]]:
    """The camera's matrix, and where it would see the keypoints without its lens's distortion."""
    cv2 = require("cv2", "straightening photographs")
    focal, x, y, *radial = [*camera.parameters, 0.0, 0.0][:5]
    if not 3 <= len(camera.parameters) <= 5 or max(map(abs, radial)) > MOST_DISTORTION:
        raise InputError(
            "the model's cameras are of another kind than SIMPLE_PINHOLE, SIMPLE_RADIAL or RADIAL: "
            "map with one of these"
        )
    matrix = np.array([[focal, 0, x], [0, focal, y], [0, 0, 1]])
    distortion = np.array([*radial, 0, 0])
    straight = cv2.undistortPoints(xy[:, None], matrix, distortion, P=matrix)[:, 0]
    return matrix, straight


def _places(
    model: Model, image: ModelImage, xy: Float[np.ndarray, "K 2"], nearby: float
) -> Float[np.ndarray, "K 3"]:
    """The points of COLMAP's nearest keypoints; NaN where none is near."""
    places = np.full((len(xy), 3), np.nan)
    seeing = np.flatnonzero(image.point_ids != NO_POINT)
    if len(seeing):
        distances, nearest = cKDTree(image.xy[seeing]).query(xy)
        rows = np.searchsorted(model.points.ids, image.point_ids[seeing[nearest]])
        near = distances <= nearby
        places[near] = model.points.xyz[rows[near]]
    return places


def _groups(images: Sequence[ModelImage], views: int) -> Int64[np.ndarray, "P V"]:
    """Each photograph with others, evenly from those that share most points to those that do least.

    Photographs that share points with too few make none of their own.
    """
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
