"""Read COLMAP's (3.6 or later) binary sparse models and keypoint databases.

The `rigs` and `frames` of newer versions are not needed. Coordinates stay in COLMAP's convention:
the CENTRE of the top-left pixel is (0.5, 0.5).
"""

import contextlib
import io
import math
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from jaxtyping import Float, Int64

from kjax.errors import InputError

Folder = str | os.PathLike[str]

PARAMETER_COUNTS = (3, 4, 4, 5, 8, 8, 12, 5, 4, 5, 12, 16, 4, 5, 3, 4, 6)
"""Parameters of each camera model, by COLMAP's number; the first is the focal length."""
PIXEL_CENTRE = 0.5
"""Coordinates of the top-left pixel's centre in COLMAP; ours are 0 there."""
NO_POINT = -1
"""Value in `ModelImage.point_ids` for a keypoint without a reconstructed point."""
_KEYPOINT = np.dtype([("xy", "<f8", 2), ("point", "<i8")])


class Camera(NamedTuple):
    """A camera's size and parameters."""

    width: int
    height: int
    focal: float  # focal length in pixels
    parameters: tuple[float, ...] = ()  # all of the camera model, the focal length first


class ModelImage(NamedTuple):
    """A photograph of a model. A world point X is at rotation @ X + translation of its camera."""

    name: str  # path below the folder of photographs
    camera_id: int
    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]
    xy: Float[np.ndarray, "K 2"]  # keypoints, in the order of the database
    point_ids: Int64[np.ndarray, " K"]  # the 3-D point that each keypoint sees, or NO_POINT


class Points3D(NamedTuple):
    """The 3-D points of a model, sorted by id."""

    ids: Int64[np.ndarray, " P"]
    xyz: Float[np.ndarray, "P 3"]
    error: Float[np.ndarray, " P"]  # mean reprojection error in pixels; negative if unknown


class Model(NamedTuple):
    """A sparse reconstruction."""

    cameras: dict[int, Camera]
    images: dict[int, ModelImage]
    points: Points3D


# Models


