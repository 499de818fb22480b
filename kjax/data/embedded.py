"""The default data: photographs that ship inside scikit-image's wheel. Nothing is downloaded.

Training patches are cut from nine photographs; test pairs from the Middlebury "motorcycle" stereo
pair, whose measured disparities say which places correspond. docs/data.md lists the licences.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, UInt8

from kjax.data.cache import cache_errors, cache_root
from kjax.data.cutting.keypoints import detect_in_grey
from kjax.data.cutting.patches import cut_patches
from kjax.data.cutting.photographs import Photo, read_grey
from kjax.data.phototour import (
    Folder,
    PatchSet,
    SetPhotograph,
    read_with_pairs,
    sample_test_pairs,
    write_phototour,
)
from kjax.data.selfsupervised import (
    Tolerances,
    ViewConfig,
    cut_self_supervised,
    distinct_places,
    match_keypoints,
)
from kjax.errors import InputError
from kjax.files.atomic import sha256
from kjax.files.images import open_image
from kjax.files.npz import read_npz

CUT_VERSION = 2
"""Raise this whenever the same photographs would be cut differently, to invalidate old caches."""
SEED = 0
TRAIN_PHOTOS = (
    *("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png"),
    *("grass.png", "gravel.png", "rocket.jpg"),
)
TEST_FILES = ("motorcycle_left.png", "motorcycle_right.png", "motorcycle_disp.npz")
TOLERANCES = Tolerances(offset=2.0, octaves=0.75, degrees=45.0)
"""Wide limits that keep a real detector's errors: without them the pair is too easy."""
TRAIN_VIEWS = ViewConfig(
    contrast_threshold=0.01, min_sigma=1.0, max_points=800, tolerances=TOLERANCES
)
TEST_CONTRAST = 0.005
TEST_MIN_SIGMA = 1.0
TRAIN_PAIRS = 5_000
"""Number of matching and of non-matching training pairs, to monitor overfitting."""
TEST_NON_MATCHING = 20_000
"""Number of non-matching test pairs: ten times the matching ones, because errors are rare."""
OCCLUSION_STEP = 1.0
"""Pixels of disparity by which a surface must be nearer to occlude another."""


def embedded_train(*, cache_dir: Folder | None = None, progress: bool = True) -> PatchSet:
    """Return patches to train on, several of each point; they are cut at the first call."""

    def cut(paths: Sequence[Path]) -> PatchSet:
        options: Any = {"config": TRAIN_VIEWS, "seed": SEED, "progress": progress}
        return cut_self_supervised(paths, TRAIN_PHOTOS, **options)

    known = (TRAIN_PHOTOS, repr(TRAIN_VIEWS), cut, (TRAIN_PAIRS, TRAIN_PAIRS))
    patch_set = _cut_once("train", *known, cache_dir, progress)
    return dataclasses.replace(patch_set, name="embedded")


def train_photographs() -> list[SetPhotograph]:
    """Return the photographs that `embedded_train` cuts."""
    paths = map(_wheel_file, TRAIN_PHOTOS)
    return [SetPhotograph(number, path.name, sha256(path)) for number, path in enumerate(paths)]


def embedded_test(
    *, cache_dir: Folder | None = None, progress: bool = True, tolerances: Tolerances = TOLERANCES
) -> PatchSet:
    """Return patches of a stereo pair with test pairs; they are cut at the first call."""

    def cut(paths: Sequence[Path]) -> PatchSet:
        left, right = map(read_grey, paths[:2])
        return cut_stereo(left, right, read_disparity(paths[2]), tolerances=tolerances)

    counts = (sys.maxsize, TEST_NON_MATCHING)  # all that match
    settings = repr((tolerances, TEST_CONTRAST, TEST_MIN_SIGMA, TEST_NON_MATCHING, OCCLUSION_STEP))
    patch_set = _cut_once("test", TEST_FILES, settings, cut, counts, cache_dir, progress)
    return dataclasses.replace(patch_set, name="motorcycle")


def read_disparity(path: Path) -> Float64[np.ndarray, "height width"]:
    """Read the measured disparities of the stereo pair."""
    return read_npz(path)["arr_0"].astype(np.float64)


