"""Photographs from files."""

from pathlib import Path

import numpy as np
from jaxtyping import Shaped
from PIL import ImageOps

from kjax.errors import InputError
from kjax.image_files import open_image


def read_photograph(path: str | Path, *, upright: bool = True) -> Shaped[np.ndarray, "..."]:
    """A file as grey [H, W] or RGB [H, W, 3].

    Args:
        path: of one of `kjax.image_files.FORMATS`.
        upright: turn it as its camera noted; otherwise its pixels stay as they are stored, which
            is how COLMAP and hloc read photographs.
    """
    if not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    with open_image(path) as image:
        turned = ImageOps.exif_transpose(image) if upright else image
        deep = turned.mode.startswith("I;16")
        grey = deep or turned.mode in ("L", "1", "F", "I")
        return np.asarray(turned if deep else turned.convert("L" if grey else "RGB"))
