"""NumPy's files, `.npz` and `.npy`, from anyone: nothing is run, no memory taken on a promise.

NumPy's own reader takes memory for as many numbers as a file's header announces, and advises to
trust pickles. This one compares the announced size with the file's first. What an `.npz` archive
holds has a checksum, which is always compared.
"""

import math
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kjax.errors import InputError, first_line
from kjax.files.atomic import write_whole
from kjax.files.unpacking import check_unpacked

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BLOCK = 1 << 20
_ENCRYPTED = 0x1
"""The bit of a member's flags that tells that it is encrypted."""


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """All arrays of an archive, by name.

    Raises:
        InputError: it is no such archive, or a damaged one. The message does not name the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_members(members, Path(path).stat().st_size)
            return {
                member.filename.removesuffix(".npy"): _read_member(archive, member)
                for member in members
            }
    except InputError as error:
        raise InputError(f"not a plain .npz file ({error})") from None
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen types for damaged files
        raise InputError(f"not a plain .npz file ({first_line(error)})") from None


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an archive of arrays by name, whole or not at all."""
    named: dict[str, Any] = dict(arrays)
    write_whole(path, lambda partial: np.savez(partial, allow_pickle=False, **named))


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a file.

    Raises:
        InputError: it is no such file, or a damaged one. The message does not name the file.
    """
    try:
        with open(path, "rb") as file:
            return _read_array(file, Path(path).stat().st_size)
    except InputError as error:
        raise InputError(f"not a plain .npy file ({error})") from None
    except Exception as error:
        raise InputError(f"not a plain .npy file ({first_line(error)})") from None


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    if not members:
        raise InputError("it holds no arrays")
    for member in members:
        if member.flag_bits & _ENCRYPTED:
            raise InputError(f"{member.filename!r} is encrypted")
        if not member.filename.endswith(".npy"):
            raise InputError(f"{member.filename!r} is no array")
    if sum(member.compress_size for member in members) > size:
        raise InputError("its members overlap")
    check_unpacked(size, sum(member.file_size for member in members))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array = _read_array(file, member.file_size)
        file.read(1)  # zipfile compares the checksum when it comes to the end
    return array


def _read_array(file: Any, size: int) -> np.ndarray:
    """An array from a stream of `size` bytes."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise InputError(f"version {version[0]}.{version[1]} of the format is not for plain arrays")
    shape, column_major, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise InputError("it holds Python objects, which could run any code")
    if not dtype.itemsize or min(shape, default=0) < 0:
        raise InputError("its header makes no sense")
    count, room = math.prod(shape), size - file.tell()
    if count * dtype.itemsize != room:
        raise InputError(f"{room:,} bytes for {count:,} numbers of {dtype.itemsize} bytes")
    array = np.empty(count, dtype)
    _fill(array, file)
    if dtype.kind == "U" and array.size and array.view(np.uint32).max() > sys.maxunicode:
        raise InputError("it holds signs that no text has")
    return array.reshape(shape, order="F" if column_major else "C")


def _fill(array: np.ndarray, file: Any) -> None:
    # Block by block: a stream out of an archive makes a copy of what it reads.
    target = memoryview(array.view(np.uint8)) if array.size else memoryview(b"")
    at = 0
    while at < len(target):
        taken = file.readinto(target[at : at + _BLOCK])
        if not taken:
            raise EOFError("it ends too early")
        at += taken
