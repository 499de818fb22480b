"""HDF5 files that grow group by group and can be killed at any time.

An HDF5 file has no journal: a program killed while it writes can ruin the whole file. So a group
that is added becomes a small file of its own beside the large one, in `NAME.parts/`, written whole
or not at all. Closing puts all parts into a new copy of the large file, which then takes the old
one's place. After a kill, what was finished is still in the parts: opening the file for adding
knows them, and closing it puts them in place.
"""

import contextlib
import glob
import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Shaped

from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import partial_prefix, write_whole
from kjax.files.unpacking import check_unpacked

HDF5_FILES = "an HDF5 file"
Attributes = Mapping[str, Mapping[str, float]]
"""By dataset, then by name."""


_Writer = TypeVar("_Writer", bound="GroupWriter")
"""The checker of shapes in tests cannot read `typing.Self`."""


class GroupWriter:
    """Adds groups of arrays to an HDF5 file: use it in a `with` statement.

    Names that are in the file already, also from a run that was killed, are in the writer:

        with GroupWriter("features.h5") as writer:
            for name in names:
                if name not in writer:
                    writer.add_group(name, arrays)
    """

    def __init__(self, path: str | os.PathLike[str], *, fresh: bool = False) -> None:
        """Looks what is there.

        Args:
            path: of the file.
            fresh: whether to take no notice of it: groups that are added replace the whole file.
        """
        require("h5py", HDF5_FILES)
        self.path = Path(path)
        self._parts = self.path.with_name(self.path.name + ".parts")
        self._fresh = fresh
        if fresh:
            shutil.rmtree(self._parts, ignore_errors=True)
        self._names = {name for file in self._files() for name in group_names(file)}

    def __enter__(self: _Writer) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add_group(
        self,
        name: str,
        arrays: Mapping[str, np.ndarray],
        attributes: Attributes | None = None,
        *,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a group, in the place of an earlier one of that name; it is safe when this returns.

        Slashes in its name make groups within groups. Attributes are those of arrays, and `about`
        those of the group itself.
        """
        h5py = require("h5py", HDF5_FILES)
        _check_name(name)

        def write(path: Path) -> None:
            with h5py.File(path, "w") as file:
                group = file.create_group(name)
                group.attrs.update(about or {})
                for key, array in arrays.items():
                    dataset = group.create_dataset(key, data=array)
                    dataset.attrs.update((attributes or {}).get(key, {}))

        self._parts.mkdir(parents=True, exist_ok=True)
        part = hashlib.sha256(name.encode()).hexdigest()[:32]
        write_whole(self._parts / f"{part}.h5", write)
        self._names.add(name)

    def close(self) -> None:
        """Puts the parts into the file. Called twice, it does nothing more."""
        parts = self._part_files()
        if parts:
            write_whole(self.path, lambda partial: self._merge(partial, parts))
        self._fresh = False
        # Only now: a kill before this leaves parts that say what the file says too.
        shutil.rmtree(self._parts, ignore_errors=True)
        # Copies that a kill left unfinished.
        prefix = glob.escape(partial_prefix(self.path))
        for leftover in self.path.parent.glob(f"{prefix}*{self.path.suffix}"):
            leftover.unlink(missing_ok=True)

    def _merge(self, partial: Path, parts: list[Path]) -> None:
        h5py = require("h5py", HDF5_FILES)
        if self.path.exists() and not self._fresh:
            shutil.copyfile(self.path, partial)
        with h5py.File(partial, "a") as file:
            for part in parts:
                with h5py.File(part, "r") as source:
                    for name in group_names(part):
                        if name in file:
                            del file[name]
                        own_name = name.rpartition("/")[2]
                        source.copy(name, file.require_group(_parent(name)), own_name)

    def attributes(self, key: str) -> dict[str, Any]:
        """By group that holds arrays, an attribute of its own; None where there is none."""
        found: dict[str, Any] = {}
        for path in self._files():
            with open_hdf5(path) as file:
                found |= {name: file[name].attrs.get(key) for name in group_names(path)}
        return found

    def _files(self) -> list[Path]:
        """All that hold groups; what is in a later one counts."""
        whole = [self.path] if self.path.exists() and not self._fresh else []
        return [*whole, *self._part_files()]

    def _part_files(self) -> list[Path]:
        # Those that a kill left unfinished begin with a dot.
        return sorted(part for part in self._parts.glob("*.h5") if part.name[0] != ".")


def group_names(path: str | os.PathLike[str]) -> list[str]:
    """All groups that hold arrays, in order."""
    h5py = require("h5py", HDF5_FILES)
    names = set()

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            names.add(_parent(name))

    with open_hdf5(path) as file:
        file.visititems(visit)
    return sorted(names)


@contextlib.contextmanager
def open_hdf5(path: str | os.PathLike[str]) -> Iterator[Any]:
    """An HDF5 file to read.

    Raises:
        InputError: it is missing, or it is no HDF5 file; also for whatever the library stumbles
            over in the block that the file is for.
    """
    h5py = require("h5py", HDF5_FILES)
    if not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except InputError:
        raise
    except Exception as error:  # the library's errors have a dozen types, by where they arise
        raise InputError(f"{path} is no HDF5 file, or is damaged: write it again") from error


def find_group(file: Any, name: str) -> Any | None:
    """The group of that name in an open file; None if there is none.

    Raises:
        InputError: the way to it is a link, which may lead to another file.
    """
    h5py = require("h5py", HDF5_FILES)
    found = file
    for part in filter(None, name.split("/")):
        found = _child(found, part)
        if not isinstance(found, h5py.Group):
            return None
    return found


def read_arrays(group: Any, names: Iterable[str]) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Those datasets of a group that it has.

    Raises:
        InputError: one is a link, its numbers are in another file, or it is out of all proportion
            to its file.
    """
    h5py = require("h5py", HDF5_FILES)
    size = Path(group.file.filename).stat().st_size
    datasets = {name: _child(group, name) for name in names}
    total = 0
    for name, dataset in datasets.items():
        if dataset is None:
            continue
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise _refusal(group, f"{name} is no array")
        if dataset.dtype.kind not in "fiu":
            raise _refusal(group, f"{name} holds {dataset.dtype} and no numbers")
        if dataset.external or dataset.is_virtual:
            raise _refusal(group, f"the numbers of {name} are in other files")
        # Whole chunks are unpacked, however little of them belongs to the array.
        entries = max(math.prod(dataset.shape), math.prod(dataset.chunks or ()))
        total += entries * dataset.dtype.itemsize
    try:
        check_unpacked(size, total)
    except InputError as error:
        raise _refusal(group, str(error)) from None
    read = {name: dataset[()] for name, dataset in datasets.items() if dataset is not None}
    return {name: np.asarray(array) for name, array in read.items()}  # one number comes as such


def _child(group: Any, name: str) -> Any | None:
    h5py = require("h5py", HDF5_FILES)
    link = group.get(name, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        raise _refusal(group, f"{name} is a link")
    return group[name]


def _refusal(group: Any, problem: str) -> InputError:
    where = f"{group.file.filename}: {group.name.strip('/')}"
    return InputError(f"{where} is refused, as {problem}: write the file again")


def _check_name(name: str) -> None:
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise InputError(
            f"{name!r} cannot name a group: give a path below the folder of photographs"
        )


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "/"
