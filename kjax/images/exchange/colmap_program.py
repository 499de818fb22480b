"""COLMAP and pycolmap as programs, run reproducibly. Written for COLMAP 3.8, on the CPU.

Every command has a fixed random seed and by default one thread. COLMAP's threads each have their
own random generator: with several, the result depends on which pair reaches which thread. Only
COLMAP's SIFT matching on the CPU stays random: 3.8 uses random trees without a seed.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kjax.data.colmap import Model, read_model
from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.files.images import open_image
from kjax.images.exchange.colmap_database import read_matches

SEED = 0
ALL_THREADS = -1
WATCH_SECONDS = 0.2
"""Interval between calls of `watch`."""
CLOSE_START = {"init_min_tri_angle": 4, "init_min_num_inliers": 50, "init_max_forward_motion": 1}
"""Mapper options for an initial pair of close images: a quarter of COLMAP's angle between rays,
half of its matches, and any forward motion."""
ATTEMPTS: tuple[dict[str, int], ...] = ({}, CLOSE_START)
"""Options of successive mapper runs, until one finds a model; streets may need the second."""
NO_MODEL = b"failed to create sparse model"
"""Message of the mapper if it finds no model, with an exit code of failure."""
SCRIPT = Path(__file__).with_name("pycolmap_script.py")
Watch = Callable[[], object]


class Reconstructor(NamedTuple):
    """A program that verifies and maps."""

    name: str
    """With the version, as results depend on it."""
    verify: Callable[..., None]
    """Adds two-view geometries to a database with matches."""
    reconstruct: Callable[..., list[Path]]
    """Writes models below a new folder and returns their folders."""


def find_reconstructor(program: Literal["auto", "pycolmap", "colmap"] = "auto") -> Reconstructor:
    """Return pycolmap if it is installed, else COLMAP; or the given one."""
    installed = importlib.util.find_spec("pycolmap") is not None
    if program == "pycolmap" and not installed:
        raise InputError("pycolmap is not installed: pip install pycolmap")
    if installed and program != "colmap":
        version = importlib.metadata.version("pycolmap")
        return Reconstructor(f"pycolmap {version}", pycolmap_verify, pycolmap_reconstruct)
    if program == "auto" and shutil.which("colmap") is None:
        raise InputError("neither pycolmap nor COLMAP is installed: pip install pycolmap")
    help_command = [require_colmap(), "help"]
    text = subprocess.run(help_command, capture_output=True, text=True, check=False).stdout
    return Reconstructor(text.partition(" --")[0].strip() or "COLMAP", verify_matches, reconstruct)


def require_colmap() -> str:
    """Return the path of COLMAP, or raise with a hint how to install it."""
    found = shutil.which("colmap")
    if found is None:
        raise InputError("colmap is not on the PATH: install it, e.g. with apt-get install colmap")
    return found


def of_one_size(photos: Path) -> bool:
    """Return whether all readable images of a folder have the same size."""
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
    """Run COLMAP's SIFT on a folder of images and write a new database."""
    options = {
        "image_path": photos,
        "SiftExtraction.max_num_features": max_keypoints,
        "ImageReader.single_camera": int(single_camera),
        "ImageReader.single_camera_per_image": int(not single_camera),
        "SiftExtraction.use_gpu": 0,
        "SiftExtraction.num_threads": threads,
    }
    _run_colmap("feature_extractor", database, options, log)


def match_and_verify(
    database: Path, *, log: Path, threads: int = 1, neighbours: int | None = None
) -> None:
    """Verify pairs; COLMAP matches its SIFT descriptors for pairs without matches.

    With `neighbours`, each image is matched with as many that follow it by name, else with all.
    """
    options = {"SiftMatching.use_gpu": 0, "SiftMatching.num_threads": threads}
    if neighbours is not None:
        options["SequentialMatching.overlap"] = neighbours
    command = "exhaustive_matcher" if neighbours is None else "sequential_matcher"
    _run_colmap(command, database, options, log)


