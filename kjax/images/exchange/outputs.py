"""Files that `kjax describe` fills image by image, with the settings of each image's features.

| output             | place of the settings (JSON)                                 |
|--------------------|--------------------------------------------------------------|
| hloc HDF5          | attribute `kjax` of each image's group                       |
| NumPy archives     | entry `provenance`, a string                                 |
| COLMAP text        | `kjax-describe.jsonl` in the folder, one line per image      |

A repeated run only continues an output that has the same settings.
"""

import json
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.files.arrays import read_npz
from kjax.files.json_lines import append_line, read_lines
from kjax.files.json_text import parse_json
from kjax.images.exchange.colmap_bytes import write_colmap_text
from kjax.images.exchange.hloc import FeatureWriter
from kjax.images.exchange.npz import PROVENANCE, write_npz
from kjax.images.features import Features

HDF5_SUFFIXES = (".h5", ".hdf5")
SIDECAR = "kjax-describe.jsonl"
Settings = dict[str, Any]
"""Settings of features, see `Describer.feature_settings`."""
LABELS = {
    "sha256": "weights",
    "model": "model",
    "patch_size": "patch size",
    "dtype": "precision",
    "extent": "extent",
    "detector": "detector",
    "max_keypoints": "keypoints",
    "stored": "descriptors as",
}
"""Settings that must agree within an output, and their names in messages.

The weights' name and the version of kjax may differ: their content has a checksum, and a version
that finds other features gives the detector or the model another name.
"""
SHA256_DIGITS_SHOWN = 12


class Output:
    """Destination of features. Use it in a `with` statement.

    Attributes:
        recorded: settings by image already in the output; None if they are not recorded.
    """

    recorded: dict[str, Settings | None]

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, name: str, features: Features, settings: Settings) -> None:
        """Write the features of an image, replacing earlier ones of the same name."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish the files."""


def open_output(path: Path, names: list[str], *, form: str, overwrite: bool) -> Output:
    """Open the output at a path.

    Args:
        path: a file .h5 or .hdf5, or a folder.
        names: images that will be written.
        form: "npz" or "colmap", for a folder.
        overwrite: ignore existing files. A file is replaced as a whole; in a folder, files of
            other images stay.
    """
    if path.suffix.lower() in HDF5_SUFFIXES:
        return _Hdf5(path, overwrite)
    return (_ColmapFolder if form == "colmap" else _NpzFolder)(path, names, overwrite)


def check_same_settings(output: Output, where: Path, wanted: Settings) -> None:
    """Raise unless all images of an output have the wanted settings."""
    remedy = "use --overwrite to replace it, or choose another --out"
    for name, found in output.recorded.items():
        if found is None:
            raise InputError(f"{where} does not record the settings of {name}: {remedy}")
        differences = "; ".join(
            f"{label} {_shown(found, key)}, not {_shown(wanted, key)}"
            for key, label in LABELS.items()
            if found[key] != wanted[key]
        )
        if differences:
            raise InputError(f"{where} was made with other settings ({differences}): {remedy}")


def _shown(settings: Settings, key: str) -> str:
    if key == "sha256":
        return f"{settings['weights']} (SHA-256 {str(settings[key])[:SHA256_DIGITS_SHOWN]}…)"
    return str(settings[key])


class _Hdf5(Output):
    """One file for hloc."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self._writer = FeatureWriter(path, fresh=overwrite)
        texts = self._writer.attributes(FeatureWriter.PROVENANCE)
        self.recorded = {name: parse_settings(text) for name, text in texts.items()}

    def add(self, name: str, features: Features, settings: Settings) -> None:
        self._writer.add(name, features, provenance=json.dumps(settings, ensure_ascii=False))

    def close(self) -> None:
        self._writer.close()


class _NpzFolder(Output):
    """One archive per image."""

    def __init__(self, folder: Path, names: list[str], overwrite: bool) -> None:
        self._folder = folder
        paths = {} if overwrite else {name: folder / f"{name}.npz" for name in names}
        self.recorded = {name: _read_npz(path) for name, path in paths.items() if path.exists()}

    def add(self, name: str, features: Features, settings: Settings) -> None:
        path = self._folder / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, features, provenance=json.dumps(settings, ensure_ascii=False))


class _ColmapFolder(Output):
    """One text file per image, and a sidecar with all settings."""

    def __init__(self, folder: Path, names: list[str], overwrite: bool) -> None:
        self._folder, self._sidecar = folder, folder / SIDECAR
        self.recorded = {}
        if overwrite:
            self._sidecar.unlink(missing_ok=True)
            return
        lines = dict(read_lines(self._sidecar, _named_settings, what="settings of an image"))
        for name in dict.fromkeys([*names, *lines]):
            if (folder / f"{name}.txt").exists():
                self.recorded[name] = lines.get(name)

    def add(self, name: str, features: Features, settings: Settings) -> None:
        path = self._folder / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        # In this order a crash never leaves a text beside the settings of another one.
        path.unlink(missing_ok=True)
        append_line(self._sidecar, {"name": name, **settings}, _named_settings)
        write_colmap_text(path, features)


def parse_settings(text: Any) -> Settings | None:
    """Parse settings from JSON; None if it is anything else."""
    try:
        return _checked(parse_json(text))
    except (ValueError, TypeError, KeyError):
        return None


def _read_npz(path: Path) -> Settings | None:
    try:
        return parse_settings(str(read_npz(path)[PROVENANCE]))
    except (InputError, KeyError):
        return None


def _named_settings(line: Any) -> tuple[str, Settings]:
    if not isinstance(line["name"], str):
        raise ValueError("the name is not a string")
    return line["name"], _checked(line)


def _checked(values: Any) -> Settings:
    # Files from before version 0.2 lack `stored`.
    settings = {"stored": "float32", **values}
    if missing := {"weights", "photograph", *LABELS} - settings.keys():
        raise KeyError(f"{', '.join(sorted(missing))} missing")
    return settings
