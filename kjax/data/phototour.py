"""PhotoTourism sets (Brown & Winder): mosaics of 64×64 patches, each labelled with its 3-D point.

A folder holds `patches0000.bmp`, … (1024×1024 grey, 16×16 patches each, row by row), `info.txt`
(column 0: the 3-D point of each patch), `m50_*.txt` (test pairs) and perhaps `interest.txt`. Any
folder in this format is a set, whatever its name.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int64, Shaped, UInt8
from numpy.typing import ArrayLike
from PIL import Image
from tqdm import tqdm

from kjax.data.cache import (
    cache_root,
    fingerprint,
    is_intact,
    mendable_cache_errors,
    new_folder,
)
from kjax.data.cutting.grey import picture_greys
from kjax.errors import InputError, first_line
from kjax.files.arrays import read_npy
from kjax.files.images import open_image
from kjax.files.json_text import parse_json

PATCH_SIDE = 64
MOSAIC_SIDE = 16
"""Patches along each side of a mosaic."""
PATCHES_PER_MOSAIC = MOSAIC_SIDE**2
MOSAIC_PIXELS = MOSAIC_SIDE * PATCH_SIDE
STANDARD_MATCH_FILE = "m50_100000_100000_0.txt"
"""The 100k + 100k pairs on which published false positive rates are measured."""
CACHE_VERSION = 2
PATCHES_FILE, POINTS_FILE = "patches.npy", "point_ids.npy"
"""Of an entry of the cache."""

Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class PatchSet:
    """A decoded set. `patches` is mapped from disk, read-only: touch only what you need.

    Attributes:
        name: the folder's name.
        patches: grey patches, in the order of the mosaics.
        point_ids: the 3-D point that each patch sees.
        folder: where the mosaics are.
        parts: of a set that was joined from several, the number of patches of each, if each is to
            have a share of its own in every batch.
    """

    name: str
    patches: UInt8[np.ndarray, "P 64 64"]
    point_ids: Int64[np.ndarray, " P"]
    folder: Path
    parts: tuple[int, ...] = ()


class TestPairs(NamedTuple):
    """Pairs of patches (by number) and whether they see the same 3-D point."""

    first: Int64[np.ndarray, " M"]
    second: Int64[np.ndarray, " M"]
    matching: Bool[np.ndarray, " M"]


TestPairs.__test__ = False  # type: ignore[attr-defined]  # or pytest takes it for a test case


# Reading


def read_phototour(
    folder: Folder, *, cache_dir: Folder | None = None, progress: bool = True
) -> PatchSet:
    """Opens a set. The first time, its mosaics are decoded into one array in the cache folder.

    Later calls map that array, as long as the files it was made from keep their size and time. A
    damaged one is made again: see `kjax.data.cache.is_intact` for what is noticed.

    Raises:
        InputError: the folder is not a whole set, or the cache folder cannot be written.
    """
    folder = Path(folder).resolve()

    def decode(partial: Path) -> Int64[np.ndarray, " P"]:
        blocks, point_ids = decode_folder(folder, progress=progress)
        _stream_patches(partial / PATCHES_FILE, blocks, len(point_ids))
        return point_ids

    entry = cache_entry("phototour", folder, cache_dir)
    patches, point_ids = open_decoded(
        entry, lambda: [*list_mosaics(folder), folder / "info.txt"], decode
    )
    return PatchSet(folder.name, patches, point_ids, folder)


def list_mosaics(folder: Path) -> list[Path]:
    """The mosaics of a set in order; refuses a folder with none, with a gap, or without labels."""
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    numbered = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := re.fullmatch(r"patches(\d+)\.bmp", path.name))
    }
    if not numbered:
        raise InputError(f"{folder} has no patches0000.bmp: give the folder of a PhotoTourism set")
    for number in range(len(numbered)):
        if number not in numbered:
            raise InputError(f"{folder} lacks patches{number:04d}.bmp: fetch or unpack it again")
    if not (folder / "info.txt").is_file():
        raise InputError(f"{folder} lacks info.txt, which names each patch's 3-D point")
    return [numbered[number] for number in range(len(numbered))]


def _read_point_ids(folder: Path, *, mosaic_count: int) -> Int64[np.ndarray, " P"]:
    """The 3-D point of each patch; there must be as many as the mosaics hold, the last in part."""
    path = folder / "info.txt"
    point_ids = _read_columns(path, (0,), np.int64)[:, 0]
    room = mosaic_count * PATCHES_PER_MOSAIC
    if not room - PATCHES_PER_MOSAIC < len(point_ids) <= room:
        problem = "too short" if len(point_ids) < room else "too long"
        raise InputError(
            f"{path} is {problem}: {len(point_ids)} lines for {mosaic_count} mosaics, which hold "
            f"{room - PATCHES_PER_MOSAIC + 1} to {room} patches; fetch or unpack the set again"
        )
    return point_ids


def decode_mosaic(path: Path) -> UInt8[np.ndarray, "256 64 64"]:
    """All patches of one mosaic, row by row."""
    with open_image(path, advice="fetch or unpack it again") as image:
        if image.size != (MOSAIC_PIXELS, MOSAIC_PIXELS):
            width, height = image.size
            raise InputError(
                f"{path} has {width}×{height} pixels; a mosaic has {MOSAIC_PIXELS}×{MOSAIC_PIXELS}"
            )
        pixels = picture_greys(image)
    grid = pixels.reshape(MOSAIC_SIDE, PATCH_SIDE, MOSAIC_SIDE, PATCH_SIDE)
    return np.ascontiguousarray(grid.swapaxes(1, 2)).reshape(-1, PATCH_SIDE, PATCH_SIDE)


def read_match_file(path: Folder, *, patch_count: int) -> TestPairs:
    """The pairs of an `m50_*.txt` file: columns 0 and 3 are patches, 1 and 4 their 3-D points."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no such match file: {path}")
    columns = _read_columns(path, (0, 1, 3, 4), np.int64)
    first, second = columns[:, 0], columns[:, 2]
    numbers = columns[:, [0, 2]]
    outside = (numbers < 0) | (numbers >= patch_count)
    if outside.any():
        line = int(outside.any(axis=1).argmax())
        raise InputError(
            f"{path}, line {line + 1}: patch {numbers[line][outside[line]][0]} is not in the set, "
            f"which has patches 0 to {patch_count - 1}; is this another set's match file?"
        )
    return TestPairs(first, second, columns[:, 1] == columns[:, 3])


