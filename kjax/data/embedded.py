"""The default data: real photographs that ship inside scikit-image's wheel. Nothing is downloaded.

Training patches are cut from nine photographs by `kjax.data.selfsupervised`; test pairs from the
Middlebury "motorcycle" stereo pair, whose measured disparities say which places correspond. Both
are cut once, in seconds, and kept in the cache folder. docs/data.md lists the licences.
"""

import dataclasses
import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, UInt8

from kjax.data.cache import cache_root, fingerprint, is_intact, mendable_cache_errors
from kjax.data.correspondence import Tolerances, distinct_places, match_keypoints
from kjax.data.cutting.grey import read_grey
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.data.cutting.patches import cut_patches
from kjax.data.photos import CutSet, sample_test_pairs, write_cut_set
from kjax.data.phototour import (
    Folder,
    PatchSet,
    TestPairs,
    read_phototour,
    read_standard_pairs,
)
from kjax.data.selfsupervised import ViewConfig, cut_self_supervised
from kjax.data.set_photographs import SetPhotograph
from kjax.errors import InputError
from kjax.files.arrays import read_npz
from kjax.files.atomic import write_json
from kjax.files.checksum import sha256
from kjax.files.json_text import parse_json

CUT_VERSION = 2
"""Raised whenever the same photographs would be cut differently, so that old caches are left."""
SEED = 0
TRAIN_PHOTOS = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "rocket.jpg",
)
TEST_FILES = ("motorcycle_left.png", "motorcycle_right.png", "motorcycle_disp.npz")
TOLERANCES = Tolerances(offset=2.0, octaves=0.75, degrees=45.0)
"""Wide limits that leave a real detector's errors in: without them the pair is too easy."""
TRAIN_VIEWS = ViewConfig(
    contrast_threshold=0.01, min_sigma=1.0, max_points=800, tolerances=TOLERANCES
)
TEST_CONTRAST = 0.005
TEST_MIN_SIGMA = 1.0
TRAIN_PAIRS = 5_000
"""Matching pairs, and as many others, to watch overfitting by, not to report."""
TEST_NON_MATCHING = 20_000
"""Non-matching pairs, ten times the matching ones, of which all are taken: errors are rare."""
OCCLUSION_STEP = 1.0
"""Pixels of disparity by which a surface must be nearer to count as hiding another."""


def embedded_train(*, cache_dir: Folder | None = None, progress: bool = True) -> PatchSet:
    """Patches to train on, several of each point; cut at the first call, into `cache_root`."""
    paths = [_wheel_file(name) for name in TRAIN_PHOTOS]

    def cut() -> tuple[CutSet, TestPairs]:
        patches = cut_self_supervised(
            paths, TRAIN_PHOTOS, config=TRAIN_VIEWS, seed=SEED, progress=progress
        )
        if patches.unreadable:
            raise InputError(f"scikit-image's {patches.unreadable[0]} is damaged: reinstall it")
        pairs = sample_test_pairs(
            patches.point_ids, matching=TRAIN_PAIRS, non_matching=TRAIN_PAIRS, seed=SEED
        )
        return patches, pairs

    folder = _cut_once("train", paths, repr(TRAIN_VIEWS), cut, cache_dir)
    patches = read_phototour(folder, cache_dir=cache_dir, progress=progress)
    return dataclasses.replace(patches, name="embedded")


def train_photographs() -> list[SetPhotograph]:
    """The photographs that `embedded_train` cuts."""
    paths = map(_wheel_file, TRAIN_PHOTOS)
    return [SetPhotograph(number, path.name, sha256(path)) for number, path in enumerate(paths)]


def embedded_test(
    *,
    cache_dir: Folder | None = None,
    progress: bool = True,
    tolerances: Tolerances = TOLERANCES,
) -> tuple[PatchSet, TestPairs]:
    """Held-out patches of a real stereo pair and its test pairs; cut at the first call.

    Detections in both photographs may be apart by the tolerances.
    """
    paths = [_wheel_file(name) for name in TEST_FILES]

    def cut() -> tuple[CutSet, TestPairs]:
        left, right = (_read_intact(path) for path in paths[:2])
        disparity = _read_disparity(paths[2])
        patches = cut_stereo(left, right, disparity, tolerances=tolerances)
        pairs = sample_test_pairs(
            patches.point_ids,
            matching=len(patches.point_ids),
            non_matching=TEST_NON_MATCHING,
            seed=SEED,
        )
        return patches, pairs

    settings = repr((tolerances, TEST_CONTRAST, TEST_MIN_SIGMA, TEST_NON_MATCHING, OCCLUSION_STEP))
    folder = _cut_once("test", paths, settings, cut, cache_dir)
    patches = read_phototour(folder, cache_dir=cache_dir, progress=progress)
    return dataclasses.replace(patches, name="motorcycle"), read_standard_pairs(patches)


