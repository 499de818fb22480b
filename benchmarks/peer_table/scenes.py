"""Pairs of photos whose geometry is known: a homography, or two cameras by COLMAP."""

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from homography_sequences import HomographySequence
from jaxtyping import Float, UInt8

from kjax.data.colmap import NO_POINT, PIXEL_CENTRE, Camera, Model, ModelImage, read_rows
from kjax.data.cutting.photographs import read_grey
from kjax.errors import InputError
from kjax.extras import require
from kjax.images import poses
from kjax.images.collection.matching import match_and_verify_all
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import read_features
from kjax.images.features import Features
from kjax.images.geometry import project, refine_model, verify
from peer_table import geometry

LONG_SIDE = 1024
OVERLAP = 0.1
"""Minimum share of either photo's 3-D points that the other one sees."""
VIEW_ANGLE = 1.0
"""Minimum median angle between two views of shared points, in degrees."""
MAX_PAIRS = 50
"""Maximum number of pairs per scene; others are dropped at random."""
ANGLES = tuple(range(0, 181, 30))
SIFT_KEYPOINTS, SIFT_RATIO = 4096, 0.8
"""COLMAP's keypoints per photo, and the ratio of their matches, for true cameras."""

Grey = UInt8[np.ndarray, "height width"]
Points = Float[np.ndarray, "K 2"]


class PairErrors(NamedTuple):
    """Errors of a pair's matches and of the geometry estimated from them."""

    off: Float[np.ndarray, " K"]
    """Error of each match in pixels; NaN for points at infinity."""
    error: float | None
    """Error of the estimated geometry in pixels or degrees; None if there is none."""
    refined: float | None
    """The same after refinement on all near matches."""
    stricter: tuple[float | None, ...] = ()
    """Errors of poses estimated with each of `geometry.STRICTER_PIXELS`."""


class PairTruth(Protocol):
    """The true geometry of a pair."""

    def judge(self, xy_a: Points, xy_b: Points) -> PairErrors:
        """Compare matched points with it, in the photos' pixels."""


class ScenePair(NamedTuple):
    """Indices of two photos of a scene, and their true geometry."""

    first: int
    second: int
    truth: PairTruth


@dataclasses.dataclass(frozen=True)
class PeerScene:
    """Photos and pairs of them.

    Attributes:
        name: of the scene.
        kind: "homographies", "rotation" or "poses".
        photos: functions that read a photo with a long side of 1,024 pixels.
        pairs: with their true geometry.
    """

    name: str
    kind: str
    photos: Sequence[Callable[[], Grey]]
    pairs: Sequence[ScenePair]


def resized(photo: Grey) -> Grey:
    """Resize a photo to the long side that all methods get."""
    cv2 = require("cv2", "resizing photographs")
    factor = LONG_SIDE / max(photo.shape)
    size = round(photo.shape[1] * factor), round(photo.shape[0] * factor)
    smaller, larger = cv2.INTER_AREA, cv2.INTER_LINEAR
    return cv2.resize(photo, size, interpolation=smaller if factor < 1 else larger)


def resizing(before: tuple[int, ...], after: tuple[int, ...]) -> Float[np.ndarray, "3 3"]:
    """Return the homography of a resize, which maps pixel centres to pixel centres."""
    y, x = np.array(after) / np.array(before)
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1.0]])


# Planes


@dataclasses.dataclass(frozen=True)
class PlaneTruth:
    """A homography between photos of 1,024 pixels.

    Attributes:
        matrix: from the first to the second.
        shape: height and width of the first, whose corners measure the error of an estimate.
    """

    matrix: Float[np.ndarray, "3 3"]
    shape: tuple[int, ...]

    def judge(self, xy_a: Points, xy_b: Points) -> PairErrors:
        """Measure errors as distances from the projected match."""
        off = np.linalg.norm(project(self.matrix, xy_a) - xy_b, axis=1)
        pixels = geometry.HOMOGRAPHY_PIXELS
        found, inliers, _ = verify(xy_a, xy_b, model="homography", threshold=pixels, refine=False)
        if found is None:
            return PairErrors(off, None, None)
        refined, _ = refine_model("homography", found, inliers, xy_a, xy_b, pixels)
        return PairErrors(off, self._error(found), self._error(refined))

    def _error(self, found: Float[np.ndarray, "3 3"]) -> float | None:
        """Mean corner error in pixels."""
        height, width = self.shape
        corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1.0]])
        apart = project(found, corners) - project(self.matrix, corners)
        error = float(np.linalg.norm(apart, axis=1).mean())
        return error if np.isfinite(error) else None


def plane_scene(sequence: HomographySequence) -> PeerScene:
    """Pair the first photo of a sequence with each other one."""
    shapes = [read_grey(path).shape for path in sequence.photos]
    photos = [lambda path=path: resized(read_grey(path)) for path in sequence.photos]
    sizes = [resizing(shape, _resized_shape(shape)) for shape in shapes]
    pairs = [
        ScenePair(
            0,
            other,
            PlaneTruth(
                sizes[other] @ homography @ np.linalg.inv(sizes[0]), _resized_shape(shapes[0])
            ),
        )
        for other, homography in enumerate(sequence.homographies, start=1)
    ]
    return PeerScene(sequence.name, "homographies", photos, pairs)


def _resized_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    factor = LONG_SIDE / max(shape)
    return round(shape[0] * factor), round(shape[1] * factor)


