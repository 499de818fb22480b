"""Features of the photographs of a reconstructed scene, to train a matcher on.

A keypoint gets the 3-D point of COLMAP's keypoint at its position, if there is one. Each photograph
forms a group with some others that see its points, from many shared points to few.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from scipy.spatial import cKDTree
from tqdm import tqdm

from kjax.data.colmap import NO_POINT, PIXEL_CENTRE, Model, ModelImage, read_model
from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.photographs import in_order, read_grey_or_none
from kjax.data.phototour import SetPhotograph
from kjax.data.selfsupervised import reduce_photo
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import sha256
from kjax.images.describer import Describer
from kjax.images.views import VIEWS, describe_columns, steadiest
from kjax.matcher.view_set import ViewSet

SAME_KEYPOINT = 1.0
"""Maximum distance of a keypoint from COLMAP's, in pixels of the reduced photograph."""
LEAST_SHARED = 30
"""Minimum number of points that two photographs of a group share."""
MOST_DISTORTION = 5.0
"""Maximum plausible distortion coefficient: larger values mean another camera model."""


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
    """Describe the photographs of COLMAP's sparse model in groups of one and `views` others.

    Returns:
        The set, and the names of photographs that cannot be read.

    Raises:
        InputError: The model cannot be used, or too few photographs share enough points.
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
            f"{model_folder}: no readable photograph shares {LEAST_SHARED} points with {views} "
            "others: give fewer --views"
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
    """Return undistorted keypoints, their 3-D points, and the camera in the photograph's pixels."""
    cv2 = require("cv2", "undistorting keypoints")
    camera = model.cameras[image.camera_id]
    focal, x, y, *radial = [*camera.parameters, 0.0, 0.0][:5]
    if not 3 <= len(camera.parameters) <= 5 or max(map(abs, radial)) > MOST_DISTORTION:
        raise InputError(
            "the model has cameras other than SIMPLE_PINHOLE, SIMPLE_RADIAL or RADIAL: map with "
            "one of these"
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
    """Group each photograph with others, spread evenly from most to fewest shared points.

    Photographs that share points with too few others form no group of their own.
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
