"""What cameras note in their photographs: who took one, with which lens, and where.

Focal lengths are guessed as COLMAP does: from the equivalent for 35 mm film, else from the lens and
the width of the sensor. COLMAP also has a table of sensors by camera; here the file must tell.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64
from PIL import ExifTags, Image

from kjax.images.exchange.colmap_database import CameraGuess

FILM_WIDTH = 35.0
"""Millimetres, as COLMAP has it, of the film that equivalents are told for."""
UNITS = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Millimetres, by EXIF's number of the unit that a sensor's resolution is told in."""
EARTH_RADIUS = 6_371_000.0
"""Metres."""


def camera_of(image: Image.Image, name: str) -> CameraGuess:
    """The camera of a photograph; one that says nothing has a camera of its own, by its name."""
    main = image.getexif()
    lens = main.get_ifd(ExifTags.IFD.Exif)
    told = [_text(main, ExifTags.Base.Make), _text(main, ExifTags.Base.Model)]
    told.append(
        _text(lens, ExifTags.Base.FocalLengthIn35mmFilm) or _text(lens, ExifTags.Base.FocalLength)
    )
    width, height = image.size
    identity = f"{'-'.join(told)}-{width}x{height}" if all(told) else name
    return CameraGuess(identity, _focal_length(lens, max(image.size)))


def position_of(image: Image.Image) -> Float64[np.ndarray, "3"] | None:
    """Where a photograph was taken, in metres from the centre of the earth, at sea level."""
    told = image.getexif().get_ifd(ExifTags.IFD.GPSInfo)
    latitude = _angle(told, ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "S")
    longitude = _angle(told, ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "W")
    if latitude is None or longitude is None:
        return None
    across = math.cos(latitude)
    return EARTH_RADIUS * np.array(
        [across * math.cos(longitude), across * math.sin(longitude), math.sin(latitude)]
    )


def _focal_length(lens: Mapping[int, Any], side: int) -> float | None:
    """In pixels of a photograph with this longer side; None if it cannot be told."""
    if equivalent := _number(lens, ExifTags.Base.FocalLengthIn35mmFilm):
        return equivalent / FILM_WIDTH * side
    length, pixels, resolution = (
        _number(lens, tag)
        for tag in (
            ExifTags.Base.FocalLength,
            ExifTags.Base.ExifImageWidth,
            ExifTags.Base.FocalPlaneXResolution,
        )
    )
    unit = UNITS.get(lens.get(ExifTags.Base.FocalPlaneResolutionUnit, 0))
    if not (length and pixels and resolution and unit):
        return None
    return length / (pixels / resolution * unit) * side


def _text(told: Mapping[int, Any], tag: int) -> str:
    return str(told.get(tag, "")).strip("\0 ")


def _number(told: Mapping[int, Any], tag: int) -> float | None:
    """A number above 0; None of all else that files hold."""
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        value = float(told[tag]) if tag in told else 0.0
        return value if 0 < value < math.inf else None
    return None


def _angle(told: Mapping[int, Any], tag: int, reference: int, negative: str) -> float | None:
    """Radians from degrees, minutes and seconds."""
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        degrees, minutes, seconds = (float(part) for part in told.get(tag, ()))
        angle = math.radians(degrees + minutes / 60 + seconds / 3600)
        if math.isfinite(angle):
            return -angle if _text(told, reference) == negative else angle
    return None