def read_interest(folder: Folder, *, patch_count: int) -> Float[np.ndarray, "P 5"] | None:
    """Image number, x, y, orientation, log2 scale of each patch's keypoint; None without a file."""
    path = Path(folder) / "interest.txt"
    if not path.is_file():
        return None
    table = _read_columns(path, range(5), np.float64)
    if len(table) != patch_count:
        raise InputError(f"{path} has {len(table)} lines for {patch_count} patches: fetch it again")
    return table


def find_match_file(folder: Folder) -> Path:
    """The set's standard match file, or its only one."""
    folder = Path(folder)
    found = sorted(folder.glob("m50_*.txt"))
    standard = folder / STANDARD_MATCH_FILE
    if standard in found:
        return standard
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise InputError(
            f"{folder}: expected {STANDARD_MATCH_FILE} or a single m50_*.txt, found {names}; "
            "name the match file to use"
        )
    return found[0]


def read_standard_pairs(patch_set: PatchSet) -> TestPairs:
    """The pairs of `find_match_file`."""
    path = find_match_file(patch_set.folder)
    return read_match_file(path, patch_count=len(patch_set.patches))


def decode_folder(
    folder: Folder, *, progress: bool = True
) -> tuple[Iterator[UInt8[np.ndarray, "some 64 64"]], Int64[np.ndarray, " P"]]:
    """The patches of a set in blocks, and the 3-D point of each, with nothing cached."""
    folder = Path(folder)
    mosaics = list_mosaics(folder)
    point_ids = _read_point_ids(folder, mosaic_count=len(mosaics))
    bar = tqdm(mosaics, desc=f"decoding {folder.name}", disable=not progress)
    rest = len(point_ids) - PATCHES_PER_MOSAIC * (len(mosaics) - 1)
    last = mosaics[-1]
    blocks = (decode_mosaic(path)[: rest if path == last else None] for path in bar)
    return blocks, point_ids


