"""Which photographs a set was cut from: a file in its folder that names them and their SHA-256."""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kjax.data.phototour import decode_folder, read_interest
from kjax.data.set_names import EMBEDDED, TFDS_PREFIX
from kjax.errors import InputError, first_line

PHOTOGRAPHS_FILE = "photographs.csv"
SHA256 = re.compile(r"[0-9a-f]{64}")
AGAIN = "cut the set again with kjax build-patches"


class SetPhotograph(NamedTuple):
    """A photograph that was read to cut a set."""

    number: int
    """As in the first column of `interest.txt`."""
    name: str
    sha256: str
    """Of the whole file."""


def write_set_photographs(folder: Path, photographs: Iterable[SetPhotograph]) -> None:
    """Writes the list into the folder of a set."""
    with (folder / PHOTOGRAPHS_FILE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([SetPhotograph._fields, *photographs])


def read_photographs(name: str) -> list[SetPhotograph]:
    """The photographs of a training set that is named as in a config.

    Raises:
        InputError: as `read_set_photographs` does; sets of TensorFlow Datasets never tell.
    """
    if name == EMBEDDED:
        from kjax.data.embedded import train_photographs

        return train_photographs()
    if name.startswith(TFDS_PREFIX):
        raise InputError(f"{name} does not tell which photographs it was cut from: use another set")
    return read_set_photographs(Path(name))


def read_set_photographs(folder: Path) -> list[SetPhotograph]:
    """The photographs of a set, which every one of its patches is from.

    Raises:
        InputError: the set does not tell, the list is damaged, or patches are from others.
    """
    _, point_ids = decode_folder(folder, progress=False)
    path = folder / PHOTOGRAPHS_FILE
    interest = read_interest(folder, patch_count=len(point_ids))
    if not path.is_file() or interest is None:
        raise InputError(f"{folder} does not tell which photographs it was cut from: {AGAIN}")
    photographs = _parse(path)
    if strangers := {*interest[:, 0]} - {one.number for one in photographs}:
        raise InputError(
            f"{folder} has patches of photograph {min(strangers):g}, which {PHOTOGRAPHS_FILE} does "
            f"not list: {AGAIN}"
        )
    return photographs


def _parse(path: Path) -> list[SetPhotograph]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file, strict=True)
        if tuple(header) != SetPhotograph._fields:
            raise ValueError(f"its first line is not {','.join(SetPhotograph._fields)}")
        found = [SetPhotograph(int(number), name, digest) for number, name, digest in rows]
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({first_line(error)}): {AGAIN}") from None
    for one in found:
        if not SHA256.fullmatch(one.sha256):
            raise InputError(f"{path}: {one.name} has no SHA-256: {AGAIN}")
    return found
