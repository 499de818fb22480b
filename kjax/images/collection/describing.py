"""Features of photographs, one file each, found and described once."""

import dataclasses
import functools
import json
import math
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Num
from tqdm import tqdm

from kjax.data.cutting.grey import grey_values
from kjax.data.cutting.keypoints import detect_in_grey
from kjax.data.cutting.photographs import read_photograph
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.keys import key_of
from kjax.images.collection.photographs import Photograph
from kjax.images.describer import Describer
from kjax.images.exchange.npz import read_npz, write_npz
from kjax.images.exchange.outputs import LABELS, Settings
from kjax.images.features import Features

MAX_SIDE = 3200
"""Pixels: larger photographs are reduced to it, as COLMAP does; positions are those of the file."""
PIXELS_AT_ONCE = 8_000_000
"""That keypoints are looked for in: SIFT needs some 200 bytes for each."""
AT_ONCE = 8
"""Photographs that another machine is sent together."""
_ONE_DESCRIBES = threading.Lock()
"""Describing takes all cores and much memory: the other threads find keypoints meanwhile."""


def reduced(pixels: Num[np.ndarray, "_ _ *colours"]) -> Num[np.ndarray, "_ _ *colours"]:
    """A photograph that is not too large."""
    height, width = pixels.shape[:2]
    factor = MAX_SIDE / max(height, width)
    if factor >= 1:
        return pixels
    cv2 = require("cv2", "reducing photographs")
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def enlarged(features: Features, size: tuple[int, int]) -> Features:
    """Features of a reduced photograph in the pixels of the whole one, which has this size."""
    if features.image_size == size:
        return features
    factors = (np.array(size) / features.image_size).astype(np.float32)
    return dataclasses.replace(
        features,
        xy=(features.xy + np.float32(0.5)) * factors[None] - np.float32(0.5),
        scales=None if features.scales is None else features.scales * factors.mean(),
        image_size=size,
    )


class FeatureFiles:
    """A folder with the features of photographs, by their content and what they are made with."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Makes the folder.

        Args:
            folder: of the files.
            settings: what features are made with; photographs are reduced besides.
        """
        detector = f"{settings['detector']}, to {MAX_SIDE} pixels"
        self.settings = settings | {"detector": detector}
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def key(self, photograph: Photograph) -> str:
        """What tells these features from all others."""
        return key_of(photograph.sha256, {label: self.settings[label] for label in LABELS})

    def path(self, photograph: Photograph) -> Path:
        """Of the file, which may not be there yet."""
        return self._folder / f"{self.key(photograph)}.npz"

    def read(self, photograph: Photograph) -> Features:
        """The features of a photograph that has been described."""
        return read_npz(self.path(photograph))

    def read_keypoints(self, photograph: Photograph) -> Features:
        """The same without descriptors, which take most of the memory."""
        features = self.read(photograph)
        none = np.empty((len(features), 0), features.descriptors.dtype)
        return dataclasses.replace(features, descriptors=none)

    def write(self, photograph: Photograph, features: Features) -> None:
        """Keeps features, whole or not at all."""
        recorded = self.settings | {"photograph": photograph.sha256}
        write_npz(
            self.path(photograph), features, provenance=json.dumps(recorded, ensure_ascii=False)
        )


def describe_missing(
    photographs: Sequence[Photograph],
    describer: Describer,
    files: FeatureFiles,
    engine: Engine = HERE,
) -> list[str]:
    """Describes the photographs that have no file yet.

    Args:
        photographs: of the collection.
        describer: of keypoints.
        files: of the features.
        engine: what does the work.

    Returns:
        Why photographs have no file even now: they cannot be decoded.
    """
    found = {files.path(one): one for one in photographs if not files.path(one).exists()}
    missing = list(found.values())
    left_out = []
    with tqdm(total=len(photographs), desc="describing", unit="photo") as bar:
        bar.update(len(photographs) - len(missing))
        described = engine.map(
            functools.partial(describe_content, describer, files.settings["max_keypoints"]),
            ((one.path, _content(one.path)) for one in missing),
            threads=threads_for(one.size for one in missing),
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
    """The features of a photograph by the content of its file, or why there are none."""
    try:
        grey = grey_values(reduced(read_photograph(path, upright=False, content=content)))
        keypoints = detect_in_grey(grey, max_keypoints=limit, detector=describer.detector)
        with _ONE_DESCRIBES:
            return describer.describe_grey(grey, keypoints)
    except (InputError, OSError) as error:
        return str(error)


def _content(path: Path) -> bytes:
    """Of a file; nothing, which is no photograph, of one that has gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def threads_for(sizes: Iterable[tuple[int, int]]) -> int:
    """That may find keypoints in photographs of these sizes at a time."""
    largest = max((math.prod(min(side, MAX_SIDE) for side in size) for size in sizes), default=1)
    return max(1, PIXELS_AT_ONCE // largest)
