"""The photographs of a collection, before any work: what tells each apart, its camera and place."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.files.checksum import sha256
from kjax.files.images import open_image
from kjax.images.collection.exif import camera_of, position_of
from kjax.images.exchange.colmap_database import CameraGuess


class Photograph(NamedTuple):
    """A file that can be opened.

    Attributes:
        name: path below the folder of photographs, as COLMAP has it.
        path: of the file.
        sha256: of its content.
        size: width and height of its pixels as they are stored.
        camera: that took it.
        position: where, in metres from the centre of the earth, if the file says so.
    """

    name: str
    path: Path
    sha256: str
    size: tuple[int, int]
    camera: CameraGuess
    position: Float64[np.ndarray, "3"] | None


def read_collection(
    folder: Path, *, single_camera: bool = False
) -> tuple[list[Photograph], list[str]]:
    """The photographs below a folder in the order of their names, and why others are left out.

    Args:
        folder: that names are relative to.
        single_camera: one camera took all photographs that are of one size.
    """
    found, left_out = [], []
    for path in list_photos(folder):
        try:
            found.append(_read(path, path.relative_to(folder).as_posix(), single_camera))
        except (InputError, OSError) as error:
            left_out.append(f"{path}: {error}")
    return found, left_out


def _read(path: Path, name: str, single_camera: bool) -> Photograph:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError("its name is no UTF-8: rename the file") from None
    with open_image(path) as image:
        camera, size = camera_of(image, name), image.size
        if single_camera:
            camera = camera._replace(identity=f"{size[0]}x{size[1]}")
        return Photograph(name, path, sha256(path), size, camera, position_of(image))
