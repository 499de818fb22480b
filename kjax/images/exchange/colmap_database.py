"""COLMAP databases with keypoints and matches: all that `colmap mapper` needs.

Positions get COLMAP's origin: the centre of the first pixel is (0.5, 0.5). Descriptors are left
out, as COLMAP would take them for SIFT's: the matches are ours. The tables are those of COLMAP 3.8,
which later versions bring up to date when they open a database.
"""

import contextlib
import dataclasses
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int32

from kjax.data.colmap import PIXEL_CENTRE, keypoint_shapes, read_keypoints, read_rows
from kjax.errors import InputError
from kjax.files.atomic import write_whole
from kjax.images.features import Features, from_radians, from_sigmas

SIMPLE_RADIAL = 2
"""Number of the camera model: focal length, centre (x, y), one coefficient of distortion."""
FOCAL_GUESS = 1.2
"""Focal length over the longer side of a photograph, as COLMAP guesses."""
PAIR_BASE = 2**31 - 1
"""A pair's number is the smaller image's number times this plus the larger one's."""
UNCALIBRATED, PLANAR_OR_PANORAMIC = 3, 6
"""Numbers of the two-view geometries that have a fundamental matrix, and a homography."""
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
    """A camera before its calibration.

    Attributes:
        identity: photographs of one camera have the same.
        focal: length in pixels, if it is known; otherwise a guess for COLMAP to refine.
    """

    identity: str
    focal: float | None = None


class Geometry(NamedTuple):
    """A row of `two_view_geometries` as COLMAP writes it: what its verification found of a pair."""

    rows: int
    cols: int
    data: bytes | None
    config: int
    F: bytes | None
    E: bytes | None
    H: bytes | None
    qvec: bytes | None
    tvec: bytes | None


@dataclasses.dataclass(frozen=True)
class Pair:
    """The matches of two photographs, first to second.

    Attributes:
        indices: of their keypoints.
        verified: the matches that a geometric verification kept. With None, COLMAP has to verify
            them: `colmap matches_importer --match_type pairs` with a list of the pairs does so.
        homography: H of the verified matches, with second ~ H first, in kjax's pixels.
        fundamental: F of the verified matches, with secondᵀ F first = 0, in kjax's pixels.
    """

    indices: Int32[np.ndarray, "K 2"]
    verified: Int32[np.ndarray, "V 2"] | None = None
    homography: Float64[np.ndarray, "3 3"] | None = None
    fundamental: Float64[np.ndarray, "3 3"] | None = None

    def turned(self) -> "Pair":
        """The same from the second photograph to the first."""
        return Pair(
            self.indices[:, ::-1],
            None if self.verified is None else self.verified[:, ::-1],
            None if self.homography is None else np.linalg.inv(self.homography),
            None if self.fundamental is None else self.fundamental.T,
        )