def cut_stereo(
    left: UInt8[np.ndarray, "height width"],
    right: UInt8[np.ndarray, "height width"],
    disparity: Float[np.ndarray, "height width"],
    *,
    tolerances: Tolerances,
) -> CutSet:
    """Two patches of each place that both photographs of a rectified pair show.

    Args:
        left: photograph whose pixel (x, y) is at (x − disparity[y, x], y) of the right one.
        right: the other photograph.
        disparity: not finite where unknown.
        tolerances: how well two detections must agree to be one point.
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
    seen = matches >= 0
    return _join_stereo(left, right, places.keep(seen), detections.keep(matches[seen]))


def visible_in_right(
    disparity: Float[np.ndarray, "height width"],
) -> Bool[np.ndarray, "height width"]:
    """Pixels of the left photograph that the right one shows: inside it, and nothing before them.

    The disparities of the left photograph, carried over to the right one, say what is nearest
    there; a pixel that disagrees with what it lands on is hidden.
    """
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


def _join_stereo(
    left: np.ndarray, right: np.ndarray, places: Keypoints, matched: Keypoints
) -> CutSet:
    """Joins the left and right patch of each point, one after the other."""
    patches = np.stack([cut_patches(left, places), cut_patches(right, matched)], axis=1)
    tables = [keypoints.interest(side) for side, keypoints in enumerate((places, matched))]
    return CutSet(
        patches.reshape(-1, *patches.shape[2:]),
        np.repeat(np.arange(len(patches)), 2),
        np.stack(tables, axis=1).reshape(-1, 5),
        list(TEST_FILES[:2]),
        [],
    )


def _cut_once(
    name: str,
    sources: Sequence[Path],
    settings: str,
    cut: Callable[[], tuple[CutSet, TestPairs]],
    cache_dir: Folder | None,
) -> Path:
    """The folder of a set, cut now unless the same sources were cut in the same way before."""
    digest = hashlib.sha256(f"{CUT_VERSION} {settings}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    root = cache_root(cache_dir) / "embedded"
    folder = root / f"{name}-{digest.hexdigest()[:12]}"
    marker = folder.with_suffix(".json")
    if not _is_whole(folder, marker):
        patches, pairs = cut()
        with mendable_cache_errors(root):
            # Another process may have been quicker; its set is the same, so replacing it is safe.
            _replace(folder, patches, pairs)
            write_json(marker, {path.name: fingerprint(path) for path in folder.iterdir()})
    return folder


def _is_whole(folder: Path, marker: Path) -> bool:
    """Whether a set is there as it was written."""
    try:
        files = parse_json(marker.read_bytes())
        names = {path.name for path in folder.iterdir()}
        return names == set(files) and all(is_intact(folder / n, files[n]) for n in names)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _replace(folder: Path, patches: CutSet, pairs: TestPairs) -> None:
    try:
        write_cut_set(folder, patches, pairs=pairs, overwrite=True)
    except InputError as error:
        raise InputError(f"the cache {folder} is damaged ({error}): delete that folder") from None


def _wheel_file(name: str) -> Path:
    """A file of scikit-image's data folder, found without importing or fetching anything."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the embedded photographs need scikit-image: pip install scikit-image")
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    if not path.is_file():
        raise InputError(f"scikit-image lacks {path}: reinstall it from PyPI")
    return path


def _read_disparity(path: Path) -> Float[np.ndarray, "height width"]:
    try:
        return read_npz(path)["arr_0"].astype(np.float64)
    except (InputError, KeyError, ValueError):
        raise InputError(f"scikit-image's {path.name} is damaged: reinstall it") from None


def _read_intact(path: Path) -> UInt8[np.ndarray, "height width"]:
    photo = read_grey(path)
    if photo is None:
        raise InputError(f"scikit-image's {path.name} is damaged: reinstall it")
    return photo
