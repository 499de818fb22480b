"""The file that a training reads: keypoints and descriptors of views that show the same things.

Views come in groups of one size: of a photograph by random homographies, or photographs of a
reconstructed scene that see the same points. Each view has room for the same number of keypoints,
the steadiest first. `kjax build-views` makes one.
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
    """Features of `P` groups of `V` views, of at most `K` keypoints.

    Attributes:
        xy: positions in the view's pixels, as a camera without distortion has them.
        scales: diameters in pixels.
        angles: radians.
        descriptors: of unit norm; of what only pads, zero.
        counts: of keypoints.
        sizes: width and height of views.
        places: what each keypoint sees, in the group's own world; NaN if it is not known.
        cameras: from places to the view's pixels.
        turns: radians by which views are turned in their plane, clockwise on screen; NaN where
            keypoints have no angles, so that views cannot be turned further.
        photographs: names and hashes of all files that were read.
        described_with: the weights.
        chances: of drawing each group; None if they are equal. They are of a training, not of a
            file.
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
        """Whether any keypoint's is not known."""
        return bool(np.isnan(self.places).any())

    def keep(self, chosen: np.ndarray) -> "ViewSet":
        """Some of the groups."""
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        chances = None if self.chances is None else self.chances[chosen]
        return dataclasses.replace(self, chances=chances, **arrays)


_KINDS = {
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
_ARRAYS = tuple(_KINDS)


def write_view_set(path: Path, views: ViewSet) -> None:
    """Writes a file, whole or not at all."""
    about = {
        "format": FORMAT,
        "described_with": dataclasses.asdict(views.described_with),
        "photographs": [list(one) for one in views.photographs],
    }
    write_described(path, {name: getattr(views, name) for name in _ARRAYS}, about)


def read_view_set(path: Path) -> ViewSet:
    """Reads a file.

    Raises:
        InputError: it is absent, damaged, or something else.
    """
    if not path.is_file():
        raise InputError(f"no such file of views: {path}: make it with kjax build-views")
    try:
        arrays, about = read_described(path, FORMAT)
        made = ViewSet(
            photographs=tuple(SetPhotograph(*one) for one in about["photographs"]),
            described_with=Provenance(**about["described_with"]),
            **arrays,
        )
        _check(made)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged or no file of views ({error}): {AGAIN}") from None
    return made


def read_view_sets(paths: Sequence[Path], shares: Sequence[float] = ()) -> ViewSet:
    """Several files as one set; by shares, a pair's chance to be of each file.

    Raises:
        InputError: as `read_view_set`, or they do not go together.
    """
    sets = [read_view_set(path) for path in paths]
    first = sets[0]
    for path, one in zip(paths, sets, strict=True):
        if one.described_with != first.described_with or one.xy.shape[1:] != first.xy.shape[1:]:
            raise InputError(
                f"{path} and {paths[0]} have other weights, or numbers of views or of keypoints: "
                f"{AGAIN}"
            )
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in sets]) for name in _ARRAYS
    }
    photographs = tuple(photograph for one in sets for photograph in one.photographs)
    chances = None
    if shares:
        each = [
            np.full(len(one), share / len(one), np.float32)
            for one, share in zip(sets, shares, strict=True)
        ]
        chances = np.concatenate(each)
    return dataclasses.replace(first, photographs=photographs, chances=chances, **arrays)


def _check(views: ViewSet) -> None:
    for name, kind in _KINDS.items():
        array = getattr(views, name)
        if (array.dtype, array.ndim) != kind:
            raise ValueError(f"{name} are {array.dtype} of shape {array.shape}")
    groups, own, room = views.scales.shape
    if own < 2 or not groups:
        raise ValueError("it has no two views in a group")
    if views.counts.max() > room:
        raise ValueError("its parts do not fit each other")
