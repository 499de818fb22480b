"""NumPy archives that say what they are: beside the arrays, an entry `about` with a JSON text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kjax.errors import InputError
from kjax.files.arrays import read_npz, write_npz
from kjax.files.json_text import parse_json

ABOUT = "about"


def write_described(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Writes an archive, whole or not at all, into a folder that need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_npz(path, {**arrays, ABOUT: np.array(json.dumps(about))})


def read_described(path: Path, form: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of an archive, and what it says about them; its `format` is `form`.

    Raises:
        ValueError: it is something else, or damaged. The message does not name the file.
    """
    arrays = read_npz(path)
    if ABOUT not in arrays:
        raise InputError("it does not say what it is")
    about = parse_json(str(arrays.pop(ABOUT)).encode())
    found = about.get("format") if isinstance(about, dict) else None
    if found != form:
        raise InputError(f"its format is {found!r}")
    return arrays, about
