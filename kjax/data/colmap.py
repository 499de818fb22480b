"""Readers of what COLMAP (3.6 or later) leaves behind: sparse models and keypoint databases.

A model is a folder with `cameras`, `images` and `points3D`, all `.bin` or all `.txt`; the `rigs`
and `frames` that newer versions add are not needed here. Coordinates stay in COLMAP's convention:
the CENTRE of the top-left pixel is (0.5, 0.5).
"""

import contextlib
import math
import os
import re
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from jaxtyping import Float, Int64

from kjax.errors import InputError

Folder = str | os.PathLike[str]

PARAMETER_COUNTS = (3, 4, 4, 5, 8, 8, 12, 5, 4, 5, 12, 16, 4, 5, 3, 4, 6, 2)
"""Numbers that each camera model has, by COLMAP's model number. The first is the focal length."""
EQUIRECTANGULAR = (17, "EQUIRECTANGULAR")
"""Number and name of the one model without a focal length."""
PIXEL_CENTRE = 0.5
"""Coordinates of the top-left pixel's centre in COLMAP; ours are 0 there."""
NO_POINT = -1
"""The entry of `ModelImage.point_ids` for a keypoint that sees no reconstructed point."""


class Camera(NamedTuple):
    """What patch cutting needs to know of a camera."""

    width: int
    height: int
    focal: float
    """Focal length in pixels."""
    parameters: tuple[float, ...] = ()
    """All of the camera model's, the focal length first."""


class ModelImage(NamedTuple):
    """One photograph of a model."""

    name: str
    """Path below the folder of photographs."""
    camera_id: int
    rotation: Float[np.ndarray, "3 3"]
    """Rotation from world to camera: a world point X is at rotation @ X + translation."""
    translation: Float[np.ndarray, "3"]
    xy: Float[np.ndarray, "K 2"]
    """Keypoints, in the order of the database."""
    point_ids: Int64[np.ndarray, " K"]
    """The 3-D point that each keypoint sees, or NO_POINT."""


class Points(NamedTuple):
    """The 3-D points of a model, in the order of their ids."""

    ids: Int64[np.ndarray, " P"]
    xyz: Float[np.ndarray, "P 3"]
    error: Float[np.ndarray, " P"]
    """Mean reprojection error in pixels; negative where COLMAP has not computed it."""


class Model(NamedTuple):
    """A sparse reconstruction."""

    cameras: dict[int, Camera]
    images: dict[int, ModelImage]
    points: Points


# Models


def read_model(folder: Folder) -> Model:
    """Reads a sparse model, binary or text; like COLMAP, the binary one where both are there.

    Raises:
        InputError: a file is missing, cut short or not of this format, or the three disagree.
    """
    folder = Path(folder)
    suffix = _find_suffix(folder)
    paths = [folder / f"{stem}{suffix}" for stem in ("cameras", "images", "points3D")]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{folder} lacks {path.name}: copy the whole model folder")
    in_binary = (_binary_cameras, _binary_images, _binary_points)
    in_text = (_text_cameras, _text_images, _text_points)
    readers: Any = in_binary if suffix == ".bin" else in_text
    cameras, images, points = (read(path) for read, path in zip(readers, paths, strict=True))
    model = Model(dict(cameras), dict(images), _stack_points(paths[2], points))
    _check_references(folder, model)
    return model


def _find_suffix(folder: Path) -> str:
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    for suffix in (".bin", ".txt"):
        if (folder / f"images{suffix}").is_file():
            return suffix
    below = sorted(path.parent for path in folder.glob("*/images.*"))
    hint = f"did you mean {below[0]}? " if below else ""
    raise InputError(
        f"{folder} has neither images.bin nor images.txt: {hint}give the folder of a sparse model"
    )


def _check_references(folder: Path, model: Model) -> None:
    """Refuses files that do not belong together."""
    for image in model.images.values():
        if image.camera_id not in model.cameras:
            raise InputError(
                f"{folder}: {image.name} uses camera {image.camera_id}, which is not among the "
                "cameras: the files are of different models"
            )
        seen = image.point_ids[image.point_ids != NO_POINT]
        missing = seen[~np.isin(seen, model.points.ids)]
        if len(missing):
            raise InputError(
                f"{folder}: {image.name} sees point {missing[0]}, which is not among the points: "
                "the files are of different models"
            )


