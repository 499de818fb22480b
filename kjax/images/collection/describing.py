"""Features of photographs, one file each, found and described once."""

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Num
from tqdm import tqdm

from kjax.data.cutting.grey import grey_values
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.data.cutting.photographs import Pixels, read_photograph
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.collection.keys import key_of
from kjax.images.collection.photographs import Photograph
from kjax.images.describer import Describer
from kjax.images.exchange.npz import read_npz, write_npz
from kjax.images.exchange.provenance import LABELS, Provenance
from kjax.images.features import Features

MAX_SIDE = 3200
"""Pixels: larger photographs are reduced to it, as COLMAP does; positions are those of the file."""
PIXELS_AT_ONCE = 8_000_000
"""That keypoints are looked for in: SIFT needs some 200 bytes for each."""
Item = TypeVar("Item")
Result = TypeVar("Result")


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

    def __init__(self, folder: Path, settings: Provenance) -> None:
        """Makes the folder.

        Args:
            folder: of the files.
            settings: what features are made with; photographs are reduced besides.
        """
        detector = f"{settings.detector}, to {MAX_SIDE} pixels"
        self.settings = dataclasses.replace(settings, detector=detector)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def key(self, photograph: Photograph) -> str:
        """What tells these features from all others."""
        return key_of(photograph.sha256, {label: getattr(self.settings, label) for label in LABELS})

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
        origin = self.settings.of(photograph.sha256).to_json()
        write_npz(self.path(photograph), features, provenance=origin)


def describe_missing(
    photographs: Sequence[Photograph], describer: Describer, files: FeatureFiles
) -> list[str]:
    """Describes the photographs that have no file yet.

    Keypoints of the next photographs are found, in threads, while one is described.

    Returns:
        Why photographs have no file even now: they cannot be decoded.
    """
    missing = {files.path(one): one for one in photographs if not files.path(one).exists()}
    left_out = []
    with tqdm(total=len(photographs), desc="describing", unit="photo") as bar:
        bar.update(len(photographs) - len(missing))
        limit = files.settings.max_keypoints

        def find(photograph: Photograph) -> tuple[Pixels, Keypoints]:
            pixels = reduced(read_photograph(photograph.path, upright=False))
            grey = grey_values(pixels)
            return pixels, detect_in_grey(grey, max_keypoints=limit, detector=describer.detector)

        for photograph, found in in_order(find, missing.values(), _threads(photographs)):
            try:
                features = describer.describe_image(*found.result())
            except (InputError, OSError) as error:
                left_out.append(f"{photograph.path}: {error}")
            else:
                files.write(photograph, enlarged(features, photograph.size))
            bar.update()
    return left_out


def _threads(photographs: Sequence[Photograph]) -> int:
    """That find keypoints: as many as there are cores, fewer for large photographs."""
    sides = [[min(side, MAX_SIDE) for side in one.size] for one in photographs]
    largest = max((width * height for width, height in sides), default=1)
    return max(1, min(os.cpu_count() or 1, PIXELS_AT_ONCE // largest))


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[tuple[Item, Future[Result]]]:
    """Items with what becomes of them in threads, in their order; few results wait at a time."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > threads + 1:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            for _, future in waiting:
                future.cancel()
