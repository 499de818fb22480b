"""Descriptors of HPatches sequences: from patches, from the official CSV files, and into them.

The official layout is `<folder>/<sequence>/<image>.csv`, for the sixteen images of a sequence: no
header, one row per patch, commas between the values.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, UInt8
from tqdm import tqdm

from kjax.data import hpatches
from kjax.data.hpatches import IMAGES
from kjax.errors import InputError, unknown_name
from kjax.files.atomic import write_whole

_DELIMITERS = {";": "semicolons", "\t": "tabs", " ": "spaces"}

Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class SetDescriptors:
    """The descriptors of a set of sequences, all in one array: no copy is needed to index them.

    Attributes:
        patches: the sequences, with the number of patches in each of their sixteen images.
        rows: sequence after sequence, in each image after image in the order of
            `kjax.data.hpatches.IMAGES`, in each patch after patch. In host memory or on a device.
    """

    patches: dict[str, int]
    rows: Float32[np.ndarray, "rows dim"] | Float32[Array, "rows dim"]

    def __post_init__(self) -> None:
        expected = len(IMAGES) * sum(self.patches.values())
        if len(self.rows) != expected:
            raise InputError(f"{len(self.rows)} descriptors, but the sequences have {expected}")

    @classmethod
    def from_sequences(
        cls, sequences: Mapping[str, Float32[np.ndarray, "images n d"]]
    ) -> "SetDescriptors":
        """Joins arrays [16, n, dim], one per sequence."""
        if not sequences:
            raise InputError("no sequence: there are no descriptors to evaluate")
        for name, array in sequences.items():
            if array.shape[0] != len(IMAGES):
                raise InputError(f"{name} has {len(array)} images, not {len(IMAGES)}")
        dimensions = {array.shape[2] for array in sequences.values()}
        if len(dimensions) > 1:
            raise InputError(f"descriptors of {' and '.join(map(str, sorted(dimensions)))} values")
        rows = [array.reshape(-1, array.shape[2]) for array in sequences.values()]
        counts = {name: array.shape[1] for name, array in sequences.items()}
        return cls(counts, np.concatenate(rows))

    @property
    def dimension(self) -> int:
        """Values of a descriptor."""
        return self.rows.shape[1]

    @functools.cached_property
    def starts(self) -> dict[str, int]:
        """The first row of each sequence."""
        counts = np.array(list(self.patches.values()), np.int64)
        starts = len(IMAGES) * (np.cumsum(counts) - counts)
        return dict(zip(self.patches, starts.tolist(), strict=True))

    def __getitem__(self, name: str) -> Float32[np.ndarray, "16 n dim"]:
        """The descriptors of one sequence."""
        if name not in self.patches:
            raise unknown_name("sequence", name, self.patches)
        start, count = self.starts[name], self.patches[name]
        rows = np.asarray(self.rows[start : start + len(IMAGES) * count])
        return rows.reshape(len(IMAGES), count, self.dimension)

    def of(self, names: Iterable[str]) -> "SetDescriptors":
        """Those of some sequences only; the same object if they are all."""
        chosen = list(names)
        if chosen == list(self.patches):
            return self
        return SetDescriptors.from_sequences({name: self[name] for name in chosen})

    def on_device(self) -> "SetDescriptors":
        """The same, in the memory of JAX's default device."""
        if isinstance(self.rows, jax.Array):
            return self
        return SetDescriptors(self.patches, jnp.asarray(self.rows))

    @functools.cached_property
    def not_finite(self) -> int:
        """How many descriptors hold NaN or an infinity."""
        numpy = jnp if isinstance(self.rows, jax.Array) else np
        return int((~numpy.isfinite(self.rows).all(axis=1)).sum())

    @functools.cached_property
    def binary(self) -> bool:
        """Whether all values are 0 or 1."""
        return bool(((self.rows == 0) | (self.rows == 1)).all())


def describe_sequences(
    describe: Callable[[UInt8[np.ndarray, "m side side"]], Float32[np.ndarray, "m d"]],
    sequences: Iterable[hpatches.Sequence],
) -> SetDescriptors:
    """Descriptors of whatever sequences come, e.g. from `kjax.data.hpatches.read_hpatches`.

    Args:
        describe: from patches to one descriptor each, e.g. `kjax.model.describe.describe` with its
            model filled in. It is called once per sequence.
        sequences: are dropped one by one when described; patches take more memory.
    """
    described = {}
    for sequence in sequences:
        images, count = sequence.patches.shape[:2]
        rows = describe(sequence.patches.reshape(images * count, *sequence.patches.shape[2:]))
        if rows.ndim != 2 or len(rows) != images * count:
            raise InputError(f"describing {images * count} patches gave an array of {rows.shape}")
        described[sequence.name] = rows.astype(np.float32).reshape(images, count, -1)
    return SetDescriptors.from_sequences(described)


