"""Settings of a tuning run, and its two sets of patches: to train on, and of held-out images.

Patches of one point come from COLMAP's tracks if a model has enough of them, else from random
homographies of each image. Images that share points are held out together if there are several
groups of them. Points found in a held-out image are not trained on.
"""

import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from tqdm import tqdm

from kjax.data.cache import new_folder
from kjax.data.colmap import read_model
from kjax.data.cutting.photographs import list_photos
from kjax.data.phototour import (
    PatchSet,
    SetPhotograph,
    read_interest,
    read_phototour,
    sample_test_pairs,
    write_phototour,
)
from kjax.data.reconstruction import TrackFilters, cut_reconstruction
from kjax.data.sampler import check_seed
from kjax.data.selfsupervised import ViewConfig, cut_self_supervised
from kjax.data.sets import EMBEDDED, TFDS_PREFIX
from kjax.errors import InputError
from kjax.files.atomic import write_json
from kjax.files.json import parse_json
from kjax.images.exchange import colmap_program
from kjax.weights import shipped
from kjax.weights.source import is_workdir

SETTINGS_FILE = "tune.json"
TRAINING_SETTINGS = frozenset(
    {"start", "general", "share", "layers", "steps", "pairs", "learning_rate"}
)
"""Settings that patches do not depend on. They may change until training has started."""
SETS_FOLDER, COLMAP_FOLDER = "sets", "colmap"
SETS_FILE = "sets.json"
HELD_OUT = 0.2
"""Fraction of images that are held out."""
OVERLAP = 5
"""Minimum number of points that images of one group share."""
MOST_PATCHES, MOST_HELD_OUT_PATCHES = 400_000, 20_000
TEST_PAIRS = 10_000
ALL_PAIRS_UP_TO = 30
"""Maximum number of images for exhaustive matching; larger sets use neighbours by name."""
NEIGHBOURS = 10
MAX_KEYPOINTS = 4096
LEAST_REGISTERED = 0.5
"""Minimum fraction of images that a usable model has registered."""
LEAST_POINTS, LEAST_HELD_OUT_POINTS = 1000, 100


@dataclasses.dataclass(frozen=True)
class TuneSettings:
    """Settings of a tuning run. None stands for a default that depends on the device."""

    photos: Path
    """Folder of images, or a set of patches."""
    start: str
    """Initial weights."""
    colmap: Path | None = None
    """Folder of a COLMAP model of the images, made from `database`."""
    database: Path | None = None
    general: tuple[str, ...] = (EMBEDDED,)
    """Sets that prevent forgetting, by name or folder."""
    share: float = 0.5
    """Fraction of general patches in every batch."""
    layers: str | None = None
    """Layers to train: all or last."""
    steps: int | None = None
    pairs: int | None = None
    """Pairs per batch."""
    learning_rate: float | None = None
    seed: int = 0
    compare_maps: bool = False
    """Let COLMAP map the held-out images before and after."""

    def __post_init__(self) -> None:
        """Validate what would otherwise fail after minutes."""
        check_seed(self.seed)
        if not 0 <= self.share < 1:
            raise InputError(f"--share {self.share:g}: choose at least 0 and less than 1")
        for name in self.general:
            if name != EMBEDDED and not name.startswith(TFDS_PREFIX) and not is_set(Path(name)):
                raise InputError(f"--general {name}: no such set: use a folder, or {EMBEDDED}")

    def absolute(self) -> "TuneSettings":
        """Return the settings with absolute paths."""
        own = shipped.find(self.start) is None or is_workdir(self.start)
        start = str(Path(self.start).resolve()) if own else self.start
        general = (Path(name).resolve() if is_set(Path(name)) else name for name in self.general)
        return dataclasses.replace(self, start=start, general=tuple(map(str, general)))


def is_set(folder: Path) -> bool:
    """Whether a folder is a patch set."""
    return (folder / "info.txt").is_file()


def claim(folder: Path, settings: TuneSettings, *, training_started: bool = False) -> None:
    """Record the settings in a folder, which must be new or have the same ones."""
    if is_set(settings.photos):
        inputs = sorted(path for path in settings.photos.iterdir() if path.is_file())
    else:
        model = sorted(settings.colmap.iterdir()) if settings.colmap else []
        inputs = [*list_photos(settings.photos), *model, *filter(None, [settings.database])]
    lines = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in inputs]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    # As it will be read again: paths are strings, and tuples are lists.
    values = dataclasses.asdict(settings) | {"photographs": digest}
    now = json.loads(json.dumps(values, default=str))
    path = folder / SETTINGS_FILE
    if path.exists():
        try:
            before = dict(parse_json(path.read_bytes()))
        except (ValueError, TypeError):
            raise InputError(f"{path} is damaged: choose another --out") from None
        fixed = now.keys() - {"compare_maps"} - (set() if training_started else TRAINING_SETTINGS)
        changed = [
            f"{name} was {before.get(name)} and is {now[name]}"
            for name in sorted(fixed)
            if before.get(name) != now[name]
        ]
        if changed:
            message = f"{folder} has other settings: {'; '.join(changed)}"
            raise InputError(f"{message}: choose another --out, or the earlier settings")
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and not from kjax tune: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, now)


