"""Planes and cameras of made-up worlds: a background, what stands before it, and who looks at both.

The background's longer side is the unit; x goes right, y down, z away from the cameras.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from kjax.data.selfsupervised import ViewConfig
from kjax.extras import require

BACK_TILT, FRONT_TILT = 35.0, 25.0
"""Degrees by which the background and what is before it are tilted at most."""
FOCAL = (0.8, 1.5)
"""In units of the longer side."""
NEARER, FARTHER = 0.6, 1.6
"""Factors of the distance from which the background fills a view."""
ASIDE = 0.4
"""How far a camera is off the middle at most, as a share of its distance."""
SIZES = (0.2, 0.6)
"""Of what stands before the background, as it is seen, as shares of the shorter side."""
HEIGHTS = (0.1, 0.55)
"""How near to the nearest camera something is, as a share of that camera's distance."""
ELLIPSES = 0.3
"""Share of the shapes that are no quads."""
MARGIN = 0.02
"""Between planes."""
LEAST_DEPTH = 0.15
"""Of any corner in any camera."""
LEAST_COSINE = 0.4
"""Of the angle between the background's normal and the direction to a camera."""
TRIES = 40
"""To find something before the background that fits."""


class Plane(NamedTuple):
    """A flat picture in the world."""

    texture: UInt8[np.ndarray, "height width"]
    mask: UInt8[np.ndarray, "height width"]
    """How much of each pixel there is, of 255: its edges are smooth."""
    to_world: Float[np.ndarray, "3 3"]
    """From homogeneous pixels of the texture to places."""

    @property
    def corners(self) -> Float[np.ndarray, "4 3"]:
        """The places of the texture's."""
        height, width = np.array(self.texture.shape) - 1
        rows = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]])
        return rows @ self.to_world.T

    @property
    def normal(self) -> Float[np.ndarray, " 3"]:
        """Of length 1, towards the cameras."""
        across = np.cross(self.to_world[:, 1], self.to_world[:, 0])
        return across / np.linalg.norm(across)

    def before(self, points: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, " N"]:
        """How far points are before the plane."""
        return (points - self.to_world[:, 2]) @ self.normal


class Camera(NamedTuple):
    """A pinhole."""

    matrix: Float[np.ndarray, "3 3"]
    """From directions in the world to homogeneous pixels."""
    position: Float[np.ndarray, " 3"]
    turn: float
    """Radians by which its view is turned in its plane, clockwise on screen."""

    @property
    def projection(self) -> Float[np.ndarray, "3 4"]:
        """From places to homogeneous pixels."""
        return np.column_stack([self.matrix, -self.matrix @ self.position])

    def depths(self, places: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, " N"]:
        """How far before the camera places are."""
        return (places - self.position) @ self.matrix[2]


class World(NamedTuple):
    """What there is to see."""

    planes: Sequence[Plane]
    """From the farthest to the nearest."""
    cameras: Sequence[Camera]
    """Each with a square frame, as wide as the background's longer side."""


def random_world(
    rng: np.random.Generator,
    photo: UInt8[np.ndarray, "height width"],
    others: Sequence[UInt8[np.ndarray, "_ _"]],
    *,
    config: ViewConfig,
) -> World:
    """A world by chance.

    Args:
        rng: all chance.
        photo: the background.
        others: a part of each is put before it.
        config: how many views there are besides one, and how far they are turned.
    """
    shown = np.full(photo.shape, 255, np.uint8)
    unit = 1 / max(photo.shape)
    back = Plane(photo, shown, _placed(rng, photo.shape, np.zeros(3), unit, BACK_TILT))
    cameras = [_camera(rng, back, config) for _ in range(config.views + 1)]
    planes = [back]
    for height, other in zip(np.sort(rng.uniform(*HEIGHTS, len(others))), others, strict=True):
        front = _before(rng, other, float(height), planes, cameras)
        planes += [front] if front else []
    return World(planes, cameras)


def _placed(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    middle: Float[np.ndarray, " 3"],
    pixel: float,
    most_tilt: float,
) -> Float[np.ndarray, "3 3"]:
    """From a texture's pixels, each so large, to a randomly tilted plane about its middle."""
    towards, tilt = rng.uniform(-np.pi, np.pi), np.deg2rad(rng.uniform(0, most_tilt))
    axis = np.array([np.cos(towards), np.sin(towards), 0]) * tilt
    across = pixel * _turned_about(axis)[:, :2]
    centre = (np.array(shape[::-1]) - 1) / 2
    return np.column_stack([across, middle - across @ centre])


