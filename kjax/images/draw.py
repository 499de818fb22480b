"""Pictures of matches, and an interactive HTML page of them in one self-contained file."""

import base64
import colorsys
import dataclasses
import functools
import hashlib
import html
import io
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32
from PIL import ExifTags, Image, ImageDraw, ImageFont

from kjax.data.cutting.photographs import grey_values, whole_greys
from kjax.errors import InputError
from kjax.files import images as files
from kjax.files.atomic import write_text, write_whole
from kjax.images.extract import open_image
from kjax.images.features import Features, Matches

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Pillow's format by suffix."""
GAP = 8
"""Pixels between the images."""
MAX_LINES = 400
"""Maximum number of matches in a picture."""
BACKGROUND = (32, 34, 38)
_SMOOTHING = 3
"""Factor by which lines are drawn larger and then reduced, for smooth edges."""
_LINE_ALPHA = 200
_DOT = 2.0
"""Radius in pixels of the dot at either end."""
MAX_SIDE = 4096
"""Maximum side of an image in the page, in pixels."""
_QUALITY = 90


def plot_matches(
    a: Features, b: Features, matches: Matches, *, images: Any = None, **options: Any
) -> Image.Image:
    """Draw two images side by side, with a line for each match.

    Returns a Pillow image, which notebooks show:

        first, second = describer.describe_image(["a.jpg", "b.jpg"])
        kjax.plot_matches(first, second, kjax.match(first, second))

    Args:
        a: features of the first image.
        b: features of the second image.
        matches: the result of `kjax.match`; draw a part of it with `matches.keep(mask)`.
        images: both images or their paths, RGB. `describe_image`'s features know theirs.
        options: `max_width` in pixels, `max_lines` and `caption`: see `draw_matches`.
    """
    image_a, image_b = images or (a.image, b.image)
    if image_a is None or image_b is None:
        raise InputError("the features have no image: give images=(image_a, image_b)")
    image_a, a = turned_upright(image_a, open_image(image_a, "rgb")[0], a)
    image_b, b = turned_upright(image_b, open_image(image_b, "rgb")[0], b)
    first, second = matches.indices.T
    return draw_matches(image_a, image_b, a.xy[first], b.xy[second], **options)


def turned_upright(path: Any, image: Any, features: Features) -> tuple[Any, Features]:
    """Turn an image and its features by the EXIF orientation of its file, if `path` is one."""
    turn = 1
    if isinstance(path, str | os.PathLike):
        with files.open_image(path) as opened:  # Pillow itself turns TIFF files
            if opened.format != "TIFF":
                turn = opened.getexif().get(ExifTags.Base.Orientation, 1)
    if turn not in range(2, 9):
        return image, features
    changes = turn > 4, turn % 4 in (2, 3), turn % 4 in (3, 0)  # swap x and y, flip x, flip y
    step, across, down = (-1 if change else 1 for change in changes)
    image = (image.swapaxes(0, 1) if step < 0 else image)[::down, ::across]
    (width, height), signs = features.image_size[::step], np.array([across, down], np.float32)
    xy = features.xy[:, ::step] * signs + (signs < 0) * np.array([width - 1, height - 1], "f4")
    if (radians := features.radians()) is not None:
        x, y = signs[:, None] * np.stack([np.cos(radians), np.sin(radians)])[::step]
        radians = np.rad2deg(np.arctan2(y, x)) % 360
    return image, dataclasses.replace(features, xy=xy, angles=radians, image_size=(width, height))


