"""Keypoints and descriptors of random views of photographs, for the training of a matcher.

Views are found in threads on the host while the device describes those before.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from tqdm import tqdm

from kjax.data.cutting.detectors import FAINT, STEADY
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.data.cutting.photographs import in_order, read_grey_or_none
from kjax.data.phototour import SetPhotograph
from kjax.data.selfsupervised import (
    ViewConfig,
    WarpedPhoto,
    random_view,
    reduce_photo,
    transform_keypoints,
)
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import sha256
from kjax.images.describer import Describer
from kjax.matcher.view_set import ViewSet

CANVAS = 512
"""Pixels: views are padded to squares of multiples of it, so that few programs are compiled."""
VIEWS = ViewConfig(
    views=7,
    max_rotation_degrees=180.0,
    max_zoom=1.6,
    max_stretch=2.0,
    max_perspective=0.35,
    max_gamma=1.8,
    max_contrast=1.6,
    max_brightness=30.0,
    max_blur=1.5,
    max_noise=8.0,
    max_side=800,
    contrast_threshold=FAINT,
)
"""How views differ: more than patches of a set do, since a matcher sees what surrounds them."""


class _Found(NamedTuple):
    """A view with its keypoints, the steadiest first."""

    view: WarpedPhoto
    keypoints: Keypoints


def describe_views(
    photographs: Sequence[Path],
    names: Sequence[str],
    describer: Describer,
    *,
    config: ViewConfig = VIEWS,
    max_keypoints: int,
    seed: int,
    progress: bool = True,
) -> tuple[ViewSet, list[str]]:
    """The features of each photograph and of random views of it.

    Args:
        photographs: files to read.
        names: what to call them; a photograph's views depend on its name and on the seed alone.
        describer: of keypoints.
        config: how views differ.
        max_keypoints: of a view.
        seed: of all chance.
        progress: show a bar.

    Returns:
        The set, and the names of photographs that cannot be read.

    Raises:
        InputError: none can be read.
    """
    named = dict(zip(photographs, names, strict=True))

    def find(path: Path) -> list[_Found] | None:
        views = make_views(path, named[path], config=config, seed=seed)
        if views is None:
            return None
        return [_found(view, max_keypoints, config.contrast_threshold) for view in views]

    described: list[dict[str, np.ndarray]] = []
    kept: list[SetPhotograph] = []
    unreadable: list[str] = []
    threads = os.cpu_count() or 1
    work = in_order(find, photographs, threads)
    total = len(photographs)
    for path, future in tqdm(work, "views", total, unit=" photographs", disable=not progress):
        found = future.result()
        if found is None:
            unreadable.append(named[path])
            continue
        views = [_of_view(one, describer, max_keypoints) for one in found]
        described.append(stacked(views))
        kept.append(SetPhotograph(len(kept), named[path], sha256(path)))
    if not described:
        raise InputError(f"none of the {total} photographs could be read: give other photographs")
    made = stacked(described)
    return ViewSet(photographs=tuple(kept), described_with=describer.provenance, **made), unreadable


def stacked(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Columns of several views, or groups, along a new first axis."""
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def make_views(path: Path, name: str, *, config: ViewConfig, seed: int) -> list[WarpedPhoto] | None:
    """The photograph itself, and views of it; None if it cannot be read.

    Args:
        path: of the photograph.
        name: what it is called: with the seed, all that chance depends on.
        config: how views differ.
        seed: of all chance.
    """
    photo = read_grey_or_none(path)
    if photo is None:
        return None
    rng = np.random.default_rng([seed, *name.encode()])
    photo = reduce_photo(photo, config.max_side)
    views = [WarpedPhoto(photo, np.eye(3))]
    return views + [random_view(rng, photo, config=config) for _ in range(config.views)]


def _found(view: WarpedPhoto, count: int, contrast: float) -> _Found:
    return _Found(view, steadiest(view.pixels, count, contrast))