def decoded_hash(blocks: Iterable[UInt8[np.ndarray, "some 64 64"]], point_ids: np.ndarray) -> str:
    """SHA-256 of the decoded grey values, then of the point ids: the same however it was packed."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block))
    digest.update(np.ascontiguousarray(point_ids, dtype="<i8"))
    return digest.hexdigest()


def _read_columns(
    path: Path, columns: Sequence[int], dtype: type[np.generic]
) -> Shaped[np.ndarray, "lines columns"]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="loadtxt: input contained no data")
            # Numbers with a point where whole ones belong.
            warnings.filterwarnings("error", category=DeprecationWarning)
            table = np.loadtxt(path, dtype=dtype, usecols=columns, ndmin=2)
    except (ValueError, OverflowError, DeprecationWarning, OSError) as error:
        raise InputError(
            f"cannot read {path} ({first_line(error)}): fetch or unpack it again"
        ) from error
    if not table.size:
        raise InputError(f"{path} is empty: fetch or unpack it again")
    return table


# The cache


def cache_entry(kind: str, folder: Path, cache_dir: Folder | None = None) -> Path:
    """Where what is decoded from a folder, named by its whole path, is kept; see `cache_root`."""
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return cache_root(cache_dir) / kind / f"{folder.name}-{digest}"


def open_decoded(
    entry: Path,
    list_sources: Callable[[], Sequence[Path]],
    decode: Callable[[Path], Int64[np.ndarray, " P"]],
) -> tuple[UInt8[np.ndarray, "P 64 64"], Int64[np.ndarray, " P"]]:
    """The patches of an entry of the cache, mapped, and their 3-D points; decoded if need be.

    Args:
        entry: made by `cache_entry`.
        list_sources: the files that the entry is made from. It is current as long as they keep
            their size and time.
        decode: writes `PATCHES_FILE`, and perhaps other .npy files, into the folder it is given,
            and returns the 3-D point of each patch.

    Raises:
        InputError: the cache folder cannot be written, or what the functions raise.
    """
    sources = _as_they_are(list_sources())
    cached = _open_cached(entry, sources)
    if cached is None:
        _fill_cache(entry, sources, decode)
        cached = _open_cached(entry, sources)
    if cached is None:
        files = list_sources()
        if sources != _as_they_are(files):
            raise InputError(
                f"{files[0].parent} changed while it was read: try again when nothing writes to it"
            )
        raise InputError(f"the cache {entry} does not keep what is written: delete that folder")
    return cached


def _as_they_are(paths: Iterable[Path]) -> list[list[Any]]:
    """Name, size and time of files."""
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def _open_cached(entry: Path, sources: list[list[Any]]) -> tuple[np.ndarray, np.ndarray] | None:
    """The cached arrays, or None if they are absent, damaged or made from other files."""
    try:
        marker = parse_json((entry / "whole.json").read_bytes())
        if marker["version"] != CACHE_VERSION or marker["sources"] != sources:
            return None
        if not {PATCHES_FILE, POINTS_FILE} <= marker["files"].keys():
            return None
        if not all(is_intact(entry / name, known) for name, known in marker["files"].items()):
            return None
        patches = np.load(entry / PATCHES_FILE, mmap_mode="r")
        point_ids = read_npy(entry / POINTS_FILE)
        shape = (marker["patches"], PATCH_SIDE, PATCH_SIDE)
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError):
        return None
    if patches.shape != shape or patches.dtype != np.uint8 or len(point_ids) != shape[0]:
        return None
    return patches, point_ids


def _fill_cache(
    entry: Path, sources: list[list[Any]], decode: Callable[[Path], Int64[np.ndarray, " P"]]
) -> None:
    """Decodes into a temporary folder and renames it, so that an entry is whole or not there.

    Several processes may do so at once. The first to end is taken by all: replacing its entry
    would take it from under a process that opens it.
    """
    with mendable_cache_errors(entry.parent):
        try:
            with new_folder(entry) as partial:
                point_ids = decode(partial)
                np.save(partial / POINTS_FILE, point_ids)
                marker = {
                    "version": CACHE_VERSION,
                    "patches": len(point_ids),
                    "sources": sources,
                    "files": {path.name: fingerprint(path) for path in partial.glob("*.npy")},
                }
                (partial / "whole.json").write_text(json.dumps(marker))
                if _open_cached(entry, sources) is None:
                    shutil.rmtree(entry, ignore_errors=True)  # stale or damaged
        except OSError as error:
            if _open_cached(entry, sources) is None:
                if not entry.exists():
                    raise
                raise InputError(
                    f"the cache {entry} is damaged or out of date: delete that folder"
                ) from error


def _stream_patches(path: Path, blocks: Iterable[np.ndarray], count: int) -> None:
    """Writes an .npy file block by block, so that no more than one block is in memory."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, PATCH_SIDE, PATCH_SIDE)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block))