def cut_stereo(
    left: Photo, right: Photo, disparity: Float[np.ndarray, "h w"], *, tolerances: Tolerances
) -> PatchSet:
    """Cut two patches of each keypoint that both photographs of a rectified pair show.

    Pixel (x, y) of the left one is at (x − disparity[y, x], y) of the right, if that is finite.
    """
    places, detections = (
        detect_in_grey(photo, max_keypoints=None, contrast=TEST_CONTRAST) for photo in (left, right)
    )
    places = places.keep(places.sigma >= TEST_MIN_SIGMA)
    places = places.keep(distinct_places(places))
    columns, rows = np.rint(places.xy).astype(np.int64).T
    shift = np.stack([disparity[rows, columns], np.zeros(len(rows))], axis=1)
    visible = visible_in_right(disparity)[rows, columns]
    places, shift = places.keep(visible), shift[visible]
    expected = places._replace(xy=places.xy - shift)
    matches = match_keypoints(expected, detections, tolerances=tolerances)
    places, matched = places.keep(matches >= 0), detections.keep(matches[matches >= 0])
    patches = np.stack([cut_patches(left, places), cut_patches(right, matched)], axis=1)
    interest = np.stack([places.interest(0), matched.interest(1)], axis=1).reshape(-1, 5)
    point_ids = np.repeat(np.arange(len(patches)), 2)
    photographs = tuple(SetPhotograph(i, name, "") for i, name in enumerate(TEST_FILES[:2]))
    patches = patches.reshape(-1, *patches.shape[2:])
    return PatchSet("motorcycle", patches, point_ids, interest=interest, photographs=photographs)


def visible_in_right(disparity: Float[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    """Mark pixels of the left photograph that land inside the right one, on nothing nearer."""
    rows, columns = np.nonzero(np.isfinite(disparity))
    values = disparity[rows, columns]
    landing = np.rint(columns - values).astype(np.int64)
    inside = (landing >= 0) & (landing < disparity.shape[1])
    rows, columns, values, landing = (a[inside] for a in (rows, columns, values, landing))
    nearest = np.full(disparity.shape, -np.inf)
    np.maximum.at(nearest, (rows, landing), values)
    visible = np.zeros(disparity.shape, bool)
    visible[rows, columns] = values >= nearest[rows, landing] - OCCLUSION_STEP
    return visible


def stereo_patch_pairs(
    count: int, *, size: int, seed: int = 0
) -> UInt8[np.ndarray, "count 2 size size"]:
    """Return upright crops of the stereo pair around the same points, with texture and similar."""
    *photographs, disparities = map(_wheel_file, TEST_FILES)
    opened = []
    for path in photographs:
        with open_image(path) as image:
            opened.append(np.asarray(image.convert("L")))
    (left, right), disparity = opened, read_disparity(disparities)
    height, width = disparity.shape
    half = size // 2
    pairs: list[np.ndarray] = []
    for index in np.random.default_rng(seed).permutation(height * width):
        row, column = divmod(int(index), width)
        if not np.isfinite(disparity[row, column]):
            continue
        other = column - round(float(disparity[row, column]))
        if row < half or row > height - half or not half <= other <= column <= width - half:
            continue
        rows = slice(row - half, row + half)
        crops = left[rows, column - half : column + half], right[rows, other - half : other + half]
        correlation = float(np.corrcoef(crops[0].ravel(), crops[1].ravel())[0, 1])
        if min(crop.std() for crop in crops) >= 12 and correlation >= 0.5:
            pairs.append(np.stack(crops))
        if len(pairs) == count:
            return np.stack(pairs)
    raise InputError(
        f"the stereo pair has fewer than {count} textured crops of {size}×{size}: ask for fewer"
    )


def _wheel_file(name: str) -> Path:
    """Return the path of a file in scikit-image's data folder, without importing scikit-image."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the embedded photographs need scikit-image: pip install 'kjax[photos]'")
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    if not path.is_file():
        raise InputError(f"scikit-image lacks {path}: reinstall it from PyPI")
    return path


def _cut_once(
    name: str,
    sources: Sequence[str],
    settings: str,
    cut: Callable[[Sequence[Path]], PatchSet],
    counts: tuple[int, int],  # of matching and non-matching pairs
    cache_dir: Folder | None,
    progress: bool,
) -> PatchSet:
    """Read a set from the cache, or cut it from `sources` if it is not there or damaged."""
    paths = [_wheel_file(source) for source in sources]
    digest = hashlib.sha256(f"{CUT_VERSION} {settings}".encode())
    for path in paths:
        digest.update(path.read_bytes())
    root = cache_root(cache_dir) / "embedded"
    folder = root / f"{name}-{digest.hexdigest()[:12]}"
    if folder.is_dir():
        with contextlib.suppress(InputError):  # damaged, and cut again below
            return read_with_pairs(folder, cache_dir=cache_dir, progress=progress)
    made = cut(paths)
    if made.unreadable:
        raise InputError(f"scikit-image's {made.unreadable[0]} is damaged: reinstall it")
    pairs = sample_test_pairs(made.point_ids, matching=counts[0], non_matching=counts[1], seed=SEED)
    origin: Any = {"interest": made.interest, "photographs": made.photographs}
    with cache_errors(root):
        write_phototour(folder, made.patches, made.point_ids, pairs=pairs, **origin, overwrite=True)
    return read_with_pairs(folder, cache_dir=cache_dir, progress=progress)
