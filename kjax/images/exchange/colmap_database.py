"""COLMAP databases with keypoints and matches, as input of `colmap mapper`.

Positions have COLMAP's origin: the centre of the first pixel is (0.5, 0.5). Descriptors are left
out, as COLMAP would treat them as SIFT. The tables are those of COLMAP 3.8; later versions migrate
a database when they open it.
"""

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from kjax.data.colmap import PIXEL_CENTRE, keypoint_shapes, read_keypoints, read_rows
from kjax.errors import InputError
from kjax.files.atomic import write_whole
from kjax.images.features import Features, from_radians, from_sigmas

SIMPLE_RADIAL = 2
"""Number of the camera model: focal length, centre (x, y), one distortion coefficient."""
FOCAL_GUESS = 1.2
"""Default focal length over the longer side of an image, as in COLMAP."""
PAIR_BASE = 2**31 - 1
"""The id of a pair is the smaller image id times this plus the larger one."""
_VERSION = 3800
_TABLES = (
    "CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, "
    "model INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB, "
    "prior_focal_length INTEGER NOT NULL)",
    "CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, "
    "name TEXT NOT NULL UNIQUE, camera_id INTEGER NOT NULL, prior_qw REAL, prior_qx REAL, "
    "prior_qy REAL, prior_qz REAL, prior_tx REAL, prior_ty REAL, prior_tz REAL, "
    f"CONSTRAINT image_id_check CHECK(image_id >= 0 and image_id < {PAIR_BASE}), "
    "FOREIGN KEY(camera_id) REFERENCES cameras(camera_id))",
    "CREATE UNIQUE INDEX index_name ON images(name)",
    *(
        f"CREATE TABLE {name} (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, "
        "cols INTEGER NOT NULL, data BLOB, "
        "FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE)"
        for name in ("keypoints", "descriptors")
    ),
    "CREATE TABLE matches (pair_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, "
    "cols INTEGER NOT NULL, data BLOB)",
    "CREATE TABLE two_view_geometries (pair_id INTEGER PRIMARY KEY NOT NULL, "
    "rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB, config INTEGER NOT NULL, "
    "F BLOB, E BLOB, H BLOB, qvec BLOB, tvec BLOB)",
)


class CameraGuess(NamedTuple):
    """An uncalibrated camera. Images of one camera share its identity."""

    identity: str
    focal: float | None = None
    """Focal length in pixels; None lets COLMAP refine a guess."""


class Geometry(NamedTuple):
    """A row of `two_view_geometries` without the pair, as COLMAP's verification writes it."""

    rows: int
    cols: int
    data: bytes | None
    config: int
    F: bytes | None
    E: bytes | None
    H: bytes | None
    qvec: bytes | None
    tvec: bytes | None


