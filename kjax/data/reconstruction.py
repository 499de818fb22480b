"""Patch sets from a COLMAP reconstruction: keypoints of one 3-D point are patches of one point.

A keypoint of scale σ at depth z covers σ·z/f of the world, whatever the photograph, and its
orientation is a direction in the plane that faces the point's viewers. Observations that disagree
were detected on different structures, or matched wrongly, and are dropped.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from tqdm import tqdm

from kjax.data.colmap import (
    NO_POINT,
    PIXEL_CENTRE,
    Model,
    ModelImage,
    keypoint_shapes,
    read_keypoints,
    read_model,
)
from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.patches import EXTENT, PATCH_SIDE, cut_patches
from kjax.data.cutting.photographs import read_grey_or_none
from kjax.data.phototour import PatchSet, SetPhotograph
from kjax.data.selfsupervised import wrap_angle
from kjax.errors import InputError
from kjax.files.atomic import sha256

SAME_POSITION = 0.01
"""Pixels by which a keypoint may differ between model and database, which round differently."""
TABLE_ENTRIES = 10_000_000
"""Pairs of observations compared at a time."""


@dataclasses.dataclass(frozen=True)
class TrackFilters:
    """Limits on points and observations."""

    max_reprojection_error: float = 2.0  # mean over the point's observations, in pixels
    max_view_angle: float = 60.0  # degrees between the directions of two viewers
    min_view_angle: float = 2.0  # between some two viewers; points seen from one place are vague
    max_octaves: float = 0.5  # difference in log2 of the size that two keypoints cover in the world
    max_turn: float = 22.5  # degrees between the directions in the world of two orientations
    min_sigma: float = 0.0  # patches of smaller keypoints would be mostly interpolation


class Observations(NamedTuple):
    """Keypoints that see a reconstructed point, sorted by point and photograph."""

    image: Int64[np.ndarray, " N"]  # index of the photograph in the model's order
    point: Int64[np.ndarray, " N"]  # row of the model's points
    keypoints: Keypoints

    def take(self, index: np.ndarray) -> "Observations":
        """Select observations by mask or index."""
        return Observations(self.image[index], self.point[index], self.keypoints.keep(index))


WorldShapes = tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"], Float[np.ndarray, "N 3"]]
"""log2 of the size that σ covers, angle in the plane facing the viewers, and ray to the point."""


def cut_reconstruction(
    model_folder: Path,
    database: Path,
    photos: Path,
    *,
    filters: TrackFilters,
    extent: float = EXTENT,
    max_patches: int,
    seed: int,
    progress: bool = True,
) -> PatchSet:
    """Cut a set from a sparse model, the database it was made from and its folder of photographs.

    Unreadable photographs are named in the result. Whole points are dropped at random to keep to
    `max_patches`.
    """
    model = read_model(model_folder)
    if not model.images:
        raise InputError(f"{model_folder} has no images: give a model that COLMAP reconstructed")
    images = [model.images[number] for number in sorted(model.images)]
    observed = _gather_observations(model, images, read_keypoints(database))
    xy, scales, angles, _ = observed.keypoints
    good = (observed.keypoints.sigma >= filters.min_sigma) & (scales > 0)
    good &= model.points.error[observed.point] <= filters.max_reprojection_error
    good &= np.isfinite(xy).all(axis=1) & np.isfinite(scales) & np.isfinite(angles)
    observed = observed.take(good & (_depth(model, images, observed) > 0))
    shapes = world_shapes(model, images, observed)
    observed = observed.take(consistent(observed.point, shapes, filters=filters))
    if not len(observed.point):
        raise InputError(
            f"no 3-D point of {model_folder} passes the filters: loosen them, "
            "first --max-reprojection-error and --max-octaves"
        )
    points, counts = np.unique(observed.point, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(points))
    fitting = order[np.cumsum(counts[order]) <= max_patches]
    if not len(fitting):
        raise InputError(f"--max-patches {max_patches} has no room for a point's patches: raise it")
    observed = observed.take(np.isin(observed.point, points[fitting]))

    patches = np.zeros((len(observed.point), PATCH_SIDE, PATCH_SIDE), np.uint8)
    photographs = []
    bar = tqdm(images, desc="cutting photographs", unit="photo", disable=not progress)
    for number, image in enumerate(bar):
        path = photos / image.name
        photo = read_grey_or_none(path)
        photographs.append(SetPhotograph(number, image.name, "" if photo is None else sha256(path)))
        if photo is None:
            continue
        camera = model.cameras[image.camera_id]
        if photo.shape != (camera.height, camera.width):
            raise InputError(
                f"{path} has {photo.shape[1]}×{photo.shape[0]} pixels, but the model's "
                f"{camera.width}×{camera.height}: give the photographs that COLMAP read"
            )
        here = np.flatnonzero(observed.image == number)
        patches[here] = cut_patches(photo, observed.keypoints.keep(here), extent=extent)
    unreadable = tuple(one.name for one in photographs if not one.sha256)
    kept = np.flatnonzero(np.array([one.sha256 != "" for one in photographs])[observed.image])
    kept = kept[np.bincount(observed.point[kept], minlength=1)[observed.point[kept]] >= 2]
    if not len(kept):
        raise InputError(
            f"{len(unreadable)} of the model's {len(images)} photographs cannot be read below "
            f"{photos}, e.g. {unreadable[0]}, and no point is seen by two others: "
            "give the folder of photographs that COLMAP read"
        )
    observed = observed.take(kept)
    return PatchSet(
        photos.name,
        patches[kept],
        np.unique(observed.point, return_inverse=True)[1].astype(np.int64),
        interest=observed.keypoints.interest(observed.image),
        photographs=tuple(photographs),
        unreadable=unreadable,
    )


def _gather_observations(
    model: Model, images: Sequence[ModelImage], keypoints: dict[str, Float[np.ndarray, "K columns"]]
) -> Observations:
    """Return all keypoints that see a point, one per photograph and point."""
    numbers, points, parts = [], [], []
    for number, image in enumerate(images):
        table = keypoints.get(image.name)
        if table is None:
            raise InputError(
                f"the database has no keypoints of {image.name}, which the model uses: "
                "give the database that the model was made from"
            )
        if len(table) != len(image.xy) or np.any(np.abs(table[:, :2] - image.xy) > SAME_POSITION):
            raise InputError(
                f"the keypoints of {image.name} differ between model and database: give the "
                "database that the model was made from, and not a model of undistorted images"
            )
        seen = np.flatnonzero(image.point_ids != NO_POINT)
        rows = np.searchsorted(model.points.ids, image.point_ids[seen])
        # If two keypoints of a photograph see one point, one is wrong or both are the same.
        rows, first = np.unique(rows, return_index=True)
        numbers.append(np.full(len(rows), number))
        points.append(rows)
        everything = Keypoints.of_sigma(table[:, :2] - PIXEL_CENTRE, *keypoint_shapes(table))
        parts.append(everything.keep(seen[first]))
    joined = Observations(np.concatenate(numbers), np.concatenate(points), Keypoints.join(parts))
    return joined.take(np.lexsort([joined.image, joined.point]))


def world_shapes(model: Model, images: Sequence[ModelImage], observed: Observations) -> WorldShapes:
    """Return the shape of each observation in the world's frame."""
    focal = np.array([model.cameras[image.camera_id].focal for image in images])
    size = observed.keypoints.sigma * _depth(model, images, observed) / focal[observed.image]
    rotation = np.stack([image.rotation for image in images])[observed.image]
    centre = np.stack([-image.rotation.T @ image.translation for image in images])
    ray = _unit(model.points.xyz[observed.point] - centre[observed.image])
    angle = observed.keypoints.radians
    in_camera = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1)
    direction = np.einsum("nji,nj->ni", rotation, in_camera)
    _, point = np.unique(observed.point, return_inverse=True)
    sums = np.zeros_like(ray)
    np.add.at(sums, point, ray)
    towards = _unit(sums[point])
    # Slide the direction along the ray, which keeps its image, into the plane facing the viewers.
    slide = _dot(direction, towards) / _dot(ray, towards)
    direction = direction - slide[:, None] * ray
    # Axes of that plane depend on its normal alone, so they are the same for all viewers.
    steepest = np.eye(3)[np.abs(towards).argmin(axis=1)]
    across = _unit(np.cross(steepest, towards))
    down = np.cross(towards, across)
    return np.log2(size), np.arctan2(_dot(direction, down), _dot(direction, across)), ray


