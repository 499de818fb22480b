"""hloc's HDF5 files of features and of matches.

A group of features is named like its photograph and holds `keypoints` [N, 2], `descriptors`
[D, N] (transposed), `scores`, `scales` (σ), `oris` (degrees, clockwise on screen) and `image_size`
(width, height). The centre of the first pixel is (0, 0): hloc adds 0.5 when it fills a COLMAP
database. Where descriptors are bits, the group's attribute `distance` says "Hamming".
"""

import dataclasses
import os
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float32, Int32

from kjax.data.cutting.keypoints import upright_without
from kjax.errors import InputError
from kjax.images.exchange.columns import checked_features, single
from kjax.images.exchange.hdf5_groups import (
    GroupWriter,
    find_group,
    open_hdf5,
    read_arrays,
)
from kjax.images.features import Features, from_sigmas
from kjax.images.matching import Matches, from_hloc_style, hloc_style

Path = str | os.PathLike[str]


FEATURES = ("keypoints", "descriptors", "image_size", "scales", "oris", "scores")
"""What the group of a photograph may hold; the first three it must."""
_MATCHES = ("matches0", "matching_scores0")
_LARGEST_INDEX = 2**31 - 1


class FeatureWriter(GroupWriter):
    """Adds photographs to a feature file: see `GroupWriter` for how to go on after a kill.

    Args:
        path: of the file.
        half: whether descriptors and scores are float16, as hloc's own. Positions and scales stay
            float32: beyond 2048 pixels, float16 holds even coordinates only.
        fresh: as in `GroupWriter`.
    """

    PROVENANCE = "kjax"
    """Attribute of a photograph's group, which hloc does not look at: what it was made with."""
    DISTANCE = "distance"
    """The same, where it is not L2: what compares descriptors."""

    def __init__(self, path: Path, *, half: bool = False, fresh: bool = False) -> None:
        super().__init__(path, fresh=fresh)
        self.half = half

    def add(
        self,
        name: str,
        features: Features,
        *,
        uncertainty: float = 1.0,
        provenance: str | None = None,
    ) -> None:
        """Adds one photograph.

        Args:
            name: path below the folder of photographs, with slashes.
            features: of the photograph.
            uncertainty: of the positions in pixels, which hloc gives to COLMAP's triangulation.
            provenance: what the features were made with.
        """
        arrays = feature_arrays(features)
        if self.half:
            for key in ("descriptors", "scores"):
                if key in arrays and arrays[key].dtype != np.uint8:
                    arrays[key] = arrays[key].astype(np.float16)
        about = {} if provenance is None else {self.PROVENANCE: provenance}
        if features.distance != "L2":
            about[self.DISTANCE] = features.distance
        self.add_group(name, arrays, {"keypoints": {"uncertainty": uncertainty}}, about=about)


def feature_arrays(features: Features) -> dict[str, np.ndarray]:
    """What the group of a photograph holds, by name; what is not known is left out."""
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


def read_features(path: Path, name: str) -> Features:
    """The features of one photograph, from a file of kjax or of hloc.

    Raises:
        InputError: the file is none, or lacks the photograph.
    """
    with open_hdf5(path) as file:
        group = find_group(file, name)
        arrays = read_arrays(group, FEATURES) if group is not None else {}
        distance = None if group is None else group.attrs.get(FeatureWriter.DISTANCE)
    if "keypoints" not in arrays:
        raise InputError(f"{path} has no features of {name!r}: extract them first")
    return features_of(arrays, f"{path}: {name}", None if distance is None else np.array(distance))


def features_of(
    arrays: Mapping[str, np.ndarray], source: str, distance: np.ndarray | None = None
) -> Features:
    """Features from what the group of a photograph holds: `feature_arrays` undone.

    Args:
        arrays: by name.
        source: where they come from, for messages.
        distance: that compares descriptors; None for L2.

    Raises:
        InputError: some are missing, are no numbers, or do not fit each other.
    """
    for key in FEATURES[:3]:
        if key not in arrays:
            raise InputError(f"{source} lacks {key}: extract local features")
    columns = {
        "xy": arrays["keypoints"],
        "descriptors": np.ascontiguousarray(arrays["descriptors"].T),
        "image_size": arrays["image_size"],
        "scales": arrays.get("scales"),
        "angles": arrays.get("oris"),
        "scores": arrays.get("scores"),
        "distance": distance,
    }
    found = checked_features(source, columns)
    return dataclasses.replace(found, scales=from_sigmas(found.scales))


class MatchWriter(GroupWriter):
    """Adds pairs of photographs to a match file: see `GroupWriter` for how to go on after a kill.

    `pair_name(first, second) in writer` tells whether a pair is there.
    """

    def add(self, first: str, second: str, matches: Matches, n0: int, n1: int) -> None:
        """Adds the matches of two photographs, by name, with n0 and n1 keypoints."""
        styled = hloc_style(matches, n0, n1)
        # hloc writes int16, which ends at 32,767 keypoints; it reads any integers.
        arrays = {
            "matches0": styled["matches0"],
            "matching_scores0": styled["matching_scores0"].astype(np.float16),
        }
        self.add_group(pair_name(first, second), arrays)


def read_matches(
    path: Path, first: str, second: str
) -> tuple[Int32[np.ndarray, "K 2"], Float32[np.ndarray, " K"]]:
    """Indices of the first and second photograph's keypoints, and scores.

    Also found if the file has the pair the other way round.

    Raises:
        InputError: the file is none, or lacks the pair.
    """
    with open_hdf5(path) as file:
        group, turned = find_group(file, pair_name(first, second)), False
        if group is None:
            group, turned = find_group(file, pair_name(second, first)), True
        if group is None:
            raise InputError(f"{path} has no matches of {first!r} and {second!r}: match them first")
        arrays = read_arrays(group, _MATCHES)
    indices, kept = from_hloc_style(*_checked_matches(path, arrays))
    return (np.ascontiguousarray(indices[:, ::-1]) if turned else indices), kept


def pair_name(first: str, second: str) -> str:
    """The name that hloc gives a pair: slashes within the names become hyphens."""
    return "/".join(name.replace("/", "-") for name in (first, second))


def _checked_matches(
    path: Path, arrays: Mapping[str, np.ndarray]
) -> tuple[Int32[np.ndarray, " N"], Float32[np.ndarray, " N"]]:
    partners, scores = (arrays.get(name) for name in _MATCHES)
    if (
        partners is None
        or scores is None
        or partners.ndim != 1
        or partners.shape != scores.shape
        or partners.dtype.kind not in "iu"
    ):
        raise InputError(f"{path} holds no matches, or is damaged: match again")
    if ((partners < -1) | (partners > _LARGEST_INDEX)).any():
        raise InputError(f"{path} holds matches with keypoints that cannot be: match again")
    return partners.astype(np.int32), single("matching_scores0", scores)