def _turned_about(axis: Float[np.ndarray, " 3"]) -> Float[np.ndarray, "3 3"]:
    """The rotation about an axis by its length in radians."""
    return require("cv2", "making views").Rodrigues(axis)[0]


def _camera(rng: np.random.Generator, back: Plane, config: ViewConfig) -> Camera:
    """A camera that looks at about the middle, with the background well before it."""
    while True:
        camera = _random_camera(rng, max(back.texture.shape), config)
        aslant = back.before(camera.position[None])[0] / np.linalg.norm(camera.position)
        if aslant >= LEAST_COSINE and camera.depths(back.corners).min() >= LEAST_DEPTH:
            return camera


def _random_camera(rng: np.random.Generator, side: int, config: ViewConfig) -> Camera:
    focal = rng.uniform(*FOCAL)
    distance = focal * np.exp(rng.uniform(np.log(NEARER), np.log(FARTHER)))
    towards, aside = rng.uniform(-np.pi, np.pi), ASIDE * np.sqrt(rng.uniform())
    position = np.array([aside * np.cos(towards), aside * np.sin(towards), -1.0])
    position *= distance / np.linalg.norm(position)
    ahead = np.array([*rng.uniform(-0.1, 0.1, 2), 0]) - position
    ahead /= np.linalg.norm(ahead)
    right = np.cross([0, 1, 0], ahead)
    right /= np.linalg.norm(right)
    turn = np.deg2rad(rng.uniform(-1, 1) * config.max_rotation_degrees)
    upright = np.stack([right, np.cross(ahead, right), ahead])
    middle = (side - 1) / 2
    pinhole = np.array([[focal * side, 0, middle], [0, focal * side, middle], [0, 0, 1]])
    return Camera(pinhole @ _turned_about(np.array([0, 0, turn])) @ upright, position, turn)


def _before(
    rng: np.random.Generator,
    other: UInt8[np.ndarray, "_ _"],
    height: float,
    planes: Sequence[Plane],
    cameras: Sequence[Camera],
) -> Plane | None:
    """A part of another photograph, wholly before all planes for every camera; None if none fits.

    What is wholly on the cameras' side of a plane can never be hidden by it.
    """
    back = planes[0].texture.shape
    positions = np.stack([camera.position for camera in cameras])
    away = -positions[:, 2]
    for _ in range(TRIES):
        texture = _part(rng, other, rng.uniform(*SIZES, 2) * min(back))
        risen = height * away.min()
        nearer = 1 - risen / away.mean()
        middle = nearer * rng.uniform(-0.4, 0.4, 2) * np.array(back[::-1]) / max(back)
        pixel = nearer / max(back)
        to_world = _placed(rng, texture.shape, np.array([*middle, -risen]), pixel, FRONT_TILT)
        plane = Plane(texture, _shape(rng, texture.shape), to_world)
        corners = plane.corners
        apart = min(farther.before(corners).min() for farther in planes)
        seen = min(camera.depths(corners).min() for camera in cameras)
        facing = plane.before(positions).min()
        if apart >= MARGIN and min(seen, facing) >= LEAST_DEPTH:
            return plane
    return None


def _part(
    rng: np.random.Generator, photo: UInt8[np.ndarray, "_ _"], size: Float[np.ndarray, " 2"]
) -> UInt8[np.ndarray, "_ _"]:
    """A random part of a photograph, of a size if it is large enough."""
    height, width = np.clip(size.astype(int), 2, photo.shape)
    top, left = rng.integers(0, np.array(photo.shape) - [height, width] + 1)
    return np.ascontiguousarray(photo[top : top + height, left : left + width])


def _shape(rng: np.random.Generator, shape: tuple[int, ...]) -> UInt8[np.ndarray, "_ _"]:
    """A random quad of most of a texture, or an ellipse."""
    cv2 = require("cv2", "making views")
    mask = np.zeros(shape, np.uint8)
    last = np.array(shape[::-1]) - 1
    if rng.uniform() < ELLIPSES:
        half = tuple(int(side) for side in last // 2)
        return cv2.ellipse(mask, half, half, 0, 0, 360, 255, -1, cv2.LINE_AA)
    inward = rng.uniform(0, 0.25, (4, 2))
    corners = np.abs(np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - inward) * last
    return cv2.fillConvexPoly(mask, np.rint(corners).astype(np.int32), 255, cv2.LINE_AA)