def _camera(
    where: object, model: int | str, width: int, height: int, parameters: tuple[float, ...]
) -> Camera:
    if model in EQUIRECTANGULAR:
        raise InputError(
            f"{where}: panoramas (EQUIRECTANGULAR cameras) have no patches of known scale"
        )
    focal = parameters[0]
    if not 0 < focal < math.inf or min(width, height) < 1:
        raise InputError(
            f"{where}: a camera of {width}×{height} pixels has the focal length {focal}"
        )
    return Camera(width, height, focal, tuple(parameters))


def _image(
    where: object,
    name: str,
    camera_id: int,
    pose: tuple[float, ...],
    xy: np.ndarray,
    point_ids: np.ndarray,
) -> ModelImage:
    quaternion, translation = np.array(pose[:4]), np.array(pose[4:])
    length = np.linalg.norm(quaternion)
    if not 0 < length < np.inf or not np.isfinite(translation).all():
        raise InputError(f"{where}: {name} has no pose: its quaternion is {pose[:4]}")
    return ModelImage(
        name, camera_id, _rotation_matrix(quaternion / length), translation, xy, point_ids
    )


def _rotation_matrix(quaternion: Float[np.ndarray, "4"]) -> Float[np.ndarray, "3 3"]:
    """The rotation matrix of a quaternion (w, x, y, z) of length 1."""
    w, x, y, z = quaternion
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


def _stack_points(path: Path, points: Iterator[tuple[int, tuple[float, ...], float]]) -> Points:
    rows = sorted(points)  # COLMAP's order is that of a hash table
    if rows and not 0 <= rows[0][0] <= rows[-1][0] < 2**63:
        raise InputError(f"{path} numbers its points {rows[0][0]} to {rows[-1][0]}: it is damaged")
    return Points(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.float64).reshape(-1, 3),
        np.array([row[2] for row in rows], np.float64),
    )


# Binary files