# Writing


def write_phototour(
    folder: Folder,
    patches: ArrayLike,
    point_ids: ArrayLike,
    *,
    pairs: TestPairs | None = None,
    interest: ArrayLike | None = None,
) -> Path:
    """Writes a set; the folder appears only when it is whole.

    Args:
        folder: must not exist yet, or be empty.
        patches: grey patches, uint8 [P,64,64].
        point_ids: the 3-D point of each, integers [P].
        pairs: test pairs, written as `m50_<matching>_<others>_0.txt`.
        interest: image number, x, y, orientation (radians) and log2 scale of each patch's
            keypoint, [P,5].

    Returns:
        The folder.
    """
    folder = Path(folder)
    patches, point_ids = np.asarray(patches), np.asarray(point_ids)
    interest = None if interest is None else np.asarray(interest)
    _check_writable_set(folder, patches, point_ids, interest)
    with new_folder(folder.resolve()) as partial:
        for number, start in enumerate(range(0, len(patches), PATCHES_PER_MOSAIC)):
            mosaic = _mosaic(patches[start : start + PATCHES_PER_MOSAIC])
            Image.fromarray(mosaic).save(partial / f"patches{number:04d}.bmp")
        _write_lines(partial / "info.txt", (f"{point} 0" for point in point_ids))
        if interest is not None:
            _write_lines(partial / "interest.txt", (_interest_line(row) for row in interest))
        if pairs is not None:
            matching = int(pairs.matching.sum())
            name = f"m50_{matching}_{len(pairs.matching) - matching}_0.txt"
            _write_lines(partial / name, _match_lines(pairs, point_ids))
    return folder


def _check_writable_set(
    folder: Path, patches: np.ndarray, point_ids: np.ndarray, interest: np.ndarray | None
) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} already exists: remove it or choose another folder")
    if patches.dtype != np.uint8 or patches.shape[1:] != (PATCH_SIDE, PATCH_SIDE):
        raise InputError(
            f"patches must be uint8 [P,{PATCH_SIDE},{PATCH_SIDE}], "
            f"not {patches.dtype} {list(patches.shape)}"
        )
    if not len(patches):
        raise InputError("a set needs at least one patch")
    if point_ids.shape != (len(patches),) or not np.issubdtype(point_ids.dtype, np.integer):
        raise InputError(
            f"point_ids must be {len(patches)} integers, one per patch, "
            f"not {point_ids.dtype} {list(point_ids.shape)}"
        )
    if interest is not None and interest.shape != (len(patches), 5):
        raise InputError(f"interest must be [{len(patches)},5], not {list(interest.shape)}")


def _mosaic(patches: UInt8[np.ndarray, "up_to_256 64 64"]) -> UInt8[np.ndarray, "1024 1024"]:
    block = np.zeros((PATCHES_PER_MOSAIC, PATCH_SIDE, PATCH_SIDE), np.uint8)
    block[: len(patches)] = patches
    grid = block.reshape(MOSAIC_SIDE, MOSAIC_SIDE, PATCH_SIDE, PATCH_SIDE).swapaxes(1, 2)
    return np.ascontiguousarray(grid).reshape(MOSAIC_PIXELS, MOSAIC_PIXELS)


def _interest_line(row: Float[np.ndarray, " 5"]) -> str:
    image, x, y, orientation, log_scale = row
    return f"{int(image)} {x:.3f} {y:.3f} {orientation:.5f} {log_scale:.5f}"


def _match_lines(pairs: TestPairs, point_ids: Int[np.ndarray, " P"]) -> Iterator[str]:
    same = point_ids[pairs.first] == point_ids[pairs.second]
    if (same != pairs.matching).any():
        raise InputError("pairs.matching disagrees with point_ids: the format has room for one")
    for a, b in zip(pairs.first, pairs.second, strict=True):
        yield f"{a} {point_ids[a]} 0 {b} {point_ids[b]} 0 0"


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w") as file:
        file.writelines(f"{line}\n" for line in lines)
