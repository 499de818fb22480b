"""Photographs become two sets of patches: one to train on, one of photographs that are held out.

Patches of one point come from COLMAP's tracks where a model has enough of them, else from views of
each photograph by homographies. No point that a held-out photograph sees is trained on.
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
from kjax.tune.settings import Settings

SETS_FOLDER, COLMAP_FOLDER = "sets", "colmap"
SETS_FILE = "sets.json"
HELD_OUT = 0.2
"""Share of the photographs that are held out."""
MOST_PATCHES, MOST_HELD_OUT_PATCHES = 400_000, 20_000
TEST_PAIRS = 10_000
ALL_PAIRS_UP_TO = 30
"""Photographs that are all matched with each other; of more, each with its neighbours by name."""
NEIGHBOURS = 10
MAX_KEYPOINTS = 4096
LEAST_REGISTERED = 0.5
"""Share of the photographs that a model must have, to be of use."""
LEAST_POINTS, LEAST_HELD_OUT_POINTS = 1000, 100


class OwnSets(NamedTuple):
    """Where the patches are, and what they were made from.

    Attributes:
        train: folder of the set to train on.
        held_out: folder of the other.
        points: with two patches or more, of either.
        made_from: in words.
        held_out_photos: names below the folder of photographs; none if there was only a set.
    """

    train: Path
    held_out: Path
    points: tuple[int, int]
    made_from: str
    held_out_photos: tuple[str, ...]


class _TooFewError(InputError):
    """Tracks are not enough to learn from."""


def make_sets(settings: Settings, out: Path, *, progress: bool) -> OwnSets:
    """The sets below a folder, made now unless they are there."""
    folder = out / SETS_FOLDER
    name = settings.photos.resolve().name
    if not (folder / SETS_FILE).is_file():
        train, held_out, made_from = _cut(settings, out, progress=progress)
        shutil.rmtree(folder, ignore_errors=True)  # what a kill left
        with new_folder(folder) as fresh:
            _write(fresh / name, train, settings.seed)
            _write(fresh / f"{name}-held-out", held_out, settings.seed)
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


def hold_out(names: Sequence[str]) -> Bool[np.ndarray, " photos"]:
    """Which photographs are held out: of each folder the last by name, neighbours of each other.

    Neighbours often show the same points, which would be lost to the training once for each of them
    were they far apart.
    """
    held = np.zeros(len(names), bool)
    folders = np.array([str(PurePosixPath(name).parent) for name in names])
    for folder in np.unique(folders):
        (members,) = np.nonzero(folders == folder)
        ordered = members[np.argsort(np.array(names)[members])]
        if len(members) > 1:
            held[ordered[-max(1, round(HELD_OUT * len(members))) :]] = True
    if not held.any():
        raise InputError("one photograph is too few: some are held out, to see what tuning gives")
    return held


def split(cut: PatchSet, held_out: Bool[np.ndarray, " photos"]) -> tuple[PatchSet, PatchSet]:
    """Points that no held-out photograph sees, and those that two of them see, as these do."""
    away = held_out[cut.interest[:, 0].astype(int)]
    seen = np.isin(cut.point_ids, cut.point_ids[away])
    return _take(cut, ~seen), _take(cut, away)


def _take(cut: PatchSet, rows: Bool[np.ndarray, " P"]) -> PatchSet:
    """Some of the patches, without points that are left with one."""
    _, place, counts = np.unique(cut.point_ids[rows], return_inverse=True, return_counts=True)
    kept = np.flatnonzero(rows)[counts[place] >= 2]
    ids = np.unique(cut.point_ids[kept], return_inverse=True)[1]
    return dataclasses.replace(
        cut,
        patches=cut.patches[kept],
        point_ids=ids.astype(np.int64),
        interest=cut.interest[kept],
    )


def _limit(cut: PatchSet, most: int, seed: int) -> PatchSet:
    """Drops whole points at random until so many patches are left."""
    if len(cut.patches) <= most:
        return cut
    counts = np.bincount(cut.point_ids)
    order = np.random.default_rng(seed).permutation(len(counts))
    kept = order[np.cumsum(counts[order]) <= most]
    return _take(cut, np.isin(cut.point_ids, kept))


def _points(cut: PatchSet) -> int:
    return int(cut.point_ids.max(initial=-1)) + 1


def _write(folder: Path, cut: PatchSet, seed: int) -> None:
    pairs = sample_test_pairs(
        cut.point_ids, matching=TEST_PAIRS, non_matching=TEST_PAIRS, seed=seed
    )
    write_phototour(
        folder,
        cut.patches,
        cut.point_ids,
        pairs=pairs,
        interest=cut.interest,
        photographs=cut.photographs,
    )


# Where patches come from


def _cut(settings: Settings, out: Path, *, progress: bool) -> tuple[PatchSet, PatchSet, str]:
    if settings.is_set:
        train, held_out = _split_set(settings, progress=progress)
        made_from = f"the set {settings.photos}"
    else:
        try:
            train, held_out = _from_tracks(settings, out, progress=progress)
            made_from = "tracks of COLMAP's points"
        except _TooFewError as reason:
            print(f"kjax tune: homographies instead of tracks: {reason}", file=sys.stderr)
            train, held_out = _from_homographies(settings, progress=progress)
            made_from = f"views by homographies ({reason})"
    for name in train.unreadable:
        print(f"kjax tune: left out, cannot be read: {name}", file=sys.stderr)
    train = _limit(train, MOST_PATCHES, settings.seed)
    held_out = _limit(held_out, MOST_HELD_OUT_PATCHES, settings.seed)
    if min(_points(train), _points(held_out)) < 2:
        raise InputError(
            f"{settings.photos} gives {_points(train)} points to train on and {_points(held_out)} "
            "to hold out: give more photographs"
        )
    return train, held_out, made_from


def _split_set(settings: Settings, *, progress: bool) -> tuple[PatchSet, PatchSet]:
    """By photographs, if the set tells them; else by points."""
    found = read_phototour(settings.photos, progress=progress)
    interest = read_interest(settings.photos, patch_count=len(found.point_ids))
    told = interest is not None and len(np.unique(interest[:, 0])) > 1
    if not told or interest is None:
        interest = np.zeros((len(found.point_ids), 5))
        # As if every point had a photograph of its own, so that whole points are held out.
        interest[:, 0] = np.unique(found.point_ids, return_inverse=True)[1]
    names = [f"{number:09d}" for number in range(int(interest[:, 0].max()) + 1)]
    photographs = tuple(SetPhotograph(number, name, "") for number, name in enumerate(names))
    cut = dataclasses.replace(found, interest=interest, photographs=photographs)
    return split(cut, hold_out(names))


def _from_tracks(settings: Settings, out: Path, *, progress: bool) -> tuple[PatchSet, PatchSet]:
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
        raise _TooFewError(str(error)) from None
    train, held_out = split(cut, hold_out([one.name for one in cut.photographs]))
    if _points(train) < LEAST_POINTS or _points(held_out) < LEAST_HELD_OUT_POINTS:
        raise _TooFewError(
            f"COLMAP's points leave {_points(train):,} to train on and {_points(held_out):,} held "
            f"out, of {LEAST_POINTS:,} and {LEAST_HELD_OUT_POINTS:,} at least"
        )
    return train, held_out


def _reconstruct(photos: Path, folder: Path, *, progress: bool) -> tuple[Path, Path]:
    """The largest model that COLMAP finds, and its database; made now unless they are there."""
    count = len(list_photos(photos))
    if not folder.is_dir():
        if shutil.which("colmap") is None:
            raise _TooFewError("colmap is not on the PATH")
        try:
            with new_folder(folder) as fresh:
                log = folder.with_suffix(".log")  # which is to stay, whatever happens
                _run_colmap(photos, fresh, count, log, progress=progress)
        except InputError as error:
            raise _TooFewError(str(error)) from None
    models = colmap_program.models_below(folder / "sparse")
    sizes = [len(read_model(model).images) for model in models]
    if max(sizes, default=0) < LEAST_REGISTERED * count:
        raise _TooFewError(f"COLMAP registers {max(sizes, default=0)} of {count} photographs")
    return models[int(np.argmax(sizes))], folder / "database.db"


def _run_colmap(photos: Path, folder: Path, count: int, log: Path, *, progress: bool) -> None:
    database, threads = folder / "database.db", colmap_program.ALL_THREADS
    with tqdm(total=3, desc="COLMAP", unit="stage", disable=not progress) as bar:
        bar.set_postfix_str("keypoints")
        colmap_program.extract_sift(
            database,
            photos,
            max_keypoints=MAX_KEYPOINTS,
            single_camera=colmap_program.of_one_size(photos),
            log=log,
            threads=threads,
        )
        bar.update()
        bar.set_postfix_str("matching")
        colmap_program.match_and_verify(
            database,
            log=log,
            threads=threads,
            neighbours=NEIGHBOURS if count > ALL_PAIRS_UP_TO else None,
        )
        bar.update()
        bar.set_postfix_str("mapping")
        colmap_program.reconstruct(database, photos, folder / "sparse", log=log, threads=threads)
        bar.update()


def _from_homographies(settings: Settings, *, progress: bool) -> tuple[PatchSet, PatchSet]:
    paths = list_photos(settings.photos)
    names = [path.relative_to(settings.photos).as_posix() for path in paths]
    cut = cut_self_supervised(
        paths, names, config=ViewConfig(), seed=settings.seed, progress=progress
    )
    return split(cut, hold_out([one.name for one in cut.photographs]))
