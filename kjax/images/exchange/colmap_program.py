"""COLMAP itself, run as a program the same way every time. Written for COLMAP 3.8, on the CPU.

Every command has its random seed fixed and, unless told otherwise, one thread, as COLMAP's threads
each draw from a generator of their own: with several, the result depends on which pair reaches
which thread. What stays random is how 3.8 matches SIFT on the CPU: approximately, by random trees
without a seed.
"""

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from kjax.data.colmap import read_rows
from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.files.images import open_image
from kjax.images.exchange.colmap_database import read_matches

SEED = 0
SIFT_DIMENSION = 128
ALL_THREADS = -1
WATCHING_SECONDS = 0.2
"""Between two looks at what a program has printed."""
CLOSER = {"init_min_tri_angle": 4, "init_min_num_inliers": 50, "init_max_forward_motion": 1}
"""Of the two photographs that a model begins with: degrees between their rays, matches, and which
share of the way between them may lead forward.

A quarter and half of what COLMAP asks for, which gives in to half of both by itself, one at a time;
and all of the way, as along a street.
"""
ATTEMPTS: tuple[dict[str, int], ...] = ({}, CLOSER)
"""Along a street no two photographs may see enough from far apart, or aside, to begin with: where
nothing is found a model begins once more, with photographs that were taken closer to each other.
"""
NO_MODEL = "failed to create sparse model"
"""What the mapper says, with an exit code of failure, of photographs that give none."""


def require_colmap() -> str:
    """The program's path, or one line on how to get it."""
    found = shutil.which("colmap")
    if found is None:
        raise InputError("colmap is not on the PATH: install it, e.g. with apt-get install colmap")
    return found


def of_one_size(photos: Path) -> bool:
    """Whether all photographs of a folder that can be read are: they may be one camera's."""
    sizes = set()
    for path in list_photos(photos):
        with contextlib.suppress(InputError), open_image(path) as image:
            sizes.add(image.size)
    return len(sizes) == 1


def extract_sift(
    database: Path,
    photos: Path,
    *,
    max_keypoints: int,
    single_camera: bool,
    log: Path,
    threads: int = 1,
) -> None:
    """COLMAP's own keypoints and SIFT descriptors of a folder of photographs, in a new database.

    Keypoints with two orientations count once. What COLMAP prints goes to the end of the log, here
    and below.
    """
    options = {
        "image_path": photos,
        "SiftExtraction.max_num_features": max_keypoints,
        "ImageReader.single_camera": int(single_camera),
        "ImageReader.single_camera_per_image": int(not single_camera),
        "SiftExtraction.use_gpu": 0,
        "SiftExtraction.num_threads": threads,
    }
    _run("feature_extractor", {"database_path": database, **options}, log)


def match_and_verify(
    database: Path, *, log: Path, threads: int = 1, neighbours: int | None = None
) -> None:
    """Verifies the matches of pairs; COLMAP matches its SIFT where a pair has none yet.

    Args:
        database: with the keypoints.
        log: of what COLMAP prints.
        threads: how many, or `ALL_THREADS`.
        neighbours: each photograph is matched with so many that follow it, in the order of their
            names; with all others by default.
    """
    options = {"SiftMatching.use_gpu": 0, "SiftMatching.num_threads": threads}
    command = "exhaustive_matcher"
    if neighbours is not None:
        command = "sequential_matcher"
        options["SequentialMatching.overlap"] = neighbours
    _run(command, {"database_path": database, **options}, log)


def verify_matches(database: Path, *, log: Path) -> None:
    """Verifies the matches that are in a database, whose photographs' names have no spaces."""
    listed = database.with_suffix(".pairs.txt")
    listed.write_text("".join(f"{first} {second}\n" for first, second in read_matches(database)))
    options = {
        "database_path": database,
        "match_list_path": listed,
        "match_type": "pairs",
        "SiftMatching.use_gpu": 0,
        "SiftMatching.num_threads": 1,
    }
    _run("matches_importer", options, log)