class _Cursor:
    """Reads little-endian values from a file, one after the other, and notices its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = path.read_bytes()
        self._at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        """The next values, laid out as `struct` describes."""
        return struct.unpack("<" + layout, self._advance(struct.calcsize("<" + layout)))

    def take_array(self, dtype: np.dtype, count: int) -> np.ndarray:
        """The next `count` records."""
        return np.frombuffer(self._advance(dtype.itemsize * count), dtype)

    def take_name(self) -> str:
        """The next text, which ends with a zero byte."""
        end = self._bytes.find(b"\0", self._at)
        if end < 0:
            raise self._truncated()
        name = self._advance(end + 1 - self._at)[:-1]
        return name.decode("utf-8", errors="surrogateescape")

    def records(self) -> Iterator[int]:
        """Numbers of all records, which the caller takes in turn; then there must be no more."""
        yield from range(*self.take("Q"))
        left = len(self._bytes) - self._at
        if left:
            raise InputError(
                f"{self.path} has {left} bytes too many: it is damaged or not of COLMAP's format; "
                "try its text form (colmap model_converter --output_type TXT)"
            )

    def _advance(self, count: int) -> bytes:
        chunk = self._bytes[self._at : self._at + count]
        if len(chunk) < count:
            raise self._truncated()
        self._at += count
        return chunk

    def _truncated(self) -> InputError:
        return InputError(
            f"{self.path} is truncated: it ends at byte {len(self._bytes)}, within a record; "
            "copy the model again"
        )


_TRACK_ELEMENT = np.dtype([("image", "<u4"), ("keypoint", "<u4")])
_KEYPOINT = np.dtype([("xy", "<f8", 2), ("point", "<i8")])


def _binary_cameras(path: Path) -> Iterator[tuple[int, Camera]]:
    cursor = _Cursor(path)
    for _ in cursor.records():
        camera_id, model, width, height = cursor.take("IiQQ")
        if not 0 <= model < len(PARAMETER_COUNTS):
            raise InputError(
                f"{path} has a camera model unknown here, number {model}: "
                "convert the model to text (colmap model_converter --output_type TXT)"
            )
        parameters = cursor.take(f"{PARAMETER_COUNTS[model]}d")
        yield camera_id, _camera(path, model, width, height, parameters)


def _binary_images(path: Path) -> Iterator[tuple[int, ModelImage]]:
    cursor = _Cursor(path)
    for _ in cursor.records():
        image_id, *pose, camera_id = cursor.take("I7dI")
        name = cursor.take_name()
        (keypoint_count,) = cursor.take("Q")
        keypoints = cursor.take_array(_KEYPOINT, keypoint_count)
        # COLMAP marks a keypoint without a point by the largest uint64, which is −1 here.
        xy, point_ids = keypoints["xy"], keypoints["point"]
        yield image_id, _image(path, name, camera_id, tuple(pose), xy, point_ids)


def _binary_points(path: Path) -> Iterator[tuple[int, tuple[float, ...], float]]:
    cursor = _Cursor(path)
    for _ in cursor.records():
        point_id, x, y, z, _, _, _, error, track_length = cursor.take("Q3d3BdQ")
        cursor.take_array(_TRACK_ELEMENT, track_length)  # the images say the same
        yield point_id, (x, y, z), error


# Text files


@contextlib.contextmanager
def _parsing(path: Path, number: int) -> Iterator[None]:
    """Turns whatever a malformed line provokes into an error that names the line."""
    try:
        yield
    except (ValueError, IndexError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}, line {number}: not of COLMAP's format ({error}); export the model again"
        ) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments. Empty lines stay: they may mean no keypoints."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if not line.startswith("#"):
                yield number, line.strip()


def _text_cameras(path: Path) -> Iterator[tuple[int, Camera]]:
    for number, line in _lines(path):
        if not line:
            continue
        with _parsing(path, number):
            camera_id, model, width, height, *parameters = line.split()
            numbers = tuple(float(parameter) for parameter in parameters)
            sides = int(width), int(height)
            camera = _camera(f"{path}, line {number}", model, *sides, numbers)
            numbered = int(camera_id), camera
        yield numbered


def _text_images(path: Path) -> Iterator[tuple[int, ModelImage]]:
    lines = _lines(path)
    for number, line in lines:
        if not line:
            continue
        with _parsing(path, number):
            image_id, *pose, camera_id, name = line.split(maxsplit=9)
            if len(pose) != 7:
                raise ValueError("fewer than ten values")
            numbers = tuple(float(value) for value in pose)
        number, keypoints = next(lines, (number, None))
        if keypoints is None:
            raise InputError(f"{path} is truncated: {name} lacks its keypoints; copy it again")
        with _parsing(path, number):
            # float64 holds ids exactly up to 2⁵³, far beyond what COLMAP numbers.
            table = np.array(keypoints.split(), np.float64).reshape(-1, 3)
            point_ids = _whole_numbers(table[:, 2])
            where, camera = f"{path}, line {number}", int(camera_id)
            image = _image(where, name, camera, numbers, table[:, :2], point_ids)
            numbered = int(image_id), image
        yield numbered


def _whole_numbers(values: Float[np.ndarray, " K"]) -> Int64[np.ndarray, " K"]:
    if not (np.abs(values) < 2**53).all():  # NaN is not, either
        raise ValueError("a point's number that cannot be")
    return values.astype(np.int64)


def _text_points(path: Path) -> Iterator[tuple[int, tuple[float, ...], float]]:
    for number, line in _lines(path):
        if not line:
            continue
        with _parsing(path, number):
            point_id, x, y, z, _, _, _, error = line.split(maxsplit=8)[:8]
            point = int(point_id), (float(x), float(y), float(z)), float(error)
        yield point


# Databases


def read_keypoints(database: Folder) -> dict[str, Float[np.ndarray, "K columns"]]:
    """The keypoints of every photograph in a COLMAP database, by the photograph's name.

    Columns are x, y, then nothing, or scale and orientation, or the affine shape a11 a12 a21 a22.

    Raises:
        InputError: it is no COLMAP database, or a record in it is damaged.
    """
    path = Path(database)
    query = "SELECT name, rows, cols, data FROM keypoints JOIN images USING (image_id)"
    records = read_rows(path, query, tables=("images", "keypoints"))
    return {str(name): _keypoint_table(path, name, *record) for name, *record in records}


def read_rows(database: Folder, query: str, *, tables: Sequence[str]) -> list[tuple[Any, ...]]:
    """What a query finds in a database, which is only read.

    Args:
        database: the file.
        query: in SQL.
        tables: that it names. They must be plain ones: a view or a virtual table computes its
            rows, and may have no end of them.

    Raises:
        InputError: it is no COLMAP database, or gives more than it can hold.
    """
    path = Path(database)
    if not path.is_file():
        raise InputError(f"no such database: {path}")
    try:
        with contextlib.closing(_connect(path)) as connection:
            _check_tables(connection, tables)
            return list(_bounded(connection.execute(query), _stored_bytes(path)))
    except (sqlite3.Error, ValueError, OverflowError) as error:  # names may be of any bytes
        raise InputError(
            f"{path} cannot be read as a COLMAP database ({error}): "
            "give the one that the model was made from"
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    # Without a write-ahead log beside it nothing is pending, and `immutable` then reads the file
    # from a folder that may not be written to, where SQLite would otherwise want to put its locks.
    mode = "ro" if _log_of(path).exists() else "ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode={mode}", uri=True)
    # A column may be computed: no value of it can be larger than all that is stored.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _stored_bytes(path))
    connection.text_factory = lambda text: text.decode("utf-8", errors="surrogateescape")
    return connection


def _check_tables(connection: sqlite3.Connection, tables: Sequence[str]) -> None:
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    for table in tables:
        sql = found.get(table)
        if sql is None:
            raise InputError(f"no such table: {table}")
        if not re.match(r"\s*CREATE\s+TABLE\b", str(sql), re.IGNORECASE):
            raise InputError(f"{table} is no plain table")


def _bounded(rows: Iterable[tuple[Any, ...]], limit: int) -> Iterator[tuple[Any, ...]]:
    """Yields the rows as long as they hold no more than is stored."""
    total = 0
    for row in rows:
        # Every row takes bytes of the file, even one of empty values.
        total += 1 + sum(len(value) for value in row if isinstance(value, str | bytes))
        if total > limit:
            raise InputError("it gives more than it holds")
        yield row


def _stored_bytes(path: Path) -> int:
    log = _log_of(path)
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def keypoint_shapes(
    keypoints: Float[np.ndarray, "K columns"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Scale σ and orientation (radians, clockwise on screen) of 4- or 6-column keypoints."""
    columns = keypoints.shape[1]
    if not len(keypoints):
        return np.empty(0), np.empty(0)
    if columns == 4:
        return keypoints[:, 2], keypoints[:, 3]
    if columns == 6:
        a11, a12, a21, a22 = keypoints[:, 2:].T
        return (np.hypot(a11, a21) + np.hypot(a12, a22)) / 2, np.arctan2(a21, a11)
    raise InputError(
        "the database's keypoints have no scale and orientation: "
        "extract SIFT features with colmap feature_extractor"
    )


def _keypoint_table(
    path: Path, name: Any, rows: Any, columns: Any, data: Any
) -> Float[np.ndarray, "K columns"]:
    data = data or b""
    sizes = isinstance(rows, int) and isinstance(columns, int) and min(rows, columns) >= 0
    if not sizes or not isinstance(name, str) or not isinstance(data, bytes):
        raise InputError(f"{path}: the keypoints of {name!r} are damaged: extract them again")
    if columns not in (2, 4, 6) and rows:
        raise InputError(f"{path}: keypoints of {name} have {columns} columns, not 2, 4 or 6")
    if len(data) != 4 * rows * columns:
        raise InputError(
            f"{path}: keypoints of {name} are damaged: {len(data)} bytes for {rows}×{columns} "
            "values; extract the features again"
        )
    return np.frombuffer(data, "<f4").reshape(rows, columns).astype(np.float64)
