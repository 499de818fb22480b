"""Features of photographs, one file each, found and described once."""

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from kjax.data.cutting.grey import grey_values
from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.data.cutting.photographs import Pixels, read_photograph
from kjax.errors import InputError
from kjax.images.collection.keys import key_of
from kjax.images.collection.photographs import Photograph
from kjax.images.describer import Describer
from kjax.images.exchange.npz import read_npz, write_npz
from kjax.images.exchange.provenance import LABELS, Provenance
from kjax.images.features import Features

CONTRAST = 0.02
"""COLMAP's threshold; OpenCV's own is twice as high."""
DETECTOR = f"OpenCV SIFT, precise upscale, contrast {CONTRAST}, largest first"
Item = TypeVar("Item")
Result = TypeVar("Result")


def find_keypoints(pixels: Pixels, limit: int) -> Keypoints:
    """SIFT's keypoints, those of the largest scale first, as COLMAP chooses them.

    Far more of them are found again in another photograph than of those of the largest contrast.
    """
    found = detect_in_grey(grey_values(pixels), max_keypoints=None, contrast=CONTRAST)
    return found.keep(np.argsort(-found.scales, kind="stable")[:limit])


class FeatureFiles:
    """A folder with the features of photographs, by their content and what they are made with."""

    def __init__(self, folder: Path, settings: Provenance) -> None:
        """Makes the folder.

        Args:
            folder: of the files.
            settings: what features are made with, but for the detector, which is ours.
        """
        self.settings = dataclasses.replace(settings, detector=DETECTOR)
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
    with (
        tqdm(total=len(photographs), desc="describing", unit="photo") as bar,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        bar.update(len(photographs) - len(missing))
        limit = files.settings.max_keypoints

        def find(photograph: Photograph) -> tuple[Pixels, Keypoints]:
            pixels = read_photograph(photograph.path, upright=False)
            return pixels, find_keypoints(pixels, limit)

        for photograph, found in in_order(pool, find, missing.values()):
            try:
                features = describer.describe_image(*found.result())
            except (InputError, OSError) as error:
                left_out.append(f"{photograph.path}: {error}")
            else:
                files.write(photograph, features)
            bar.update()
    return left_out


def in_order(
    pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Result]]]:
    """Items with what becomes of them, in their order; few are under way, or wait, at a time."""
    ahead = (os.cpu_count() or 1) + 1
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, future in waiting:
            future.cancel()
