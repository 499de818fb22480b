"""Upright squares out of photographs: SIFT keypoints, and 64×64 patches in PhotoTourism's geometry.

Pixel centres are integers: the centre of the top-left pixel is (0, 0). A keypoint has a scale σ in
pixels and an orientation in radians, clockwise on screen: the direction (cos a, sin a), x to the
right and y down. Its patch is the square of side `support`·σ about it whose horizontal axis follows
the orientation, so that patch pixel (u, v) of S×S looks at

    xy + t · R(a) · (u − (S−1)/2, v − (S−1)/2),    t = support · σ / S.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError
from kjax.extras import require
from kjax.image_files import is_safe_image

SUPPORT = 24.0
"""Side of a patch on the photograph, in units of σ: what cv2 and kornia users call mrSize 12."""
LEVELS_PER_OCTAVE = 3

PHOTO_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class Keypoints(NamedTuple):
    """Oriented, scaled points of one photograph."""

    xy: Float[np.ndarray, "K 2"]
    sigma: Float[np.ndarray, " K"]
    angle: Float[np.ndarray, " K"]

    def take(self, index: Int[np.ndarray, " n"] | Bool[np.ndarray, " K"]) -> "Keypoints":
        """Some of them."""
        return Keypoints(self.xy[index], self.sigma[index], self.angle[index])


def list_photos(folder: Path) -> list[Path]:
    """All photographs below a folder, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    photos = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in PHOTO_SUFFIXES and not path.is_dir()
    ]
    if not photos:
        raise InputError(f"{folder} holds no photographs ({', '.join(sorted(PHOTO_SUFFIXES))})")
    return sorted(photos, key=lambda path: path.relative_to(folder).as_posix())


def read_grey(path: Path) -> UInt8[np.ndarray, "height width"] | None:
    """A photograph in grey, or None if it cannot be read: see `kjax.image_files` for what can.

    Its pixels stay as they are stored, whatever orientation the camera noted: so does COLMAP.
    """
    cv2 = require("cv2", "cutting patches")
    if not is_safe_image(path):  # OpenCV would decode a gigapixel
        return None
    try:
        encoded = np.fromfile(path, np.uint8)  # unlike cv2.imread, takes any name on any system
        return cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION)
    except (OSError, cv2.error):
        return None


def detect_sift(
    photo: UInt8[np.ndarray, "height width"], *, contrast: float = 0.04
) -> tuple[Keypoints, Float[np.ndarray, " K"]]:
    """SIFT keypoints and their responses, strongest first.

    Args:
        photo: grey.
        contrast: OpenCV's threshold; lower finds more.
    """
    cv2 = require("cv2", "cutting patches")
    # Without the precise upscale, OpenCV's positions are a quarter of a pixel off.
    detector = cv2.SIFT_create(contrastThreshold=contrast, enable_precise_upscale=True)
    found = detector.detect(photo, None)
    rows = [(-k.response, *k.pt, k.size / 2, np.deg2rad(k.angle)) for k in found]
    table = np.array(sorted(rows), np.float64).reshape(-1, 5)
    return Keypoints(table[:, 1:3], table[:, 3], table[:, 4]), -table[:, 0]


def cut_patches(
    photo: UInt8[np.ndarray, "height width"], keypoints: Keypoints, *, support: float = SUPPORT
) -> UInt8[np.ndarray, "K 64 64"]:
    """The patch of each keypoint; beyond its border the photograph is mirrored."""
    cv2 = require("cv2", "cutting patches")
    steps = support * keypoints.sigma / PATCH_SIDE
    levels = np.rint(LEVELS_PER_OCTAVE * np.log2(np.maximum(steps, 1.0))).astype(np.int64)
    matrices = _patch_to_level(keypoints, steps, levels)
    patches = np.empty((len(steps), PATCH_SIDE, PATCH_SIDE), np.uint8)
    pyramid = Pyramid(photo)
    for level in np.unique(levels).tolist():
        image = pyramid.level(level)
        for number in np.flatnonzero(levels == level):
            patches[number] = cv2.warpAffine(
                image,
                matrices[number],
                (PATCH_SIDE, PATCH_SIDE),
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REFLECT_101,
            )
    return patches


def _patch_to_level(
    keypoints: Keypoints, steps: Float[np.ndarray, " K"], levels: Int[np.ndarray, " K"]
) -> Float[np.ndarray, "K 2 3"]:
    """The affine map from each patch's pixels to those of its level of the pyramid."""
    spacing = 2.0 ** (levels // LEVELS_PER_OCTAVE)
    cosine = steps * np.cos(keypoints.angle) / spacing
    sine = steps * np.sin(keypoints.angle) / spacing
    x, y = keypoints.xy.T / spacing
    middle = (PATCH_SIDE - 1) / 2
    rows = [
        np.stack([cosine, -sine, x - (cosine - sine) * middle], axis=1),
        np.stack([sine, cosine, y - (cosine + sine) * middle], axis=1),
    ]
    return np.stack(rows, axis=1)


class Pyramid:
    """A photograph low-passed for sampling steps of 1, 2^⅓, 2^⅔, 2, … of its pixels.

    Pixels of levels 3, 6, … and the two that follow each are 2, 4, … of the photograph's apart.
    """

    def __init__(self, photo: UInt8[np.ndarray, "height width"]) -> None:
        self._octaves = [photo]

    def level(self, number: int) -> UInt8[np.ndarray, "height width"]:
        """The copy for steps of 2^(number/3)."""
        cv2 = require("cv2", "cutting patches")
        octave, third = divmod(number, LEVELS_PER_OCTAVE)
        while len(self._octaves) <= octave:
            # pyrDown keeps every second pixel from the first, so pixel (0, 0) stays at (0, 0).
            self._octaves.append(cv2.pyrDown(self._octaves[-1]))
        if third == 0:
            return self._octaves[octave]
        width = antialias_sigma(2 ** (third / LEVELS_PER_OCTAVE))
        return cv2.GaussianBlur(self._octaves[octave], (0, 0), width)


def antialias_sigma(step: float) -> float:
    """Width of the Gaussian that readies an image for sampling every `step` ≥ 1 pixels."""
    return 0.5 * math.sqrt(step * step - 1)