def consistent(
    point: Int64[np.ndarray, " N"], shapes: WorldShapes, *, filters: TrackFilters
) -> Bool[np.ndarray, " N"]:
    """Mark each point's largest group of two or more that agree with a member."""
    keep = np.zeros(len(point), bool)
    _, starts, counts = np.unique(point, return_index=True, return_counts=True)
    for length in np.unique(counts[counts >= 2]):
        rows = starts[counts == length][:, None] + np.arange(length)
        for chunk in np.array_split(rows, -(-rows.size * length // TABLE_ENTRIES)):
            log_size, angle, ray = (values[chunk] for values in shapes)
            octaves = np.abs(log_size[:, :, None] - log_size[:, None, :])
            turn = np.abs(wrap_angle(angle[:, :, None] - angle[:, None, :]))
            view = np.arccos(np.clip(np.einsum("pid,pjd->pij", ray, ray), -1, 1))
            fits = (octaves <= filters.max_octaves) & (turn <= np.deg2rad(filters.max_turn))
            fits &= view <= np.deg2rad(filters.max_view_angle)
            centre = fits.sum(axis=2).argmax(axis=1)
            chosen = fits[np.arange(len(fits)), centre]
            together = chosen[:, :, None] & chosen[:, None, :]
            widest = np.where(together, view, 0).max(axis=(1, 2))
            enough = (chosen.sum(axis=1) >= 2) & (widest >= np.deg2rad(filters.min_view_angle))
            keep[chunk] = chosen & enough[:, None]
    return keep


def _depth(model: Model, images: Sequence[ModelImage], observed: Observations) -> np.ndarray:
    """Return the depth of each observation's point in its camera's frame."""
    axis = np.stack([image.rotation[2] for image in images])[observed.image]
    offset = np.array([image.translation[2] for image in images])[observed.image]
    return _dot(axis, model.points.xyz[observed.point]) + offset


def _unit(vectors: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "N 3"]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _dot(a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, " N"]:
    return np.einsum("ni,ni->n", a, b)
