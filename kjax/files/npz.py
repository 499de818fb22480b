"""NumPy files, `.npz` and `.npy`, from anyone: pickles in them are never run."""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kjax.errors import InputError
from kjax.files.atomic import write_whole
from kjax.files.json import parse_json

ABOUT = "about"
"""Entry of an archive that describes the others, as JSON."""


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read all arrays of an archive, by name. Error messages do not name the file."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if not arrays or not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("empty, or with members that are not arrays")
    except Exception:  # zipfile, zlib and NumPy raise a dozen types for damaged files
        raise InputError("not a plain .npz file, or a damaged one") from None
    return arrays


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Read the array of a file. Error messages do not name the file."""
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise TypeError("an archive")
        return array
    except Exception:
        raise InputError("not a plain .npy file, or a damaged one") from None


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], *, comment: str = "") -> None:
    """Write an archive of arrays by name, whole or not at all; readers of arrays skip a comment."""
    named: dict[str, Any] = dict(arrays)

    def write(partial: Path) -> None:
        np.savez(partial, allow_pickle=False, **named)
        if comment:
            with zipfile.ZipFile(partial, "a") as file:
                file.comment = comment.encode()

    write_whole(path, write)


def write_described(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write an archive with a description of itself; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_npz(path, {**arrays, ABOUT: np.array(json.dumps(about))})


def read_described(path: Path, form: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read arrays and description, whose `format` must be `form`. Errors do not name the file."""
    arrays = read_npz(path)
    about = parse_json(str(arrays.pop(ABOUT, "null")).encode())  # decoding checks the characters
    found = about.get("format") if isinstance(about, dict) else None
    if found != form:
        raise InputError(f"its format is {found!r}, not {form!r}")
    return arrays, about


def has_format(path: Path, form: str) -> bool:
    """Whether an archive says that it has this format; its arrays may still be damaged."""
    if path.suffix != ".npz":
        return False
    try:
        with np.load(path, allow_pickle=False) as archive:
            return json.loads(str(archive[ABOUT]))["format"] == form
    except Exception:  # as in `read_npz`
        return False


def as_parameters(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return floating arrays in float32 if they have the names and shapes of others."""
    if expected.keys() != arrays.keys():
        raise InputError(f"{min(expected.keys() ^ arrays.keys())} is missing or unexpected")
    for name, like in expected.items():
        if arrays[name].shape != like.shape or arrays[name].dtype.kind != "f":
            raise InputError(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
    return {name: array.astype(np.float32) for name, array in arrays.items()}
