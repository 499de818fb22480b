"""Features of an image as named arrays: NumPy archives and LightGlue's dictionaries."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Shaped

from kjax.errors import InputError
from kjax.files.json import parse_json
from kjax.files.npz import read_npz as read_arrays
from kjax.files.npz import write_npz as write_arrays
from kjax.images.features import Distance, Features

REQUIRED = ("xy", "descriptors", "image_size")
OPTIONAL = ("scales", "angles", "scores")
DISTANCE = "distance"
"""Entry with the distance of descriptors, if it is not L2."""
RATIO = "ratio"
"""Entry with the default of the ratio test, if it is known."""
WEIGHTS = "weights_sha256"
"""Entry with the checksum of the weights, if it is known."""
PROVENANCE = "provenance"
"""Entry with the settings of the features, as JSON."""
LARGEST_SIDE = 2**31


def write_npz(
    path: str | os.PathLike[str], features: Features, *, settings: Mapping[str, Any] | None = None
) -> None:
    """Write an archive atomically, under the names and units of `Features`."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"{path} is not a .npz file: choose a name that ends with .npz")
    columns = {name: getattr(features, name) for name in (*REQUIRED, *OPTIONAL, RATIO, WEIGHTS)}
    present = {name: column for name, column in columns.items() if column is not None}
    if features.distance != "L2":
        present[DISTANCE] = np.array(features.distance)
    if settings is not None:
        present[PROVENANCE] = np.array(json.dumps(settings, ensure_ascii=False))
    write_arrays(path, present)


def read_npz(path: str | os.PathLike[str]) -> Features:
    """Read an archive written by `write_npz`."""
    if not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    try:
        archive = read_arrays(path)
    except InputError as error:
        raise InputError(f"cannot read {path}: {error}") from None
    return checked_features(path, archive)


def checked_features(
    source: str | os.PathLike[str], columns: Mapping[str, Shaped[np.ndarray, "..."] | None]
) -> Features:
    """Validate arrays from a source, under the names and in the units of `Features`.

    Descriptors that are bytes stay bytes; other numbers become float32.
    """
    damaged = f"{source} has no features or is damaged"
    if missing := [name for name in REQUIRED if columns.get(name) is None]:
        raise InputError(f"{damaged}: it lacks {', '.join(missing)}")
    found = {name: array for name, array in columns.items() if array is not None}
    arrays: dict[str, Any] = {}
    for name in (*REQUIRED[:2], *OPTIONAL):
        if (array := found.get(name)) is None:
            continue
        rest = {"xy": (2,), "descriptors": array.shape[-1:]}.get(name, ())
        if array.dtype.kind not in "fiu" or array.shape != (*found["xy"].shape[:1], *rest):
            raise InputError(f"{damaged}: {name} is {array.dtype} of shape {array.shape}")
        if name != "descriptors" or array.dtype != np.uint8:
            with np.errstate(over="ignore"):  # becomes infinite
                array = array.astype(np.float32)
        arrays[name] = array
    if not np.isfinite(arrays["xy"]).all():
        raise InputError(f"{damaged}: some positions are not finite")
    sides = found["image_size"]
    plain = sides.shape == (2,) and sides.dtype.kind in "fiu"
    if not plain or not ((sides >= 0) & (sides < LARGEST_SIDE)).all():  # NaN fails both
        raise InputError(f"{damaged}: image_size is not a width and a height")
    distance: Any = str(found.get(DISTANCE, "L2"))
    if distance not in get_args(Distance):
        raise InputError(f"{damaged}: unknown distance {distance[:40]!r}")
    ratio = found.get(RATIO)
    if ratio is not None:
        if ratio.shape != () or ratio.dtype.kind != "f" or not 0 < ratio <= 1:
            raise InputError(f"{damaged}: ratio is not between 0 and 1")
        arrays[RATIO] = float(ratio)
    sha256 = str(found.get(WEIGHTS, ""))
    # Files from before version 0.4 have it only in their settings.
    with contextlib.suppress(ValueError, TypeError, KeyError):
        sha256 = sha256 or str(parse_json(str(found[PROVENANCE]))["sha256"])
    arrays[WEIGHTS] = sha256 or None
    return Features(image_size=(int(sides[0]), int(sides[1])), distance=distance, **arrays)


def to_dictionary(features: Features) -> dict[str, np.ndarray]:
    """Convert features for LightGlue's matchers, with a batch dimension of one.

    Scales are σ and `oris` radians clockwise, as in LightGlue's pycolmap backend. Pass the arrays
    through `torch.from_numpy` before matching.
    """
    columns = {
        "keypoints": features.xy,
        "descriptors": features.descriptors,
        "image_size": np.array(features.image_size, np.float32),
        "keypoint_scores": features.scores,
        "scales": features.sigmas(),
        "oris": features.radians(),
    }
    return {name: column[None] for name, column in columns.items() if column is not None}
