"""Cut two sets of patches from images: one to train on, one of held-out images.

Patches of one point come from COLMAP's tracks if a model has enough of them, else from random
homographies of each image. Points seen by a held-out image are not trained on.
"""

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool
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
from kjax.data.selfsupervised import ViewConfig, cut_self_supervised
from kjax.errors import InputError
from kjax.files.atomic import write_json
from kjax.files.json import parse_json
from kjax.images.exchange import colmap_program
from kjax.tune.settings import TuneSettings

SETS_FOLDER, COLMAP_FOLDER = "sets", "colmap"
SETS_FILE = "sets.json"
HELD_OUT = 0.2
"""Fraction of images that are held out."""
MOST_PATCHES, MOST_HELD_OUT_PATCHES = 400_000, 20_000
TEST_PAIRS = 10_000
ALL_PAIRS_UP_TO = 30
"""Maximum number of images for exhaustive matching; in larger sets, each is matched with its
neighbours by name."""
NEIGHBOURS = 10
MAX_KEYPOINTS = 4096
LEAST_REGISTERED = 0.5
"""Minimum fraction of images that a usable model has registered."""
LEAST_POINTS, LEAST_HELD_OUT_POINTS = 1000, 100


class OwnSets(NamedTuple):
    """Folders of the two sets.

    Attributes:
        train: set to train on.
        held_out: set to test on.
        points: number of points with two or more patches in each.
        made_from: source of the patches, for the report.
        held_out_photos: names below the image folder; empty if there was only a set of patches.
    """

    train: Path
    held_out: Path
    points: tuple[int, int]
    made_from: str
    held_out_photos: tuple[str, ...]


class TooFewTracksError(InputError):
    """COLMAP's tracks are not enough to learn from."""


def make_sets(settings: TuneSettings, out: Path, *, progress: bool) -> OwnSets:
    """Return the sets below a folder, and make them if they do not exist."""
    folder = out / SETS_FOLDER
    name = settings.photos.resolve().name
    if not (folder / SETS_FILE).is_file():
        train, held_out, made_from = _cut(settings, out, progress=progress)
        shutil.rmtree(folder, ignore_errors=True)  # of a killed run
        with new_folder(folder) as fresh:
            for cut, where in ((train, name), (held_out, f"{name}-held-out")):
                pairs = sample_test_pairs(
                    cut.point_ids, matching=TEST_PAIRS, non_matching=TEST_PAIRS, seed=settings.seed
                )
                write_phototour(
                    fresh / where,
                    cut.patches,
                    cut.point_ids,
                    pairs=pairs,
                    interest=cut.interest,
                    photographs=cut.photographs,
                )
            numbers = {int(number) for number in held_out.interest[:, 0]}
            photos = sorted(held_out.photographs[number].name for number in numbers)
            record = {
                "points": [_points(train), _points(held_out)],
                "made_from": made_from,
                "held_out_photos": [] if settings.is_set else photos,
            }
            write_json(fresh / SETS_FILE, record)
    found = parse_json((folder / SETS_FILE).read_bytes())
    return OwnSets(
        folder / name,
        folder / f"{name}-held-out",
        tuple(found["points"]),
        found["made_from"],
        tuple(found["held_out_photos"]),
    )


def _cut(settings: TuneSettings, out: Path, *, progress: bool) -> tuple[PatchSet, PatchSet, str]:
    """Cut patches to train on and to hold out, and name their source."""
    if settings.is_set:
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
        train, held_out = split(cut)
        made_from = f"the set {settings.photos}"
    else:
        try:
            train, held_out = _cut_tracks(settings, out, progress=progress)
            made_from = "COLMAP tracks"
        except TooFewTracksError as reason:
            print(f"kjax tune: using homographies instead of tracks: {reason}", file=sys.stderr)
            paths = list_photos(settings.photos)
            names = [path.relative_to(settings.photos).as_posix() for path in paths]
            cut = cut_self_supervised(
                paths, names, config=ViewConfig(), seed=settings.seed, progress=progress
            )
            train, held_out = split(cut)
            made_from = f"random homographies ({reason})"
    for name in train.unreadable:
        print(f"kjax tune: skipped unreadable image {name}", file=sys.stderr)
    train = _limit(train, MOST_PATCHES, settings.seed)
    held_out = _limit(held_out, MOST_HELD_OUT_PATCHES, settings.seed)
    if min(_points(train), _points(held_out)) < 2:
        raise InputError(
            f"{settings.photos} gives {_points(train)} points to train on and {_points(held_out)} "
            "to hold out: add more images"
        )
    return train, held_out, made_from


