"""Files that `kjax describe` fills image by image, and the file that `kjax match` writes.

Features have their settings with them, as JSON. A run only continues an output with the same ones.

| output of `kjax describe` | place of the settings                                     |
|---------------------------|-----------------------------------------------------------|
| hloc HDF5                 | attribute `kjax` of each image's group                    |
| NumPy archives            | entry `provenance`, a string                              |
| COLMAP text               | `kjax-describe.jsonl` in the folder, one line per image   |
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kjax.data.cutting import MAX_SIDE
from kjax.errors import InputError
from kjax.files.json import append_line, parse_json, read_lines
from kjax.files.npz import read_npz
from kjax.files.npz import write_npz as write_arrays
from kjax.images.exchange.colmap_bytes import write_colmap_text
from kjax.images.exchange.hloc import FeatureWriter, MatchWriter
from kjax.images.exchange.npz import PROVENANCE, write_npz
from kjax.images.features import Features, Matches
from kjax.images.geometry import Verified
from kjax.images.poses import RelativePose

HDF5_SUFFIXES = (".h5", ".hdf5")
SIDECAR = "kjax-describe.jsonl"
FeatureSettings = dict[str, Any]
"""See `Describer.feature_settings`."""
LABELS = {
    "sha256": "weights",
    "model": "model",
    "patch_size": "patch size",
    "dtype": "precision",
    "extent": "extent",
    "detector": "detector",
    "max_keypoints": "keypoints",
    "max_side": "maximum side",
    "upright": "upright",
    "stored": "descriptors as",
    "version": "version of the method",
}
"""Settings that must agree within an output, and their names in messages."""


class Output(contextlib.AbstractContextManager["Output"]):
    """Destination of features. Use it in a `with` statement.

    `recorded` has the settings of each image in the output, or None if they are not recorded.
    """

    def __init__(self, path: Path, names: Iterable[str], *, form: str, overwrite: bool) -> None:
        """Open a file .h5 or .hdf5, or a folder of `form` "npz" or "colmap", for some images.

        A path that ends with .npz and is not a folder is the file of the only image.
        """
        self._path, self._form, self._sidecar = path, form, path / SIDECAR
        self._writer: FeatureWriter | None = None
        self.recorded: dict[str, FeatureSettings | None] = {}
        if path.suffix.lower() in HDF5_SUFFIXES:
            self._writer = FeatureWriter(path, fresh=overwrite)
            texts = self._writer.attributes(FeatureWriter.PROVENANCE)
            self.recorded = {name: parse_settings(text) for name, text in texts.items()}
        elif form == "colmap" and overwrite:
            self._sidecar.unlink(missing_ok=True)
        elif form == "colmap":
            lines = dict(read_lines(self._sidecar, _parse_line, what="settings of an image"))
            for name in dict.fromkeys([*names, *lines]):
                if self._file(name).exists():
                    self.recorded[name] = lines.get(name)
        elif not overwrite:
            for name in names:
                if self._file(name).exists():
                    self.recorded[name] = None
                    with contextlib.suppress(InputError, KeyError, ValueError):  # damaged
                        text = read_npz(self._file(name))[PROVENANCE]
                        self.recorded[name] = parse_settings(str(text).encode())

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, name: str, features: Features, settings: FeatureSettings) -> None:
        """Write the features of an image, replacing earlier ones of the same name."""
        if self._writer is not None:
            self._writer.add(name, features, settings=settings)
            return
        path = self._file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._form == "npz":
            write_npz(path, features, settings=settings)
            return
        # In this order a crash never leaves a text beside the settings of another one.
        path.unlink(missing_ok=True)
        append_line(self._sidecar, {"name": name, **settings}, _parse_line)
        write_colmap_text(path, features)

    def _file(self, name: str) -> Path:
        if self._path.suffix == ".npz" and not self._path.is_dir():
            return self._path
        return self._path / f"{name}{'.npz' if self._form == 'npz' else '.txt'}"


def check_same_settings(output: Output, where: Path, wanted: FeatureSettings) -> None:
    """Raise unless all images of an output have the wanted settings."""
    remedy = "use --overwrite to replace it, or choose another --out"
    for name, found in output.recorded.items():
        if found is None:
            raise InputError(f"{where} does not record the settings of {name}: {remedy}")
        before, now = (
            one | {"sha256": f"{one['weights']} (SHA-256 {str(one['sha256'])[:12]}…)"}
            for one in (found, wanted)
        )
        differences = "; ".join(
            f"{label} {before[key]}, not {now[key]}"
            for key, label in LABELS.items()
            if found[key] != wanted[key]
        )
        if differences:
            raise InputError(f"{where} was made with other settings ({differences}): {remedy}")


def parse_settings(text: Any) -> FeatureSettings | None:
    """Parse settings from JSON; None if it is anything else."""
    try:
        return _checked(parse_json(text))
    except (ValueError, TypeError, KeyError):
        return None


def _parse_line(line: Any) -> tuple[str, FeatureSettings]:
    if not isinstance(line["name"], str):
        raise ValueError("the name is not a string")
    return line["name"], _checked(line)


def _checked(values: Any) -> FeatureSettings:
    # Files from before version 0.2 lack `stored`, from before 0.4 the others.
    added = {"stored": "float32", "max_side": MAX_SIDE, "upright": False, "version": 1}
    settings = {**added, **values}
    if missing := {"weights", "photograph", *LABELS} - settings.keys():
        raise KeyError(f"{', '.join(sorted(missing))} missing")
    return settings


def write_pair(
    path: str | os.PathLike[str],
    names: tuple[str, str],
    first: Features,
    second: Features,
    matches: Matches,
    verified: Verified,
    pose: RelativePose | None = None,
) -> None:
    """Write the matches of two images to a NumPy archive .npz, or add them to hloc's HDF5 file.

    The archive has positions (the centre of the first pixel is (0, 0)), OpenCV's scales and angles,
    matches, inliers, and the geometry: H with 1 ~ H 0, or F with 1ᵀ F 0 = 0, or E and the relative
    pose. hloc's file has matches and scores only: use `kjax describe` to write keypoints for hloc.
    """
    if Path(path).suffix.lower() != ".npz":
        with MatchWriter(path) as writer:
            writer.add(*names, matches, len(first), len(second))
        return
    arrays = {
        "names": np.array(names),
        "indices": matches.indices,
        "distances": matches.distances,
        "ratios": matches.ratios,
        "scores": 1 - matches.ratios,
        "inliers": verified.inliers,
        "geometry": verified.model,
        "geometry_is": None if verified.kind is None else np.array(verified.kind),
        "rotation": None if pose is None else pose.rotation,
        "translation": None if pose is None else pose.translation,
    }
    for number, features in enumerate((first, second)):
        arrays |= {
            f"keypoints{number}": features.xy,
            f"scales{number}": features.scales,
            f"angles{number}": features.angles,
            f"image_size{number}": np.array(features.image_size),
        }
    write_arrays(Path(path), {name: one for name, one in arrays.items() if one is not None})