class OwnSets(NamedTuple):
    """Folders of the sets to train on and to test on, and the source of their patches."""

    train: Path
    held_out: Path
    points: tuple[int, int]
    """Number of points with two or more patches in each."""
    made_from: str
    held_out_photos: tuple[str, ...]
    """Names below the image folder; empty if there was only a set of patches."""
    overlap: bool = True
    """Whether images to train on show places of held-out ones, too."""


Split = tuple[PatchSet, PatchSet, bool]
"""Patches to train on, held-out ones, and whether their images overlap."""


class TooFewTracksError(InputError):
    """COLMAP's tracks are not enough to learn from."""


def make_sets(settings: TuneSettings, out: Path, *, progress: bool) -> OwnSets:
    """Return the sets below a folder, and make them if they do not exist."""
    folder = out / SETS_FOLDER
    name = settings.photos.resolve().name
    if not (folder / SETS_FILE).is_file():
        train, held_out, overlap, made_from = _cut(settings, out, progress=progress)
        shutil.rmtree(folder, ignore_errors=True)  # of a killed run
        with new_folder(folder) as fresh:
            for cut, where in ((train, name), (held_out, f"{name}-held-out")):
                pairs = sample_test_pairs(
                    cut.point_ids, matching=TEST_PAIRS, non_matching=TEST_PAIRS, seed=settings.seed
                )
                more: dict[str, Any] = {"interest": cut.interest, "photographs": cut.photographs}
                write_phototour(fresh / where, cut.patches, cut.point_ids, pairs=pairs, **more)
            numbers = {int(number) for number in held_out.interest[:, 0]}
            photos = sorted(held_out.photographs[number].name for number in numbers)
            photos = [] if is_set(settings.photos) else photos
            points = [_points(train), _points(held_out)]
            record = {"points": points, "made_from": made_from, "held_out_photos": photos}
            write_json(fresh / SETS_FILE, record | {"overlap": overlap})
    found = parse_json((folder / SETS_FILE).read_bytes())
    lists = tuple(found["points"]), found["made_from"], tuple(found["held_out_photos"])
    overlap = found.get("overlap", True)  # unknown before 0.4
    return OwnSets(folder / name, folder / f"{name}-held-out", *lists, overlap)


def _cut(settings: TuneSettings, out: Path, *, progress: bool) -> tuple[*Split, str]:
    """Cut patches to train on and to hold out, and name their source."""
    if is_set(settings.photos):
        cut = read_phototour(settings.photos, progress=progress)
        interest = read_interest(settings.photos, patch_count=len(cut.point_ids))
        if interest is None or len(np.unique(interest[:, 0])) < 2:
            interest = np.zeros((len(cut.point_ids), 5))
            # Without known images, give every point its own, so that whole points are held out.
            interest[:, 0] = np.unique(cut.point_ids, return_inverse=True)[1]
        photographs = tuple(
            SetPhotograph(number, f"{number:09d}", "")
            for number in range(int(interest[:, 0].max()) + 1)
        )
        cut = dataclasses.replace(cut, interest=interest, photographs=photographs)
        train, held_out, overlap = split(cut)
        made_from = f"the set {settings.photos}"
    else:
        try:
            train, held_out, overlap = _cut_tracks(settings, out, progress=progress)
            made_from = "COLMAP tracks"
        except TooFewTracksError as reason:
            print(f"kjax tune: using homographies instead of tracks: {reason}", file=sys.stderr)
            paths = list_photos(settings.photos)
            names = [path.relative_to(settings.photos).as_posix() for path in paths]
            cut = cut_self_supervised(
                paths, names, config=ViewConfig(), seed=settings.seed, progress=progress
            )
            train, held_out, overlap = split(cut)
            made_from = f"random homographies ({reason})"
    for name in train.unreadable:
        print(f"kjax tune: skipped unreadable image {name}", file=sys.stderr)
    train = _limit(train, MOST_PATCHES, settings.seed)
    held_out = _limit(held_out, MOST_HELD_OUT_PATCHES, settings.seed)
    if min(_points(train), _points(held_out)) < 2:
        points = f"{_points(train)} points to train on and {_points(held_out)} to hold out"
        raise InputError(f"{settings.photos} gives {points}: add more images")
    return train, held_out, overlap, made_from


def _cut_tracks(settings: TuneSettings, out: Path, *, progress: bool) -> Split:
    """Cut patches from the user's model, or from one that COLMAP makes now."""
    model, database = settings.colmap, settings.database
    if model is None or database is None:
        model, database = _reconstruct(settings.photos, out / COLMAP_FOLDER, progress=progress)
    try:
        most, filters = 2 * MOST_PATCHES, TrackFilters()
        options: Any = {"max_patches": most, "seed": settings.seed, "progress": progress}
        cut = cut_reconstruction(model, database, settings.photos, filters=filters, **options)
    except InputError as error:
        if settings.colmap is not None:
            raise
        raise TooFewTracksError(str(error)) from None
    train, held_out, overlap = split(cut)
    if _points(train) < LEAST_POINTS or _points(held_out) < LEAST_HELD_OUT_POINTS:
        points = f"{_points(train):,} points to train on and {_points(held_out):,} held out"
        least = f"{LEAST_POINTS:,} and {LEAST_HELD_OUT_POINTS:,}"
        raise TooFewTracksError(f"COLMAP's tracks give {points}, fewer than {least}")
    return train, held_out, overlap


