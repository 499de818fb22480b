"""The images of a collection: their content, and what EXIF data says about camera and place."""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from PIL import ExifTags, Image

from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.files.atomic import sha256
from kjax.files.images import open_image
from kjax.images.exchange.colmap_database import CameraGuess

FILM_WIDTH = 35.0
"""Width in millimetres of the film that equivalent focal lengths refer to, as in COLMAP."""
UNITS = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Millimetres by EXIF's unit of a sensor's resolution."""
EARTH_RADIUS = 6_371_000.0
"""Metres."""
KEY_DIGITS = 32


class CollectionPhoto(NamedTuple):
    """A readable image file.

    Attributes:
        name: path below the image folder, as in COLMAP.
        path: the file.
        sha256: checksum of its content.
        size: width and height of the stored pixels.
        camera: from EXIF data.
        position: metres from the centre of the earth, or None if EXIF data has no position.
    """

    name: str
    path: Path
    sha256: str
    size: tuple[int, int]
    camera: CameraGuess
    position: Float64[np.ndarray, "3"] | None


def read_collection(
    folder: Path, *, single_camera: bool = False
) -> tuple[list[CollectionPhoto], list[str]]:
    """Read the images below a folder, sorted by name, and the reasons why others are left out.

    Args:
        folder: names are relative to it.
        single_camera: assume one camera for all images of the same size.
    """
    found, left_out = [], []
    for path in list_photos(folder):
        name = path.relative_to(folder).as_posix()
        try:
            name.encode()
            with open_image(path) as image:
                size, camera = image.size, camera_of(image, name)
                if single_camera:
                    camera = camera._replace(identity=f"{size[0]}x{size[1]}")
                position = position_of(image)
                found.append(CollectionPhoto(name, path, sha256(path), size, camera, position))
        except UnicodeEncodeError:
            left_out.append(f"{path}: the name is not valid UTF-8: rename the file")
        except (InputError, OSError) as error:
            left_out.append(f"{path}: {error}")
    return found, left_out


def key_of(*content: Any) -> str:
    """Return a short hash of JSON-like values, which names a piece of work by its inputs."""
    text = json.dumps(content, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def camera_of(image: Image.Image, name: str) -> CameraGuess:
    """Guess the camera of an image from EXIF data; without it, each image has its own camera.

    As in COLMAP, the focal length comes from the 35 mm equivalent, else from the lens and the width
    of the sensor. COLMAP's table of sensors by camera is not used.
    """
    main = image.getexif()
    lens = main.get_ifd(ExifTags.IFD.Exif)
    tags = ExifTags.Base
    equivalent = _number(lens, tags.FocalLengthIn35mmFilm)
    length, pixels, resolution = (
        _number(lens, tag)
        for tag in (tags.FocalLength, tags.ExifImageWidth, tags.FocalPlaneXResolution)
    )
    unit = UNITS.get(lens.get(tags.FocalPlaneResolutionUnit, 0))
    focal = None
    if equivalent:
        focal = equivalent / FILM_WIDTH * max(image.size)
    elif length and pixels and resolution and unit:
        focal = length / (pixels / resolution * unit) * max(image.size)
    optics = _text(lens, tags.FocalLengthIn35mmFilm) or _text(lens, tags.FocalLength)
    parts = [_text(main, tags.Make), _text(main, tags.Model), optics]
    width, height = image.size
    return CameraGuess(f"{'-'.join(parts)}-{width}x{height}" if all(parts) else name, focal)


def position_of(image: Image.Image) -> Float64[np.ndarray, "3"] | None:
    """Return the GPS position in metres from the centre of the earth, at sea level, if known."""
    gps = image.getexif().get_ifd(ExifTags.IFD.GPSInfo)
    latitude = _angle(gps, ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "S")
    longitude = _angle(gps, ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "W")
    if latitude is None or longitude is None:
        return None
    across = math.cos(latitude)
    return EARTH_RADIUS * np.array(
        [across * math.cos(longitude), across * math.sin(longitude), math.sin(latitude)]
    )


def _text(exif: Mapping[int, Any], tag: int) -> str:
    return str(exif.get(tag, "")).strip("\0 ")


def _number(exif: Mapping[int, Any], tag: int) -> float | None:
    """Return a positive number, or None."""
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        value = float(exif[tag]) if tag in exif else 0.0
        return value if 0 < value < math.inf else None
    return None


def _angle(exif: Mapping[int, Any], tag: int, reference: int, negative: str) -> float | None:
    """Return radians from degrees, minutes and seconds, or None."""
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        degrees, minutes, seconds = (float(part) for part in exif.get(tag, ()))
        angle = math.radians(degrees + minutes / 60 + seconds / 3600)
        if math.isfinite(angle):
            return -angle if _text(exif, reference) == negative else angle
    return None
