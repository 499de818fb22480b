"""Features of one photograph in a NumPy archive, under the names and units of `Features`."""

import os
from pathlib import Path

import numpy as np

from kjax.errors import InputError
from kjax.files.arrays import read_npz as read_arrays
from kjax.files.arrays import write_npz as write_arrays
from kjax.images.exchange.columns import checked_features
from kjax.images.features import Features

_REQUIRED = ("xy", "descriptors", "image_size")
_OPTIONAL = ("scales", "angles", "scores")
DISTANCE = "distance"
"""A string beside the arrays, where it is not L2: what compares descriptors."""
PROVENANCE = "provenance"
"""A string beside the arrays: what they were made with."""


def write_npz(
    path: str | os.PathLike[str], features: Features, *, provenance: str | None = None
) -> None:
    """Writes an archive, whole or not at all. Its name must end with .npz."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"{path} is no name for a NumPy archive: let it end with .npz")
    columns = {name: getattr(features, name) for name in (*_REQUIRED, *_OPTIONAL)}
    present = {name: column for name, column in columns.items() if column is not None}
    if features.distance != "L2":
        present[DISTANCE] = np.array(features.distance)
    if provenance is not None:
        present[PROVENANCE] = np.array(provenance)
    write_arrays(path, present)


def read_npz(path: str | os.PathLike[str]) -> Features:
    """Reads what `write_npz` wrote.

    Raises:
        InputError: it is no such archive.
    """
    if not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    try:
        archive = read_arrays(path)
    except InputError as error:
        raise InputError(f"{path} is no NumPy archive, or is damaged ({error})") from None
    missing = [name for name in _REQUIRED if name not in archive]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}: it is no archive of features")
    return checked_features(path, archive)
