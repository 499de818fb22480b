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
from kjax.files.atomic import write_text
from kjax.images.exchange.colmap_bytes import DIMENSION, colmap_bytes
from kjax.images.features import Features


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