def _cut_tracks(settings: TuneSettings, out: Path, *, progress: bool) -> tuple[PatchSet, PatchSet]:
    """Cut patches from the user's model, or from one that COLMAP makes now."""
    model, database = settings.colmap, settings.database
    if model is None or database is None:
        model, database = _reconstruct(settings.photos, out / COLMAP_FOLDER, progress=progress)
    try:
        cut = cut_reconstruction(
            model,
            database,
            settings.photos,
            filters=TrackFilters(),
            max_patches=2 * MOST_PATCHES,
            seed=settings.seed,
            progress=progress,
        )
    except InputError as error:
        if settings.colmap is not None:
            raise
        raise TooFewTracksError(str(error)) from None
    train, held_out = split(cut)
    if _points(train) < LEAST_POINTS or _points(held_out) < LEAST_HELD_OUT_POINTS:
        raise TooFewTracksError(
            f"COLMAP's tracks give {_points(train):,} points to train on and "
            f"{_points(held_out):,} held out, fewer than {LEAST_POINTS:,} and "
            f"{LEAST_HELD_OUT_POINTS:,}"
        )
    return train, held_out


def _reconstruct(photos: Path, folder: Path, *, progress: bool) -> tuple[Path, Path]:
    """Return COLMAP's largest model and its database, and make them if they do not exist."""
    count, threads = len(list_photos(photos)), colmap_program.ALL_THREADS
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
                colmap_program.extract_sift(
                    database,
                    photos,
                    max_keypoints=MAX_KEYPOINTS,
                    single_camera=colmap_program.of_one_size(photos),
                    log=log,
                    threads=threads,
                )
                bar.update()
                neighbours = NEIGHBOURS if count > ALL_PAIRS_UP_TO else None
                colmap_program.match_and_verify(
                    database, log=log, threads=threads, neighbours=neighbours
                )
                bar.update()
                sparse = fresh / "sparse"
                colmap_program.reconstruct(database, photos, sparse, log=log, threads=threads)
                bar.update()
        except InputError as error:
            raise TooFewTracksError(str(error)) from None
    models = colmap_program.models_below(folder / "sparse")
    sizes = [len(read_model(model).images) for model in models]
    if max(sizes, default=0) < LEAST_REGISTERED * count:
        raise TooFewTracksError(f"COLMAP registers {max(sizes, default=0)} of {count} images")
    return models[int(np.argmax(sizes))], folder / "database.db"


def hold_out(names: Sequence[str]) -> Bool[np.ndarray, " photos"]:
    """Choose the images to hold out: the last of each folder by name.

    Neighbours often show the same points. Images further apart would each take other points from
    training.
    """
    held = np.zeros(len(names), bool)
    folders = np.array([str(PurePosixPath(name).parent) for name in names])
    for folder in np.unique(folders):
        (members,) = np.nonzero(folders == folder)
        ordered = members[np.argsort(np.array(names)[members])]
        if len(members) > 1:
            held[ordered[-max(1, round(HELD_OUT * len(members))) :]] = True
    if not held.any():
        raise InputError("there is only one image: add more, as some are held out for testing")
    return held


def split(cut: PatchSet) -> tuple[PatchSet, PatchSet]:
    """Split into points that no held-out image sees, and those that two held-out images see."""
    held_out = hold_out([one.name for one in cut.photographs])
    away = held_out[cut.interest[:, 0].astype(int)]
    seen = np.isin(cut.point_ids, cut.point_ids[away])
    return _take(cut, ~seen), _take(cut, away)


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
