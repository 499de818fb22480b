"""Descriptors in few bytes, by fixed rules: nothing is learned, so all files are comparable.

| form   | 128 numbers    | compared by | rule                                                 |
|--------|----------------|-------------|------------------------------------------------------|
| uint8  | 128 bytes      | L2          | 128 + 127·x, rounded: the same scale for every entry |
| binary | 256 bits, or … | Hamming     | a fixed rotation, then thresholds: a thermometer     |

Entries of a unit vector lie in −1…1, so bytes need no clipping, and L2 between them is 127 times
that of the numbers, up to rounding.

After the rotation every entry is nearly normal with σ = 1/√n. With k bits per entry, thresholds at
the normal's k quantiles i/(k+1) make all k+1 levels equally likely. A level's bits are the
thresholds that it passes, so the Hamming distance is the L1 distance of levels.
"""

import hashlib
import math
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, UInt8

from kjax.errors import InputError, unknown_name

FORMS: dict[str, Literal["L2", "Hamming"]] = {"uint8": "L2", "binary": "Hamming"}
"""Stored forms of descriptors, with the distance for `kjax.match`."""
BITS = 256
ZERO, SCALE = 128, 127
"""The byte for 0, and bytes per unit."""
_KEY = b"kjax rotation 1"
"""Seed of the rotation's signs; changing it would change all binary descriptors."""


def quantize(descriptors: Any, form: str, *, bits: int = BITS) -> UInt8[np.ndarray, "N bytes"]:
    """Quantise descriptors of unit length to bytes: see the top of this file.

    `kjax.match` takes "uint8" bytes as they are, "binary" ones with distance="Hamming".

    Args:
        descriptors: [N, D], a NumPy or JAX array.
        form: "uint8" or "binary".
        bits: size of a binary descriptor: a multiple of D, or of the next power of two.

    Examples:
        >>> a, b = (kjax.quantize(rows, "binary") for rows in (first, second))
        >>> kjax.match(a, b, distance="Hamming")
    """
    if form not in FORMS:
        raise unknown_name("form", form, FORMS)
    rows = np.asarray(descriptors)
    if rows.ndim != 2 or not rows.shape[1] or rows.dtype.kind == "u":
        raise InputError(
            f"cannot quantize {rows.dtype} numbers of shape {list(rows.shape)}: give floating "
            "descriptors, one per row"
        )
    rows = rows.astype(np.float32)
    # Other methods' descriptors may be 0, for patches without contrast.
    wrong = ~(np.linalg.norm(rows, axis=1) <= 1.01)
    if wrong.any():
        raise InputError(
            f"{wrong.sum()} of {len(rows)} descriptors are not unit vectors, row "
            f"{int(wrong.argmax())} first: divide them by their L2 norm"
        )
    if form == "uint8":
        return np.rint(ZERO + SCALE * rows).clip(0, 255).astype(np.uint8)
    size = 1 << (rows.shape[1] - 1).bit_length()
    if bits < 8 or bits % 8 or bits % size:
        raise InputError(
            f"{rows.shape[1]} numbers do not make {bits} bits: use bits={max(size, 8)}, or a "
            "multiple of it"
        )
    each = bits // size
    turned = rows @ rotation(size)[: rows.shape[1]]
    quantiles = [NormalDist().inv_cdf((i + 1) / (each + 1)) for i in range(each)]
    thresholds = np.array(quantiles, np.float32) / np.float32(math.sqrt(size))
    levels = turned[:, None, :] > thresholds[None, :, None]
    return np.packbits(levels.reshape(len(rows), bits), axis=1)


def rotation(size: int) -> Float32[np.ndarray, "n n"]:
    """Return two random sign flips and Hadamard matrices: as good as a random rotation, and exact.

    The signs come from a hash, so they are the same on every machine.
    """
    from scipy.linalg import hadamard  # slow to import

    digest = hashlib.shake_256(_KEY).digest(2 * size)
    first, second = np.unpackbits(np.frombuffer(digest, np.uint8)).reshape(-1, size)[:2] * 2.0 - 1
    mixed = hadamard(size) / math.sqrt(size)
    return ((first[:, None] * mixed) @ (second[:, None] * mixed)).astype(np.float32)
