"""Read sequences of six photos of one plane with known homographies.

Two layouts: the Oxford affine benchmark (`img1.png` …, with `H1to2p` … as text or OpenCV's .xml),
and HPatches' full sequences (`1.ppm` …, `H_1_2` …).
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float64

from kjax.data.cutting.photographs import PHOTO_SUFFIXES
from kjax.errors import InputError

LENGTH = 6
PHOTO_NAMES = [name + suffix for name in ("img{}", "{}") for suffix in sorted(PHOTO_SUFFIXES)]
HOMOGRAPHY_NAMES = ["H1to{}p", "H1to{}p.xml", "H1to{}p.txt", "H_1_{}"]


@dataclasses.dataclass(frozen=True)
class HomographySequence:
    """Photos of one plane, and homographies from the first to each of the others."""

    name: str
    photos: tuple[Path, ...]
    homographies: Float64[np.ndarray, "others 3 3"]


def find_sequences(folders: Iterable[Path]) -> list[HomographySequence]:
    """Return the sequences in folders, each of which is a sequence or holds some."""
    found: list[HomographySequence] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"no such folder: {folder}")
        below = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
        sequences = [read_sequence(path) for path in below if _find(path, PHOTO_NAMES, 1)]
        if not sequences:
            layouts = "img1.png … img6.png or 1.ppm … 6.ppm"
            raise InputError(f"no sequence in {folder}: expected {layouts}")
        found += sequences
    names = [sequence.name for sequence in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"several sequences are called {min(twice)}: give each folder once")
    return found


def read_sequence(folder: Path) -> HomographySequence:
    """Read the six photos and five homographies of a folder."""
    photos, matrices = [], []
    for number in range(1, LENGTH + 1):
        if (photo := _find(folder, PHOTO_NAMES, number)) is None:
            raise InputError(f"{folder} lacks photo {number} of {LENGTH}")
        photos.append(photo)
    for number in range(2, LENGTH + 1):
        if (path := _find(folder, HOMOGRAPHY_NAMES, number)) is None:
            raise InputError(f"{folder} lacks the homography H1to{number}p or H_1_{number}")
        matrices.append(read_homography(path))
    return HomographySequence(folder.resolve().name, tuple(photos), np.stack(matrices))


def read_homography(path: Path) -> Float64[np.ndarray, "3 3"]:
    """Read nine numbers, row by row, from plain text or a matrix in OpenCV's XML."""
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("<"):
            text = ElementTree.fromstring(text).findtext(".//data") or ""
        matrix = np.array(text.split(), np.float64).reshape(3, 3)
        np.linalg.inv(matrix)
    except (ValueError, OverflowError, np.linalg.LinAlgError, ElementTree.ParseError):
        matrix = np.full((3, 3), np.nan)
    if not np.isfinite(matrix).all():
        raise InputError(f"{path} is not a homography: expected nine numbers with an inverse")
    return matrix


def _find(folder: Path, names: Iterable[str], number: int) -> Path | None:
    paths = (folder / name.format(number) for name in names)
    return next((path for path in paths if path.is_file()), None)