def draw_matches(
    image_a: Any,
    image_b: Any,
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    *,
    max_width: int = 1800,
    max_lines: int = MAX_LINES,
    caption: bool = True,
) -> Image.Image:
    """Draw two images side by side, with a line from each point to its match.

    Colours follow the position in the first image, so that lines that cross their neighbours stand
    out. Images wider than `max_width` together are reduced. If there are more than `max_lines`
    matches, they are thinned out and a caption gives both numbers.
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
    if caption and len(chosen) < count:
        text, font = f"{len(chosen):,} of {count:,} matches", ImageFont.load_default(14)
        draw, place = ImageDraw.Draw(lines), (8, size[1] - 8)
        x0, y0, x1, y1 = draw.textbbox(place, text, font, anchor="lb")
        draw.rectangle((x0 - 4, y0 - 4, x1 + 4, y1 + 4), (*BACKGROUND, 220))
        draw.text(place, text, "white", font, anchor="lb")
    return Image.alpha_composite(picture.convert("RGBA"), lines).convert("RGB")


def save_matches(
    path: str | os.PathLike[str],
    image_a: Any,
    image_b: Any,
    xy_a: Float[np.ndarray, "K 2"],
    xy_b: Float[np.ndarray, "K 2"],
    **options: Any,
) -> None:
    """Write the picture of `draw_matches` to a .png or .jpg file, atomically."""
    kind = FORMATS.get(Path(path).suffix.lower())
    if kind is None:
        raise InputError(f"{os.fspath(path)}: unsupported file type: use {' or '.join(FORMATS)}")
    picture = draw_matches(image_a, image_b, xy_a, xy_b, **options)
    # PNG's compression level 3 takes half the time of 6, for files of the same size.
    write_whole(Path(path), functools.partial(picture.save, format=kind, compress_level=3))


def as_picture(name: str, image: Any) -> Image.Image:
    """Convert an image of any type, or a file, to Pillow's RGB; `name` is for error messages."""
    pixels = np.asarray(open_image(image, "rgb")[0])
    if 0 in pixels.shape[:2]:
        raise InputError(f"{name} is empty (shape {pixels.shape}): give an image with pixels")
    # All channels in one row of grey: they share their range.
    eight_bits = whole_greys(grey_values(pixels.reshape(len(pixels), -1)))
    sides = pixels.shape[: 2 if pixels.shape[2:] == (1,) else 3]
    return Image.fromarray(np.ascontiguousarray(eight_bits.reshape(sides))).convert("RGB")


def reduced(photo: Image.Image, factor: float) -> Image.Image:
    """Resize by a factor, to at least one pixel."""
    size = max(1, round(photo.width * factor)), max(1, round(photo.height * factor))
    return photo if size == photo.size else photo.resize(size, Image.Resampling.LANCZOS)


def save_match_page(
    path: str | os.PathLike[str],
    names: tuple[str, str],
    photos: tuple[Any, Any],
    features: tuple[Features, Features],
    matches: Matches,
    inliers: Bool[np.ndarray, " K"],
    *,
    extent: float,
) -> None:
    """Write the page of both images' matches to an .html file; `extent`: see `Describer`."""
    images, ends = [], []
    for name, photo, found, rows in zip(names, photos, features, matches.indices.T, strict=True):
        picture = as_picture(name, photo)
        factor = min(1.0, MAX_SIDE / max(picture.size))
        file = io.BytesIO()
        reduced(picture, factor).save(file, "JPEG", quality=_QUALITY)
        content = base64.b64encode(file.getvalue()).decode()
        source = f"data:image/jpeg;base64,{content}"
        images.append(f'<img hidden alt="{html.escape(name)}" src="{source}">')
        # Per keypoint: x and y with pixel centres at .5, the patch's side, the angle in radians.
        xy = (found.xy[rows] + np.float32(0.5)) * np.float32(factor)
        scales, radians = found.scales, found.radians()
        scales = np.ones(len(found), np.float32) if scales is None else scales
        radians = np.zeros(len(found), np.float32) if radians is None else radians
        sides = scales[rows] * np.float32(extent * factor)
        ends += [_rounded(column) for column in (xy[:, 0], xy[:, 1], sides, radians[rows])]
    data = {
        "ends": ends,
        "distance": _rounded(matches.distances, 4),
        "ratio": _rounded(matches.ratios, 4),
        "agrees": inliers.astype(int).tolist(),
        "bits": features[0].distance == "Hamming",
    }
    lowest = np.floor(100 * (1 - matches.ratios.max(initial=0))) / 100
    template, style, script = (
        resources.files(__package__).joinpath(f"match_page.{suffix}").read_text(encoding="utf-8")
        for suffix in ("html", "css", "js")
    )
    # Only this script may run, and nothing may be fetched, whatever the names contain.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src"
    page = template.format(
        policy=f"{policy} 'sha256-{digest}'",
        style=style,
        script=script,
        title=html.escape(" and ".join(names)),
        lowest=f"{max(lowest, 0):g}",
        checked=" checked" if inliers.any() else " disabled",
        images="\n".join(images),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )
    write_text(Path(path), page)


def _rounded(column: Float32[np.ndarray, " K"], digits: int = 3) -> list[float]:
    return [round(value, digits) for value in column.tolist()]
