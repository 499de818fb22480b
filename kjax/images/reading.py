"""Photographs from files."""

from pathlib import Path

import numpy as np
from jaxtyping import Shaped
from PIL import Image, UnidentifiedImageError

from kjax.errors import InputError


def read_photograph(path: str | Path) -> Shaped[np.ndarray, "..."]:
    """A file as grey [H, W] or RGB [H, W, 3], turned as its camera says."""
    from PIL import ImageOps

    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            deep = upright.mode.startswith("I;16")
            grey = deep or upright.mode in ("L", "1", "F", "I")
            return np.asarray(upright if deep else upright.convert("L" if grey else "RGB"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except UnidentifiedImageError:
        raise InputError(f"{path} is not an image that Pillow knows") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
