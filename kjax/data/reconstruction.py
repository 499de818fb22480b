"""A COLMAP reconstruction becomes a patch set: keypoints of one 3-D point are patches of one point.

The reconstruction also says where a point's keypoints ought to agree. A keypoint of scale σ at
depth z covers σ·z/f of the world, whatever the photograph, and its orientation is a direction in
the plane that faces the point's viewers. Observations that disagree were detected on different
structures, or matched wrongly, and are dropped.
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
from kjax.data.correspondence import wrap_angle
from kjax.data.cutting.grey import read_grey
from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.patches import EXTENT, cut_patches
from kjax.data.photos import CutSet
from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError
from kjax.files.checksum import sha256

SAME_POSITION = 0.01
"""Pixels by which a keypoint may differ between model and database, which round differently."""
TABLE_ENTRIES = 10_000_000
"""Pairs of observations compared at a time."""


@dataclasses.dataclass(frozen=True)
class TrackFilters:
    """Limits on the points and observations that are taken.

    Attributes:
        max_reprojection_error: mean over the point's observations, in pixels.
        max_view_angle: degrees between the directions from which two photographs see the point.
        min_view_angle: degrees; a point whose viewers all stand closer together is badly placed,
            and its patches hardly differ.
        max_octaves: difference in log2 of the size that two keypoints cover in the world.
        max_turn: degrees between the directions in the world that two orientations stand for.
        min_sigma: finer keypoints are dropped, as their patches would be mostly interpolation.
    """

    max_reprojection_error: float = 2.0
    max_view_angle: float = 60.0
    min_view_angle: float = 2.0
    max_octaves: float = 0.5
    max_turn: float = 22.5
    min_sigma: float = 0.0


class Observations(NamedTuple):
    """Keypoints that see a reconstructed point, sorted by point and photograph."""

    image: Int64[np.ndarray, " N"]
    """Number of the photograph in the model's order."""
    point: Int64[np.ndarray, " N"]
    """Row of the model's points."""
    keypoints: Keypoints

    def take(self, index: np.ndarray) -> "Observations":
        """Some of them."""
        return Observations(self.image[index], self.point[index], self.keypoints.keep(index))


class WorldShapes(NamedTuple):
    """What each observation says about the surface that it sees."""

    log_size: Float[np.ndarray, " N"]
    """log2 of the size that σ covers."""
    angle: Float[np.ndarray, " N"]
    """Angle of the orientation, in the plane that faces the point's viewers."""
    ray: Float[np.ndarray, "N 3"]
    """Unit vector from the camera to the point."""


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
) -> CutSet:
    """Cuts a set from a sparse model, the database it was made from and the photographs.

    Args:
        model_folder: holds `cameras`, `images` and `points3D`, binary or text.
        database: with the keypoints' scales and orientations.
        photos: folder that the model's names are below. Unreadable ones are left out and named in
            the result.
        filters: which points and observations are taken.
        extent: side of a patch over the keypoint's diameter.
        max_patches: whole points are dropped at random until no more are left.
        seed: the same seed always gives the same set.
        progress: show a bar.
    """
    model = read_model(model_folder)
    if not model.images:
        raise InputError(f"{model_folder} has no images: give a model that COLMAP reconstructed")
    images = [model.images[number] for number in sorted(model.images)]
    observations = _gather_observations(model, images, read_keypoints(database))
    observations = _filter_observations(model, images, observations, filters=filters)
    if not len(observations.point):
        raise InputError(
            f"no 3-D point of {model_folder} passes the filters: loosen them, "
            "first --max-reprojection-error and --max-octaves"
        )
    observations = _limit(np.random.default_rng(seed), observations, max_patches)
    patches, hashes = _cut_all(model, images, photos, observations, extent, progress=progress)
    unreadable = [image.name for image, one in zip(images, hashes, strict=True) if not one]
    if len(unreadable) == len(images):
        raise InputError(
            f"none of the model's {len(images)} photographs can be read below {photos}"
        )
    read = np.array([bool(one) for one in hashes])
    usable = _in_pairs(observations.point, read[observations.image])
    if not len(usable):
        raise InputError(
            f"no point is seen by two of the photographs that can be read below {photos}: "
            f"mend {unreadable[0]}"
        )
    cut = _as_set(observations.take(usable), patches[usable], images, unreadable)
    return cut._replace(sha256=hashes)