def write_database(
    path: str | os.PathLike[str],
    photos: Mapping[str, Features],
    pairs: Mapping[tuple[str, str], Pair],
    *,
    focal: float | None = None,
    single_camera: bool = False,
    cameras: Mapping[str, CameraGuess] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a COLMAP database, whole or not at all.

    Args:
        path: of the database.
        photos: features by the photograph's path below COLMAP's --image_path.
        pairs: matches by the names of both photographs.
        focal: length in pixels, if it is known; otherwise a guess for COLMAP to refine.
        single_camera: whether one camera took all photographs, which must then be of one size.
        cameras: of all photographs by name, in the place of `focal` and `single_camera`.
        overwrite: whether an existing file may be replaced.

    Raises:
        InputError: the file exists, or the pairs do not fit the photographs.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: give another name, or overwrite=True")
    _check_pairs(photos, pairs)
    if cameras is None:
        cameras = {name: CameraGuess("" if single_camera else name, focal) for name in photos}
    taken = {(cameras[name].identity, features.image_size) for name, features in photos.items()}
    if len(taken) > len({cameras[name].identity for name in photos}):
        raise InputError("photographs of several sizes are not of a single camera")

    def write(partial: Path) -> None:
        with contextlib.closing(sqlite3.connect(partial)) as connection, connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            numbers = _add_photos(connection, photos, cameras)
            for (first, second), pair in pairs.items():
                _add_pair(connection, numbers[first], numbers[second], pair)

    write_whole(path, write)


def read_features(
    path: str | os.PathLike[str], image_sizes: Mapping[str, tuple[int, int]]
) -> dict[str, Features]:
    """Positions, scales and angles of photographs in a database, without descriptors.

    Raises:
        InputError: it is no COLMAP database, or the size of a photograph in it is not given.
    """
    photos = {}
    for name, table in read_keypoints(path).items():
        if name not in image_sizes:
            raise InputError(f"{path} has {name}, whose size is not given: give all sizes")
        sigmas, angles = keypoint_shapes(table) if table.shape[1] > 2 else (None, None)
        photos[name] = Features(
            xy=(table[:, :2] - PIXEL_CENTRE).astype(np.float32),
            descriptors=np.zeros((len(table), 0), np.float32),
            image_size=image_sizes[name],
            scales=from_sigmas(sigmas),
            angles=from_radians(angles),
        )
    return photos


def read_matches(
    path: str | os.PathLike[str], *, verified: bool = False
) -> dict[tuple[str, str], Int32[np.ndarray, "K 2"]]:
    """The matches of all pairs in a database, by the names of both photographs.

    Those of the verified two-view geometries, if asked for.

    Raises:
        InputError: it is no COLMAP database.
    """
    table = "two_view_geometries" if verified else "matches"
    names = dict(read_rows(path, "SELECT image_id, name FROM images", tables=("images",)))
    records = read_rows(path, f"SELECT pair_id, data FROM {table}", tables=(table,))
    return {
        _named_pair(path, names, number): _match_table(path, data or b"")
        for number, data in records
    }


def read_geometries(path: str | os.PathLike[str]) -> dict[tuple[str, str], Geometry]:
    """What COLMAP's verification found of pairs, by the names of both photographs.

    Raises:
        InputError: it is no COLMAP database.
    """
    names = dict(read_rows(path, "SELECT image_id, name FROM images", tables=("images",)))
    query = f"SELECT pair_id, {', '.join(Geometry._fields)} FROM two_view_geometries"
    records = read_rows(path, query, tables=("two_view_geometries",))
    return {_named_pair(path, names, number): Geometry(*rest) for number, *rest in records}


def add_geometries(
    path: str | os.PathLike[str], geometries: Mapping[tuple[str, str], Geometry]
) -> None:
    """Adds what was found elsewhere, of photographs that have the same order here."""
    fields = ("pair_id", *Geometry._fields)
    insert = (
        f"INSERT INTO two_view_geometries ({', '.join(fields)}) "
        f"VALUES ({', '.join('?' * len(fields))})"
    )
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        numbers = dict(connection.execute("SELECT name, image_id FROM images"))
        for (first, second), geometry in geometries.items():
            if numbers[first] > numbers[second]:
                raise ValueError(f"the geometry of {first} and {second} is the other way round")
            number = numbers[first] * PAIR_BASE + numbers[second]
            connection.execute(insert, (number, *geometry))


def _named_pair(
    path: str | os.PathLike[str], names: Mapping[int, Any], number: Any
) -> tuple[str, str]:
    images = divmod(number, PAIR_BASE) if isinstance(number, int) else (None, None)
    first, second = (names.get(image) if image is not None else None for image in images)
    if not isinstance(first, str) or not isinstance(second, str):
        raise InputError(f"{path} has matches of pair {number!r}, whose photographs it lacks")
    return first, second


def _match_table(path: str | os.PathLike[str], data: Any) -> Int32[np.ndarray, "K 2"]:
    if not isinstance(data, bytes) or len(data) % 8:
        raise InputError(f"{path} has damaged matches, which are no pairs: match again")
    indices = np.frombuffer(data, "<u4").reshape(-1, 2)
    if (indices > np.iinfo(np.int32).max).any():
        raise InputError(f"{path} has matches with keypoints that cannot be: match again")
    return indices.astype(np.int32)


def _check_pairs(photos: Mapping[str, Features], pairs: Mapping[tuple[str, str], Pair]) -> None:
    for names, pair in pairs.items():
        first, second = names
        if first == second or names[::-1] in pairs:
            raise InputError(f"{first} and {second} are no pair, or a pair twice: give each once")
        for name in names:
            if name not in photos:
                raise InputError(f"{name} has matches but no features: give the features of all")
        counts = np.array([len(photos[first]), len(photos[second])])
        for indices in (pair.indices, pair.verified):
            if indices is not None and ((indices < 0) | (indices >= counts[None])).any():
                raise InputError(
                    f"matches of {first} and {second} do not fit their keypoints: match them again"
                )


def _add_photos(
    connection: sqlite3.Connection,
    photos: Mapping[str, Features],
    cameras: Mapping[str, CameraGuess],
) -> dict[str, int]:
    numbers: dict[str, int] = {}
    known: dict[str, int] = {}
    for number, (name, features) in enumerate(photos.items(), start=1):
        identity, focal = cameras[name]
        if identity not in known:
            known[identity] = len(known) + 1
            _add_camera(connection, known[identity], features.image_size, focal)
        connection.execute(
            "INSERT INTO images (image_id, name, camera_id) VALUES (?, ?, ?)",
            (number, name, known[identity]),
        )
        table = _keypoint_table(features)
        connection.execute(
            "INSERT INTO keypoints VALUES (?, ?, ?, ?)", (number, *table.shape, _blob(table, "<f4"))
        )
        numbers[name] = number
    return numbers


def _add_camera(
    connection: sqlite3.Connection, number: int, size: tuple[int, int], focal: float | None
) -> None:
    width, height = size
    length = FOCAL_GUESS * max(size) if focal is None else focal
    parameters = np.array([length, width / 2, height / 2, 0.0])
    connection.execute(
        "INSERT INTO cameras VALUES (?, ?, ?, ?, ?, ?)",
        (number, SIMPLE_RADIAL, width, height, _blob(parameters, "<f8"), int(focal is not None)),
    )


def _keypoint_table(features: Features) -> Float32[np.ndarray, "N columns"]:
    xy = features.xy + np.float32(PIXEL_CENTRE)
    sigmas, angles = features.sigmas(), features.radians()
    if sigmas is None:
        return xy
    return np.column_stack([xy, sigmas, np.zeros_like(sigmas) if angles is None else angles])


def _add_pair(connection: sqlite3.Connection, first: int, second: int, pair: Pair) -> None:
    if first > second:
        first, second, pair = second, first, pair.turned()
    number = first * PAIR_BASE + second
    connection.execute(
        "INSERT INTO matches VALUES (?, ?, 2, ?)",
        (number, len(pair.indices), _blob(pair.indices, "<u4")),
    )
    if pair.verified is None:
        return
    homography, fundamental = _shifted(pair)
    connection.execute(
        "INSERT INTO two_view_geometries (pair_id, rows, cols, data, config, F, H) "
        "VALUES (?, ?, 2, ?, ?, ?, ?)",
        (
            number,
            len(pair.verified),
            _blob(pair.verified, "<u4"),
            UNCALIBRATED if pair.homography is None else PLANAR_OR_PANORAMIC,
            _blob(fundamental, "<f8"),
            _blob(homography, "<f8"),
        ),
    )


def _shifted(pair: Pair) -> tuple[np.ndarray | None, np.ndarray | None]:
    """H and F between positions with COLMAP's origin."""
    shift = np.array([[1, 0, PIXEL_CENTRE], [0, 1, PIXEL_CENTRE], [0, 0, 1.0]])
    back = np.array([[1, 0, -PIXEL_CENTRE], [0, 1, -PIXEL_CENTRE], [0, 0, 1.0]])
    homography, fundamental = pair.homography, pair.fundamental
    return (
        None if homography is None else shift @ homography @ back,
        None if fundamental is None else back.T @ fundamental @ back,
    )


def _blob(array: np.ndarray | None, dtype: str) -> Any:
    """Row after row."""
    return None if array is None else np.ascontiguousarray(array, dtype).tobytes()
