"""Photographs from files."""

from pathlib import Path

import numpy as np
from jaxtyping import Shaped
from PIL import Image, ImageOps, UnidentifiedImageError

from kjax.errors import InputError


def read_photograph(path: str | Path, *, upright: bool = True) -> Shaped[np.ndarray, "..."]:
    """A file as grey [H, W] or RGB [H, W, 3].

    Args:
        path: of any format that Pillow knows.
        upright: turn it as its camera noted; otherwise its pixels stay as they are stored, which
            is how COLMAP and hloc read photographs.
    """
    try:
        with Image.open(path) as image:
            turned = ImageOps.exif_transpose(image) if upright else image
            deep = turned.mode.startswith("I;16")
            grey = deep or turned.mode in ("L", "1", "F", "I")
            return np.asarray(turned if deep else turned.convert("L" if grey else "RGB"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except UnidentifiedImageError:
        raise InputError(f"{path} is not an image that Pillow knows") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