def _gather_observations(
    model: Model, images: Sequence[ModelImage], keypoints: dict[str, Float[np.ndarray, "K columns"]]
) -> Observations:
    """All keypoints that see a point, one per photograph and point."""
    parts = []
    for number, image in enumerate(images):
        table = _matching_table(image, keypoints)
        seen = np.flatnonzero(image.point_ids != NO_POINT)
        rows = np.searchsorted(model.points.ids, image.point_ids[seen])
        # Two keypoints of one photograph on one point: one is wrong, or both are the same.
        rows, first = np.unique(rows, return_index=True)
        seen = seen[first]
        sigma, angle = keypoint_shapes(table)
        here = Keypoints.of_sigma(table[seen, :2] - PIXEL_CENTRE, sigma[seen], angle[seen])
        parts.append(Observations(np.full(len(rows), number), rows, here))
    joined = Observations(
        np.concatenate([part.image for part in parts]),
        np.concatenate([part.point for part in parts]),
        Keypoints.join(part.keypoints for part in parts),
    )
    return joined.take(np.lexsort([joined.image, joined.point]))


def _filter_observations(
    model: Model, images: Sequence[ModelImage], observations: Observations, *, filters: TrackFilters
) -> Observations:
    """Keeps, of each good point, the largest group that agrees with one of its members."""
    error = model.points.error[observations.point]
    xy, scales, angles, _ = observations.keypoints
    coarse = (observations.keypoints.sigma >= filters.min_sigma) & (scales > 0)
    good = (error <= filters.max_reprojection_error) & coarse
    good &= np.isfinite(xy).all(axis=1) & np.isfinite(scales) & np.isfinite(angles)
    observations = observations.take(good & (_depth(model, images, observations) > 0))
    shapes = _world_shapes(model, images, observations)
    return observations.take(consistent(observations.point, shapes, filters=filters))


def _world_shapes(
    model: Model, images: Sequence[ModelImage], observations: Observations
) -> WorldShapes:
    """Size, direction and ray of each observation in the world's frame."""
    focal = np.array([model.cameras[image.camera_id].focal for image in images])
    size = observations.keypoints.sigma * _depth(model, images, observations)
    size = size / focal[observations.image]
    rotation = np.stack([image.rotation for image in images])[observations.image]
    centre = np.stack([-image.rotation.T @ image.translation for image in images])
    ray = _unit(model.points.xyz[observations.point] - centre[observations.image])
    angle = observations.keypoints.radians
    in_camera = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1)
    direction = np.einsum("nji,nj->ni", rotation, in_camera)
    towards = _unit(_sum_by_point(observations.point, ray))
    # Slide the direction along the ray, which leaves its image alone, into the facing plane.
    slide = _dot(direction, towards) / _dot(ray, towards)
    direction = direction - slide[:, None] * ray
    across, down = _plane_axes(towards)
    in_plane = np.arctan2(_dot(direction, down), _dot(direction, across))
    return WorldShapes(np.log2(size), in_plane, ray)


