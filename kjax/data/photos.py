"""What all sets cut from photographs share: their test pairs, and how they reach the disk."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64, UInt8

from kjax.data.phototour import TestPairs, write_phototour
from kjax.data.set_photographs import SetPhotograph, write_set_photographs
from kjax.errors import InputError

SET_FILES = re.compile(
    r"patches\d+\.bmp|(info|interest|images)\.txt|m50_\d+_\d+_\d+\.txt|photographs\.csv"
)


class CutSet(NamedTuple):
    """Patches cut from photographs, those of one 3-D point together."""

    patches: UInt8[np.ndarray, "P 64 64"]
    point_ids: Int64[np.ndarray, " P"]
    interest: Float[np.ndarray, "P 5"]
    """Number of the photograph, x, y, orientation (radians) and log2 σ."""
    photos: list[str]
    """Names of the photographs, by number."""
    unreadable: list[str]
    """Photographs that were left out."""
    sha256: Sequence[str] = ()
    """Of the files that the patches are from, by number; empty of those left out, or of all."""


def sample_test_pairs(
    point_ids: Int64[np.ndarray, " P"], *, matching: int, non_matching: int, seed: int
) -> TestPairs:
    """Pairs of patches of the same point and of different ones, shuffled; none comes twice.

    Args:
        point_ids: the 3-D point of each patch.
        matching: how many; fewer are returned if the set has no more.
        non_matching: likewise.
        seed: the same seed always gives the same pairs.
    """
    rng = np.random.default_rng(seed)
    same = _all_matching(point_ids)
    different = len(point_ids) * (len(point_ids) - 1) // 2 - len(same)
    matching, non_matching = min(matching, len(same)), min(non_matching, different)
    if not matching or not non_matching:
        raise InputError("test pairs need at least two points, one of them with two patches")
    same = same[rng.choice(len(same), matching, replace=False)]
    pairs = np.concatenate([same, _non_matching(rng, point_ids, count=non_matching)])
    order = rng.permutation(len(pairs))
    return TestPairs(pairs[order, 0], pairs[order, 1], order < matching)


def _all_matching(point_ids: Int64[np.ndarray, " P"]) -> Int64[np.ndarray, "M 2"]:
    order = np.argsort(point_ids, kind="stable")
    _, starts, counts = np.unique(point_ids[order], return_index=True, return_counts=True)
    found = [np.empty((0, 2), np.int64)]
    for length in np.unique(counts):
        rows = order[starts[counts == length][:, None] + np.arange(length)]
        first, second = np.triu_indices(length, 1)
        found.append(np.stack([rows[:, first].ravel(), rows[:, second].ravel()], axis=1))
    return np.concatenate(found)


def _non_matching(
    rng: np.random.Generator, point_ids: Int64[np.ndarray, " P"], *, count: int
) -> Int64[np.ndarray, "{count} 2"]:
    """Draws pairs without replacement until enough of them see different points."""
    total = len(point_ids) * (len(point_ids) - 1) // 2
    drawn = 2 * count
    while True:
        numbers = rng.choice(total, min(drawn, total), replace=False)
        # Pair number k of the triangle (0,1), (0,2), (1,2), (0,3), … has second = row of k.
        second = ((1 + np.sqrt(1 + 8 * numbers.astype(np.float64))) // 2).astype(np.int64)
        first = numbers - second * (second - 1) // 2
        different = np.flatnonzero(point_ids[first] != point_ids[second])[:count]
        if len(different) == count:
            return np.stack([first[different], second[different]], axis=1)
        drawn *= 2


def check_output(folder: Path, *, overwrite: bool) -> None:
    """Refuses to write over what exists, unless asked to and it is nothing but a patch set."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{folder} already exists: choose another folder, or add --overwrite")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another folder")
    foreign = sorted(path.name for path in folder.iterdir() if not SET_FILES.fullmatch(path.name))
    if foreign:
        raise InputError(
            f"{folder} is not just a patch set (it holds {foreign[0]}) and will not be "
            "overwritten: choose another folder"
        )


def write_cut_set(folder: Path, cut: CutSet, *, pairs: TestPairs, overwrite: bool = False) -> Path:
    """Writes a PhotoTourism-format folder, which appears, or is replaced, only when it is whole."""
    check_output(folder, overwrite=overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f".{folder.name}.partial-"
    ) as staging:
        fresh = Path(staging) / "fresh"
        write_phototour(fresh, cut.patches, cut.point_ids, pairs=pairs, interest=cut.interest)
        names = (f"{number} {name}\n" for number, name in enumerate(cut.photos))
        (fresh / "images.txt").write_text("".join(names), encoding="utf-8")
        if cut.sha256:
            write_set_photographs(fresh, _read_photographs(cut))
        if folder.exists():
            folder.rename(Path(staging) / "replaced")
        fresh.rename(folder)
    return folder


def _read_photographs(cut: CutSet) -> list[SetPhotograph]:
    named = enumerate(zip(cut.photos, cut.sha256, strict=True))
    return [SetPhotograph(number, name, digest) for number, (name, digest) in named if digest]
