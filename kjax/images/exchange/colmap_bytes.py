"""Descriptors as the 128 bytes that COLMAP's matcher compares, and text files with them.

COLMAP treats every descriptor as SIFT: 128 non-negative bytes of norm 512. Their distance is the
angle Θ = acos(y·y′ / 512²). COLMAP limits it to 0.7, and its ratio to the second best to 0.8.
SIFT and RootSIFT are not negative and only need the factor 512. Learned descriptors x have entries
of both signs. They are placed around the diagonal u = (1, …, 1)/√128:

    y = 512 · (√(1−s²) u + s x⊥),    x⊥ = R x minus its mean, normalised,

so that 512² − y·y′ = 512² s² (1 − x⊥·x′⊥), or with the L2 distance d of x⊥ and x′⊥

    Θ = 2 asin(s d / 2) ≈ s d.

The fixed rotation R of `kjax.quantize` keeps distances and spreads the values evenly over all
entries, also those of shorter descriptors, which are padded with zeros.

Angles are distances times s. COLMAP therefore finds the same neighbours, its ratio is the ratio of
`kjax.match` (within 1.4 % for d ≤ 1.4 and s = 0.4), and 0.7 is the distance 1.7, more than that of
unrelated descriptors. x⊥ lacks one dimension of 128. A larger s leaves negative entries, which
become 0. A smaller s loses more to rounding. At s = 0.4 one entry in a hundred is clipped, and
COLMAP's matches hardly differ between 0.3 and 0.5.
"""

import math
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8

from kjax.data.colmap import PIXEL_CENTRE
from kjax.errors import InputError
from kjax.files.atomic import write_text
from kjax.images.features import Features, unit_rows
from kjax.model.quantization import SCALE, ZERO, rotation

DIMENSION = 128
"""Numbers per descriptor: COLMAP accepts no others."""
NORM = 512
"""Norm of every descriptor, as COLMAP assumes; also its byte for the value 1."""
SHRINKING = 0.4
"""The factor s of distances."""


def colmap_bytes(features: Features) -> UInt8[np.ndarray, "N 128"]:
    """Convert descriptors for COLMAP; bytes are `Features.quantized`'s or COLMAP's own."""
    rows = features.descriptors
    if features.distance != "L2":
        raise InputError("COLMAP cannot compare binary descriptors: use uint8 or float32")
    if rows.shape[1] > DIMENSION:
        raise InputError(
            f"COLMAP compares descriptors of {DIMENSION} numbers, not {rows.shape[1]}: write the "
            "matches to a COLMAP database instead"
        )
    if not np.isfinite(rows).all():
        raise InputError("descriptors have NaN or infinite values: check the weights")
    if rows.dtype == np.uint8:
        # Quantized unit vectors lie about the byte for 0, far from all of COLMAP's.
        numbers = (rows.astype(np.float32) - ZERO) / SCALE
        rows = numbers if (np.linalg.norm(numbers, axis=1) < 2).any() else rows
    rows = np.pad(rows, ((0, 0), (0, DIMENSION - rows.shape[1])))
    if rows.dtype == np.uint8:
        return rows
    if (rows < 0).any():
        turned = rows @ rotation(DIMENSION)
        across = unit_rows(turned - turned.mean(axis=1, keepdims=True))
        diagonal = math.sqrt((1 - SHRINKING**2) / DIMENSION)
        scaled = NORM * unit_rows(np.maximum(diagonal + SHRINKING * across, 0))
    else:
        # OpenCV's SIFT has these units already; unit vectors are scaled as COLMAP does.
        scaled = rows * (NORM if rows.max(initial=0) <= 1 else 1)
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def from_colmap_bytes(
    stored: UInt8[np.ndarray, "N 128"], dimension: int = DIMENSION
) -> Float32[np.ndarray, "N D"]:
    """Return unit descriptors from bytes of learned ones; the mean of R x is lost."""
    rows = stored.astype(np.float32)
    across = rows - rows.mean(axis=1, keepdims=True)
    return unit_rows((across @ rotation(DIMENSION).T)[:, :dimension])


def write_colmap_text(path: str | os.PathLike[str], features: Features) -> None:
    """Write a text file for `colmap feature_importer`, which expects it at `IMAGE.jpg.txt`.

    The first line is `N 128`. One line per keypoint follows: x, y (the centre of the first pixel is
    (0.5, 0.5)), scale σ, orientation in radians clockwise, and the 128 bytes of `colmap_bytes`.
    """
    count, rows = len(features), colmap_bytes(features)
    sigmas, angles = features.sigmas(), features.radians()
    shapes = np.column_stack(
        [
            features.xy + np.float32(PIXEL_CENTRE),
            np.ones(count, np.float32) if sigmas is None else sigmas,
            np.zeros(count, np.float32) if angles is None else angles,
        ]
    )
    lines = [f"{count} {DIMENSION}"]
    for shape, row in zip(shapes, rows, strict=True):
        # Nine digits represent every float32 number exactly.
        lines.append(" ".join([*(f"{value:.9g}" for value in shape), *map(str, row)]))
    write_text(Path(path), "\n".join(lines) + "\n")
