"""Descriptors as the 128 bytes that COLMAP's own matcher compares.

COLMAP takes every descriptor for SIFT's: 128 bytes ≥ 0 of norm 512. Two of them are as far apart as
their angle Θ = acos(y·y′ / 512²), whose ratio to the second best it limits to 0.8, and which it
limits to 0.7 itself. SIFT and RootSIFT, which are not negative, only need the unit of 512. Learned
descriptors x have entries of both signs. They are put around the diagonal u = (1, …, 1)/√128:

    y = 512 · (√(1−s²) u + s x⊥),    x⊥ = R x without its mean, of length 1,

so that 512² − y·y′ = 512² s² (1 − x⊥·x′⊥), or with the L2 distance d of x⊥ and x′⊥

    Θ = 2 asin(s d / 2) ≈ s d.

The fixed rotation R of `kjax.quantize` leaves distances as they are, and makes all entries alike,
also those of fewer than 128 numbers that are filled up with zeros.

Angles are distances times s: COLMAP finds the same neighbours, its ratio is the ratio of
`kjax.match` (for d ≤ 1.4 and s = 0.4 within 1.4 %), and 0.7 is the distance 1.7, beyond that of
unrelated descriptors. x⊥ lacks one dimension of 128. A larger s leaves negative entries, which
become 0; a smaller s leaves more to rounding: at s = 0.4, one entry in a hundred is cut off, and
what COLMAP finds hardly differs between 0.3 and 0.5.
"""

import math

import numpy as np
from jaxtyping import Float32, UInt8

from kjax.errors import InputError
from kjax.images.features import Features, unit_rows
from kjax.model.quantization import rotation

DIMENSION = 128
"""Of every descriptor: COLMAP refuses others."""
NORM = 512
"""Of every descriptor, as COLMAP assumes; also its byte for the value 1."""
SHRINKING = 0.4
"""s: what distances are multiplied by."""


def colmap_bytes(features: Features) -> UInt8[np.ndarray, "N 128"]:
    """The descriptors of a photograph for COLMAP; bytes are taken for COLMAP's own.

    Raises:
        InputError: descriptors that COLMAP cannot compare.
    """
    rows = features.descriptors
    if features.distance != "L2":
        raise InputError("COLMAP cannot compare bits: give it descriptors that are numbers")
    if rows.shape[1] > DIMENSION:
        raise InputError(
            f"COLMAP compares descriptors of {DIMENSION} numbers, not {rows.shape[1]}: write the "
            "matches into a COLMAP database instead"
        )
    if not np.isfinite(rows).all():
        raise InputError("descriptors have NaN or infinite values: mend the model")
    rows = np.pad(rows, ((0, 0), (0, DIMENSION - rows.shape[1])))
    if rows.dtype == np.uint8:
        return rows
    return _around_the_diagonal(rows) if (rows < 0).any() else _as_sift(rows)


def _as_sift(rows: Float32[np.ndarray, "N 128"]) -> UInt8[np.ndarray, "N 128"]:
    """OpenCV's SIFT is in these units already; vectors of length 1 are scaled as COLMAP does."""
    unit = rows.max(initial=0) <= 1
    return np.clip(np.rint(rows * (NORM if unit else 1)), 0, 255).astype(np.uint8)


def _around_the_diagonal(rows: Float32[np.ndarray, "N 128"]) -> UInt8[np.ndarray, "N 128"]:
    """The mapping at the top of this file."""
    turned = rows @ rotation(DIMENSION)
    across = unit_rows(turned - turned.mean(axis=1, keepdims=True))
    diagonal = math.sqrt((1 - SHRINKING**2) / DIMENSION)
    mapped = unit_rows(np.maximum(diagonal + SHRINKING * across, 0))
    return np.clip(np.rint(NORM * mapped), 0, 255).astype(np.uint8)
