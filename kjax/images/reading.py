"""Photographs from files."""

from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from kjax.errors import InputError
from kjax.images.pixels import Pixels, as_pixels


def read_photograph(path: str | Path, *, upright: bool = True) -> Pixels:
    """A file as grey [H, W] or RGB [H, W, 3], of the types that `as_pixels` gives.

    Args:
        path: of any format that Pillow knows.
        upright: turn it as its camera noted; otherwise its pixels stay as they are stored, which
            is how COLMAP and hloc read photographs.
    """
    try:
        with Image.open(path) as image:
            turned = ImageOps.exif_transpose(image) if upright else image
            return as_pixels(turned)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except UnidentifiedImageError:
        raise InputError(f"{path} is not an image that Pillow knows") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
