"""HPatches folders: per sequence one reference column of 65×65 patches and fifteen others.

`<sequence>/ref.png` holds patches of the first image, one below the other; `e1 … e5`, `h1 … h5` and
`t1 … t5` hold the same scene points in the five other images, with easy, hard and tough geometric
noise. Any folder of such sequences can be read; the named splits need HPatches' own.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from tqdm import tqdm

from kjax.data.cutting.grey import picture_greys
from kjax.data.hpatches_splits import SPLITS
from kjax.errors import InputError, unknown_name
from kjax.files.images import open_image

PATCH_SIDE = 65
IMAGES = ("ref", *(f"{level}{number}" for level in "eht" for number in range(1, 6)))
"""The sixteen columns of a sequence, in the order in which they are read."""

Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Sequence:
    """One sequence: `patches[k, n]` is the n-th scene point in the column `IMAGES[k]`.

    Files have patches of 65×65.
    """

    name: str
    patches: UInt8[np.ndarray, "16 n side side"]


def list_sequences(folder: Folder, *, split: str | None = None) -> list[Path]:
    """The folders of the sequences that a split tests, of `SPLITS`, or of all that are there."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    found = {path.parent.name: path.parent for path in sorted(folder.glob("*/ref.png"))}
    if split is None:
        if not found:
            raise InputError(
                f"{folder} holds no sequence: give the folder above <sequence>/ref.png"
            )
        return list(found.values())
    if split not in SPLITS:
        raise unknown_name("HPatches split", split, SPLITS)
    missing = [name for name in SPLITS[split] if name not in found]
    if missing:
        raise InputError(
            f"{folder} lacks {len(missing)} of the {len(SPLITS[split])} sequences of split "
            f"{split}, e.g. {missing[0]}: fetch or unpack HPatches again"
        )
    return [found[name] for name in SPLITS[split]]


def read_hpatches(
    folder: Folder, *, split: str | None = None, progress: bool = True
) -> Iterator[Sequence]:
    """Reads sequence after sequence; all of HPatches at once would take 10 GB."""
    paths = list_sequences(folder, split=split)
    for path in tqdm(paths, desc="HPatches", disable=not progress):
        yield read_sequence(path)


def read_sequence(folder: Folder) -> Sequence:
    """The sixteen columns of one sequence; refuses missing, corrupt or unequal ones."""
    folder = Path(folder)
    columns = [read_column(folder / f"{image}.png") for image in IMAGES]
    for image, column in zip(IMAGES, columns, strict=True):
        if len(column) != len(columns[0]):
            raise InputError(
                f"{folder}: {image}.png has {len(column)} patches and ref.png {len(columns[0])}; "
                "fetch or unpack the sequence again"
            )
    return Sequence(folder.name, np.stack(columns))


def read_column(path: Path) -> UInt8[np.ndarray, "n 65 65"]:
    """The patches of one file."""
    if not path.is_file():
        raise InputError(f"{path.parent} lacks {path.name}: fetch or unpack it again")
    with open_image(path, advice="fetch or unpack it again") as image:
        width, height = image.size
        if width != PATCH_SIDE or height % PATCH_SIDE:
            raise InputError(
                f"{path} has {width}×{height} pixels; a column of patches is {PATCH_SIDE} wide "
                f"and a multiple of {PATCH_SIDE} high"
            )
        pixels = picture_greys(image)
    return pixels.reshape(-1, PATCH_SIDE, PATCH_SIDE)


def decoded_hash(sequences: Iterable[Sequence]) -> str:
    """SHA-256 over the names and decoded grey values: the same however the set was packed."""
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(f"{sequence.name} {sequence.patches.shape[1]}\n".encode())
        digest.update(np.ascontiguousarray(sequence.patches))
    return digest.hexdigest()
