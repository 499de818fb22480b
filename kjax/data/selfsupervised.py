"""Any photographs become a patch set: views of each by random homographies and lights.

SIFT keypoints are detected in the photograph and in every view; those that the homography brings
together are the patches of one point. A view is warped about the photograph's centre, blurred,
given another gamma, contrast and brightness, and noise.
"""

import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64, UInt8
from tqdm import tqdm

from kjax.data.correspondence import (
    Tolerances,
    distinct_places,
    match_keypoints,
    transform_keypoints,
)
from kjax.data.cutting.grey import read_grey
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.data.cutting.levels import antialias_sigma
from kjax.data.cutting.patches import EXTENT, cut_patches
from kjax.data.photos import CutSet
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.checksum import sha256


@dataclasses.dataclass(frozen=True)
class ViewConfig:
    """How views differ from the photograph, and which points are taken. Ranges are uniform.

    Attributes:
        views: made of each photograph, besides itself.
        max_rotation_degrees: in the image plane, either way.
        max_zoom: enlarged or reduced by up to this factor.
        max_stretch: of one direction against the other, as a plane seen aslant.
        max_perspective: change of depth from the centre to a corner, as a share of the depth.
        max_gamma: exponent of the grey values, between this and its inverse.
        max_contrast: factor of the contrast, between this and its inverse.
        max_brightness: grey values added or taken away, of 255.
        max_blur: σ of a Gaussian, in pixels.
        max_noise: standard deviation of the pixels' noise, in grey values of 255.
        max_side: longer sides are first reduced to this many pixels.
        contrast_threshold: of OpenCV's SIFT detector; lower finds more points.
        min_sigma: finer keypoints are dropped, as their patches would be mostly interpolation.
        max_points: taken from one photograph, at random.
        extent: side of a patch over the keypoint's diameter.
        tolerances: how well two detections must agree to be one point.
    """

    views: int = 4
    max_rotation_degrees: float = 30.0
    max_zoom: float = 1.4
    max_stretch: float = 1.5
    max_perspective: float = 0.25
    max_gamma: float = 1.6
    max_contrast: float = 1.5
    max_brightness: float = 25.0
    max_blur: float = 1.0
    max_noise: float = 6.0
    max_side: int = 1024
    contrast_threshold: float = 0.02
    min_sigma: float = 1.2
    max_points: int = 1500
    extent: float = EXTENT
    tolerances: Tolerances = Tolerances()  # noqa: RUF009  # frozen, so safe to share


class View(NamedTuple):
    """One photograph from elsewhere in another light."""

    pixels: UInt8[np.ndarray, "height width"]
    homography: Float[np.ndarray, "3 3"]
    """The map from the photograph's pixels to the view's."""


class PointPatches(NamedTuple):
    """Patches of one photograph's points."""

    patches: UInt8[np.ndarray, "P 64 64"]
    point_ids: Int64[np.ndarray, " P"]
    """Numbers of the points from 0, in order."""
    keypoints: Keypoints
    """The place of each patch, in the photograph or in one of its views."""


def cut_self_supervised(
    photos: Sequence[Path],
    names: Sequence[str],
    *,
    config: ViewConfig,
    seed: int,
    progress: bool = True,
) -> CutSet:
    """Cuts a set from photographs; what happens to one depends on its name, not on the others.

    Args:
        photos: files to read. Unreadable ones are left out and named in the result.
        names: what to call them.
        config: how views differ, and which points are taken.
        seed: the same seed always gives the same set.
        progress: show a bar.
    """
    parts: list[PointPatches] = []
    kept: list[str] = []
    unreadable: list[str] = []
    hashes: list[str] = []
    # OpenCV lets go of the interpreter while it works, and so do NumPy's larger operations.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        cut = pool.map(lambda path, name: _cut_photo(path, name, config, seed), photos, names)
        bar = tqdm(
            cut, desc="cutting photographs", unit="photo", total=len(photos), disable=not progress
        )
        for path, name, part in zip(photos, names, bar, strict=True):
            if part is None:
                unreadable.append(name)
            else:
                parts.append(part)
                kept.append(name)
                hashes.append(sha256(path))
    if not any(len(part.patches) for part in parts):
        problem = "could be read" if not kept else "has points that its views share"
        raise InputError(f"none of the {len(photos)} photographs {problem}: give other photographs")
    return _join(parts, kept, unreadable)._replace(sha256=hashes)