# Files


def read_descriptors(
    folder: Folder,
    *,
    names: Sequence[str] | None = None,
    patches: Mapping[str, int] | None = None,
    progress: bool = True,
) -> SetDescriptors:
    """Reads the official CSV files.

    Args:
        folder: holds one folder per sequence.
        names: the sequences to read; all that are there if not given.
        patches: how many each sequence must have, where that is known.
        progress: whether to show a bar.
    """
    folder = Path(folder)
    if names is None:
        names = sorted(path.parent.name for path in folder.glob("*/ref.csv"))
    if not names:
        raise InputError(f"{folder} holds no descriptors: give the folder above <sequence>/ref.csv")
    read: dict[str, np.ndarray] = {}
    for name in tqdm(names, desc="reading descriptors", unit="sequence", disable=not progress):
        read[name] = _read_sequence(folder / name, None if patches is None else patches.get(name))
    dimensions = {name: array.shape[2] for name, array in read.items()}
    for name, dimension in dimensions.items():
        if dimension != dimensions[names[0]]:
            raise InputError(
                f"{folder}: descriptors of {name} have {dimension} values and those of "
                f"{names[0]} {dimensions[names[0]]}; export both with one descriptor"
            )
    return SetDescriptors.from_sequences(read)


def _read_sequence(folder: Path, expected: int | None) -> Float32[np.ndarray, "16 n dim"]:
    images = []
    for image in IMAGES:
        path = folder / f"{image}.csv"
        images.append(_read_file(path))
        count = len(images[0]) if expected is None else expected
        if len(images[-1]) != count:
            raise InputError(
                f"{path} has {len(images[-1])} rows, but its sequence has {count} patches: "
                "export one row per patch, with no header"
            )
        if images[-1].shape[1] != images[0].shape[1]:
            raise InputError(
                f"{path} has {images[-1].shape[1]} columns and ref.csv {images[0].shape[1]}: "
                "export both with one descriptor"
            )
    return np.stack(images)


def _read_file(path: Path) -> Float32[np.ndarray, "n dim"]:
    try:
        with open(path, encoding="utf-8") as file:
            _check_first_line(path, file.readline())
            file.seek(0)
            rows = np.loadtxt(file, np.float32, comments=None, delimiter=",", ndmin=2)
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}): a sequence needs the sixteen files "
            "ref.csv, e1.csv … t5.csv"
        ) from error
    except ValueError as error:  # among them, text that is not UTF-8
        reason = str(error).splitlines()[0].split(";")[0]
        raise InputError(
            f"{path} is no table of numbers ({reason}): export it again, with commas, no header "
            "and equally many values per patch"
        ) from error
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise InputError(
            f"{path}: {len(bad)} of {len(rows)} descriptors hold NaN or an infinity, first in row "
            f"{bad[0] + 1}; export it again"
        )
    return rows


def _check_first_line(path: Path, line: str) -> None:
    if not line.strip():
        raise InputError(f"{path} is empty: export the descriptors again")
    if "," in line and ";" not in line:
        return
    for delimiter, name in _DELIMITERS.items():
        if delimiter in line.strip():
            raise InputError(f"{path} has {name} between its values: write commas instead")
    raise InputError(f"{path} has one value per row; a descriptor has more, with commas between")


def write_descriptors(
    descriptors: SetDescriptors, folder: Folder, *, progress: bool = True
) -> None:
    """Writes the official CSV files, with digits enough to read the same values back."""
    folder = Path(folder)
    # Nine significant digits tell any two float32 values apart.
    row = ",".join(["%.9g"] * descriptors.dimension) + "\n"
    names = descriptors.patches
    for name in tqdm(names, desc="writing descriptors", unit="sequence", disable=not progress):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for image, rows in zip(IMAGES, descriptors[name], strict=True):
            # One formatting call per file is several times faster than one per value.
            text = row * len(rows) % tuple(rows.ravel().tolist())
            write_whole(
                folder / name / f"{image}.csv",
                functools.partial(Path.write_bytes, data=text.encode()),
            )
