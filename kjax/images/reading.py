"""Photographs from files."""

from pathlib import Path

from PIL import ImageOps

from kjax.errors import InputError
from kjax.image_files import open_image
from kjax.images.pixels import Pixels, as_pixels


def read_photograph(path: str | Path, *, upright: bool = True) -> Pixels:
    """A file as grey [H, W] or RGB [H, W, 3], of the types that `as_pixels` gives.

    Args:
        path: of one of `kjax.image_files.FORMATS`.
        upright: turn it as its camera noted; otherwise its pixels stay as they are stored, which
            is how COLMAP and hloc read photographs.
    """
    if not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    with open_image(path) as image:
        return as_pixels(ImageOps.exif_transpose(image) if upright else image)