def _cut_photo(path: Path, name: str, config: ViewConfig, seed: int) -> PointPatches | None:
    """The patches of one photograph; None if it cannot be read."""
    photo = read_grey(path)
    if photo is None:
        return None
    return _cut_points(np.random.default_rng([seed, *name.encode()]), photo, config=config)


def _cut_points(
    rng: np.random.Generator, photo: UInt8[np.ndarray, "height width"], *, config: ViewConfig
) -> PointPatches:
    """The patches of all points that the photograph shares with at least one of its views."""
    photo = reduce_photo(photo, config.max_side)
    views = [View(photo, np.eye(3))]
    views += [random_view(rng, photo, config=config) for _ in range(config.views)]
    found = [
        detect_in_grey(view.pixels, max_keypoints=None, contrast=config.contrast_threshold)
        for view in views
    ]
    reference = found[0].keep(found[0].sigma >= config.min_sigma)
    reference = reference.keep(distinct_places(reference))
    matches = np.stack(
        [
            match_keypoints(
                transform_keypoints(reference, view.homography),
                detections,
                tolerances=config.tolerances,
            )
            for view, detections in zip(views, found, strict=True)
        ],
        axis=1,
    )
    shared = np.flatnonzero((matches >= 0).sum(axis=1) >= 2)
    chosen = np.sort(rng.permutation(shared)[: config.max_points])
    return _cut_views(views, found, matches[chosen], extent=config.extent)


def random_view(
    rng: np.random.Generator, photo: UInt8[np.ndarray, "height width"], *, config: ViewConfig
) -> View:
    """Warps the photograph onto a canvas that holds all of it, and changes the light."""
    cv2 = require("cv2", "cutting patches")
    homography, zoom = random_homography(rng, config=config)
    height, width = photo.shape
    to_view, size = _onto_canvas(homography, (height, width))
    blurred = cv2.GaussianBlur(photo, (0, 0), antialias_sigma(1 / zoom)) if zoom < 1 else photo
    # Repeating it in the photograph's frame keeps patches that reach beyond its border alike.
    edges = cv2.BORDER_REPLICATE
    pixels = cv2.warpPerspective(blurred, to_view, size, flags=cv2.INTER_LINEAR, borderMode=edges)
    return View(change_light(rng, pixels, config=config), to_view)


def _onto_canvas(
    homography: Float[np.ndarray, "3 3"], shape: tuple[int, int]
) -> tuple[Float[np.ndarray, "3 3"], tuple[int, int]]:
    """A homography in pixels and the width and height of the smallest canvas for all of the view.

    Args:
        homography: in units of the photograph's half diagonal, origin at its centre.
        shape: the photograph's height and width.
    """
    last = np.array([shape[1] - 1, shape[0] - 1])
    half_diagonal = np.hypot(*shape) / 2
    unit = np.diag([1 / half_diagonal, 1 / half_diagonal, 1.0])
    unit[:2, 2] = -last / 2 / half_diagonal
    in_pixels = np.diag([half_diagonal, half_diagonal, 1.0]) @ homography @ unit
    corners = np.array([[0, 0, 1], [last[0], 0, 1], [0, last[1], 1], [last[0], last[1], 1]])
    warped = corners @ in_pixels.T
    warped = warped[:, :2] / warped[:, 2:]
    shift = np.eye(3)
    shift[:2, 2] = -warped.min(axis=0)
    width, height = (int(side) + 1 for side in np.ceil(np.ptp(warped, axis=0)))
    return shift @ in_pixels, (width, height)


