"""Build a COLMAP database and a reconstruction from a folder of images.

DIR/database.db      cameras, keypoints, matches, verified geometries
DIR/sparse/0         the largest model that COLMAP maps from it; smaller ones follow
DIR/work             finished pieces of work: features/, pairs.db, log.txt
"""

import contextlib
import dataclasses
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from kjax.data.cache import new_folder
from kjax.data.colmap import NO_POINT, read_keypoints, read_model
from kjax.errors import InputError
from kjax.files.atomic import write_text, write_whole
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.matching import PairStore, match_missing, verify_missing
from kjax.images.collection.pairs import PairSelection, choose_pairs
from kjax.images.collection.photographs import (
    FeatureFiles,
    describe_missing,
    key_of,
    read_collection,
)
from kjax.images.describer import Describer
from kjax.images.exchange.colmap_database import add_geometries, read_matches, write_database
from kjax.images.exchange.colmap_program import Reconstructor, largest_model, model_size
from kjax.images.learned import Matcher

_REGISTERING = re.compile(rb"Registering image #\d+ \(\D*(\d+)\)")
"""A line of the mapper's log, with the number of images registered so far."""


@dataclasses.dataclass(frozen=True)
class Built:
    """Result of a run: files, reasons why images were left out, and seconds by stage."""

    database: Path
    models: list[Path]
    """Folders, the largest model first."""
    left_out: list[str]
    seconds: dict[str, float]


def build(
    photos: Path,
    out: Path,
    describer: Describer,
    reconstructor: Reconstructor,
    *,
    max_keypoints: int = 4000,
    selection: PairSelection = "auto",
    neighbours: int = 20,
    ratio: float = 0.9,
    matcher: Matcher | None = None,
    single_camera: bool = False,
    mapping: bool = True,
    engine: Engine = HERE,
) -> Built:
    """Build the database and the models; finished pieces of work are reused.

    `out` is a new folder, or that of an earlier run, whose database and models are replaced. A
    learned `matcher` replaces nearest neighbours up to `ratio`. COLMAP runs on this machine.
    """
    work, seconds = out / "work", dict[str, float]()
    if out.is_dir() and not work.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty and not from kjax colmap: use another folder")
    work.mkdir(parents=True, exist_ok=True)
    log, database, sparse = work / "log.txt", out / "database.db", out / "sparse"
    files = FeatureFiles(work / "features", describer.feature_settings(max_keypoints))
    with _timed(seconds, "describe"):
        found, left_out = read_collection(photos, single_camera=single_camera)
        left_out += describe_missing(found, describer, files, engine)
        photographs = [one for one in found if files.path(one).exists()]
    if len(photographs) < 2:
        raise InputError(f"{photos} has fewer than two readable images: add more")
    cameras = {one.name: one.camera for one in photographs}
    with PairStore(work / "pairs.db") as store:
        with _timed(seconds, "pairs"):
            pairs = choose_pairs(photographs, files, selection, neighbours, engine)
        with _timed(seconds, "match"):
            matched = match_missing(
                photographs, pairs, files, store, ratio=ratio, matcher=matcher, engine=engine
            )

        def write(path: Path) -> None:
            names = {(i, j): (photographs[i].name, photographs[j].name) for i, j in matched}
            features = {one.name: files.read_keypoints(one) for one in photographs}
            matches = {names[pair]: store.matches(key) for pair, key in matched.items()}
            write_database(path, features, matches, cameras=cameras)
            add_geometries(path, {names[pair]: store.geometry(key) for pair, key in keys.items()})

        with _timed(seconds, "verify"):
            keys = verify_missing(photographs, matched, files, store, reconstructor, log)
            write_whole(database, write)
    models: list[Path] = []
    if mapping:
        key = key_of(reconstructor.name, list(cameras.items()), sorted(keys.values()))
        done = work / "mapped.txt"
        with _timed(seconds, "map"):
            if not (done.exists() and done.read_text() == key and sparse.is_dir()):
                done.unlink(missing_ok=True)
                map_photographs(database, photos, sparse, len(photographs), reconstructor, log)
                write_text(done, key)
        models = sorted(sparse.iterdir(), key=lambda folder: int(folder.name))
    return Built(database, models, left_out, seconds)


@contextlib.contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start


def map_photographs(
    database: Path, photos: Path, out: Path, count: int, reconstructor: Reconstructor, log: Path
) -> None:
    """Map the `count` images of a database; write models 0, 1, …, the largest first."""
    shutil.rmtree(out, ignore_errors=True)
    start = log.stat().st_size if log.exists() else 0
    with new_folder(out) as partial, tqdm(total=count, desc="mapping", unit="photo") as bar:

        def follow() -> None:
            if registered := _REGISTERING.findall(log.read_bytes(), start):
                bar.update(int(registered[-1]) - bar.n)

        paths, threads = (database.resolve(), photos.resolve(), partial / "found"), os.cpu_count()
        found = reconstructor.reconstruct(*paths, log=log, threads=threads or 1, watch=follow)
        sizes = {folder: model_size(read_model(folder)) for folder in found}
        for number, folder in enumerate(sorted(found, key=sizes.__getitem__, reverse=True)):
            folder.rename(partial / str(number))
        bar.update(max(sizes.values(), default=(0, 0))[0] - bar.n)
        shutil.rmtree(partial / "found", ignore_errors=True)
        (partial / "found.db").unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Counts of a database; registered images, points and mean error of its largest model."""

    photos: int
    keypoints: int
    pairs: int
    verified_pairs: int
    verified_matches: int
    models: int
    images: int
    points: int
    observations: int
    track_length: float
    error: float
    """Mean reprojection error in pixels."""


def summarize(database: Path, folders: Sequence[Path]) -> Summary:
    """Summarise a database and the models mapped from it."""
    verified = [len(pair) for pair in read_matches(database, verified=True).values()]
    keypoints = read_keypoints(database)
    largest = largest_model(folders)
    images = [] if largest is None else list(largest.images.values())
    points = 0 if largest is None else len(largest.points.ids)
    observations = int(sum((image.point_ids != NO_POINT).sum() for image in images))
    return Summary(
        photos=len(keypoints),
        keypoints=sum(map(len, keypoints.values())),
        pairs=len(read_matches(database)),
        verified_pairs=sum(count > 0 for count in verified),
        verified_matches=sum(verified),
        models=len(folders),
        images=len(images),
        points=points,
        observations=observations,
        track_length=observations / points if points else 0.0,
        error=float(np.mean(largest.points.error)) if largest is not None and points else 0.0,
    )
