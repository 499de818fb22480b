"""Features of images, one file each, detected and described once."""

import dataclasses
import functools
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Num
from tqdm import tqdm

from kjax.data.cutting.keypoints import detect_in_grey
from kjax.data.cutting.photographs import grey_values, read_photograph
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.photographs import CollectionPhoto, key_of
from kjax.images.describer import Describer
from kjax.images.exchange.npz import read_npz, write_npz
from kjax.images.exchange.outputs import LABELS, FeatureSettings
from kjax.images.features import Features

MAX_SIDE = 3200
"""Larger images are reduced to this side, as in COLMAP; positions are in the original's pixels."""
PIXELS_AT_ONCE = 8_000_000
"""Pixels in which keypoints are detected at a time: SIFT needs some 200 bytes for each."""
AT_ONCE = 8
"""Images sent to another machine together."""
_DESCRIBING = threading.Lock()
"""Describing takes all cores and much memory; the other threads detect keypoints meanwhile."""


class FeatureFiles:
    """A folder with the features of images, named by their content and settings."""

    def __init__(self, folder: Path, settings: FeatureSettings) -> None:
        """Create the folder."""
        detector = f"{settings['detector']}, to {MAX_SIDE} pixels"
        self.settings = settings | {"detector": detector}
        self._folder = folder
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
        none = np.empty((len(features), 0), features.descriptors.dtype)
        return dataclasses.replace(features, descriptors=none)

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
    pixels = [math.prod(min(side, MAX_SIDE) for side in one.size) for one in missing]
    with tqdm(total=len(photographs), desc="describing", unit="photo") as bar:
        bar.update(len(photographs) - len(missing))
        described = engine.map(
            functools.partial(describe_content, describer, files.settings["max_keypoints"]),
            # A file that has disappeared is empty, and reported as damaged.
            ((one.path, one.path.read_bytes() if one.path.is_file() else b"") for one in missing),
            threads=max(1, PIXELS_AT_ONCE // max(pixels, default=1)),
            shard=AT_ONCE,
        )
        for photograph, features in zip(missing, described, strict=True):
            if isinstance(features, str):
                left_out.append(f"{photograph.path}: {features}")
            else:
                files.write(photograph, enlarged(features, photograph.size))
            bar.update()
    return left_out


def describe_content(
    describer: Describer, limit: int, path: Path, content: bytes
) -> Features | str:
    """Return the features of an image from its file's content, or the reason for a failure."""
    try:
        grey = grey_values(reduced(read_photograph(path, upright=False, content=content)))
        keypoints = detect_in_grey(grey, max_keypoints=limit, detector=describer.detector)
        with _DESCRIBING:
            return describer.describe_grey(grey, keypoints)
    except (InputError, OSError) as error:
        return str(error)


def reduced(pixels: Num[np.ndarray, "_ _ *colours"]) -> Num[np.ndarray, "_ _ *colours"]:
    """Reduce an image to `MAX_SIDE` if it is larger."""
    height, width = pixels.shape[:2]
    factor = MAX_SIDE / max(height, width)
    if factor >= 1:
        return pixels
    cv2 = require("cv2", "reducing photographs")
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def enlarged(features: Features, size: tuple[int, int]) -> Features:
    """Convert features of a reduced image to pixels of the original, which has this size."""
    if features.image_size == size:
        return features
    factors = (np.array(size) / features.image_size).astype(np.float32)
    return dataclasses.replace(
        features,
        xy=(features.xy + np.float32(0.5)) * factors[None] - np.float32(0.5),
        scales=None if features.scales is None else features.scales * factors.mean(),
        image_size=size,
    )
