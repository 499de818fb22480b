"""Photographs in pairs whose geometry is known: a homography, or the poses of two cameras."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from homography_sequences import HomographySequence
from jaxtyping import Float, UInt8

from kjax.data.colmap import NO_POINT, PIXEL_CENTRE, Camera, Model, ModelImage
from kjax.data.cutting.grey import read_for_describing
from kjax.data.cutting.photographs import list_photos
from kjax.data.selfsupervised import ViewConfig, random_view
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.correct_matches import project
from kjax.images.geometry import verify
from kjax.images.refinement import refine_homography
from peer_table import scores
from peer_table.refinement import refined_pose

LONG_SIDE = 1024
OVERLAP = 0.1
"""The least share of the 3-D points of either photograph that the other one sees too."""
VIEW_ANGLE = 1.0
"""Degrees between two views of the points that they share: with less, no direction is known."""
MOST_PAIRS = 50
"""Of a scene: others are left out by chance."""
ANGLES = tuple(range(0, 181, 30))
VIEWS = ViewConfig(views=2, max_rotation_degrees=60.0, max_zoom=2.0, max_stretch=2.0)
VIEWED = 6
"""Photographs of a folder that random views are made of."""

Grey = UInt8[np.ndarray, "height width"]
Points = Float[np.ndarray, "K 2"]


class Judged(NamedTuple):
    """What a pair's matches are worth."""

    off: Float[np.ndarray, " K"]
    """Pixels by which each match is off; NaN of points that are taken to infinity."""
    error: float | None
    """Pixels, or degrees, by which the geometry found from them is off; None if there is none."""
    refined: float | None
    """The same of the geometry after a refinement on all matches near it."""
    stricter: tuple[float | None, ...] = ()
    """The same of poses found with each of `scores.STRICTER_PIXELS`."""


class Truth(Protocol):
    """The geometry of a pair."""

    def judge(self, xy_a: Points, xy_b: Points) -> Judged:
        """Matched points against it, in the photographs' pixels."""


class Pair(NamedTuple):
    """Two photographs of a scene."""

    first: int
    second: int
    truth: Truth


@dataclasses.dataclass(frozen=True)
class Scene:
    """Photographs, and pairs of them.

    Attributes:
        name: of the scene.
        kind: "homographies", "rotation", "poses" or "views".
        photos: read when they are asked for, with a long side of 1,024 pixels.
        pairs: with their truth.
    """

    name: str
    kind: str
    photos: Sequence[Callable[[], Grey]]
    pairs: Sequence[Pair]


def resized(photo: Grey) -> Grey:
    """The photograph with the long side that all methods get."""
    cv2 = require("cv2", "resizing photographs")
    factor = LONG_SIDE / max(photo.shape)
    size = round(photo.shape[1] * factor), round(photo.shape[0] * factor)
    smaller, larger = cv2.INTER_AREA, cv2.INTER_LINEAR
    return cv2.resize(photo, size, interpolation=smaller if factor < 1 else larger)


def resizing(before: tuple[int, ...], after: tuple[int, ...]) -> Float[np.ndarray, "3 3"]:
    """Where pixels go when a photograph of one shape gets another; centres stay centres."""
    y, x = np.array(after) / np.array(before)
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1.0]])


# Planes


@dataclasses.dataclass(frozen=True)
class PlaneTruth:
    """A homography between photographs of 1,024 pixels.

    Attributes:
        matrix: from the first to the second.
        shape: height and width of the first, whose corners show how far an estimate is off.
    """

    matrix: Float[np.ndarray, "3 3"]
    shape: tuple[int, ...]

    def judge(self, xy_a: Points, xy_b: Points) -> Judged:
        """Off is how far a point is from where the homography takes its match."""
        off = np.linalg.norm(project(self.matrix, xy_a) - xy_b, axis=1)
        pixels = scores.HOMOGRAPHY_PIXELS
        found, inliers = verify(xy_a, xy_b, model="homography", threshold=pixels, refine=False)
        if found is None:
            return Judged(off, None, None)
        refined, _ = refine_homography(found, inliers, xy_a, xy_b, pixels)
        return Judged(off, self._error(found), self._error(refined))

    def _error(self, found: Float[np.ndarray, "3 3"]) -> float | None:
        """Pixels by which the corners are off, on average."""
        height, width = self.shape
        corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1.0]])
        apart = project(found, corners) - project(self.matrix, corners)
        error = float(np.linalg.norm(apart, axis=1).mean())
        return error if np.isfinite(error) else None


