"""Pictures of matches: two photographs side by side, and a line for each match."""

import colorsys
import functools
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64, UInt8
from PIL import Image, ImageDraw

from kjax.errors import InputError
from kjax.files.atomic import write_whole

Photo = UInt8[np.ndarray, "_ _"] | UInt8[np.ndarray, "_ _ 3"]
"""Height and width, grey or RGB; those of two photographs may differ."""

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""By suffix, what pictures are written as."""
GAP = 8
"""Pixels between the photographs."""
BACKGROUND = (32, 34, 38)
_SMOOTHING = 3
"""Lines are drawn this many times as large and then reduced, which smooths them."""
_LINE_ALPHA = 200
_DOT = 2.0
"""Radius of the dot at either end, in pixels."""


def draw_matches(
    image_a: Photo,
    image_b: Photo,
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    *,
    max_width: int = 1800,
    max_lines: int = 400,
) -> Image.Image:
    """Two photographs side by side, with a line from each point to its match.

    Colours follow the position in the first photograph, from left to right, so that lines that run
    across their neighbours stand out. Give the inliers alone for a picture of what was verified.

    Args:
        image_a: grey or RGB photograph; the two may differ in size.
        image_b: the other one.
        xy_a: points in the first photograph; the centre of the first pixel is (0, 0).
        xy_b: the points that match them.
        max_width: of the picture. Larger photographs are reduced, both by the same factor.
        max_lines: more matches than this are thinned out evenly.
    """
    photos = [
        as_picture(name, image) for name, image in (("image_a", image_a), ("image_b", image_b))
    ]
    factor = min(1.0, max(1, max_width - GAP) / sum(photo.width for photo in photos))
    photos = [reduced(photo, factor) for photo in photos]
    left, right = photos
    size = left.width + GAP + right.width, max(left.height, right.height)
    picture = Image.new("RGB", size, BACKGROUND)
    picture.paste(left, (0, 0))
    picture.paste(right, (left.width + GAP, 0))
    chosen = _spread(len(xy_a), max_lines)
    # Pixel centres are at .5 here.
    starts = (xy_a[chosen] + 0.5) * factor
    ends = (xy_b[chosen] + 0.5) * factor + (left.width + GAP, 0)
    lines = _lines(size, starts, ends, left.width)
    return Image.alpha_composite(picture.convert("RGBA"), lines).convert("RGB")


def save_matches(
    path: str | os.PathLike[str],
    image_a: Photo,
    image_b: Photo,
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    *,
    max_width: int = 1800,
    max_lines: int = 400,
) -> None:
    """Writes the picture of `draw_matches` to a file .png or .jpg, whole or not at all."""
    check_picture_name(path)
    picture = draw_matches(image_a, image_b, xy_a, xy_b, max_width=max_width, max_lines=max_lines)
    # Level 3 of PNG's compression takes half the time of 6, for files of the same size.
    save = functools.partial(picture.save, format=_format(path), compress_level=3)
    write_whole(Path(path), save)


def check_picture_name(path: str | os.PathLike[str], *, other: tuple[str, ...] = ()) -> None:
    """Refuses names of files that pictures are not written to; `other` suffixes are right too."""
    suffixes = (*FORMATS, *other)
    if Path(path).suffix.lower() not in suffixes:
        raise InputError(
            f"{os.fspath(path)} is no name for a picture: let it end with {' or '.join(suffixes)}"
        )


def _format(path: str | os.PathLike[str]) -> str | None:
    return FORMATS.get(Path(path).suffix.lower())


def as_picture(name: str, image: Photo) -> Image.Image:
    """The photograph for Pillow, in colours; its name is for the message if it is empty."""
    if 0 in image.shape[:2]:
        raise InputError(f"{name} is empty (its shape is {image.shape}): give a photograph")
    return Image.fromarray(np.ascontiguousarray(image)).convert("RGB")


def reduced(photo: Image.Image, factor: float) -> Image.Image:
    """The same with fewer pixels, at least one."""
    size = max(1, round(photo.width * factor)), max(1, round(photo.height * factor))
    return photo if size == photo.size else photo.resize(size, Image.Resampling.LANCZOS)


def _spread(count: int, most: int) -> Int64[np.ndarray, " chosen"]:
    """Evenly spaced places among `count`, all of them if there are no more than `most`."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _lines(
    size: tuple[int, int],
    starts: Float[np.ndarray, "chosen 2"],
    ends: Float[np.ndarray, "chosen 2"],
    width: int,
) -> Image.Image:
    """The lines on a transparent ground."""
    large = Image.new("RGBA", (size[0] * _SMOOTHING, size[1] * _SMOOTHING))
    draw = ImageDraw.Draw(large)
    for start, end in zip(starts, ends, strict=True):
        colour = _colour(float(start[0]) / width)
        ends_here = [tuple(float(x) * _SMOOTHING for x in point) for point in (start, end)]
        draw.line([*ends_here[0], *ends_here[1]], fill=(*colour, _LINE_ALPHA), width=_SMOOTHING)
        for x, y in ends_here:
            radius = _DOT * _SMOOTHING
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(*colour, 255))
    return large.reduce(_SMOOTHING)


def _colour(position: float) -> tuple[int, int, int]:
    """From orange over green and blue to violet, all about as bright."""
    hue = 0.08 + 0.75 * min(1.0, max(0.0, position))
    red, green, blue = colorsys.hls_to_rgb(hue, 0.62, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)
