"""PhotoTourism sets (Brown & Winder): mosaics of 64×64 patches, each labelled with its 3-D point.

A folder holds `patches0000.bmp`, … (1024×1024 grey, 16×16 patches each, row by row), `info.txt`
(column 0: the 3-D point of each patch), `m50_*.txt` (test pairs) and optionally `interest.txt` (the
keypoint of each patch), `images.txt` and `photographs.csv` (the photographs they come from).
"""

import csv
import dataclasses
import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8
from numpy.typing import ArrayLike
from PIL import Image
from tqdm import tqdm

from kjax.data.cache import PATCHES_FILE, cache_entry, new_folder, open_decoded
from kjax.data.cutting.patches import PATCH_SIDE
from kjax.data.cutting.photographs import as_pixels, grey_values, whole_greys
from kjax.errors import InputError, first_line
from kjax.files.images import open_image

MOSAIC_SIDE = 16
"""Patches along each side of a mosaic."""
PATCHES_PER_MOSAIC = MOSAIC_SIDE**2
MOSAIC_PIXELS = MOSAIC_SIDE * PATCH_SIDE
STANDARD_MATCH_FILE = "m50_100000_100000_0.txt"
"""The 100k + 100k pairs on which published false positive rates are measured."""
PHOTOGRAPHS_FILE = "photographs.csv"
SET_FILES = re.compile(
    r"patches\d+\.bmp|(info|interest|images)\.txt|m50_\d+_\d+_\d+\.txt|photographs\.csv"
)

Folder = str | os.PathLike[str]


class TestPairs(NamedTuple):
    """Pairs of patch numbers, and whether both patches show the same 3-D point."""

    first: Int64[np.ndarray, " M"]
    second: Int64[np.ndarray, " M"]
    matching: Bool[np.ndarray, " M"]


TestPairs.__test__ = False  # type: ignore[attr-defined]  # keeps pytest from collecting it
NO_PAIRS = TestPairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool))


class SetPhotograph(NamedTuple):
    """A photograph that patches were cut from."""

    number: int  # in the first column of `interest.txt`
    name: str
    sha256: str  # of the file; empty if it is unknown


@dataclasses.dataclass(frozen=True)
class PatchSet:
    """Patches labelled with their 3-D point. Those of a set on disk are memory-mapped."""

    name: str
    patches: UInt8[np.ndarray, "P 64 64"]
    point_ids: Int64[np.ndarray, " P"]
    folder: Path = Path()
    pairs: TestPairs = NO_PAIRS
    # Photograph number, x, y, orientation (radians) and log2 σ of each patch's keypoint. These and
    # the photographs are empty unless the patches have just been cut.
    interest: Float[np.ndarray, "K 5"] = dataclasses.field(default_factory=lambda: np.empty((0, 5)))
    photographs: tuple[SetPhotograph, ...] = ()
    unreadable: tuple[str, ...] = ()  # names of photographs that could not be read
    parts: tuple[int, ...] = ()  # patches of each joined set with its own share of every batch


# Reading