def verify_matches(database: Path, *, log: Path) -> None:
    """Verify the matches in a database; image names must not contain spaces."""
    listed = database.with_suffix(".pairs.txt")
    listed.write_text("".join(f"{first} {second}\n" for first, second in read_matches(database)))
    options = {
        "match_list_path": listed,
        "match_type": "pairs",
        "SiftMatching.use_gpu": 0,
        "SiftMatching.num_threads": 1,
    }
    _run_colmap("matches_importer", database, options, log)


def pycolmap_verify(database: Path, *, log: Path) -> None:
    """Verify the matches in a database with pycolmap."""
    run_logged([sys.executable, SCRIPT, "verify", database], log, what="pycolmap (verify)")


def reconstruct(
    database: Path,
    photos: Path,
    out: Path,
    *,
    log: Path,
    threads: int = 1,
    watch: Watch | None = None,
) -> list[Path]:
    """Map verified matches into a new folder and return the folders of the models, maybe none."""
    out.mkdir(parents=True)
    options = {"image_path": photos, "output_path": out, "Mapper.num_threads": threads}
    for start in ATTEMPTS:
        before = log.stat().st_size if log.exists() else 0
        mapper = {f"Mapper.{name}": value for name, value in start.items()}
        try:
            _run_colmap("mapper", database, options | mapper, log, watch)
        except InputError:
            if NO_MODEL not in log.read_bytes()[before:]:
                raise
        if found := models_below(out):
            return found
    return []


def pycolmap_reconstruct(
    database: Path, photos: Path, out: Path, *, log: Path, threads: int = 1, watch: Watch
) -> list[Path]:
    """Like `reconstruct`, with pycolmap."""
    out.mkdir(parents=True)
    # Newer versions migrate a database to a format that COLMAP 3.8 cannot read.
    copied = shutil.copy(database, out.with_suffix(".db"))
    for start in ATTEMPTS:
        options = [f"{name}={value}" for name, value in start.items()]
        command = [sys.executable, SCRIPT, "map", copied, photos, out, threads, *options]
        run_logged(command, log, what="pycolmap (map)", watch=watch)
        if found := models_below(out):
            return found
    return []


def models_below(folder: Path) -> list[Path]:
    """Return the folders of the models that a mapper has written."""
    return sorted(path.parent for path in folder.glob("*/images.bin"))


def largest_model(folders: Iterable[Path]) -> Model | None:
    """Return the model with the most images, then points; None if there is none."""
    return max(map(read_model, folders), key=model_size, default=None)


def model_size(model: Model) -> tuple[int, int]:
    """Return the number of images and of points, by which models are ordered."""
    return len(model.images), len(model.points.ids)


def copy_cameras(source: Path, target: Path) -> None:
    """Give a database the cameras of another one with the same images, to compare both fairly."""
    with contextlib.closing(sqlite3.connect(target)) as connection:
        connection.execute("ATTACH ? AS source", (str(source),))
        with connection:
            connection.execute("DELETE FROM main.cameras")
            connection.execute("INSERT INTO main.cameras SELECT * FROM source.cameras")
            connection.execute(
                "UPDATE main.images SET camera_id = (SELECT camera_id FROM source.images "
                "WHERE source.images.name = main.images.name)"
            )


def _run_colmap(
    command: str, database: Path, options: Mapping[str, Any], log: Path, watch: Watch | None = None
) -> None:
    options = {"database_path": database, **options, "random_seed": SEED}
    flags = [text for name, value in options.items() for text in (f"--{name}", value)]
    run_logged([require_colmap(), command, *flags], log, what=f"colmap {command}", watch=watch)


def run_logged(
    command: Sequence[object], log: Path, *, what: str, watch: Watch | None = None
) -> None:
    """Run a program to its end, append its output to the log, and call `watch` regularly."""
    words = [str(word) for word in command]
    with log.open("a", encoding="utf-8") as file:
        print(f"\n$ {' '.join(words)}", file=file, flush=True)
        # COLMAP opens a display even if it draws nothing.
        environment = {"QT_QPA_PLATFORM": "offscreen", **os.environ}
        with subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment
        ) as process:
            try:
                while watch is not None and process.returncode is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(WATCH_SECONDS)
                    watch()
                code = process.wait()
            except BaseException:
                process.kill()
                raise
    if code:
        raise InputError(f"{what} failed with exit code {code}: see {log}")