def steadiest(pixels: UInt8[np.ndarray, "_ _"], count: int, contrast: float) -> Keypoints:
    """SIFT's keypoints of the highest contrast times size², which other views show most often."""
    return detect_in_grey(pixels, max_keypoints=count, contrast=contrast, detector=STEADY)


def _of_view(found: _Found, describer: Describer, room: int) -> dict[str, np.ndarray]:
    """A view's part of a `ViewSet`."""
    view, keypoints = found
    columns = describe_columns(view.pixels, keypoints, describer, room)
    return columns | plane_geometry(view.homography, columns["xy"], view.pixels.shape[::-1])


def describe_columns(
    pixels: UInt8[np.ndarray, "_ _"], keypoints: Keypoints, describer: Describer, room: int
) -> dict[str, np.ndarray]:
    """What a `ViewSet` tells of a view, but for what is seen.

    Args:
        pixels: of the view.
        keypoints: at most `room` of them.
        describer: of keypoints.
        room: rows of each column.
    """
    # As many of every view, so that few programs are compiled: those without a size show nothing.
    more = room - len(keypoints.xy)
    filler = Keypoints(np.zeros((more, 2), "f4"), *np.zeros((3, more), "f4"))
    everything = Keypoints.join([keypoints, filler])
    descriptors, shown = describer.describe_at(_padded(pixels), everything)
    keypoints = everything.keep(shown)
    height, width = pixels.shape
    rows = (keypoints.xy, keypoints.scales, keypoints.radians, descriptors)
    return as_columns(rows, (width, height), room)


def as_columns(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], size: tuple[int, int], room: int
) -> dict[str, np.ndarray]:
    """What a `ViewSet` tells of a view, but for what is seen.

    Args:
        rows: positions, diameters, radians and descriptors of at most `room` keypoints.
        size: width and height of the view.
        room: rows of each column.
    """
    xy, scales, radians, descriptors = rows
    count = len(xy)

    def filled(rows: np.ndarray, dtype: str) -> np.ndarray:
        whole = np.zeros((room, *rows.shape[1:]), dtype)
        whole[:count] = rows
        return whole

    return {
        "xy": filled(xy, "f4"),
        # Not zero where there is none: their logarithms are taken.
        "scales": filled(scales - 1, "f4") + np.float32(1),
        "angles": filled(radians, "f4"),
        "descriptors": filled(descriptors, "f2"),
        "counts": np.array(count, np.int32),
        "sizes": np.array(size, np.int32),
    }


def plane_geometry(
    homography: Float[np.ndarray, "3 3"], xy: Float[np.ndarray, "K 2"], size: tuple[int, int]
) -> dict[str, np.ndarray]:
    """The photograph as a plane in the world, which is at 1 and measured in its pixels.

    Args:
        homography: from the photograph's pixels to the view's.
        xy: keypoints in the view.
        size: width and height of the view.
    """
    homogeneous = np.column_stack([xy, np.ones(len(xy))]) @ np.linalg.inv(homography).T
    camera = np.column_stack([homography, np.zeros(3)]) / homography[2, 2]
    middle = Keypoints.of_sigma(np.array([size]) / 2, np.ones(1), np.zeros(1))
    (turn,) = transform_keypoints(middle, np.linalg.inv(homography)).radians
    return {
        "places": (homogeneous / homogeneous[:, 2:]).astype("f4"),
        "cameras": camera.astype("f4"),
        "turns": np.array(-turn, "f4"),
    }


def _padded(pixels: UInt8[np.ndarray, "_ _"]) -> UInt8[np.ndarray, "_ _"]:
    """A view on a larger canvas, beyond whose border it is repeated, as patches have it."""
    cv2 = require("cv2", "making views")
    side = -(-max(pixels.shape) // CANVAS) * CANVAS
    below, beside = (side - own for own in pixels.shape)
    return cv2.copyMakeBorder(pixels, 0, below, 0, beside, cv2.BORDER_REPLICATE)
