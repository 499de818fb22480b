"""Descriptors in few bytes, by fixed rules: nothing is learned, so any two files agree.

| form   | 128 numbers    | compared by | rule                                                 |
|--------|----------------|-------------|------------------------------------------------------|
| uint8  | 128 bytes      | L2          | 128 + 127·x, rounded: the same scale for every entry |
| binary | 256 bits, or … | Hamming     | a fixed rotation, then thresholds: a thermometer     |

Entries of a unit vector lie in −1…1, so bytes need no clipping, and L2 between them is 127 times
that of the numbers, up to rounding.

After the rotation every entry is nearly normal, with σ = 1/√n, whatever the variances before: with
k bits an entry, thresholds at the normal's k quantiles i/(k+1) make all k+1 levels equally likely.
A level's bits are those thresholds that it passes, so that the Hamming distance is the L1 distance
of levels.
"""

import hashlib
import math
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float32, UInt8

from kjax.errors import InputError, unknown_name

FORMS: dict[str, Literal["L2", "Hamming"]] = {"uint8": "L2", "binary": "Hamming"}
"""Ways to store descriptors, with the distance that `kjax.match` compares them by."""
BITS = 256
ZERO, SCALE = 128, 127
"""The byte for 0, and bytes per unit."""
_KEY = b"kjax rotation 1"
"""What the rotation's signs are made of: another key would make other bits of the same numbers."""


def quantize(descriptors: Any, form: str, *, bits: int = BITS) -> UInt8[np.ndarray, "N bytes"]:
    """Descriptors of unit length as bytes: see the top of this file.

    `kjax.match` takes the bytes of "uint8" as they are, those of "binary" with distance="Hamming".

    Args:
        descriptors: [N, D], of NumPy or of JAX.
        form: "uint8" or "binary".
        bits: of a binary descriptor: a multiple of D, or of the next power of two.

    Raises:
        InputError: rows that are no unit vectors, an unknown form, or bits that do not fit.

    Examples:
        >>> a, b = (kjax.quantize(rows, "binary") for rows in (first, second))
        >>> kjax.match(a, b, distance="Hamming")
    """
    if form not in FORMS:
        raise unknown_name("form", form, FORMS)
    rows = _unit_rows(descriptors)
    if form == "uint8":
        return np.rint(ZERO + SCALE * rows).astype(np.uint8)
    return np.packbits(_thermometer(rows, bits), axis=1)


def _unit_rows(descriptors: Any) -> Float32[np.ndarray, "N D"]:
    rows = np.asarray(descriptors)
    if rows.ndim != 2 or not rows.shape[1] or rows.dtype.kind == "u":
        raise InputError(
            f"cannot quantize {rows.dtype} numbers of shape {list(rows.shape)}: give floating "
            "descriptors, one row for each"
        )
    rows = rows.astype(np.float32)
    # No descriptor is 0, but rivals' may be, of a patch without contrast.
    wrong = ~(np.linalg.norm(rows, axis=1) <= 1.01)
    if wrong.any():
        raise InputError(
            f"{wrong.sum()} of {len(rows)} descriptors are no unit vectors, row "
            f"{int(wrong.argmax())} first: divide them by their L2 norm"
        )
    return rows


def _thermometer(rows: Float32[np.ndarray, "N D"], bits: int) -> Bool[np.ndarray, "N bits"]:
    size = 1 << (rows.shape[1] - 1).bit_length()
    if bits < 8 or bits % 8 or bits % size:
        raise InputError(
            f"{rows.shape[1]} numbers do not make {bits} bits: give bits={max(size, 8)}, or a "
            "multiple of it"
        )
    each = bits // size
    turned = rows @ rotation(size)[: rows.shape[1]]
    quantiles = [NormalDist().inv_cdf((i + 1) / (each + 1)) for i in range(each)]
    thresholds = np.array(quantiles, np.float32) / np.float32(math.sqrt(size))
    levels = turned[:, None, :] > thresholds[None, :, None]
    return levels.reshape(len(rows), bits)


def rotation(size: int) -> Float32[np.ndarray, "n n"]:
    """Twice random signs and Hadamard's matrix: as good as a random rotation, and exact.

    The signs are those of a hash, which is the same on every machine for ever.
    """
    from scipy.linalg import hadamard  # takes a while, and most do not quantise

    digest = hashlib.shake_256(_KEY).digest(2 * size)
    first, second = np.unpackbits(np.frombuffer(digest, np.uint8)).reshape(-1, size)[:2] * 2.0 - 1
    mixed = hadamard(size) / math.sqrt(size)
    return ((first[:, None] * mixed) @ (second[:, None] * mixed)).astype(np.float32)
