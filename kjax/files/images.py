"""Image files from anyone: the one place that opens them with Pillow.

Pillow knows forty formats, some of which start other programs (Ghostscript for PostScript) whatever
the file is called. Only `FORMATS` are opened here. A picture's size is checked before its pixels
are, and whatever a decoder stumbles over is one line that names the file.
"""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from kjax.errors import InputError, first_line

FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "PPM", "WEBP", "GIF", "JPEG2000")
"""Pillow's names of what is read; PPM are PBM, PGM, PNM and PFM too, JPEG also cameras' MPO."""
MAX_PIXELS = 178_956_970
"""The most pixels of an image; Pillow itself gives up there: half a gigabyte in colour."""
FREE_PIXELS = 16_000_000
"""Pixels that every file may hold, however small it is."""
PIXELS_PER_BYTE = 1100
"""Pixels that more bytes may hold. PNG's compression ends at 1032; photographs have 1 to 30."""


@contextlib.contextmanager
def open_image(
    path: str | os.PathLike[str], *, advice: str = "", content: bytes | None = None
) -> Iterator[Image.Image]:
    """A picture whose pixels have not been decoded yet; the block that it is for may do so.

    Args:
        path: of the file.
        advice: on how to mend a file that cannot be read: it ends the message.
        content: of the file, where it has been read already.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it is of another format, too large or damaged; also for whatever Pillow raises
            in the block.
    """
    end = f": {advice}" if advice else ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is odd in a file that can be read
            source = path if content is None else io.BytesIO(content)
            with Image.open(source, formats=FORMATS) as image:
                _check_size(
                    path, image, Path(path).stat().st_size if content is None else len(content)
                )
                yield image
    except (InputError, FileNotFoundError):
        raise
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise InputError(f"cannot decode {path} (not an image: {known} are read){end}") from None
    except Image.DecompressionBombError:  # Pillow has the same limit, unless it is told otherwise
        raise _too_large(path) from None
    except Exception as error:  # each of Pillow's decoders has its own dozen
        raise InputError(f"cannot decode {path} ({first_line(error)}){end}") from None


def _check_size(path: str | os.PathLike[str], image: Image.Image, packed: int) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _too_large(path)
    if width * height > max(FREE_PIXELS, PIXELS_PER_BYTE * packed):
        raise InputError(
            f"{path} has {width}×{height} pixels in {packed:,} bytes: it is damaged, or made to "
            "fill the memory"
        )


def _too_large(path: str | os.PathLike[str]) -> InputError:
    return InputError(f"{path} has more than {MAX_PIXELS:,} pixels: make it smaller")
