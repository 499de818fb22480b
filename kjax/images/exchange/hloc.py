"""hloc's HDF5 files of features and matches.

The group of an image has its name and holds `keypoints` [N, 2], `descriptors` [D, N] (transposed),
`scores`, `scales` (σ), `oris` (degrees clockwise) and `image_size` (width, height). The centre of
the first pixel is (0, 0): hloc adds 0.5 when it fills a COLMAP database. If descriptors are binary,
the group's attribute `distance` is "Hamming". `ratio` is the default of the ratio test, if known.

HDF5 has no journal: a program killed while writing can ruin the whole file. Each added group is
therefore first written to its own small file in `NAME.parts/`, atomically. Closing merges all parts
into a copy of the large file, which then replaces it. After a crash, the next writer merges them.
"""

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32, Int32, Shaped

from kjax.data.cutting.keypoints import upright_without
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import partial_prefix, write_whole
from kjax.images.exchange.npz import DISTANCE, PROVENANCE, RATIO, WEIGHTS, checked_features
from kjax.images.features import Features, Matches, from_sigmas
from kjax.images.match import from_hloc_style, hloc_style

HDF5_FILES = "an HDF5 file"
FEATURES = ("keypoints", "descriptors", "image_size", "scales", "oris", "scores")
"""Arrays of an image's group; the first three are required."""
UNCERTAINTY = 1.0
"""Uncertainty of positions in pixels, which hloc passes to COLMAP's triangulation."""
_Writer = TypeVar("_Writer", bound="GroupWriter")
"""The runtime type checker of the tests does not support `typing.Self`."""


class GroupWriter:
    """Add groups of arrays to an HDF5 file. Use it in a `with` statement.

    `name in writer` is true for groups in the file, and for those left by a killed run.
    """

    def __init__(self, path: str | os.PathLike[str], *, fresh: bool = False) -> None:
        """Index the groups already in the file; if `fresh`, new groups replace the whole file."""
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
        self, name: str, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any] = {}
    ) -> None:
        """Add a group durably, replacing an earlier one; slashes in its name nest groups."""
        h5py = require("h5py", HDF5_FILES)
        if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise InputError(f"{name!r} cannot name a group: use a path below the image folder")

        def write(path: Path) -> None:
            with h5py.File(path, "w") as file:
                group = file.create_group(name)
                group.attrs.update(attributes)
                for key, array in arrays.items():
                    group.create_dataset(key, data=array)
                if "keypoints" in arrays:
                    group["keypoints"].attrs["uncertainty"] = UNCERTAINTY

        self._parts.mkdir(parents=True, exist_ok=True)
        part = hashlib.sha256(name.encode()).hexdigest()[:32]
        write_whole(self._parts / f"{part}.h5", write)
        self._names.add(name)

    def close(self) -> None:
        """Merge the parts into the file. A second call has no effect."""
        h5py = require("h5py", HDF5_FILES)
        parts = self._part_files()

        def merge(partial: Path) -> None:
            if self.path.exists() and not self._fresh:
                shutil.copyfile(self.path, partial)
            with h5py.File(partial, "a") as file:
                for part in parts:
                    with h5py.File(part, "r") as source:
                        for name in group_names(part):
                            if name in file:
                                del file[name]
                            parent, _, own_name = name.rpartition("/")
                            source.copy(name, file.require_group(parent or "/"), own_name)

        if parts:
            write_whole(self.path, merge)
        self._fresh = False
        # Only now: after a crash before this line, the parts repeat what the file says.
        shutil.rmtree(self._parts, ignore_errors=True)
        prefix = glob.escape(partial_prefix(self.path))
        for leftover in self.path.parent.glob(f"{prefix}*{self.path.suffix}"):
            leftover.unlink(missing_ok=True)

    def attributes(self, key: str) -> dict[str, Any]:
        """Return an attribute of every group with arrays, by name; None where it is missing."""
        found: dict[str, Any] = {}
        for path in self._files():
            with open_hdf5(path) as file:
                found |= {name: file[name].attrs.get(key) for name in group_names(path)}
        return found

    def _files(self) -> list[Path]:
        """HDF5 files, in order; later ones take precedence."""
        whole = [self.path] if self.path.exists() and not self._fresh else []
        return [*whole, *self._part_files()]

    def _part_files(self) -> list[Path]:
        # Unfinished files of a killed run begin with a dot.
        return sorted(part for part in self._parts.glob("*.h5") if part.name[0] != ".")


def group_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of all groups that hold arrays, sorted."""
    h5py = require("h5py", HDF5_FILES)
    names = set()

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            names.add(name.rpartition("/")[0] or "/")

    with open_hdf5(path) as file:
        file.visititems(visit)
    return sorted(names)


@contextlib.contextmanager
def open_hdf5(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open an HDF5 file for reading; any error of h5py in the block becomes an InputError."""
    h5py = require("h5py", HDF5_FILES)
    if not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except InputError:
        raise
    except Exception as error:  # h5py raises a dozen types
        raise InputError(f"cannot read {path} as HDF5: the file is damaged") from error


