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
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from kjax.data.colmap import read_rows
from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.files.images import open_image

SEED = 0
SIFT_DIMENSION = 128
ALL_THREADS = -1
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


def reconstruct(
    database: Path, photos: Path, out: Path, *, log: Path, threads: int = 1
) -> list[Path]:
    """The folders of the models that COLMAP finds from verified matches: there may be none."""
    out.mkdir(parents=True)
    options = {
        "database_path": database,
        "image_path": photos,
        "output_path": out,
        "Mapper.num_threads": threads,
    }
    try:
        _run("mapper", options, log)
    except InputError:
        if NO_MODEL not in log.read_text(encoding="utf-8", errors="replace"):
            raise
    return sorted(path.parent for path in out.glob("*/images.bin"))


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


def _run(command: str, options: Mapping[str, object], log: Path) -> None:
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with log.open("a", encoding="utf-8") as file:
        print(f"\n$ colmap {command} {' '.join(flags)}", file=file, flush=True)
        done = subprocess.run(
            [require_colmap(), command, *flags, "--random_seed", str(SEED)],
            stdout=file,
            stderr=subprocess.STDOUT,
            # COLMAP opens a display even where it draws nothing.
            env={"QT_QPA_PLATFORM": "offscreen", **os.environ},
            check=False,
        )
    if done.returncode:
        raise InputError(f"colmap {command} failed with exit code {done.returncode}: see {log}")