def _reconstruct(photos: Path, folder: Path, *, progress: bool) -> tuple[Path, Path]:
    """Return COLMAP's largest model and its database, and make them if they do not exist."""
    count = len(list_photos(photos))
    if not folder.is_dir():
        if shutil.which("colmap") is None:
            raise TooFewTracksError("colmap is not on the PATH")
        log = folder.with_suffix(".log")  # stays, whatever happens
        try:
            with (
                new_folder(folder) as fresh,
                tqdm(total=3, desc="COLMAP", unit="stage", disable=not progress) as bar,
            ):
                database = fresh / "database.db"
                run: dict[str, Any] = {"log": log, "threads": colmap_program.ALL_THREADS}
                single = colmap_program.of_one_size(photos)
                colmap_program.extract_sift(
                    database, photos, max_keypoints=MAX_KEYPOINTS, single_camera=single, **run
                )
                bar.update()
                neighbours = NEIGHBOURS if count > ALL_PAIRS_UP_TO else None
                colmap_program.match_and_verify(database, neighbours=neighbours, **run)
                bar.update()
                colmap_program.reconstruct(database, photos, fresh / "sparse", **run)
                bar.update()
        except InputError as error:
            raise TooFewTracksError(str(error)) from None
    models = colmap_program.models_below(folder / "sparse")
    sizes = {len(read_model(model).images): model for model in reversed(models)}
    if max(sizes, default=0) < LEAST_REGISTERED * count:
        raise TooFewTracksError(f"COLMAP registers {max(sizes, default=0)} of {count} images")
    return sizes[max(sizes)], folder / "database.db"


def hold_out(names: Sequence[str]) -> Bool[np.ndarray, " photos"]:
    """Hold out the last images of each folder by name: neighbours often show the same points."""
    held = np.zeros(len(names), bool)
    folders = np.array([str(PurePosixPath(name).parent) for name in names])
    for folder in np.unique(folders):
        members = sorted(np.flatnonzero(folders == folder).tolist(), key=names.__getitem__)
        if len(members) > 1:
            held[members[-max(1, round(HELD_OUT * len(members))) :]] = True
    if not held.any():
        raise InputError("there is only one image: add more, as some are held out for testing")
    return held


def split(cut: PatchSet) -> Split:
    """Split into points that no held-out image sees, and those that held-out images see twice.

    Images that share points form groups. Whole groups are held out, the last first. If too few
    groups are small enough, the last images are held out, though others show their places.
    """
    wanted = hold_out([one.name for one in cut.photographs])
    least, photo = int(wanted.sum()), cut.interest[:, 0].astype(int)
    most = min(2 * least, len(wanted) // 2)
    point = np.unique(cut.point_ids, return_inverse=True)[1]
    table = csr_array((np.ones(len(photo), int), (photo, point)), (len(wanted), len(photo)))
    sees = table.minimum(1)
    groups = connected_components(sees @ sees.T >= OVERLAP)[1]
    order = np.concatenate([np.flatnonzero(wanted)[::-1], np.flatnonzero(~wanted)[::-1]])
    whole = groups[order][np.sort(np.unique(groups[order], return_index=True)[1])]
    whole = whole[np.bincount(groups)[whole] <= most]
    sizes = np.bincount(groups)[whole]
    total = np.cumsum(sizes)
    held_out = np.isin(groups, whole[(total <= most) & (total - sizes < least)])
    overlap = int(held_out.sum()) < least
    away = (wanted if overlap else held_out)[photo]
    seen = np.isin(cut.point_ids, cut.point_ids[away])
    return _take(cut, ~seen), _take(cut, away), overlap


def _take(cut: PatchSet, rows: Bool[np.ndarray, " P"]) -> PatchSet:
    """Keep some patches, without points that have only one left."""
    _, place, counts = np.unique(cut.point_ids[rows], return_inverse=True, return_counts=True)
    kept = np.flatnonzero(rows)[counts[place] >= 2]
    ids = np.unique(cut.point_ids[kept], return_inverse=True)[1].astype(np.int64)
    return dataclasses.replace(
        cut, patches=cut.patches[kept], point_ids=ids, interest=cut.interest[kept]
    )


def _limit(cut: PatchSet, most: int, seed: int) -> PatchSet:
    """Drop whole points at random until at most `most` patches are left."""
    if len(cut.patches) <= most:
        return cut
    counts = np.bincount(cut.point_ids)
    order = np.random.default_rng(seed).permutation(len(counts))
    kept = order[np.cumsum(counts[order]) <= most]
    return _take(cut, np.isin(cut.point_ids, kept))


def _points(cut: PatchSet) -> int:
    return int(cut.point_ids.max(initial=-1)) + 1