def write_database(
    path: str | os.PathLike[str],
    photos: Mapping[str, Features],
    pairs: Mapping[tuple[str, str], Int32[np.ndarray, "_ 2"]],
    *,
    cameras: Mapping[str, CameraGuess] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a COLMAP database atomically.

    Images are named by their paths below COLMAP's --image_path. By default, each has its own camera
    of unknown focal length. Matches are indices of keypoints.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: choose another name, or pass overwrite=True")
    for (first, second), indices in pairs.items():
        if first == second or (second, first) in pairs:
            raise InputError(f"{first} and {second} are given twice: pass each pair once")
        if missing := [name for name in (first, second) if name not in photos]:
            raise InputError(f"{missing[0]} has matches but no features: pass its features, too")
        counts = np.array([[len(photos[first]), len(photos[second])]])
        if ((indices < 0) | (indices >= counts)).any():
            raise InputError(f"matches of {first} and {second} do not fit: match again")
    guesses = cameras or {name: CameraGuess(name) for name in photos}
    ids = {name: number for number, name in enumerate(photos, start=1)}
    sizes: dict[str, tuple[int, int]] = {}
    for name, features in photos.items():
        if sizes.setdefault(guesses[name].identity, features.image_size) != features.image_size:
            raise InputError("images of one camera have several sizes: give them separate cameras")

    def write(partial: Path) -> None:
        with contextlib.closing(sqlite3.connect(partial)) as connection, connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            focals = dict(guesses[name] for name in reversed(list(photos)))  # the first counts
            numbers = {identity: number for number, identity in enumerate(sizes, start=1)}
            for identity, (width, height) in sizes.items():
                focal = focals[identity]
                length = FOCAL_GUESS * max(width, height) if focal is None else focal
                parameters = _blob(np.array([length, width / 2, height / 2, 0.0]), "<f8")
                row = (numbers[identity], SIMPLE_RADIAL, width, height, parameters)
                connection.execute(
                    "INSERT INTO cameras VALUES (?, ?, ?, ?, ?, ?)", (*row, focal is not None)
                )
            for name, features in photos.items():
                connection.execute(
                    "INSERT INTO images (image_id, name, camera_id) VALUES (?, ?, ?)",
                    (ids[name], name, numbers[guesses[name].identity]),
                )
                table = features.xy + np.float32(PIXEL_CENTRE)
                sigmas, angles = features.sigmas(), features.radians()
                if sigmas is not None:
                    angles = np.zeros_like(sigmas) if angles is None else angles
                    table = np.column_stack([table, sigmas, angles])
                connection.execute(
                    "INSERT INTO keypoints VALUES (?, ?, ?, ?)",
                    (ids[name], *table.shape, _blob(table, "<f4")),
                )
            for (first, second), indices in pairs.items():
                if ids[first] > ids[second]:
                    first, second, indices = second, first, indices[:, ::-1]
                connection.execute(
                    "INSERT INTO matches VALUES (?, ?, 2, ?)",
                    (ids[first] * PAIR_BASE + ids[second], len(indices), _blob(indices, "<u4")),
                )

    write_whole(path, write)


def _blob(array: np.ndarray, dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def read_features(path: str | os.PathLike[str]) -> dict[str, Features]:
    """Read keypoints of all images in a database, without descriptors."""
    query = "SELECT name, width, height FROM images JOIN cameras USING (camera_id)"
    photos, sizes = {}, {name: size for name, *size in read_rows(path, query)}
    for name, table in read_keypoints(path).items():
        match sizes.get(name):
            case [int(width), int(height)]:
                sigmas, angles = keypoint_shapes(table) if table.shape[1] > 2 else (None, None)
                photos[name] = Features(
                    xy=(table[:, :2] - PIXEL_CENTRE).astype(np.float32),
                    descriptors=np.zeros((len(table), 0), np.float32),
                    image_size=(width, height),
                    scales=from_sigmas(sigmas),
                    angles=from_radians(angles),
                )
            case _:
                raise InputError(f"{path} lacks the camera of {name}: make it again")
    return photos


def read_matches(
    path: str | os.PathLike[str], *, verified: bool = False
) -> dict[tuple[str, str], Int32[np.ndarray, "K 2"]]:
    """Read the matches, or the verified ones, of all pairs by the names of both images."""
    table = "two_view_geometries" if verified else "matches"
    matches = {}
    for pair, (data,) in _read_pairs(path, table, "data").items():
        data = b"" if data is None else data
        if not isinstance(data, bytes) or len(data) % 8 or (np.frombuffer(data, "<i4") < 0).any():
            raise InputError(f"{path} has damaged matches: match again")
        matches[pair] = np.frombuffer(data, "<i4").reshape(-1, 2).astype(np.int32)
    return matches


def read_geometries(path: str | os.PathLike[str]) -> dict[tuple[str, str], Geometry]:
    """Read the two-view geometries of all pairs by the names of both images."""
    rows = _read_pairs(path, "two_view_geometries", ", ".join(Geometry._fields))
    return {pair: Geometry(*row) for pair, row in rows.items()}


def _read_pairs(
    path: str | os.PathLike[str], table: str, columns: str
) -> dict[tuple[str, str], list[Any]]:
    """Read columns of a table of pairs, by the names of both images."""
    names = dict(read_rows(path, "SELECT image_id, name FROM images"))
    found = {}
    for number, *row in read_rows(path, f"SELECT pair_id, {columns} FROM {table}"):
        ids = divmod(number, PAIR_BASE) if isinstance(number, int) else ()
        pair = tuple(name for name in map(names.get, ids) if isinstance(name, str))
        if len(pair) != 2:
            raise InputError(f"{path} has matches of unknown images (pair {number!r}): match again")
        found[pair] = row
    return found


def add_geometries(
    path: str | os.PathLike[str], geometries: Mapping[tuple[str, str], Geometry]
) -> None:
    """Add geometries of pairs, each in the order of the images' ids."""
    names = ", ".join(("pair_id", *Geometry._fields))
    values = ", ".join("?" * (1 + len(Geometry._fields)))
    insert = f"INSERT INTO two_view_geometries ({names}) VALUES ({values})"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        numbers = dict(connection.execute("SELECT name, image_id FROM images"))
        for (first, second), geometry in geometries.items():
            number = numbers[first] * PAIR_BASE + numbers[second]
            connection.execute(insert, (number, *geometry))