def random_homography(
    rng: np.random.Generator, *, config: ViewConfig
) -> tuple[Float[np.ndarray, "3 3"], float]:
    """A map of the plane that keeps the origin, and its zoom there."""
    rotation, axis = rng.uniform(-1, 1, 2) * np.deg2rad([config.max_rotation_degrees, 180])
    zoom, stretch = np.exp(rng.uniform(-1, 1, 2) * np.log([config.max_zoom, config.max_stretch]))
    lines_up = _rotation(axis)
    linear = _rotation(rotation) @ lines_up @ np.diag([stretch**0.5, stretch**-0.5]) @ lines_up.T
    homography = np.eye(3)
    homography[:2, :2] = zoom * linear
    direction = rng.uniform(-np.pi, np.pi)
    tilt = rng.uniform(0, config.max_perspective)
    homography[2, :2] = tilt * np.array([np.cos(direction), np.sin(direction)])
    return homography, float(zoom)


def change_light(
    rng: np.random.Generator, pixels: UInt8[np.ndarray, "height width"], *, config: ViewConfig
) -> UInt8[np.ndarray, "height width"]:
    """Applies blur, gamma, contrast, brightness and noise."""
    cv2 = require("cv2", "cutting patches")
    blur = rng.uniform(0, config.max_blur)
    # OpenCV takes a σ of 0 for "choose one"; below this it would change nothing anyway.
    if blur > 0.1:
        pixels = cv2.GaussianBlur(pixels, (0, 0), blur)
    gamma, contrast = np.exp(
        rng.uniform(-1, 1, 2) * np.log([config.max_gamma, config.max_contrast])
    )
    brightness = rng.uniform(-1, 1) * config.max_brightness
    levels = 255 * (np.arange(256) / 255) ** gamma
    curve = contrast * (levels - 127.5) + 127.5 + brightness
    noise = rng.normal(0, rng.uniform(0, config.max_noise), pixels.shape)
    return np.clip(np.rint(curve[pixels] + noise), 0, 255).astype(np.uint8)


def _cut_views(
    views: Sequence[View],
    found: Sequence[Keypoints],
    matches: Int64[np.ndarray, "K views"],
    *,
    extent: float,
) -> PointPatches:
    """Patches of all matched keypoints, in order of their points."""
    patches, points, keypoints = [], [], []
    for number, (view, detections) in enumerate(zip(views, found, strict=True)):
        seen = np.flatnonzero(matches[:, number] >= 0)
        here = detections.keep(matches[seen, number])
        patches.append(cut_patches(view.pixels, here, extent=extent))
        points.append(seen)
        keypoints.append(here)
    point_ids = np.concatenate(points)
    order = np.argsort(point_ids, kind="stable")
    joined = Keypoints.join(keypoints).keep(order)
    return PointPatches(np.concatenate(patches)[order], point_ids[order], joined)


def _join(parts: Sequence[PointPatches], names: list[str], unreadable: list[str]) -> CutSet:
    """One set of all photographs' patches, its points numbered throughout."""
    counts = [len(np.unique(part.point_ids)) for part in parts]
    firsts = np.cumsum(counts) - counts
    interest = [part.keypoints.interest(number) for number, part in enumerate(parts)]
    return CutSet(
        np.concatenate([part.patches for part in parts]),
        np.concatenate([part.point_ids + first for part, first in zip(parts, firsts, strict=True)]),
        np.concatenate(interest),
        names,
        unreadable,
    )


def reduce_photo(
    photo: UInt8[np.ndarray, "height width"], max_side: int
) -> UInt8[np.ndarray, "height2 width2"]:
    """The photograph with no side longer than so many pixels."""
    cv2 = require("cv2", "cutting patches")
    factor = max_side / max(photo.shape)
    if factor >= 1:
        return photo
    height, width = (max(1, round(side * factor)) for side in photo.shape)
    return cv2.resize(photo, (width, height), interpolation=cv2.INTER_AREA)


def _rotation(radians: float) -> Float[np.ndarray, "2 2"]:
    cosine, sine = np.cos(radians), np.sin(radians)
    return np.array([[cosine, -sine], [sine, cosine]])
