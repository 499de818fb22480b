"""Descriptors scored as they would be stored: best:uint8, out/first:64, fast:64,binary."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from kjax.model.quantization import FORMS, quantize


class StoredForm(NamedTuple):
    """How many of the numbers, and as what; None for all of them, and for float32."""

    dimension: int | None = None
    quantization: str | None = None


def split_form(word: str) -> tuple[str, StoredForm]:
    """A word of the command line without the form behind its last colon, and that form."""
    source, _, text = word.rpartition(":")
    parts = text.split(",")
    known = [part for part in parts if part in FORMS or (part.isascii() and part.isdecimal())]
    if not source or known != parts or Path(word).exists():
        return word, StoredForm()
    form = StoredForm()
    for part in parts:
        named = {"quantization": part} if part in FORMS else {"dimension": int(part)}
        form = form._replace(**named)
    return source, form


def as_numbers(
    rows: Float32[np.ndarray, "patches dim"], form: str
) -> Float32[np.ndarray, "patches numbers"]:
    """Quantized descriptors as the protocols take them: bytes as numbers, bits as zeros and ones.

    L1 between bits is the Hamming distance.
    """
    stored = quantize(rows, form)
    return (np.unpackbits(stored, axis=1) if form == "binary" else stored).astype(np.float32)