def plane_scene(sequence: HomographySequence) -> Scene:
    """The first photograph of a sequence with each of the others."""
    shapes = [read_for_describing(path).shape for path in sequence.photos]
    photos = [lambda path=path: resized(read_for_describing(path)) for path in sequence.photos]
    sizes = [resizing(shape, _resized_shape(shape)) for shape in shapes]
    pairs = [
        Pair(
            0,
            other,
            PlaneTruth(
                sizes[other] @ homography @ np.linalg.inv(sizes[0]), _resized_shape(shapes[0])
            ),
        )
        for other, homography in enumerate(sequence.homographies, start=1)
    ]
    return Scene(sequence.name, "homographies", photos, pairs)


def _resized_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    factor = LONG_SIDE / max(shape)
    return round(shape[0] * factor), round(shape[1] * factor)


def turned_scene(planes: Sequence[Scene], angle: int) -> Scene:
    """First photographs of sequences with the second ones, turned about their centres."""
    photos: list[Callable[[], Grey]] = []
    pairs = []
    for plane in planes:
        first, second = plane.photos[:2]
        turn, size = _turn(second().shape, angle)
        photos += [first, lambda second=second, turn=turn, size=size: _warp(second(), turn, size)]
        truth = plane.pairs[0].truth
        assert isinstance(truth, PlaneTruth)
        turned = PlaneTruth(turn @ truth.matrix, truth.shape)
        pairs.append(Pair(len(photos) - 2, len(photos) - 1, turned))
    return Scene(f"{angle}°", "rotation", photos, pairs)


def _turn(shape: tuple[int, ...], angle: int) -> tuple[Float[np.ndarray, "3 3"], tuple[int, int]]:
    """A rotation into a photograph that holds all of it, and that one's width and height."""
    height, width = shape
    cos, sin = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    rotation = np.array([[cos, -sin], [sin, cos]])
    around = np.abs(rotation) @ [width, height]
    size = round(around[0]), round(around[1])
    middle = [(np.array([w, h]) - 1) / 2 for w, h in ((width, height), size)]
    matrix = np.eye(3)
    matrix[:2, :2], matrix[:2, 2] = rotation, middle[1] - rotation @ middle[0]
    return matrix, size


def _warp(photo: Grey, matrix: np.ndarray, size: tuple[int, int]) -> Grey:
    cv2 = require("cv2", "turning photographs")
    return cv2.warpAffine(photo, matrix[:2], size, flags=cv2.INTER_CUBIC)


def view_scene(folder: Path) -> Scene:
    """Random views of some photographs, each with the photograph itself."""
    photos: list[Callable[[], Grey]] = []
    pairs = []
    for path in list_photos(folder)[:VIEWED]:
        photo = resized(read_for_describing(path))
        rng = np.random.default_rng([0, *path.name.encode()])
        views = [random_view(rng, photo, config=VIEWS) for _ in range(VIEWS.views)]
        first = len(photos)
        photos += [lambda pixels=pixels: pixels for pixels in (photo, *(v.pixels for v in views))]
        for place, view in enumerate(views, start=first + 1):
            pairs.append(Pair(first, place, PlaneTruth(view.homography, photo.shape)))
    return Scene(folder.name, "views", photos, pairs)


# Cameras


