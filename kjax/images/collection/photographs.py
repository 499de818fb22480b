"""The images of a collection: content, EXIF data, and features, computed once per image."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from PIL import ExifTags, Image
from tqdm import tqdm

from kjax.data.cutting.photographs import grey_values, list_photos, read_reduced
from kjax.errors import InputError
from kjax.files.atomic import sha256
from kjax.files.images import open_image
from kjax.images.collection.engine import HERE, Engine
from kjax.images.describer import Describer
from kjax.images.exchange.colmap_database import CameraGuess
from kjax.images.exchange.npz import read_npz, write_npz
from kjax.images.exchange.outputs import LABELS, FeatureSettings
from kjax.images.features import Features

FILM_WIDTH = 35.0
"""Width in millimetres of the film that equivalent focal lengths refer to, as in COLMAP."""
UNITS = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Millimetres by EXIF's unit of a sensor's resolution."""
EARTH_RADIUS = 6_371_000.0
"""Metres."""
KEY_DIGITS = 32
PIXELS_AT_ONCE = 8_000_000
"""Pixels in which keypoints are detected at a time: SIFT needs some 200 bytes for each."""
AT_ONCE = 8
"""Images sent to another machine together."""
_DESCRIBING = threading.Lock()
"""Describing takes all cores and much memory; the other threads detect keypoints meanwhile."""


class CollectionPhoto(NamedTuple):
    """A readable image file."""

    name: str
    """Path below the image folder, as in COLMAP."""
    path: Path
    sha256: str
    size: tuple[int, int]
    """Width and height of the stored pixels."""
    camera: CameraGuess
    position: Float64[np.ndarray, "3"] | None
    """Metres from the centre of the earth, if EXIF data has a position."""


def read_collection(
    folder: Path, *, single_camera: bool = False
) -> tuple[list[CollectionPhoto], list[str]]:
    """Read the images below a folder, sorted by name, and the reasons why others are left out."""
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
    """Guess the camera from EXIF data, as COLMAP does without its table of sensors."""
    main, tags = image.getexif(), ExifTags.Base
    lens = main.get_ifd(ExifTags.IFD.Exif)
    number = functools.partial(_positive, lens)
    equivalent, length = number(tags.FocalLengthIn35mmFilm), number(tags.FocalLength)
    pixels, resolution = number(tags.ExifImageWidth), number(tags.FocalPlaneXResolution)
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
    gps, tags = image.getexif().get_ifd(ExifTags.IFD.GPSInfo), ExifTags.GPS
    angles = []
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        for tag, reference, negative in (
            (tags.GPSLatitude, tags.GPSLatitudeRef, "S"),
            (tags.GPSLongitude, tags.GPSLongitudeRef, "W"),
        ):
            degrees, minutes, seconds = (float(part) for part in gps.get(tag, ()))
            angle = math.radians(degrees + minutes / 60 + seconds / 3600)
            angles.append(-angle if _text(gps, reference) == negative else angle)
    if len(angles) < 2 or not np.isfinite(angles).all():
        return None
    (latitude, longitude), cos, sin = angles, math.cos, math.sin
    xyz = cos(latitude) * cos(longitude), cos(latitude) * sin(longitude), sin(latitude)
    return EARTH_RADIUS * np.array(xyz)


def _text(exif: Mapping[int, Any], tag: int) -> str:
    return str(exif.get(tag, "")).strip("\0 ")


def _positive(exif: Mapping[int, Any], tag: int) -> float | None:
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        value = float(exif.get(tag, 0))
        return value if 0 < value < math.inf else None
    return None


class FeatureFiles:
    """A folder with the features of images, named by their content and settings."""

    def __init__(self, folder: Path, settings: FeatureSettings) -> None:
        """Create the folder."""
        self.settings, self._folder = settings, folder
        folder.mkdir(parents=True, exist_ok=True)

    def key(self, photograph: CollectionPhoto) -> str:
        """Return the hash of everything that the features depend on."""
        return key_of(photograph.sha256, {label: self.settings[label] for label in LABELS})

    def path(self, photograph: CollectionPhoto) -> Path:
        """Return the path of a file, which may not exist yet."""
        return self._folder / f"{self.key(photograph)}.npz"

    def read(self, photograph: CollectionPhoto) -> Features:
        """Read the features of an image."""
        return read_npz(self.path(photograph))

    def read_keypoints(self, photograph: CollectionPhoto) -> Features:
        """Read features without descriptors, which take most of the memory."""
        features = self.read(photograph)
        return dataclasses.replace(features, descriptors=features.descriptors[:, :0].copy())

    def write(self, photograph: CollectionPhoto, features: Features) -> None:
        """Write features atomically."""
        settings = self.settings | {"photograph": photograph.sha256}
        write_npz(self.path(photograph), features, settings=settings)


def describe_missing(
    photographs: Sequence[CollectionPhoto],
    describer: Describer,
    files: FeatureFiles,
    engine: Engine = HERE,
) -> list[str]:
    """Describe the images without a feature file; return why images cannot be described."""
    found = {files.path(one): one for one in photographs if not files.path(one).exists()}
    missing, left_out = list(found.values()), []
    most = describer.max_side or math.inf
    pixels = [int(math.prod(min(side, most) for side in one.size)) for one in missing]
    described = engine.map(
        functools.partial(describe_content, describer, files.settings["max_keypoints"]),
        # A file that has disappeared is empty, and reported as damaged.
        ((one.path, one.path.read_bytes() if one.path.is_file() else b"") for one in missing),
        threads=max(1, PIXELS_AT_ONCE // max(pixels, default=1)),
        shard=AT_ONCE,
    )
    before = len(photographs) - len(missing)
    bar = tqdm(described, "describing", len(photographs), initial=before, unit="photo")
    for photograph, features in zip(missing, bar, strict=True):
        if isinstance(features, str):
            left_out.append(f"{photograph.path}: {features}")
        else:
            files.write(photograph, features)
    return left_out


def describe_content(
    describer: Describer, limit: int, path: Path, content: bytes
) -> Features | str:
    """Return the features of an image from its file's content, or the reason for a failure."""
    try:
        pixels, size = read_reduced(path, describer.max_side, content=content)
        grey = grey_values(pixels)
        describe = describer.detected(grey, max_keypoints=limit, upright=describer.upright)
        with _DESCRIBING:
            return describe().resized(size)
    except (InputError, OSError) as error:
        return str(error)