def consistent(
    point: Int64[np.ndarray, " N"], shapes: WorldShapes, *, filters: TrackFilters
) -> Bool[np.ndarray, " N"]:
    """Marks the observations to keep; `point` is sorted, and none is left alone."""
    keep = np.zeros(len(point), bool)
    _, starts, counts = np.unique(point, return_index=True, return_counts=True)
    for length in np.unique(counts[counts >= 2]):
        rows = starts[counts == length][:, None] + np.arange(length)
        for chunk in np.array_split(rows, -(-rows.size * length // TABLE_ENTRIES)):
            keep[chunk] = _agreeing(WorldShapes(*(values[chunk] for values in shapes)), filters)
    return keep


def _agreeing(shapes: WorldShapes, filters: TrackFilters) -> Bool[np.ndarray, "points length"]:
    """Marks the observations to keep of points with equally many, one row each."""
    octaves = np.abs(shapes.log_size[:, :, None] - shapes.log_size[:, None, :])
    turn = np.abs(wrap_angle(shapes.angle[:, :, None] - shapes.angle[:, None, :]))
    view = np.arccos(np.clip(np.einsum("pid,pjd->pij", shapes.ray, shapes.ray), -1, 1))
    fits = (
        (octaves <= filters.max_octaves)
        & (turn <= np.deg2rad(filters.max_turn))
        & (view <= np.deg2rad(filters.max_view_angle))
    )
    centre = fits.sum(axis=2).argmax(axis=1)
    chosen = fits[np.arange(len(fits)), centre]
    together = chosen[:, :, None] & chosen[:, None, :]
    widest = np.where(together, view, 0).max(axis=(1, 2))
    enough = (chosen.sum(axis=1) >= 2) & (widest >= np.deg2rad(filters.min_view_angle))
    return chosen & enough[:, None]


def _matching_table(
    image: ModelImage, keypoints: dict[str, Float[np.ndarray, "K columns"]]
) -> Float[np.ndarray, "K columns"]:
    """The database's keypoints of one photograph; refuses those of another run."""
    table = keypoints.get(image.name)
    if table is None:
        raise InputError(
            f"the database has no keypoints of {image.name}, which the model uses: "
            "give the database that the model was made from"
        )
    same = len(table) == len(image.xy)
    if not same or (np.abs(table[:, :2] - image.xy) > SAME_POSITION).any():
        raise InputError(
            f"the keypoints of {image.name} differ between model and database: give the database "
            "that the model was made from, and not a model of undistorted images"
        )
    return table


def _limit(rng: np.random.Generator, observations: Observations, max_patches: int) -> Observations:
    """Drops whole points at random until at most `max_patches` observations are left."""
    rows, counts = np.unique(observations.point, return_counts=True)
    order = rng.permutation(len(rows))
    fitting = order[np.cumsum(counts[order]) <= max_patches]
    if not len(fitting):
        raise InputError(f"--max-patches {max_patches} has no room for a point's patches: raise it")
    return observations.take(np.isin(observations.point, rows[fitting]))


def _cut_all(
    model: Model,
    images: Sequence[ModelImage],
    photos: Path,
    observations: Observations,
    extent: float,
    *,
    progress: bool,
) -> tuple[np.ndarray, list[str]]:
    """A patch per observation, and the photographs' hashes, empty of those that cannot be read."""
    patches = np.zeros((len(observations.point), PATCH_SIDE, PATCH_SIDE), np.uint8)
    hashes = [""] * len(images)
    bar = tqdm(images, desc="cutting photographs", unit="photo", disable=not progress)
    for number, image in enumerate(bar):
        photo = read_grey(photos / image.name)
        if photo is None:
            continue
        camera = model.cameras[image.camera_id]
        if photo.shape != (camera.height, camera.width):
            raise InputError(
                f"{photos / image.name} has {photo.shape[1]}×{photo.shape[0]} pixels, but the "
                f"model's {camera.width}×{camera.height}: give the photographs that COLMAP read"
            )
        hashes[number] = sha256(photos / image.name)
        here = np.flatnonzero(observations.image == number)
        patches[here] = cut_patches(photo, observations.keypoints.keep(here), extent=extent)
    return patches, hashes


def _in_pairs(
    point: Int64[np.ndarray, " N"], usable: Bool[np.ndarray, " N"]
) -> Int64[np.ndarray, " M"]:
    """The usable observations whose point has another one."""
    kept = np.flatnonzero(usable)
    counts = np.bincount(point[kept], minlength=1)
    return kept[counts[point[kept]] >= 2]


def _as_set(
    observations: Observations,
    patches: np.ndarray,
    images: Sequence[ModelImage],
    unreadable: list[str],
) -> CutSet:
    _, point_ids = np.unique(observations.point, return_inverse=True)
    interest = observations.keypoints.interest(observations.image)
    names = [image.name for image in images]
    return CutSet(patches, point_ids.astype(np.int64), interest, names, unreadable)


def _depth(
    model: Model, images: Sequence[ModelImage], observations: Observations
) -> Float[np.ndarray, " N"]:
    """Depth of the point in the observing camera's frame, along its axis."""
    axis = np.stack([image.rotation[2] for image in images])[observations.image]
    offset = np.array([image.translation[2] for image in images])[observations.image]
    return _dot(axis, model.points.xyz[observations.point]) + offset


def _sum_by_point(
    point: Int64[np.ndarray, " N"], vectors: Float[np.ndarray, "N 3"]
) -> Float[np.ndarray, "N 3"]:
    """Sums, for each row, over all rows of its point."""
    _, inverse = np.unique(point, return_inverse=True)
    sums = np.zeros_like(vectors)
    np.add.at(sums, inverse, vectors)
    return sums[inverse]


def _plane_axes(
    normal: Float[np.ndarray, "N 3"],
) -> tuple[Float[np.ndarray, "N 3"], Float[np.ndarray, "N 3"]]:
    """Two unit vectors that span the plane across `normal`; equal normals get equal axes."""
    steepest = np.eye(3)[np.abs(normal).argmin(axis=1)]
    across = _unit(np.cross(steepest, normal))
    return across, np.cross(normal, across)


def _unit(vectors: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "N 3"]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _dot(a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, " N"]:
    return np.einsum("ni,ni->n", a, b)