def reconstruct(
    database: Path,
    photos: Path,
    out: Path,
    *,
    log: Path,
    threads: int = 1,
    watch: Callable[[], object] | None = None,
) -> list[Path]:
    """The folders of the models that COLMAP finds from verified matches: there may be none."""
    out.mkdir(parents=True)
    options = {
        "database_path": database,
        "image_path": photos,
        "output_path": out,
        "Mapper.num_threads": threads,
    }

    def attempt(begin_with: Mapping[str, int]) -> None:
        before = log.stat().st_size if log.exists() else 0
        asked = {f"Mapper.{name}": value for name, value in begin_with.items()}
        try:
            _run("mapper", options | asked, log, watch)
        except InputError:
            if NO_MODEL.encode() not in log.read_bytes()[before:]:
                raise

    return first_models(attempt, out)


def first_models(attempt: Callable[[Mapping[str, int]], object], out: Path) -> list[Path]:
    """The folders of the models of the first of `ATTEMPTS` that writes any: there may be none."""
    for begin_with in ATTEMPTS:
        attempt(begin_with)
        if found := models_below(out):
            return found
    return []


def models_below(folder: Path) -> list[Path]:
    """The folders of the models that a mapper has written."""
    return sorted(path.parent for path in folder.glob("*/images.bin"))


def photo_sizes(database: Path) -> dict[str, tuple[int, int]]:
    """Width and height of every photograph in a database, in the order of their numbers."""
    query = (
        "SELECT name, width, height FROM images JOIN cameras USING (camera_id) ORDER BY image_id"
    )
    rows = read_rows(database, query, tables=("images", "cameras"))
    for name, width, height in rows:
        if not isinstance(name, str) or not (isinstance(width, int) and isinstance(height, int)):
            raise InputError(f"{database}: the size of {name!r} is damaged: make it again")
    return {name: (width, height) for name, width, height in rows}


def read_sift(database: Path) -> dict[str, UInt8[np.ndarray, "N 128"]]:
    """COLMAP's own descriptors of every photograph in a database, as it keeps them."""
    query = "SELECT name, data FROM descriptors JOIN images USING (image_id)"
    rows = read_rows(database, query, tables=("images", "descriptors"))
    for name, data in rows:
        whole = data is None or (isinstance(data, bytes) and len(data) % SIFT_DIMENSION == 0)
        if not isinstance(name, str) or not whole:
            raise InputError(f"{database}: the descriptors of {name!r} are damaged: make it again")
    return {
        name: np.frombuffer(data or b"", np.uint8).reshape(-1, SIFT_DIMENSION)
        for name, data in rows
    }


def copy_cameras(source: Path, target: Path) -> None:
    """Gives a database the cameras of another one of the same photographs.

    COLMAP guesses focal lengths from what cameras noted in the files: two reconstructions that are
    compared should start from the same.
    """
    with contextlib.closing(sqlite3.connect(target)) as connection:
        connection.execute("ATTACH ? AS source", (str(source),))
        with connection:
            connection.execute("DELETE FROM main.cameras")
            connection.execute("INSERT INTO main.cameras SELECT * FROM source.cameras")
            connection.execute(
                "UPDATE main.images SET camera_id = (SELECT camera_id FROM source.images "
                "WHERE source.images.name = main.images.name)"
            )


def _run(
    command: str,
    options: Mapping[str, object],
    log: Path,
    watch: Callable[[], object] | None = None,
) -> None:
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words = [require_colmap(), command, *flags, "--random_seed", str(SEED)]
    run_logged(words, log, what=f"colmap {command}", watch=watch)


def run_logged(
    words: Sequence[str], log: Path, *, what: str, watch: Callable[[], object] | None = None
) -> None:
    """Runs a program to its end; what it prints goes to the end of the log.

    Args:
        words: the program and its arguments.
        log: a file.
        what: is run, for the message if it fails.
        watch: is called now and then meanwhile, and at the end.
    """
    with log.open("a", encoding="utf-8") as file:
        print(f"\n$ {' '.join(words)}", file=file, flush=True)
        # COLMAP opens a display even where it draws nothing.
        environment = {"QT_QPA_PLATFORM": "offscreen", **os.environ}
        with subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment
        ) as process:
            try:
                code = _wait(process, watch)
            except BaseException:
                process.kill()
                raise
    if code:
        raise InputError(f"{what} failed with exit code {code}: see {log}")


def _wait(process: subprocess.Popen[bytes], watch: Callable[[], object] | None) -> int:
    while watch is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WATCHING_SECONDS)
        watch()
        if process.returncode is not None:
            break
    return process.wait()
