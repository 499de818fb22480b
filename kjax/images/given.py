"""What callers give where an array or a photograph is wanted."""

import os
from typing import Any

import jax
import numpy as np
from PIL import Image

from kjax.data.cutting.photographs import as_pixels, read_photograph
from kjax.errors import InputError, one_line


def open_image(image: Any, order: str) -> tuple[jax.Array | np.ndarray, str]:
    """An image as an array, and the order of its colours.

    Args:
        image: an array of any library that NumPy can read; a picture of Pillow's; or the path of
            a file, which is turned upright as its camera noted.
        order: of an array's colours; those of files and pictures are "rgb" whatever it says.

    Raises:
        InputError: it is None, or no image.
    """
    if image is None:
        raise InputError(
            "the image is None: cv2.imread returns that for a file that is missing or no image"
        )
    if isinstance(image, str | os.PathLike):
        return read_photograph(os.fspath(image)), "rgb"
    if isinstance(image, Image.Image):
        return as_pixels(image), "rgb"
    return as_array(image, "an image"), order


def as_array(values: Any, kind: str) -> jax.Array | np.ndarray:
    """JAX's arrays as they are; everything else in NumPy.

    Raises:
        InputError: NumPy cannot make an array of it.
    """
    if isinstance(values, jax.Array):
        return values
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        given = type(values).__name__
        raise InputError(f"{kind} must be an array, not {given} ({one_line(error)})") from None