@dataclasses.dataclass(frozen=True)
class PoseTruth:
    """Two cameras, by COLMAP.

    Attributes:
        cameras: of the photographs as COLMAP read them.
        shapes: that photographs have here.
        rotation: from the first camera's directions to the second's.
        translation: likewise.
    """

    cameras: tuple[Camera, Camera]
    shapes: tuple[tuple[int, int], tuple[int, int]]
    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]

    def judge(self, xy_a: Points, xy_b: Points) -> Judged:
        """Off is the distance from the true epipolar line."""
        a, b = map(_rays, (xy_a, xy_b), self.cameras, self.shapes)
        along = self.translation / np.linalg.norm(self.translation)
        pixel = float(np.mean([*map(_ray_pixels, self.cameras, self.shapes)]))
        essential = scores.essential_matrix(self.rotation, along)
        off = scores.epipolar_distance(a, b, essential) * pixel
        threshold = scores.ESSENTIAL_PIXELS / pixel
        found = scores.relative_pose(a, b, threshold=threshold)
        better = refined_pose(a, b, found, threshold=threshold)
        stricter = [
            scores.relative_pose(a, b, threshold=pixels / pixel)
            for pixels in scores.STRICTER_PIXELS
        ]
        return Judged(
            off,
            self._error(found),
            self._error(better),
            tuple(map(self._error, stricter)),
        )

    def _error(self, found: tuple[np.ndarray, np.ndarray] | None) -> float | None:
        return scores.pose_error(found, self.rotation, self.translation)


def _ray_pixels(camera: Camera, shape: tuple[int, int]) -> float:
    """The focal length in a photograph of that shape."""
    return camera.focal * shape[1] / camera.width


def _rays(xy: Points, camera: Camera, shape: tuple[int, int]) -> Points:
    """Points on the plane at distance 1, without the lens's distortion."""
    cv2 = require("cv2", "undistorting points")
    if len(camera.parameters) not in (3, 4):
        raise InputError("poses need COLMAP's cameras SIMPLE_PINHOLE or SIMPLE_RADIAL: map again")
    focal, x, y, *radial = camera.parameters
    if not len(xy):
        return xy.astype(np.float64)
    whole = (xy + PIXEL_CENTRE) * [camera.width / shape[1], camera.height / shape[0]]
    matrix = np.array([[focal, 0, x], [0, focal, y], [0, 0, 1]])
    distortion = np.array([*radial, 0, 0, 0, 0][:4], np.float64)
    return cv2.undistortPoints(whole[:, None].astype(np.float64), matrix, distortion)[:, 0]


def pose_scene(name: str, folder: Path, model: Model, *, seed: int = 0) -> Scene:
    """The pairs of a model's photographs that see enough of the same points.

    Args:
        name: of the scene.
        folder: of the photographs.
        model: of all of them.
        seed: of the choice where there are many pairs.
    """
    images = sorted(model.images.values(), key=lambda image: image.name)
    places = [
        (first, second)
        for first, second in itertools.combinations(range(len(images)), 2)
        if _overlap(images[first], images[second], model)
    ]
    if len(places) > MOST_PAIRS:
        chosen = np.random.default_rng(seed).choice(len(places), MOST_PAIRS, replace=False)
        places = [places[place] for place in sorted(chosen)]
    photos = [
        lambda path=folder / image.name: resized(read_for_describing(path)) for image in images
    ]
    pairs = [Pair(a, b, _pose_truth(images[a], images[b], model)) for a, b in places]
    return Scene(name, "poses", photos, pairs)


def _overlap(first: ModelImage, second: ModelImage, model: Model) -> bool:
    """Whether two photographs share enough points, and see them from two places."""
    a, b = (np.unique(one.point_ids[one.point_ids != NO_POINT]) for one in (first, second))
    shared = np.intersect1d(a, b)
    if not len(shared) or len(shared) < OVERLAP * min(len(a), len(b)):
        return False
    xyz = model.points.xyz[np.searchsorted(model.points.ids, shared)]
    rays = [xyz + one.rotation.T @ one.translation for one in (first, second)]
    lengths = [np.linalg.norm(one, axis=1) for one in rays]
    cosines = (rays[0] * rays[1]).sum(axis=1) / lengths[0] / lengths[1]
    return float(np.degrees(np.arccos(np.clip(np.median(cosines), -1, 1)))) >= VIEW_ANGLE


def _pose_truth(first: ModelImage, second: ModelImage, model: Model) -> PoseTruth:
    cameras = model.cameras[first.camera_id], model.cameras[second.camera_id]
    shapes = [_resized_shape((camera.height, camera.width)) for camera in cameras]
    rotation = second.rotation @ first.rotation.T
    translation = second.translation - rotation @ first.translation
    return PoseTruth(cameras, (shapes[0], shapes[1]), rotation, translation)
