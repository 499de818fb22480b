"""Photographs of one plane whose homographies are known, and which matches between them are right.

Two layouts of a sequence of six are read: that of the Oxford affine benchmark (`img1.png` …, with
`H1to2p` …, text or OpenCV's .xml), and that of HPatches' full sequences (`1.ppm` …, `H_1_2` …).
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
PHOTO_NAMES = ("img{}", "{}")
LARGEST_FILE = 100_000
"""Bytes of a file with a homography: nine numbers take hundreds."""
HOMOGRAPHY_NAMES = ("H1to{}p", "H1to{}p.xml", "H1to{}p.txt", "H_1_{}")


@dataclasses.dataclass(frozen=True)
class HomographySequence:
    """Photographs of one plane.

    Attributes:
        name: of the folder.
        photos: files, the first of which the others are compared with.
        homographies: from the first to each of the others, of points (x, y, 1).
    """

    name: str
    photos: tuple[Path, ...]
    homographies: Float64[np.ndarray, "others 3 3"]


# Files


def find_sequences(folders: Iterable[Path]) -> list[HomographySequence]:
    """The sequences that folders are, or hold."""
    found: list[HomographySequence] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"no such folder: {folder}")
        below = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
        sequences = [read_sequence(path) for path in below if _find_photo(path, 1)]
        if not sequences:
            raise InputError(
                f"{folder} neither is nor holds a sequence: photographs are looked for as "
                "img1.png … img6.png or 1.ppm … 6.ppm"
            )
        found += sequences
    names = [sequence.name for sequence in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"several sequences are called {min(twice)}: give each folder once")
    return found


def read_sequence(folder: Path) -> HomographySequence:
    """Finds the six photographs of a folder and reads its five homographies."""
    photos = [_find_photo(folder, number) for number in range(1, LENGTH + 1)]
    homographies = [_find_homography(folder, number) for number in range(2, LENGTH + 1)]
    if None in photos:
        raise InputError(f"{folder} lacks photograph {photos.index(None) + 1} of {LENGTH}")
    if None in homographies:
        other = homographies.index(None) + 2
        raise InputError(f"{folder} lacks the homography H1to{other}p or H_1_{other}")
    matrices = np.stack([read_homography(path) for path in homographies if path])
    return HomographySequence(folder.resolve().name, tuple(p for p in photos if p), matrices)


def read_homography(path: Path) -> Float64[np.ndarray, "3 3"]:
    """Nine numbers, row after row, as plain text or in a matrix of OpenCV's XML."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError("more than nine numbers")
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("<"):
            text = ElementTree.fromstring(text).findtext(".//data") or ""
        matrix = np.array(text.split(), np.float64).reshape(3, 3)
    except (ValueError, OverflowError, ElementTree.ParseError):
        raise InputError(f"{path} is no homography: it should hold nine numbers") from None
    with np.errstate(all="ignore"):
        determinant = abs(np.linalg.det(matrix))
    if not np.isfinite(matrix).all() or not 1e-12 <= determinant < np.inf:
        raise InputError(f"{path} is no homography: the matrix has no inverse")
    return matrix


def _find_photo(folder: Path, number: int) -> Path | None:
    names = [form.format(number) for form in PHOTO_NAMES]
    found = (folder / f"{name}{suffix}" for name in names for suffix in sorted(PHOTO_SUFFIXES))
    return next((path for path in found if path.is_file()), None)


def _find_homography(folder: Path, number: int) -> Path | None:
    found = (folder / form.format(number) for form in HOMOGRAPHY_NAMES)
    return next((path for path in found if path.is_file()), None)
