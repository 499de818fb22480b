"""Image files from anyone: the one place that opens them with Pillow.

Pillow knows forty formats, some of which start other programs (Ghostscript for PostScript) whatever
the file is called. Only `FORMATS` are opened here. Pillow itself refuses images of more than 179
million pixels. HEIC and HEIF need the extra `heic`.
"""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, UnidentifiedImageError, features

from kjax.errors import InputError, first_line

FORMATS: tuple[str, ...] = ("JPEG", "PNG", "TIFF", "BMP", "PPM", "WEBP", "GIF", "JPEG2000")
"""Pillow's names of what is read; PPM includes PBM, PGM, PNM and PFM, JPEG also cameras' MPO."""
HEIF_SUFFIXES = {".heic", ".heif"}
if features.check("avif"):
    FORMATS += ("AVIF",)
with contextlib.suppress(ImportError):
    import pillow_heif

    pillow_heif.register_heif_opener()
    FORMATS += ("HEIF",)


@contextlib.contextmanager
def open_image(
    path: str | os.PathLike[str], *, advice: str = "", content: bytes | None = None
) -> Iterator[Image.Image]:
    """Open an image file, or its `content`; its pixels are decoded in the block.

    Whatever Pillow raises, also in the block, becomes an InputError that ends with `advice`. A
    missing file is a FileNotFoundError.
    """
    end = f": {advice}" if advice else ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about oddities of readable files
            source = path if content is None else io.BytesIO(content)
            with Image.open(source, formats=FORMATS) as image:
                yield image
    except (InputError, FileNotFoundError):
        raise
    except UnidentifiedImageError:
        if Path(path).suffix.lower() in HEIF_SUFFIXES and "HEIF" not in FORMATS:
            raise InputError(f"cannot decode {path}: pip install 'kjax[heic]'") from None
        known = ", ".join(FORMATS)
        raise InputError(f"cannot decode {path} (not one of {known}){end}") from None
    except Image.DecompressionBombError:
        raise InputError(f"{path} has too many pixels: make it smaller") from None
    except Exception as error:  # each of Pillow's decoders raises its own dozen types
        raise InputError(f"cannot decode {path} ({first_line(error)}){end}") from None