def read_group(
    path: str | os.PathLike[str], name: str, keys: Iterable[str]
) -> tuple[dict[str, Shaped[np.ndarray, "..."]], dict[str, Any]] | None:
    """Return the arrays of a group and its attributes, or None if there is no such group."""
    h5py = require("h5py", HDF5_FILES)
    arrays = {}
    with open_hdf5(path) as file:

        def find(inner: str) -> Any | None:
            found = file
            for part in filter(None, inner.split("/")):
                link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
                if link is None:
                    return None
                if not isinstance(link, h5py.HardLink):  # it could lead to another file
                    raise InputError(f"{path}: {inner} is a link: write the file again")
                found = found[part]
            return found

        group = find(name)
        if not isinstance(group, h5py.Group):
            return None
        for key in keys:
            dataset = find(f"{name}/{key}")
            if dataset is None:
                continue
            if not isinstance(dataset, h5py.Dataset):
                raise InputError(f"{path}: {name}/{key} is not an array: write the file again")
            if dataset.external or dataset.is_virtual:
                raise InputError(f"{path}: {name}/{key} is in other files: write the file again")
            arrays[key] = np.asarray(dataset[()])
        return arrays, dict(group.attrs)


class FeatureWriter(GroupWriter):
    """Add images to a feature file; see `GroupWriter` for resuming."""

    PROVENANCE = "kjax"
    """Attribute of an image's group with the settings of its features."""

    def add(
        self, name: str, features: Features, *, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Add the features of an image and their settings; its name is the path with slashes."""
        attributes = {
            self.PROVENANCE: settings and json.dumps(settings, ensure_ascii=False),
            DISTANCE: None if features.distance == "L2" else features.distance,
            RATIO: features.ratio,
            WEIGHTS: features.weights_sha256,
        }
        known = {key: value for key, value in attributes.items() if value is not None}
        self.add_group(name, feature_arrays(features), known)


def feature_arrays(features: Features) -> dict[str, np.ndarray]:
    """Return the arrays of an image's group by name, without those that are unknown."""
    angles = features.angles
    arrays = {
        "keypoints": features.xy,
        "descriptors": features.descriptors.T,
        "image_size": np.array(features.image_size),
        "scores": features.scores,
        "scales": features.sigmas(),
        "oris": None if angles is None else upright_without(angles),
    }
    return {name: array for name, array in arrays.items() if array is not None}


def read_features(path: str | os.PathLike[str], name: str) -> Features:
    """Read the features of an image from a file of kjax or hloc."""
    arrays, attributes = read_group(path, name, FEATURES) or ({}, {})
    if not arrays:
        raise InputError(f"{path} has no features of {name!r}: extract them first")
    return features_of(arrays, f"{path}: {name}", attributes)


def features_of(
    arrays: Mapping[str, np.ndarray], source: str, attributes: Mapping[str, Any] = {}
) -> Features:
    """Convert the arrays of an image's group from a named source: undo `feature_arrays`."""
    if missing := [key for key in FEATURES[:3] if key not in arrays]:
        raise InputError(f"{source} lacks {', '.join(missing)}: extract local features")
    columns = {
        "xy": arrays["keypoints"],
        "descriptors": np.ascontiguousarray(arrays["descriptors"].T),
        "image_size": arrays["image_size"],
        "scales": arrays.get("scales"),
        "angles": arrays.get("oris"),
        "scores": arrays.get("scores"),
        PROVENANCE: attributes.get(FeatureWriter.PROVENANCE),
        **{key: attributes.get(key) for key in (DISTANCE, RATIO, WEIGHTS)},
    }
    known = {key: np.asarray(one) for key, one in columns.items() if one is not None}
    found = checked_features(source, known)
    return dataclasses.replace(found, scales=from_sigmas(found.scales))


class MatchWriter(GroupWriter):
    """Add image pairs to a match file; see `GroupWriter` for resuming."""

    def add(self, first: str, second: str, matches: Matches, n0: int, n1: int) -> None:
        """Add the matches of two images that have n0 and n1 keypoints."""
        styled = hloc_style(matches, n0, n1)
        # hloc writes int16, which ends at 32,767 keypoints, but reads any integer type.
        scores = styled["matching_scores0"].astype(np.float16)
        arrays = {"matches0": styled["matches0"], "matching_scores0": scores}
        self.add_group(pair_name(first, second), arrays)


def read_matches(
    path: str | os.PathLike[str], first: str, second: str
) -> tuple[Int32[np.ndarray, "K 2"], Float32[np.ndarray, " K"]]:
    """Read the indices and scores of a pair's matches, stored in either order."""
    keys = ("matches0", "matching_scores0")
    found, turned = read_group(path, pair_name(first, second), keys), False
    if found is None:
        found, turned = read_group(path, pair_name(second, first), keys), True
    if found is None:
        raise InputError(f"{path} has no matches of {first!r} and {second!r}: match them first")
    partners, scores = (found[0].get(key, np.empty(())) for key in keys)
    if (
        partners.ndim != 1
        or partners.shape != scores.shape
        or partners.dtype.kind not in "iu"
        or scores.dtype.kind not in "fiu"
        or ((partners < -1) | (partners > np.iinfo(np.int32).max)).any()
    ):
        raise InputError(f"{path} has damaged matches of {first!r} and {second!r}: match again")
    indices, kept = from_hloc_style(partners.astype(np.int32), scores.astype(np.float32))
    return (np.ascontiguousarray(indices[:, ::-1]) if turned else indices), kept


def pair_name(first: str, second: str) -> str:
    """Return hloc's name of a pair: slashes within names become hyphens."""
    return "/".join(name.replace("/", "-") for name in (first, second))