def turned_scene(planes: Sequence[PeerScene], angle: int) -> PeerScene:
    """Pair the first photo of each sequence with the second one, rotated about its centre."""
    photos: list[Callable[[], Grey]] = []
    pairs = []
    for plane in planes:
        first, second = plane.photos[:2]
        turn, size = _turn(second().shape, angle)
        photos += [first, lambda second=second, turn=turn, size=size: _warp(second(), turn, size)]
        truth = plane.pairs[0].truth
        assert isinstance(truth, PlaneTruth)
        turned = PlaneTruth(turn @ truth.matrix, truth.shape)
        pairs.append(ScenePair(len(photos) - 2, len(photos) - 1, turned))
    return PeerScene(f"{angle}°", "rotation", photos, pairs)


def _turn(shape: tuple[int, ...], angle: int) -> tuple[Float[np.ndarray, "3 3"], tuple[int, int]]:
    """Return a rotation into a canvas that holds the whole photo, and its width and height."""
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


# Cameras


@dataclasses.dataclass(frozen=True)
class PoseTruth:
    """Two cameras, by COLMAP.

    Attributes:
        cameras: of the original photos.
        shapes: of the resized photos.
        rotation: from the first camera's directions to the second's.
        translation: likewise.
    """

    cameras: tuple[Camera, Camera]
    shapes: tuple[tuple[int, int], tuple[int, int]]
    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]

    def judge(self, xy_a: Points, xy_b: Points) -> PairErrors:
        """Measure errors as distances from the true epipolar line."""
        a, b = map(_rays, (xy_a, xy_b), self.cameras, self.shapes)
        along = self.translation / np.linalg.norm(self.translation)
        pixel = float(np.mean([*map(_ray_pixels, self.cameras, self.shapes)]))
        essential = poses.essential_matrix(self.rotation, along)
        off = geometry.epipolar_distance(a, b, essential) * pixel
        threshold = geometry.ESSENTIAL_PIXELS / pixel
        found = poses.ransac_pose(a, b, threshold=threshold)
        better = poses.refined_pose(a, b, found, threshold=threshold)
        stricter = [
            poses.ransac_pose(a, b, threshold=pixels / pixel) for pixels in geometry.STRICTER_PIXELS
        ]
        return PairErrors(
            off,
            self._error(found),
            self._error(better),
            tuple(map(self._error, stricter)),
        )

    def _error(self, found: tuple[np.ndarray, np.ndarray] | None) -> float | None:
        return geometry.pose_error(found, self.rotation, self.translation)


def _ray_pixels(camera: Camera, shape: tuple[int, int]) -> float:
    """Focal length in pixels of a resized photo."""
    return camera.focal * shape[1] / camera.width


def _rays(xy: Points, camera: Camera, shape: tuple[int, int]) -> Points:
    """Undistorted points on the plane at distance 1, of a resized photo."""
    zoom = np.array([camera.width / shape[1], camera.height / shape[0]])
    return poses.rays_of((xy + PIXEL_CENTRE) * zoom - PIXEL_CENTRE, camera)


def pose_scene(name: str, folder: Path, model: Model, *, seed: int = 0) -> PeerScene:
    """Return the pairs of a model's photos that share enough 3-D points.

    Args:
        name: of the scene.
        folder: of the photos.
        model: COLMAP's, of all photos.
        seed: of the selection if there are many pairs.
    """
    images = sorted(model.images.values(), key=lambda image: image.name)
    places = [
        (first, second)
        for first, second in itertools.combinations(range(len(images)), 2)
        if _overlap(images[first], images[second], model)
    ]
    if len(places) > MAX_PAIRS:
        chosen = np.random.default_rng(seed).choice(len(places), MAX_PAIRS, replace=False)
        places = [places[place] for place in sorted(chosen)]
    photos = [lambda path=folder / image.name: resized(read_grey(path)) for image in images]
    pairs = [ScenePair(a, b, _pose_truth(images[a], images[b], model)) for a, b in places]
    return PeerScene(name, "poses", photos, pairs)


def _overlap(first: ModelImage, second: ModelImage, model: Model) -> bool:
    """Whether two photos share enough points, seen from different positions."""
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


def scene_model(photos: Path, work: Path, *, threads: int) -> Model:
    """Return COLMAP's largest model of a folder of photos, from a cache or made now.

    COLMAP's own SIFT descriptors are matched exactly (mutual, ratio 0.8), because COLMAP 3.8 is
    slow at that on a CPU.

    Args:
        photos: the folder.
        work: cache of models, each in a folder of the scene's name.
        threads: of COLMAP.
    """
    folder = work / photos.name
    if not (folder / "sparse").is_dir():
        begun = folder.with_name(f"{folder.name}.begun")  # renamed when it is complete
        shutil.rmtree(begun, ignore_errors=True)
        begun.mkdir(parents=True)
        own, database, log = (begun / name for name in ("sift.db", "database.db", "log.txt"))
        colmap_program.extract_sift(
            own,
            photos,
            max_keypoints=SIFT_KEYPOINTS,
            single_camera=colmap_program.of_one_size(photos),
            log=log,
            threads=threads,
        )
        features = colmap_sift(own)
        match_and_verify_all(
            database, features, base=own, ratio=SIFT_RATIO, log=log, threads=threads
        )
        colmap_program.reconstruct(database, photos, begun / "sparse", log=log, threads=threads)
        shutil.rmtree(folder, ignore_errors=True)
        begun.rename(folder)
    model = colmap_program.largest_model(colmap_program.models_below(folder / "sparse"))
    if model is None:
        raise InputError(f"COLMAP cannot reconstruct {photos}: see {folder / 'log.txt'}")
    return model


def colmap_sift(database: Path) -> dict[str, Features]:
    """Return the features that COLMAP itself found and described."""
    query = "SELECT name, data FROM descriptors JOIN images USING (image_id)"
    found = read_features(database)
    return {
        name: dataclasses.replace(
            found[name], descriptors=np.frombuffer(data or b"", np.uint8).reshape(-1, 128)
        )
        for name, data in read_rows(database, query)
    }