def read_model(folder: Folder) -> Model:
    """Read a binary sparse model."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    if not (folder / "images.bin").is_file():
        below = sorted(path.parent for path in folder.glob("*/images.bin"))
        hint = f"did you mean {below[0]}? " if below else ""
        raise InputError(
            f"{folder} has no images.bin: {hint}Give the folder of a sparse model, or convert a "
            "text model with colmap model_converter --output_type BIN"
        )
    found: list[Any] = []
    for name, read in (("cameras", _cameras), ("images", _images), ("points3D", _points)):
        path = folder / f"{name}.bin"
        if not path.is_file():
            raise InputError(f"{folder} lacks {path.name}: copy the whole model folder")
        try:
            found.append(read(_Cursor(path.read_bytes())))
        except (struct.error, ValueError, OverflowError) as error:
            raise InputError(
                f"{path} is truncated or damaged ({error}): copy the model again"
            ) from None
    cameras, images, points = found
    known = np.append(points.ids, NO_POINT)
    for image in images.values():
        if image.camera_id not in cameras or not np.isin(image.point_ids, known).all():
            raise InputError(
                f"{folder}: {image.name} uses camera {image.camera_id} or points that are not in "
                "the model: the files are of different models"
            )
    return Model(cameras, images, points)


class _Cursor(io.BytesIO):
    def take(self, layout: str) -> tuple[Any, ...]:
        """Return the next little-endian values in the layout of `struct`."""
        return struct.unpack("<" + layout, self.read(struct.calcsize("<" + layout)))

    def records(self) -> Iterator[int]:
        """Yield record numbers, of which the caller reads each; raise if bytes are left over."""
        yield from range(*self.take("Q"))
        if self.tell() != len(self.getvalue()):
            raise ValueError(f"records of {self.tell()} of {len(self.getvalue())} bytes")


def _cameras(cursor: _Cursor) -> dict[int, Camera]:
    cameras = {}
    for _ in cursor.records():
        number, model, width, height = cursor.take("IiQQ")
        if not 0 <= model < len(PARAMETER_COUNTS):
            raise ValueError(
                f"camera model {model}, which is not supported: panoramas (EQUIRECTANGULAR, 17) "
                "have no patches of known scale"
            )
        parameters = cursor.take(f"{PARAMETER_COUNTS[model]}d")
        if not 0 < parameters[0] < math.inf or min(width, height) < 1:
            raise ValueError(f"{width}×{height} pixels have the focal length {parameters[0]}")
        cameras[number] = Camera(width, height, parameters[0], parameters)
    return cameras


def _images(cursor: _Cursor) -> dict[int, ModelImage]:
    images = {}
    for _ in cursor.records():
        number, *pose, camera_id = cursor.take("I7dI")
        length = cursor.getvalue().index(b"\0", cursor.tell()) - cursor.tell()
        name = cursor.read(length).decode("utf-8", errors="surrogateescape")
        _, count = cursor.take("BQ")  # the end of the name
        # COLMAP marks a keypoint without a point by the largest uint64, which is −1 here.
        content = cursor.read(_KEYPOINT.itemsize * count)
        keypoints = np.frombuffer(content, _KEYPOINT, count)
        quaternion, translation = np.array(pose[:4]), np.array(pose[4:])
        norm = np.linalg.norm(quaternion)
        if not 0 < norm < np.inf or not np.isfinite(translation).all():
            raise ValueError(f"{name} has no pose")
        w, x, y, z = quaternion / norm
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        rotation = np.eye(3) + 2 * w * cross + 2 * cross @ cross
        images[number] = ModelImage(
            name, camera_id, rotation, translation, keypoints["xy"], keypoints["point"]
        )
    return images


def _points(cursor: _Cursor) -> Points3D:
    rows = []
    for _ in cursor.records():
        number, x, y, z, _, _, _, error, track_length = cursor.take("Q3d3BdQ")
        cursor.seek(8 * track_length, os.SEEK_CUR)  # the images hold the same information
        rows.append((number, (x, y, z), error))
    rows.sort()  # COLMAP's order is that of a hash table
    ids, xyz, errors = zip(*rows, strict=True) if rows else ((), (), ())
    positions = np.array(xyz, np.float64).reshape(-1, 3)
    return Points3D(np.array(ids, np.int64), positions, np.array(errors, np.float64))


# Databases


def read_keypoints(database: Folder) -> dict[str, Float[np.ndarray, "K columns"]]:
    """Read the keypoints of every photograph in a COLMAP database, by the photograph's name.

    Columns are x, y, then nothing, or scale and orientation, or the affine shape a11 a12 a21 a22.
    """
    query = "SELECT name, rows, cols, data FROM keypoints JOIN images USING (image_id)"
    found = {}
    for name, rows, columns, data in read_rows(database, query):
        try:
            if rows and (rows < 0 or columns not in (2, 4, 6)):
                raise ValueError(f"{rows} rows of {columns} columns, not of 2, 4 or 6")
            table = np.frombuffer(data or b"", "<f4").reshape(rows, columns)
            found[os.fsdecode(name)] = table.astype(np.float64)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{database}: the keypoints of {name!r} are damaged ({error}): extract them again"
            ) from None
    return found


def read_rows(database: Folder, query: str) -> list[tuple[Any, ...]]:
    """Run a query on a database without writing to it."""
    path = Path(database)
    if not path.is_file():
        raise InputError(f"no such database: {path}")
    # Without a write-ahead log nothing is pending. `immutable` then needs no lock files, which
    # SQLite would otherwise put into the folder.
    pending = path.with_name(path.name + "-wal").exists()
    address = f"file:{quote(str(path))}?mode=ro{'' if pending else '&immutable=1'}"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", errors="surrogateescape")
            # A damaged database may have endless views: stop after far more steps than rows.
            steps = min(10_000_000 + 10 * path.stat().st_size, 2**31 - 1)
            connection.set_progress_handler(lambda: 1, steps)
            return connection.execute(query).fetchall()
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise InputError(
            f"{path} cannot be read as a COLMAP database ({error}): "
            "give the one that the model was made from"
        ) from error


def keypoint_shapes(
    keypoints: Float[np.ndarray, "K columns"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Return scale σ and orientation (radians, clockwise) of 4- or 6-column keypoints."""
    if not len(keypoints):
        return np.empty(0), np.empty(0)
    if keypoints.shape[1] == 4:
        return keypoints[:, 2], keypoints[:, 3]
    if keypoints.shape[1] == 6:
        a11, a12, a21, a22 = keypoints[:, 2:].T
        return (np.hypot(a11, a21) + np.hypot(a12, a22)) / 2, np.arctan2(a21, a11)
    raise InputError(
        "the database's keypoints have no scale and orientation: "
        "extract SIFT features with colmap feature_extractor"
    )