def read_phototour(
    folder: Folder, *, cache_dir: Folder | None = None, progress: bool = True
) -> PatchSet:
    """Open a set without its test pairs; the first call decodes it into the cache folder."""
    folder = Path(folder).resolve()

    def decode(partial: Path) -> Int64[np.ndarray, " P"]:
        blocks, point_ids = decode_folder(folder, progress=progress)
        shape = (len(point_ids), PATCH_SIDE, PATCH_SIDE)
        with open(partial / PATCHES_FILE, "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.writelines(map(np.ascontiguousarray, blocks))
        return point_ids

    sources = [*list_mosaics(folder), folder / "info.txt"]
    entry = cache_entry("phototour", folder, cache_dir)
    patches, point_ids = open_decoded(entry, sources, decode)
    return PatchSet(folder.name, patches, point_ids, folder)


def read_with_pairs(
    folder: Folder, *, cache_dir: Folder | None = None, progress: bool = True
) -> PatchSet:
    """Open a set with its test pairs."""
    patch_set = read_phototour(folder, cache_dir=cache_dir, progress=progress)
    pairs = read_pairs(folder, patch_count=len(patch_set.patches))
    return dataclasses.replace(patch_set, pairs=pairs)


def list_mosaics(folder: Path) -> list[Path]:
    """List the mosaics of a set in order; raise if there is none, a gap, or no `info.txt`."""
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    count = sum(1 for path in folder.iterdir() if re.fullmatch(r"patches\d+\.bmp", path.name))
    if not count:
        raise InputError(f"{folder} has no patches0000.bmp: give the folder of a PhotoTourism set")
    mosaics = [folder / f"patches{number:04d}.bmp" for number in range(count)]
    for path in (*mosaics, folder / "info.txt"):
        if not path.is_file():
            raise InputError(f"{folder} lacks {path.name}: download or unpack the set again")
    return mosaics


def decode_folder(
    folder: Folder, *, progress: bool = True
) -> tuple[Iterator[UInt8[np.ndarray, "some 64 64"]], Int64[np.ndarray, " P"]]:
    """Decode a set without caching; return an iterator over blocks of patches, and point ids."""
    folder = Path(folder)
    mosaics = list_mosaics(folder)
    point_ids = _read_columns(folder / "info.txt", (0,), np.int64)[:, 0]
    starts = range(0, len(point_ids), PATCHES_PER_MOSAIC)
    if len(starts) != len(mosaics):
        raise InputError(
            f"{folder}: info.txt has {len(point_ids)} lines for {len(mosaics)} mosaics of "
            f"{PATCHES_PER_MOSAIC} patches: download or unpack the set again"
        )
    bar = tqdm(mosaics, desc=f"decoding {folder.name}", disable=not progress)
    counts = (len(point_ids) - start for start in starts)
    return (decode_mosaic(path)[:count] for path, count in zip(bar, counts, strict=True)), point_ids


def decode_mosaic(path: Path) -> UInt8[np.ndarray, "256 64 64"]:
    """Return all patches of one mosaic, row by row."""
    with open_image(path, advice="download or unpack it again") as image:
        width, height = image.size
        if width != MOSAIC_PIXELS or height != MOSAIC_PIXELS:
            raise InputError(f"{path} has {width}×{height} pixels; a mosaic has 1024×1024")
        pixels = whole_greys(grey_values(as_pixels(image)))
    grid = pixels.reshape(MOSAIC_SIDE, PATCH_SIDE, MOSAIC_SIDE, PATCH_SIDE)
    return grid.swapaxes(1, 2).reshape(-1, PATCH_SIDE, PATCH_SIDE)


def decoded_hash(blocks: Iterable[np.ndarray], point_ids: np.ndarray) -> str:
    """Return the SHA-256 of the grey values and point ids; it does not depend on the packing."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block))
    digest.update(np.ascontiguousarray(point_ids, dtype="<i8"))
    return digest.hexdigest()


def read_pairs(folder: Folder, *, patch_count: int) -> TestPairs:
    """Read the test pairs of a set's standard match file, or of its only one."""
    found = sorted(path.name for path in Path(folder).glob("m50_*.txt"))
    if STANDARD_MATCH_FILE not in found and len(found) != 1:
        raise InputError(
            f"{folder}: expected {STANDARD_MATCH_FILE} or a single m50_*.txt, found "
            f"{', '.join(found) or 'none'}: remove the other match files"
        )
    path = Path(folder) / (STANDARD_MATCH_FILE if STANDARD_MATCH_FILE in found else found[0])
    columns = _read_columns(path, (0, 1, 3, 4), np.int64)  # patch and point, twice
    numbers = columns[:, [0, 2]]
    for line, _ in np.argwhere((numbers < 0) | (numbers >= patch_count)):
        raise InputError(
            f"{path}, line {line + 1}: patch {numbers[line].min()} or {numbers[line].max()} is not "
            f"in the set, which has patches 0 to {patch_count - 1}: use the set's own match file"
        )
    return TestPairs(columns[:, 0], columns[:, 2], columns[:, 1] == columns[:, 3])


def read_interest(folder: Folder, *, patch_count: int) -> Float[np.ndarray, "P 5"] | None:
    """Read photograph number, x, y, orientation and log2 scale of each patch; None if unknown."""
    path = Path(folder) / "interest.txt"
    if not path.is_file():
        return None
    table = _read_columns(path, range(5), np.float64)
    if len(table) != patch_count:
        raise InputError(f"{path} has {len(table)} lines for {patch_count} patches: fetch it again")
    return table


def read_set_photographs(folder: Path) -> list[SetPhotograph]:
    """Read which photographs a set was cut from; raise if any patch comes from another one."""
    again = "cut the set again with kjax build-patches"
    _, point_ids = decode_folder(folder, progress=False)
    path = folder / PHOTOGRAPHS_FILE
    interest = read_interest(folder, patch_count=len(point_ids))
    if not path.is_file() or interest is None:
        raise InputError(f"{folder} does not list the photographs it was cut from: {again}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file, strict=True)
        found = [SetPhotograph(int(number), name, digest) for number, name, digest in rows]
        if any(not re.fullmatch(r"[0-9a-f]{64}", one.sha256) for one in found):
            raise ValueError("a photograph has no SHA-256")
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({first_line(error)}): {again}") from None
    if unlisted := {*interest[:, 0]} - {one.number for one in found}:
        raise InputError(
            f"{folder} has patches of photograph {min(unlisted):g}, which {PHOTOGRAPHS_FILE} does "
            f"not list: {again}"
        )
    return found


def _read_columns(path: Path, columns: Sequence[int], dtype: type[np.generic]) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # empty files, and decimals in place of integers
            return np.loadtxt(path, dtype=dtype, usecols=columns, ndmin=2)
    except (ValueError, OverflowError, Warning, OSError) as error:
        raise InputError(
            f"cannot read {path} ({first_line(error)}): download or unpack it again"
        ) from error


# Writing


def check_output(folder: Path, *, overwrite: bool) -> None:
    """Raise if `folder` has content, unless it is a patch set and may be overwritten."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{folder} already exists: choose another folder, or add --overwrite")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another folder")
    if foreign := [name for name in sorted(os.listdir(folder)) if not SET_FILES.fullmatch(name)]:
        raise InputError(
            f"{folder} is not just a patch set (it holds {foreign[0]}) and will not be "
            "overwritten: choose another folder"
        )


def write_phototour(
    folder: Folder,
    patches: ArrayLike,
    point_ids: ArrayLike,
    *,
    pairs: TestPairs | None = None,
    interest: ArrayLike | None = None,
    photographs: Sequence[SetPhotograph] = (),
    overwrite: bool = False,
) -> Path:
    """Write a set and return its folder, which appears or is replaced only when it is complete.

    All photographs go to `images.txt`, those with a hash also to `photographs.csv`.
    """
    folder = Path(folder)
    patches, point_ids = np.asarray(patches), np.asarray(point_ids)
    check_output(folder, overwrite=overwrite)
    wanted = (len(point_ids), PATCH_SIDE, PATCH_SIDE)
    integers = patches.dtype == np.uint8 and point_ids.dtype.kind in "iu"
    if not integers or not len(patches) or patches.shape != wanted:
        raise InputError(
            f"patches {patches.dtype} {patches.shape} with {len(point_ids)} point_ids: give at "
            "least one patch, uint8 [P,64,64], and a point for each"
        )
    with new_folder(folder.resolve(), replace=overwrite) as partial:
        for number, start in enumerate(range(0, len(patches), PATCHES_PER_MOSAIC)):
            grid = np.zeros((MOSAIC_SIDE, MOSAIC_SIDE, PATCH_SIDE, PATCH_SIDE), np.uint8)
            some = patches[start : start + PATCHES_PER_MOSAIC]
            grid.reshape(-1, PATCH_SIDE, PATCH_SIDE)[: len(some)] = some
            mosaic = grid.swapaxes(1, 2).reshape(MOSAIC_PIXELS, MOSAIC_PIXELS)
            Image.fromarray(mosaic).save(partial / f"patches{number:04d}.bmp")
        np.savetxt(partial / "info.txt", point_ids, "%d 0")
        if interest is not None and len(np.asarray(interest)):
            np.savetxt(partial / "interest.txt", interest, "%d %.3f %.3f %.5f %.5f")
        if pairs is not None:
            ends = [point_ids[pairs.first], point_ids[pairs.second]]
            if ((ends[0] == ends[1]) != pairs.matching).any():
                raise InputError("pairs.matching disagrees with point_ids: fix one of them")
            matching = int(pairs.matching.sum())
            name = f"m50_{matching}_{len(pairs.matching) - matching}_0.txt"
            table = np.stack([pairs.first, ends[0], pairs.second, ends[1]], axis=1)
            np.savetxt(partial / name, table, "%d %d 0 %d %d 0 0")
        if photographs:
            lines = (f"{one.number} {one.name}\n" for one in photographs)
            (partial / "images.txt").write_text("".join(lines), encoding="utf-8")
        write_set_photographs(partial, [one for one in photographs if one.sha256])
    return folder


def write_set_photographs(folder: Path, photographs: Sequence[SetPhotograph]) -> None:
    """Write the list that `read_set_photographs` reads, unless it is empty."""
    if photographs:
        with (folder / PHOTOGRAPHS_FILE).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([SetPhotograph._fields, *photographs])


def sample_test_pairs(
    point_ids: Int64[np.ndarray, " P"], *, matching: int, non_matching: int, seed: int
) -> TestPairs:
    """Sample distinct matching and non-matching pairs in random order; fewer if there are fewer."""
    rng = np.random.default_rng(seed)
    order = np.argsort(point_ids, kind="stable")
    _, starts, counts = np.unique(point_ids[order], return_index=True, return_counts=True)
    parts = [np.empty((0, 2), np.int64)]
    for length in np.unique(counts):
        rows = order[starts[counts == length][:, None] + np.arange(length)]
        first, second = np.triu_indices(length, 1)
        parts.append(np.stack([rows[:, first].ravel(), rows[:, second].ravel()], axis=1))
    same = np.concatenate(parts)
    total = len(point_ids) * (len(point_ids) - 1) // 2
    matching, non_matching = min(matching, len(same)), min(non_matching, total - len(same))
    if not matching or not non_matching:
        raise InputError("test pairs need at least two points, one of them with two patches")
    same = same[rng.choice(len(same), matching, replace=False)]
    drawn, different = non_matching, np.empty((0, 2), np.int64)
    while len(different) < non_matching:
        drawn *= 2
        numbers = rng.choice(total, min(drawn, total), replace=False)
        # Pair number k of the triangle (0,1), (0,2), (1,2), (0,3), … has second = row of k.
        second = ((1 + np.sqrt(1 + 8 * numbers.astype(np.float64))) // 2).astype(np.int64)
        first = numbers - second * (second - 1) // 2
        kept = np.flatnonzero(point_ids[first] != point_ids[second])[:non_matching]
        different = np.stack([first[kept], second[kept]], axis=1)
    pairs = np.concatenate([same, different])
    order = rng.permutation(len(pairs))
    return TestPairs(pairs[order, 0], pairs[order, 1], order < matching)
