"""Descriptors that cannot be told apart, or are no numbers: their scores mean nothing."""

import numpy as np
from jaxtyping import Float32, Int64

MANY_DUPLICATES = 0.01
"""Share of patches that share their descriptor, from which on it is worth a warning."""
_ROWS_AT_ONCE = 1 << 14


def scorable(rows: Float32[np.ndarray, "rows dim"]) -> bool:
    """Whether descriptors are finite and not all the same: otherwise any score is an accident."""
    return bool(np.isfinite(rows).all()) and (len(rows) < 2 or bool((rows != rows[0]).any()))


def degeneracies(rows: Float32[np.ndarray, "rows dim"]) -> list[str]:
    """Warnings about descriptors; none if all is well.

    The official rules forgive ties: in retrieval, a constant descriptor finds everything.
    """
    total = len(rows)
    broken = int((~np.isfinite(rows).all(axis=1)).sum())
    if broken:
        return [f"{broken} of {total} descriptors hold NaN or an infinity: they cannot be scored"]
    if not scorable(rows):
        return ["all descriptors are the same: they cannot be scored"]
    warnings = []
    flat = int((rows == rows[:, :1]).all(axis=1).sum()) if rows.shape[1] > 1 else 0
    if flat:
        warnings.append(f"{flat} of {total} descriptors are constant: all their values are equal")
    _, counts = np.unique(_hashes(rows), return_counts=True)
    duplicates = int(counts[counts > 1].sum())
    if duplicates > MANY_DUPLICATES * total:
        warnings.append(
            f"{duplicates} of {total} patches share their descriptor with another: ties count as "
            "found in retrieval, so that scores may be too high"
        )
    return warnings


def _hashes(rows: Float32[np.ndarray, "rows dim"]) -> Int64[np.ndarray, " rows"]:
    """Hashes of rows: sums of random multiples, modulo 2⁶⁴, hardly ever equal for unequal rows."""
    factors = np.random.default_rng(0).integers(0, 2**62, (rows.shape[1],), np.int64) * 2 + 1
    hashes = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        # Adding zero makes -0 and 0, which are equal, the same bits.
        block = rows[start : start + _ROWS_AT_ONCE] + np.float32(0)
        hashes[start : start + _ROWS_AT_ONCE] = block.view(np.int32).astype(np.int64) @ factors
    return hashes
