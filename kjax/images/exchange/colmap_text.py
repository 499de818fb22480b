"""Text files of features for `colmap feature_importer`: one per photograph, `PHOTO.jpg.txt`.

A line `N 128`, then a line for each keypoint: x, y, scale σ, orientation in radians clockwise on
screen, and 128 integers from 0 to 255, whose meaning `colmap_bytes` tells. The centre of the first
pixel is (0.5, 0.5).
"""

import io
import os
from pathlib import Path

import numpy as np

from kjax.data.colmap import PIXEL_CENTRE
from kjax.errors import InputError
from kjax.files.atomic import write_text
from kjax.images.exchange.colmap_bytes import DIMENSION, colmap_bytes
from kjax.images.features import Features, from_radians, from_sigmas


def write_colmap_text(path: str | os.PathLike[str], features: Features) -> None:
    """Writes a text file, whole or not at all.

    Args:
        path: of the file. COLMAP looks for the photograph's name followed by ".txt".
        features: of the photograph. `kjax.images.exchange.colmap_bytes` says what becomes of the
            descriptors.

    Raises:
        InputError: descriptors that COLMAP cannot compare.
    """
    count = len(features)
    rows = colmap_bytes(features)
    sigmas, angles = features.sigmas(), features.radians()
    shapes = np.column_stack(
        [
            features.xy + np.float32(PIXEL_CENTRE),
            np.ones(count, np.float32) if sigmas is None else sigmas,
            np.zeros(count, np.float32) if angles is None else angles,
        ]
    )
    text = io.StringIO()
    text.write(f"{count} {DIMENSION}\n")
    for shape, row in zip(shapes, rows, strict=True):
        # Nine digits tell any two float32 numbers apart.
        numbers = " ".join(f"{value:.9g}" for value in shape)
        text.write(f"{numbers} {' '.join(map(str, row))}\n")
    write_text(Path(path), text.getvalue())


def read_colmap_text(path: str | os.PathLike[str], image_size: tuple[int, int]) -> Features:
    """Reads such a file. It does not know the size of the photograph.

    Raises:
        InputError: it is not of this format.
    """
    try:
        header, *lines = Path(path).read_text(encoding="utf-8").splitlines()
        count, dimension = (int(number) for number in header.split())
        rows = [line.split() for line in lines if line.strip()]
        if len(rows) != count or any(len(row) != 4 + dimension for row in rows):
            raise ValueError(f"not {count} lines of 4 + {dimension} values")
        table = np.array(rows, np.float64).reshape(count, 4 + dimension)
        if not ((table[:, 4:] >= 0) & (table[:, 4:] <= 255)).all() or not np.isfinite(table).all():
            raise ValueError("a value that cannot be")
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{path} is no text file of COLMAP features ({error}): write it again"
        ) from error
    return Features(
        xy=(table[:, :2] - PIXEL_CENTRE).astype(np.float32),
        descriptors=table[:, 4:].astype(np.uint8),
        image_size=image_size,
        scales=from_sigmas(table[:, 2]),
        angles=from_radians(table[:, 3]),
    )
