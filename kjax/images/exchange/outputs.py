"""The files that `kjax describe` fills, photograph by photograph, and what they say of themselves.

All kinds of output answer the same questions: which photographs are there, what were they made
with, and where does the next one go. So a run that is repeated goes on only with what it would have
written itself.
"""

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.files.arrays import read_npz
from kjax.files.json_lines import append_line, read_lines
from kjax.images.exchange.colmap_text import write_colmap_text
from kjax.images.exchange.hloc import FeatureWriter
from kjax.images.exchange.npz import PROVENANCE, write_npz
from kjax.images.exchange.provenance import Provenance, from_json, from_values
from kjax.images.features import Features

HDF5_SUFFIXES = (".h5", ".hdf5")
SIDECAR = "kjax-describe.jsonl"
"""Beside COLMAP's text files, which have no place for it: what each was made with."""


class Output(abc.ABC):
    """Where features go: use it in a `with` statement."""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def origins(self) -> Mapping[str, Provenance | None]:
        """The photographs that are there by name, with what they say; None if they say nothing."""

    @abc.abstractmethod
    def add(self, name: str, features: Features, origin: Provenance) -> None:
        """Writes one photograph, in the place of an earlier one of that name."""

    def close(self) -> None:
        """Finishes the files."""
        return


def open_output(path: Path, names: list[str], *, form: str, overwrite: bool) -> Output:
    """The output at a path.

    Args:
        path: a file .h5 or .hdf5, or a folder.
        names: of the photographs that are to go there.
        form: in a folder, "npz" or "colmap".
        overwrite: whether to take no notice of what is there. A file is then replaced as a whole;
            in a folder, files of other photographs stay.
    """
    if path.suffix.lower() in HDF5_SUFFIXES:
        return _Hdf5(path, overwrite)
    return (_ColmapFolder if form == "colmap" else _NpzFolder)(path, names, overwrite)


def check_same_settings(output: Output, where: Path, wanted: Provenance) -> None:
    """Refuses to add to what was made with other settings, or says not with which."""
    remedy = "--overwrite makes it anew, or give another --out"
    for name, origin in output.origins().items():
        if origin is None:
            raise InputError(f"{where} does not say what {name} in it was made with: {remedy}")
        if differing := origin.differences(wanted):
            raise InputError(f"{where} was made with other settings ({differing}): {remedy}")


class _Hdf5(Output):
    """One file for hloc."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self._writer = FeatureWriter(path, fresh=overwrite)

    def origins(self) -> Mapping[str, Provenance | None]:
        texts = self._writer.attributes(FeatureWriter.PROVENANCE)
        return {name: from_json(text) for name, text in texts.items()}

    def add(self, name: str, features: Features, origin: Provenance) -> None:
        self._writer.add(name, features, provenance=origin.to_json())

    def close(self) -> None:
        self._writer.close()


class _NpzFolder(Output):
    """An archive per photograph."""

    def __init__(self, folder: Path, names: list[str], overwrite: bool) -> None:
        self._folder = folder
        present = () if overwrite else [name for name in names if self._path(name).exists()]
        self._origins = {name: _read_npz(self._path(name)) for name in present}

    def origins(self) -> Mapping[str, Provenance | None]:
        return self._origins

    def add(self, name: str, features: Features, origin: Provenance) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, features, provenance=origin.to_json())

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npz"


class _ColmapFolder(Output):
    """A text file per photograph, and a sidecar for all of them."""

    def __init__(self, folder: Path, names: list[str], overwrite: bool) -> None:
        self._folder, self._sidecar = folder, folder / SIDECAR
        self._origins: dict[str, Provenance | None] = {}
        if overwrite:
            self._sidecar.unlink(missing_ok=True)
            return
        recorded = dict(read_lines(self._sidecar, _named_origin, what="of a photograph"))
        for name in dict.fromkeys([*names, *recorded]):
            if self._path(name).exists():
                self._origins[name] = recorded.get(name)

    def origins(self) -> Mapping[str, Provenance | None]:
        return self._origins

    def add(self, name: str, features: Features, origin: Provenance) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # In this order a kill never leaves a file beside a line that is about another one.
        path.unlink(missing_ok=True)
        line = {"name": name, **dataclasses.asdict(origin)}
        append_line(self._sidecar, line, _named_origin)
        write_colmap_text(path, features)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.txt"


def _read_npz(path: Path) -> Provenance | None:
    """What the features of an archive were made with; None if it does not say, or is no archive."""
    try:
        archive = read_npz(path)
    except InputError:
        return None
    return from_json(str(archive[PROVENANCE])) if PROVENANCE in archive else None


def _named_origin(values: Any) -> tuple[str, Provenance]:
    """What a line of the sidecar says."""
    if not isinstance(values["name"], str):
        raise ValueError("its name is no text")
    return values["name"], from_values(values)
