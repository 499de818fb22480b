"""Arrays out of others' files, checked before they are taken for features."""

import os
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from jaxtyping import Float32, Shaped

from kjax.errors import InputError
from kjax.images.features import Distance, Features

_COLUMNS = ("xy", "descriptors", "scales", "angles", "scores")
_LARGEST_SIDE = 2**31


def checked_features(
    path: str | os.PathLike[str], columns: Mapping[str, Shaped[np.ndarray, "..."] | None]
) -> Features:
    """Features of arrays under the names and in the units of `Features`.

    Args:
        path: of the file that they come from, for the message.
        columns: at least `xy`, `descriptors` and `image_size`. Bytes stay bytes, other numbers
            become float32; they are bits if `distance` says so.

    Raises:
        InputError: they are no numbers, or do not fit each other.
    """
    try:
        numbers = {name: columns.get(name) for name in _COLUMNS}
        arrays: dict[str, Any] = {name: _numbers(name, one) for name, one in numbers.items()}
        _check_shapes(arrays)
        distance = _distance(columns.get("distance"))
        size = _image_size(columns["image_size"])
        return Features(image_size=size, distance=distance, **arrays)
    except InputError as error:
        raise InputError(f"{path} holds no features, or is damaged: {error}") from None


def single(name: str, array: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    """Numbers of any kind as float32.

    Raises:
        InputError: they are no numbers.
    """
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} has no numbers but {array.dtype}")
    with np.errstate(over="ignore"):  # becomes an infinity
        return array.astype(np.float32)


def _numbers(name: str, array: np.ndarray | None) -> np.ndarray | None:
    if array is None:
        return None
    if name == "descriptors" and array.dtype == np.uint8:
        return array
    numbers = single(name, array)
    if name == "xy" and not np.isfinite(numbers).all():
        raise InputError("some positions are not finite")
    return numbers


def _check_shapes(arrays: Mapping[str, np.ndarray | None]) -> None:
    shapes = {name: array.shape for name, array in arrays.items() if array is not None}
    count = shapes["xy"][:1]
    for name, shape in shapes.items():
        axes = 2 if name in ("xy", "descriptors") else 1
        if len(shape) != axes or shape[:1] != count or (name == "xy" and shape[1] != 2):
            raise InputError(f"{name} of shape {list(shape)} for positions of {list(shapes['xy'])}")


def _distance(text: np.ndarray | None) -> Distance:
    if text is None:
        return "L2"
    for distance in get_args(Distance):
        if str(text) == distance:
            return distance
    raise InputError(f"{str(text)[:40]!r} is no distance of descriptors")


def _image_size(sides: np.ndarray | None) -> tuple[int, int]:
    if sides is None or sides.shape != (2,) or sides.dtype.kind not in "fiu":
        raise InputError("image_size is not a width and a height")
    if not ((sides >= 0) & (sides < _LARGEST_SIDE)).all():  # NaN is neither
        raise InputError(f"no photograph is {sides[0]}×{sides[1]}")
    return int(sides[0]), int(sides[1])
