"""Views of made-up worlds of flat photographs at several depths, for the training of a matcher.

Views of one flat photograph have neither parallax nor occlusion. Here a photograph is a background,
parts of others stand before it, and pinhole cameras look at both from different places.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int16, UInt8

from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.levels import antialias_sigma
from kjax.data.selfsupervised import ViewConfig, change_light
from kjax.extras import require
from kjax.images.layered_planes import Camera, Plane, random_world
from kjax.matcher.truth import FAR

NOTHING = -1
"""The layer of pixels that no plane covers."""


class LayeredView(NamedTuple):
    """What a camera sees of a world."""

    pixels: UInt8[np.ndarray, "height width"]
    layers: Int16[np.ndarray, "height width"]
    """Which plane each pixel sees, or `NOTHING`."""
    planes: Sequence[Plane]
    """From the farthest to the nearest."""
    camera: Camera

    def showing(self, keypoints: Keypoints) -> Keypoints:
        """Those keypoints that are on a plane."""
        return keypoints.keep(self._at(keypoints.xy, self.layers) != NOTHING)

    def geometry(
        self, xy: Float[np.ndarray, "K 2"], scales: Float[np.ndarray, " K"]
    ) -> dict[str, np.ndarray]:
        """What keypoints see, unless another layer is within their radius, or `FAR`; the camera.

        Nearer to another layer, `find_truth` could take what hides a place for that place.
        """
        cv2 = require("cv2", "making views")
        xy = xy.astype(np.float64)
        rays = np.column_stack([xy, np.ones(len(xy))]) @ np.linalg.inv(self.camera.matrix).T
        places = np.full((len(xy), 3), np.nan)
        for number, plane in enumerate(self.planes):
            own = (self.layers == number).astype(np.uint8)
            inside = cv2.distanceTransform(own, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
            on = self._at(xy, inside) > np.maximum(scales / 2, FAR)
            height = plane.before(self.camera.position[None])[0]
            along = -height / (rays[on] @ plane.normal)
            places[on] = self.camera.position + along[:, None] * rays[on]
        return {
            "places": places.astype("f4"),
            "cameras": self.camera.projection.astype("f4"),
            "turns": np.array(self.camera.turn, "f4"),
        }

    def _at(self, xy: Float[np.ndarray, "K 2"], values: np.ndarray) -> np.ndarray:
        """Of each pixel's values, those at the pixels nearest to keypoints."""
        last = np.array(self.layers.shape[::-1]) - 1
        x, y = np.clip(np.rint(xy).astype(int), 0, last).T
        return values[y, x]


def layered_views(
    rng: np.random.Generator,
    photo: UInt8[np.ndarray, "height width"],
    others: Sequence[UInt8[np.ndarray, "_ _"]],
    *,
    config: ViewConfig,
) -> list[LayeredView]:
    """Views of a random world, one more than the configuration's.

    Args:
        rng: all chance.
        photo: the background.
        others: a part of each is put before it.
        config: how many views, how far they are turned, and their light.
    """
    planes, cameras = random_world(rng, photo, others, config=config)
    return [_render(rng, planes, camera, config) for camera in cameras]


def _render(
    rng: np.random.Generator, planes: Sequence[Plane], camera: Camera, config: ViewConfig
) -> LayeredView:
    """Paints the planes, the farthest first, where the background is in a square frame."""
    camera, size = _framed(camera, planes[0])
    pixels = rng.normal(rng.uniform(60, 200), 2, size[::-1]).astype(np.float32)
    layers = np.full(size[::-1], NOTHING, np.int16)
    for number, plane in enumerate(planes):
        painted, share = _warped(plane, camera, size)
        pixels += share * (painted - pixels)
        layers[share >= 0.5] = number
    grey = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return LayeredView(change_light(rng, grey, config=config), layers, planes, camera)


def _framed(camera: Camera, back: Plane) -> tuple[Camera, tuple[int, int]]:
    """The camera with its frame cut to the background, and the frame's width and height."""
    seen = back.corners - camera.position
    seen = seen @ camera.matrix.T
    xy = seen[:, :2] / seen[:, 2:]
    side = max(back.texture.shape)
    first = np.clip(np.floor(xy.min(axis=0)), 0, side - 64)
    last = np.clip(np.ceil(xy.max(axis=0)), first + 63, side - 1)
    shift = np.eye(3)
    shift[:2, 2] = -first
    width, height = (int(one) + 1 for one in last - first)
    return camera._replace(matrix=shift @ camera.matrix), (width, height)


def _warped(
    plane: Plane, camera: Camera, size: tuple[int, int]
) -> tuple[Float32[np.ndarray, "h w"], Float32[np.ndarray, "h w"]]:
    """A plane's picture as the camera sees it, and how much of each pixel it covers."""
    cv2 = require("cv2", "making views")
    to_view = camera.matrix @ plane.to_world
    to_view[:, 2] -= camera.matrix @ camera.position
    zoom = _zoom(to_view, plane.texture.shape)
    texture = plane.texture
    if zoom < 1:
        texture = cv2.GaussianBlur(texture, (0, 0), antialias_sigma(1 / zoom))
    edges = cv2.BORDER_REPLICATE
    painted = cv2.warpPerspective(texture, to_view, size, flags=cv2.INTER_LINEAR, borderMode=edges)
    share = cv2.warpPerspective(plane.mask, to_view, size, flags=cv2.INTER_LINEAR)
    return painted.astype(np.float32), share.astype(np.float32) / 255


def _zoom(to_view: Float[np.ndarray, "3 3"], shape: tuple[int, ...]) -> float:
    """By how much a homography enlarges the middle of a texture."""
    depth = to_view[2] @ np.array([(shape[1] - 1) / 2, (shape[0] - 1) / 2, 1])
    return float(np.sqrt(np.abs(np.linalg.det(to_view) / depth**3)))
