"""The file that a matcher's training reads: keypoints and descriptors of overlapping views.

Views come in groups of one size: random homographies of a photograph, or photographs of a
reconstructed scene that share points. Each view has room for the same number of keypoints, the most
repeatable first. `kjax build-views` writes it.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float16, Float32, Int32

from kjax.data.phototour import SetPhotograph
from kjax.errors import InputError
from kjax.files.npz import read_described, write_described
from kjax.weights.info import Provenance

FORMAT = "kjax views 2"
AGAIN = "make it again with kjax build-views"


@dataclasses.dataclass(frozen=True)
class ViewSet:
    """Features of `P` groups of `V` views, with at most `K` keypoints each.

    Attributes:
        xy: positions in the view's pixels, without lens distortion.
        scales: diameters in pixels.
        angles: radians.
        descriptors: unit vectors; zero for padding.
        sizes: width and height of views.
        places: 3-D points that the keypoints see, in the group's own world; NaN if unknown.
        cameras: from 3-D points to the view's pixels.
        turns: rotation of views in their plane, in radians, clockwise on screen; NaN if keypoints
            have no angles, so that views cannot be rotated further.
        chances: relative probability of drawing each group; None if equal. Not stored in files.
    """

    xy: Float32[np.ndarray, "P V K 2"]
    scales: Float32[np.ndarray, "P V K"]
    angles: Float32[np.ndarray, "P V K"]
    descriptors: Float16[np.ndarray, "P V K dim"]
    counts: Int32[np.ndarray, "P V"]
    sizes: Int32[np.ndarray, "P V 2"]
    places: Float32[np.ndarray, "P V K 3"]
    cameras: Float32[np.ndarray, "P V 3 4"]
    turns: Float32[np.ndarray, "P V"]
    photographs: tuple[SetPhotograph, ...]
    described_with: Provenance
    chances: Float32[np.ndarray, " P"] | None = None

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def has_unknown_places(self) -> bool:
        """Whether the 3-D point of any keypoint is unknown."""
        return bool(np.isnan(self.places).any())

    def keep(self, chosen: np.ndarray) -> "ViewSet":
        """Select groups by indices."""
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        chances = None if self.chances is None else self.chances[chosen]
        return dataclasses.replace(self, chances=chances, **arrays)


_ARRAYS = {
    "xy": ("f4", 4),
    "scales": ("f4", 3),
    "angles": ("f4", 3),
    "descriptors": ("f2", 4),
    "counts": ("i4", 2),
    "sizes": ("i4", 3),
    "places": ("f4", 4),
    "cameras": ("f4", 4),
    "turns": ("f4", 2),
}
"""Type and number of axes of each array."""


def write_view_set(path: Path, views: ViewSet) -> None:
    """Write a file, atomically."""
    about = {
        "format": FORMAT,
        "described_with": dataclasses.asdict(views.described_with),
        "photographs": [list(one) for one in views.photographs],
    }
    write_described(path, {name: getattr(views, name) for name in _ARRAYS}, about)


def read_view_set(path: Path) -> ViewSet:
    """Read a file, or raise InputError."""
    if not path.is_file():
        raise InputError(f"no such file of views: {path}: make it with kjax build-views")
    try:
        arrays, about = read_described(path, FORMAT)
        views = ViewSet(
            photographs=tuple(SetPhotograph(*one) for one in about["photographs"]),
            described_with=Provenance(**about["described_with"]),
            **arrays,
        )
        for name, kind in _ARRAYS.items():
            array = getattr(views, name)
            if (array.dtype, array.ndim) != kind:
                raise ValueError(f"{name} are {array.dtype} of shape {array.shape}")
        groups, own, room = views.scales.shape
        if own < 2 or not groups:
            raise ValueError("groups need two views at least")
        if views.counts.max() > room:
            raise ValueError("there are more keypoints than rows")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged or not a file of views ({error}): {AGAIN}") from None
    return views


def read_view_sets(paths: Sequence[Path], shares: Sequence[float] = ()) -> ViewSet:
    """Join several files; `shares` are the probabilities that a pair comes from each file."""
    sets = [read_view_set(path) for path in paths]
    first = sets[0]
    for path, one in zip(paths, sets, strict=True):
        if one.described_with != first.described_with or one.xy.shape[1:] != first.xy.shape[1:]:
            raise InputError(
                f"{path} and {paths[0]} differ in their weights or in the number of views or "
                f"keypoints: {AGAIN}"
            )
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in sets]) for name in _ARRAYS
    }
    photographs = tuple(photograph for one in sets for photograph in one.photographs)
    chances = None
    if shares:
        parts = zip(sets, shares, strict=True)
        each = [np.full(len(one), share / len(one), np.float32) for one, share in parts]
        chances = np.concatenate(each)
    return dataclasses.replace(first, photographs=photographs, chances=chances, **arrays)
