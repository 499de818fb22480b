"""Patch sets from any photographs: random views of each, by homographies and changes of light.

SIFT keypoints of the photograph and its views that the homography brings together are patches of
one point. Geometry alone decides, so pairs favour no descriptor and have a detector's errors.
Twins, points of different photographs that show one place, become one point.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from scipy.spatial import cKDTree
from tqdm import tqdm

from kjax.data.appearance import change_photo
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.data.cutting.patches import EXTENT, PATCH_SIDE, antialias_sigma, cut_patches
from kjax.data.cutting.photographs import Photo, read_grey_or_none
from kjax.data.phototour import PatchSet, SetPhotograph
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import sha256

CANDIDATES = 8
"""Detections compared per location; SIFT may report one in a few orientations and scales."""
COMPARED = 60
"""Photographs, next by name, in which twins are searched: in up to 61 photographs, all others."""
RATIO, PIXELS, LEAST, SIMILAR = 0.8, 3.0, 8, 0.85
"""Photographs overlap if `LEAST` matches that pass a ratio test are on a plane, give or take
`PIXELS`: unrelated ones rarely have more than 5. Twins have `SIMILAR` RootSIFT (the cosine), as
99 % of points on the plane do, and 1 % of others."""


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """Maximum deviation of a detection from where the geometry predicts it."""

    offset: float = 1.0  # distance in units of the keypoint's σ; a patch is 24 σ wide
    octaves: float = 0.5  # difference in log2 σ
    degrees: float = 22.5  # difference in orientation


@dataclasses.dataclass(frozen=True)
class ViewConfig:
    """Settings of random views, and of the points to take. All ranges are uniform."""

    views: int = 4  # per photograph, besides itself
    max_rotation_degrees: float = 30.0  # in the image plane, either way
    max_zoom: float = 1.4  # factor of enlargement or reduction
    max_stretch: float = 1.5  # ratio of both axes, as of a plane seen obliquely
    max_perspective: float = 0.25  # change of depth from the centre to a corner, over the depth
    max_gamma: float = 1.6  # exponent of the grey values, between this and its inverse
    max_contrast: float = 1.5  # contrast factor, between this and its inverse
    max_brightness: float = 25.0  # offset of the grey values, of 255, either way
    max_blur: float = 1.0  # σ of a Gaussian, in pixels
    max_noise: float = 6.0  # standard deviation of pixel noise, in grey values of 255
    appearance: float = 0.0  # strength of changed appearance: see kjax.data.appearance
    max_side: int = 1024  # longer sides are first reduced to this many pixels
    contrast_threshold: float = 0.02  # of SIFT; lower finds more points
    min_sigma: float = 1.2  # patches of smaller keypoints would be mostly interpolation
    max_points: int = 1500  # per photograph, chosen at random
    extent: float = EXTENT  # side of a patch over the keypoint's diameter
    tolerances: Tolerances = Tolerances()  # how closely two detections of a point must agree


class WarpedPhoto(NamedTuple):
    """A view of a photograph."""

    pixels: Photo
    homography: Float[np.ndarray, "3 3"]  # from the photograph's pixels to the view's


# Sets


def cut_self_supervised(
    photos: Sequence[Path],
    names: Sequence[str],
    *,
    config: ViewConfig,
    seed: int,
    progress: bool = True,
) -> PatchSet:
    """Cut a set from photographs, which are called `names` in it; name the unreadable ones.

    The patches of a photograph depend on its name and the seed, and on others only for twins.
    """

    def cut(path: Path, name: str) -> tuple[np.ndarray, np.ndarray, Keypoints] | None:
        photo = read_grey_or_none(path)
        rng = np.random.default_rng([seed, *name.encode()])
        return None if photo is None else _cut_photo(rng, photo, config=config)

    parts: list[tuple[np.ndarray, ...]] = []
    points: list[tuple[Keypoints, np.ndarray]] = []
    kept: list[SetPhotograph] = []
    unreadable: list[str] = []
    count = 0
    # OpenCV and NumPy's larger operations release the interpreter lock.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        shown = {"desc": "cutting photographs", "unit": "photo", "disable": not progress}
        bar = tqdm(pool.map(cut, photos, names), total=len(photos), **shown)
        for path, name, part in zip(photos, names, bar, strict=True):
            if part is None:
                unreadable.append(name)
                continue
            patches, point_ids, keypoints = part
            first = np.unique(point_ids, return_index=True)[1]  # that of the photograph itself
            if len(first):
                points.append((keypoints.keep(first), root_sift(patches[first])))
            parts.append((patches, point_ids + count, keypoints.interest(len(kept))))
            count += len(np.unique(point_ids))
            kept.append(SetPhotograph(len(kept), name, sha256(path)))
    if not count:
        problem = "has points that its views share" if kept else "could be read"
        raise InputError(f"none of the {len(photos)} photographs {problem}: give other photographs")
    patches, point_ids, interest = map(np.concatenate, zip(*parts, strict=True))
    places = unite_twins(points, config.tolerances, progress=progress)[point_ids]
    order = np.argsort(places, kind="stable")[np.count_nonzero(places < 0) :]
    patches, interest = patches[order], interest[order]
    point_ids = np.unique(places[order], return_inverse=True)[1].astype(np.int64)
    found: Any = {"photographs": tuple(kept), "unreadable": tuple(unreadable)}
    return PatchSet("photographs", patches, point_ids, interest=interest, **found)


def _cut_photo(
    rng: np.random.Generator, photo: np.ndarray, *, config: ViewConfig
) -> tuple[np.ndarray, np.ndarray, Keypoints]:
    """Return patches, point ids and keypoints of points that two or more views show."""
    photo = reduce_photo(photo, config.max_side)
    views = [WarpedPhoto(photo, np.eye(3))]
    views += [random_view(rng, photo, config=config) for _ in range(config.views)]
    options = {"max_keypoints": None, "contrast": config.contrast_threshold}
    found = [detect_in_grey(view.pixels, **options) for view in views]
    reference = found[0].keep(found[0].sigma >= config.min_sigma)
    reference = reference.keep(distinct_places(reference))
    columns = []
    for view, detections in zip(views, found, strict=True):
        expected = transform_keypoints(reference, view.homography)
        columns.append(match_keypoints(expected, detections, tolerances=config.tolerances))
    matches = np.stack(columns, axis=1)
    shared = np.flatnonzero((matches >= 0).sum(axis=1) >= 2)
    matches = matches[np.sort(rng.permutation(shared)[: config.max_points])]
    views_seen, point_ids = np.nonzero(matches.T >= 0)
    keypoints, patches = [], []
    for number, (view, detections) in enumerate(zip(views, found, strict=True)):
        keypoints.append(detections.keep(matches[point_ids[views_seen == number], number]))
        patches.append(cut_patches(view.pixels, keypoints[-1], extent=config.extent))
    order = np.argsort(point_ids, kind="stable")
    return np.concatenate(patches)[order], point_ids[order], Keypoints.join(keypoints).keep(order)


# Twins


def root_sift(patches: UInt8[np.ndarray, "K 64 64"]) -> Float32[np.ndarray, "K 128"]:
    """Return RootSIFT of patches at half their size."""
    cv2, side = require("cv2", "cutting patches"), PATCH_SIDE // 2
    size = side, side * len(patches)
    image = cv2.resize(patches.reshape(-1, PATCH_SIDE), size, interpolation=cv2.INTER_AREA)
    rows = range(side // 2, side * len(patches), side)
    keypoints = [cv2.KeyPoint(side / 2, row, side / EXTENT, 0) for row in rows]
    found = cv2.SIFT_create().compute(image, keypoints)[1]
    return np.sqrt(found / np.maximum(found.sum(axis=1, keepdims=True), 1))


def unite_twins(
    photos: Sequence[tuple[Keypoints, np.ndarray]], tolerances: Tolerances, *, progress: bool
) -> Int64[np.ndarray, " points"]:
    """Give all points of photographs, with RootSIFT, a place: one for twins, −1 if in doubt."""
    ends = np.cumsum([0, *(len(rows) for _, rows in photos)])
    every = itertools.combinations(range(len(photos)), 2)
    pairs = [[a, b] for a, b in every if b - a <= COMPARED]
    near: list[dict[int, int]] = [{} for _ in range(ends[-1])]

    def compare(pair: list[int]) -> np.ndarray:
        (a, own), (b, other) = (photos[number] for number in pair)
        return find_twins(a, b, own @ other.T, tolerances) + np.append(ends[pair], 0)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        bar = tqdm(pool.map(compare, pairs), "finding twins", len(pairs), disable=not progress)
        for one, two, sure in itertools.chain.from_iterable(found.tolist() for found in bar):
            near[one][two] = near[two][one] = sure
    places = np.full(len(near), -1)

    def is_free(point: int) -> bool:
        return bool((places[[point, *near[point]]] < 0).all())

    # A place is a point with its twins. What is near them, but no twin of the point, has no place.
    for point in sorted(range(len(near)), key=lambda point: -sum(near[point].values())):
        if is_free(point):
            twins = [other for other, sure in near[point].items() if sure]
            places[list(filter(is_free, [point, *twins]))] = point
    return places


def find_twins(
    a: Keypoints, b: Keypoints, cosines: Float32[np.ndarray, "A B"], tolerances: Tolerances
) -> Int64[np.ndarray, "twins 3"]:
    """Return points of two photographs that show one place, and 1 if within tolerances, else 0."""
    cv2 = require("cv2", "cutting patches")
    rows, best = np.arange(len(cosines)), cosines.argmax(axis=1)
    nearest, mutual = cosines[rows, best], cosines.max(axis=0)[best]
    cosines[rows, best] = -1
    good = (nearest == mutual) & (1 - nearest < RATIO**2 * (1 - cosines.max(axis=1)))
    cosines[rows, best] = nearest
    matches, twins = np.stack([rows, best], axis=1)[good], np.full(len(rows), -1)
    free = np.ones(len(matches), bool)
    while np.count_nonzero(free) >= LEAST:
        ends = (points.xy[matches[free, i]].astype(np.float64) for i, points in enumerate((a, b)))
        cv2.setRNGSeed(0)  # of this thread
        model, inside = cv2.findHomography(*ends, cv2.USAC_MAGSAC, PIXELS, confidence=0.999)
        if model is None or np.count_nonzero(inside) < LEAST:
            break
        free[np.flatnonzero(free)[inside.ravel() > 0]] = False
        found = match_keypoints(transform_keypoints(a, model), b, tolerances=tolerances)
        fits = (twins < 0) & (found >= 0) & ~np.isin(found, twins)
        fits &= cosines[rows, found] >= SIMILAR
        twins[fits] = found[fits]
    doubtful = matches[~free & (twins[matches[:, 0]] != matches[:, 1])]
    sure = np.stack([rows, twins, np.ones_like(rows)], axis=1)[twins >= 0]
    return np.concatenate([sure, np.insert(doubtful, 2, 0, axis=1)])


# Views


def random_view(rng: np.random.Generator, photo: Photo, *, config: ViewConfig) -> WarpedPhoto:
    """Warp the photograph onto the smallest canvas that holds all of it, and change the light."""
    cv2 = require("cv2", "cutting patches")
    homography, zoom = random_homography(rng, config=config)
    # From units of the photograph's half diagonal, origin at its centre, to pixels.
    last = np.array([photo.shape[1] - 1, photo.shape[0] - 1])
    half_diagonal = np.hypot(*photo.shape[:2]) / 2
    unit = np.diag([1 / half_diagonal, 1 / half_diagonal, 1.0])
    unit[:2, 2] = -last / 2 / half_diagonal
    in_pixels = np.diag([half_diagonal, half_diagonal, 1.0]) @ homography @ unit
    warped = np.array([[0, 0, 1], [last[0], 0, 1], [0, last[1], 1], [*last, 1]]) @ in_pixels.T
    warped = warped[:, :2] / warped[:, 2:]
    shift = np.eye(3)
    shift[:2, 2] = -warped.min(axis=0)
    size = tuple(int(side) + 1 for side in np.ceil(np.ptp(warped, axis=0)))
    to_view = shift @ in_pixels
    blurred = cv2.GaussianBlur(photo, (0, 0), antialias_sigma(1 / zoom)) if zoom < 1 else photo
    edges = cv2.BORDER_REPLICATE  # so that patches that reach beyond the border look the same
    pixels = cv2.warpPerspective(blurred, to_view, size, flags=cv2.INTER_LINEAR, borderMode=edges)
    return WarpedPhoto(change_photo(rng, pixels, config), to_view)


def random_homography(
    rng: np.random.Generator, *, config: ViewConfig
) -> tuple[Float[np.ndarray, "3 3"], float]:
    """Return a random homography that keeps the origin, and its zoom there."""

    def turn(radians: float) -> np.ndarray:
        cosine, sine = np.cos(radians), np.sin(radians)
        return np.array([[cosine, -sine], [sine, cosine]])

    rotation, axis = rng.uniform(-1, 1, 2) * np.deg2rad([config.max_rotation_degrees, 180])
    zoom, stretch = np.exp(rng.uniform(-1, 1, 2) * np.log([config.max_zoom, config.max_stretch]))
    linear = turn(rotation) @ turn(axis) @ np.diag([stretch**0.5, stretch**-0.5]) @ turn(axis).T
    homography = np.eye(3)
    homography[:2, :2] = zoom * linear
    direction, tilt = rng.uniform(-np.pi, np.pi), rng.uniform(0, config.max_perspective)
    homography[2, :2] = tilt * np.array([np.cos(direction), np.sin(direction)])
    return homography, float(zoom)


def reduce_photo(photo: Photo, max_side: int) -> UInt8[np.ndarray, "h w"]:
    """Reduce the photograph so that no side is longer than `max_side` pixels."""
    cv2 = require("cv2", "cutting patches")
    factor = max_side / max(photo.shape[:2])
    if factor >= 1:
        return photo
    height, width = (max(1, round(side * factor)) for side in photo.shape[:2])
    return cv2.resize(photo, (width, height), interpolation=cv2.INTER_AREA)


# Correspondence


def transform_keypoints(keypoints: Keypoints, homography: Float[np.ndarray, "3 3"]) -> Keypoints:
    """Map keypoints by a homography in pixels; its linear part acts on scale and orientation."""
    x, y, depth = (np.column_stack([keypoints.xy, np.ones(len(keypoints.xy))]) @ homography.T).T
    xy = np.stack([x, y], axis=1) / depth[:, None]
    # The derivative of (h₁·x, h₂·x) / (h₃·x).
    jacobian = homography[None, :2, :2] - xy[:, :, None] * homography[None, 2:, :2]
    jacobian = jacobian / depth[:, None, None]
    direction = np.stack([np.cos(keypoints.radians), np.sin(keypoints.radians)], axis=1)
    turned = np.einsum("kij,kj->ki", jacobian, direction)
    scale = np.sqrt(np.abs(np.linalg.det(jacobian)))
    return Keypoints.of_sigma(xy, keypoints.sigma * scale, np.arctan2(turned[:, 1], turned[:, 0]))


def match_keypoints(
    predicted: Keypoints, found: Keypoints, *, tolerances: Tolerances
) -> Int64[np.ndarray, " K"]:
    """Return the nearest detection within tolerances of each prediction, or −1; one-to-one."""
    matches = np.full(len(predicted.sigma), -1, np.int64)
    if not len(predicted.sigma) or not len(found.sigma):
        return matches
    neighbours = range(1, 1 + min(CANDIDATES, len(found.sigma)))
    distance, index = cKDTree(found.xy).query(predicted.xy, k=neighbours)
    octaves = np.abs(np.log2(found.sigma[index] / predicted.sigma[:, None]))
    turn = np.abs(wrap_angle(found.radians[index] - predicted.radians[:, None]))
    offset = distance / (tolerances.offset * predicted.sigma[:, None])
    errors = np.stack([offset, octaves / tolerances.octaves, turn / np.deg2rad(tolerances.degrees)])
    cost = np.where((errors <= 1).all(axis=0), errors.sum(axis=0), np.inf)
    best = np.arange(len(cost)), cost.argmin(axis=1)
    cost, index = cost[best], index[best]
    order = np.argsort(cost, kind="stable")
    order = order[np.isfinite(cost[order])]
    _, first = np.unique(index[order], return_index=True)
    matches[order[first]] = index[order[first]]
    return matches


def distinct_places(keypoints: Keypoints, *, spacing: float = 0.5) -> Bool[np.ndarray, " K"]:
    """Mark keypoints that have no marked one before them within `spacing`·σ.

    SIFT gives several orientations to one location, which no descriptor could tell apart.
    """
    keep = np.ones(len(keypoints.sigma), bool)
    if len(keep):
        nearby = cKDTree(keypoints.xy).query_ball_point(keypoints.xy, spacing * keypoints.sigma)
        for number, near in enumerate(nearby):
            keep[number] = not any(keep[other] for other in near if other < number)
    return keep


def wrap_angle(radians: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Wrap angles to ±π."""
    return (radians + np.pi) % (2 * np.pi) - np.pi
