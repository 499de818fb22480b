"""Reads MATLAB's `.mat` files (version 5, as MATLAB 5 to 7 save) as plain data.

Numbers become NumPy arrays without axes of length one, text becomes `str`, cells lists and
structures dictionaries; anything else is passed over as None. SciPy reads more, and dies of
damaged files.
"""

import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from kjax.data.download import check_unpacked

_HEADER = 128
_BLOCK = 1 << 20
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {
    1: "<i1",
    2: "<u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<f4",
    9: "<f8",
    12: "<i8",
    13: "<u8",
}
"""Types of stored numbers, by the kind of their element."""
_TEXT = {16: "utf-8", 17: "utf-16-le", 18: "utf-32-le", 2: "latin-1", 4: "utf-16-le", 1: "latin-1"}
_CELL, _STRUCT, _CHARACTERS, _DOUBLE, _UINT64 = 1, 2, 4, 6, 15
_COMPLEX = 0x800
_DEEPEST = 50


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a file, by name.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    content = path.read_bytes()
    if content[124:128] != b"\x00\x01IM":
        raise ValueError("not a little-endian file of version 5: save it with -v7 or -v6")
    variables = {}
    total = 0
    for kind, data in _elements(memoryview(content)[_HEADER:]):
        if kind == _COMPRESSED:
            unpacked = _unpack(data, len(content), total)
            total += len(unpacked)
            ((kind, data),) = _elements(memoryview(unpacked))
        if kind == _MATRIX:
            name, value = _matrix(data, depth=0)
            variables[name] = value
    return variables


def _unpack(data: memoryview, file_size: int, before: int) -> bytes:
    unpacker, parts, rest = zlib.decompressobj(), [], bytes(data)
    while rest:
        parts.append(unpacker.decompress(rest, _BLOCK))
        check_unpacked(file_size, before + sum(map(len, parts)))
        rest = unpacker.unconsumed_tail
    return b"".join(parts)


def _elements(data: memoryview) -> list[tuple[int, memoryview]]:
    """Kinds and contents of the elements that follow each other."""
    found, at = [], 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        start, padded = at + 8, size if kind == _COMPRESSED else -(-size // 8) * 8
        if kind >> 16:  # at most four bytes, which lie in the tag itself
            kind, size, start, padded = kind & 0xFFFF, kind >> 16, at + 4, 4
        if size > len(data) - start:
            raise ValueError(f"an element of {size:,} bytes where {len(data) - start:,} are left")
        found.append((kind, data[start : start + size]))
        at = start + padded
    return found


def _matrix(data: memoryview, *, depth: int) -> tuple[str, Any]:
    """Name and value of an array of any class."""
    if depth > _DEEPEST:
        raise ValueError("structures are nested too deeply")
    parts = _elements(data)
    if len(parts) < 3:
        return "", None  # an empty one has nothing at all
    flags = _numbers(*parts[0])
    shape = [int(side) for side in _numbers(*parts[1])]
    name, kind = _text(*parts[2]), int(flags[0]) & 0xFF
    if kind == _CELL:
        return name, _matrices(parts[3:], depth)
    if kind == _STRUCT:
        width = int(_numbers(*parts[3])[0])
        return name, _structure(_text(*parts[4]), width, _matrices(parts[5:], depth))
    if kind == _CHARACTERS:
        return name, _text(*parts[3])
    if _DOUBLE <= kind <= _UINT64 and not int(flags[0]) & _COMPLEX:
        numbers = _numbers(*parts[3])
        if min(shape) < 0 or math.prod(shape) != len(numbers):
            raise ValueError(f"{len(numbers)} numbers for an array of shape {shape}")
        return name, numbers.reshape(shape, order="F").squeeze()
    return name, None


def _matrices(parts: list[tuple[int, memoryview]], depth: int) -> list[Any]:
    return [_matrix(data, depth=depth + 1)[1] for kind, data in parts if kind == _MATRIX]


def _structure(names: str, width: int, values: list[Any]) -> dict[str, Any]:
    """The first of an array of structures; each name takes `width` characters."""
    if width < 1:
        raise ValueError("fields without names")
    fields = [names[at : at + width].partition("\0")[0] for at in range(0, len(names), width)]
    return dict(zip(fields, values, strict=False))


def _numbers(kind: int, data: memoryview) -> np.ndarray:
    if kind not in _NUMBERS:
        raise ValueError(f"an element of kind {kind} where numbers belong")
    return np.frombuffer(data, _NUMBERS[kind])


def _text(kind: int, data: memoryview) -> str:
    return bytes(data).decode(_TEXT.get(kind, "latin-1"), errors="replace")
