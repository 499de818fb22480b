"""Pictures of matches: two images side by side, and a line for each match."""

import colorsys
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from kjax.errors import InputError
from kjax.files.atomic import write_whole

Photo = UInt8[np.ndarray, "_ _"] | UInt8[np.ndarray, "_ _ 3"]
"""Grey or RGB image."""

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Pillow's format by suffix."""
GAP = 8
"""Pixels between the images."""
BACKGROUND = (32, 34, 38)
_SMOOTHING = 3
"""Factor by which lines are drawn larger and then reduced, for smooth edges."""
_LINE_ALPHA = 200
_DOT = 2.0
"""Radius in pixels of the dot at either end."""


def draw_matches(
    image_a: Photo,
    image_b: Photo,
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    *,
    max_width: int = 1800,
    max_lines: int = 400,
) -> Image.Image:
    """Draw two images side by side, with a line from each point to its match.

    Colours follow the position in the first image, from left to right, so that lines that cross
    their neighbours stand out. Wide images are reduced to `max_width` together, both by the same
    factor. More than `max_lines` matches are thinned out evenly.
    """
    photos = [as_picture("image_a", image_a), as_picture("image_b", image_b)]
    factor = min(1.0, max(1, max_width - GAP) / sum(photo.width for photo in photos))
    left, right = (reduced(photo, factor) for photo in photos)
    size = left.width + GAP + right.width, max(left.height, right.height)
    picture = Image.new("RGB", size, BACKGROUND)
    picture.paste(left, (0, 0))
    picture.paste(right, (left.width + GAP, 0))
    count = len(xy_a)
    chosen = np.unique(np.linspace(0, count - 1, min(count, max_lines)).round().astype(np.int64))
    # Pixel centres are at .5 here.
    starts = (xy_a[chosen] + 0.5) * factor
    ends = (xy_b[chosen] + 0.5) * factor + (left.width + GAP, 0)
    large = Image.new("RGBA", (size[0] * _SMOOTHING, size[1] * _SMOOTHING))
    draw, radius = ImageDraw.Draw(large), _DOT * _SMOOTHING
    for start, end in zip(starts, ends, strict=True):
        # From orange through green and blue to violet, all about as bright.
        hue = 0.08 + 0.75 * min(1.0, max(0.0, float(start[0]) / left.width))
        red, green, blue = colorsys.hls_to_rgb(hue, 0.62, 0.85)
        colour = round(255 * red), round(255 * green), round(255 * blue)
        points = [tuple(float(x) * _SMOOTHING for x in point) for point in (start, end)]
        draw.line([*points[0], *points[1]], fill=(*colour, _LINE_ALPHA), width=_SMOOTHING)
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(*colour, 255))
    lines = large.reduce(_SMOOTHING)
    return Image.alpha_composite(picture.convert("RGBA"), lines).convert("RGB")


def save_matches(
    path: str | os.PathLike[str],
    image_a: Photo,
    image_b: Photo,
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    **options: Any,
) -> None:
    """Write the picture of `draw_matches` to a .png or .jpg file, atomically."""
    check_picture_name(path)
    picture = draw_matches(image_a, image_b, xy_a, xy_b, **options)
    # PNG's compression level 3 takes half the time of 6, for files of the same size.
    kind = FORMATS[Path(path).suffix.lower()]
    write_whole(Path(path), functools.partial(picture.save, format=kind, compress_level=3))


def check_picture_name(path: str | os.PathLike[str], *, other: tuple[str, ...] = ()) -> None:
    """Raise InputError unless the path ends with a picture's suffix or one of `other`."""
    suffixes = (*FORMATS, *other)
    if Path(path).suffix.lower() not in suffixes:
        raise InputError(f"{os.fspath(path)}: unsupported file type: use {' or '.join(suffixes)}")


def as_picture(name: str, image: Photo) -> Image.Image:
    """Convert an image to Pillow's RGB; `name` is for the error message if it is empty."""
    if 0 in image.shape[:2]:
        raise InputError(f"{name} is empty (shape {image.shape}): give an image with pixels")
    return Image.fromarray(np.ascontiguousarray(image)).convert("RGB")


def reduced(photo: Image.Image, factor: float) -> Image.Image:
    """Resize by a factor, to at least one pixel."""
    size = max(1, round(photo.width * factor)), max(1, round(photo.height * factor))
    return photo if size == photo.size else photo.resize(size, Image.Resampling.LANCZOS)
