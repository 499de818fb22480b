"""The rivals that OpenCV computes: SIFT, RootSIFT, BRIEF, ORB, BBoost and TEBLID.

Each patch is an image with one keypoint in its middle, upright, whose region is the whole patch.
SIFT's keypoint is that of the official HPatches script: at side/2, of size side/5.303.

BRIEF, TEBLID and BBoost are in OpenCV's contrib modules, which the wheel opencv-python-headless
lacks and opencv-contrib-python-headless has. BBoost is BoostDesc, whose learned tables are
downloaded when OpenCV is built: wheels of OpenCV 4 came without them, those of OpenCV 5 have them.

A constant patch has no gradients: SIFT and RootSIFT give the zero vector, BRIEF, ORB and TEBLID
fixed bits, and BBoost the signs of its rounding.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8
from tqdm import tqdm

from kjax.baselines.descriptor import PatchDescriptor, Unavailable, check_patches
from kjax.errors import InputError
from kjax.extras import require

SIFT_MAGNIFICATION = 5.303
"""Side of the patch over the size of SIFT's keypoint: its 4×4 histograms then cover the patch."""
ORB_LEVEL = 4
"""Level of ORB's pyramid whose pattern of 31 pixels, magnified by 1.2⁴, spans 64 pixels."""
BINBOOST_256 = 302
"""OpenCV's number for the BinBoost descriptor of 256 bits."""
_PATCHES_AT_ONCE = 256
_NO_TABLES = ", from a build that has BoostDesc's tables (wheels of OpenCV 4 have not)"


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """One of OpenCV's descriptors.

    Attributes:
        name: for people.
        dimension: numbers, or bits.
        bits: whether OpenCV packs eight of them into a byte.
        create: makes an extractor; each thread has its own.
        keypoint: position, size, angle, response and octave for a patch of a given side.
    """

    name: str
    dimension: int
    bits: bool
    create: Callable[[], Any]
    keypoint: Callable[[int], tuple[float, ...]]


def load(name: str) -> PatchDescriptor:
    """One of OpenCV's rivals, or `Unavailable` where this OpenCV lacks it."""
    cv2 = _require_opencv()
    recipe = _recipe(cv2, name)
    _try(recipe, cv2)

    def describe(
        patches: np.ndarray, *, progress: bool = False
    ) -> Float32[np.ndarray, "patches dim"]:
        check_patches(patches)
        descriptors = _compute_all(cv2, recipe, patches, progress=progress)
        return root_sift(descriptors) if name == "rootsift" else descriptors

    distance = "L1" if recipe.bits else "L2"
    source = f"OpenCV {cv2.__version__}"
    return PatchDescriptor(recipe.name, source, distance, recipe.dimension, None, describe)


def root_sift(
    descriptors: Float32[np.ndarray, "patches dim"],
) -> Float32[np.ndarray, "patches dim"]:
    """Square roots of the ℓ1-normalised histograms; the zero vector stays as it is."""
    sums = np.abs(descriptors).sum(axis=1, keepdims=True)
    return np.sqrt(descriptors / np.maximum(sums, 1e-12))


def _require_opencv() -> ModuleType:
    try:
        return require("cv2", "this rival")
    except InputError as error:
        raise Unavailable(str(error)) from None


def _recipe(cv2: ModuleType, name: str) -> _Recipe:
    def middle(side: int) -> tuple[float, ...]:
        return ((side - 1) / 2, (side - 1) / 2, float(side), 0.0)

    match name:
        case "sift" | "rootsift":
            label = "SIFT" if name == "sift" else "RootSIFT"
            return _Recipe(label, 128, False, cv2.SIFT_create, _sift_keypoint)
        case "orb":
            return _Recipe("ORB", 256, True, cv2.ORB_create, lambda n: (*middle(n), 0.0, ORB_LEVEL))
        case "brief":
            create = _contrib(cv2, "BRIEF", "BriefDescriptorExtractor_create")
            return _Recipe("BRIEF", 256, True, lambda: create(32), middle)
        case "teblid":
            create = _contrib(cv2, "TEBLID", "TEBLID_create")
            return _Recipe("TEBLID", 256, True, lambda: create(1.0), middle)
        case _:
            create = _contrib(cv2, "BBoost", "BoostDesc_create")
            return _Recipe("BBoost", 256, True, lambda: create(BINBOOST_256, True, 1.0), middle)


def _sift_keypoint(side: int) -> tuple[float, ...]:
    return (side / 2, side / 2, side / SIFT_MAGNIFICATION)


def _contrib(cv2: ModuleType, label: str, factory: str) -> Callable[..., Any]:
    create = getattr(getattr(cv2, "xfeatures2d", None), factory, None)
    if create is None:
        raise Unavailable(
            f"{label} is not in this OpenCV ({cv2.__version__}): "
            "pip install opencv-contrib-python-headless in place of opencv-python-headless"
            + (_NO_TABLES if factory == "BoostDesc_create" else "")
        )
    return create


def _try(recipe: _Recipe, cv2: ModuleType) -> None:
    try:
        recipe.create()
    except cv2.error:
        raise Unavailable(
            f"this OpenCV wheel ({cv2.__version__}) was built without the data of {recipe.name}: "
            "it needs an OpenCV built with the downloads of opencv_contrib"
        ) from None


def _compute_all(
    cv2: ModuleType, recipe: _Recipe, patches: UInt8[np.ndarray, "patches n n"], *, progress: bool
) -> Float32[np.ndarray, "patches dim"]:
    descriptors = np.empty((len(patches), recipe.dimension), np.float32)
    starts = range(0, len(patches), _PATCHES_AT_ONCE)

    def compute(start: int) -> int:
        block = slice(start, start + _PATCHES_AT_ONCE)
        for row, value in enumerate(_compute(cv2, recipe, patches[block]), start):
            descriptors[row] = value
        return len(patches[block])

    # OpenCV lets go of Python's lock while it works.
    with (
        ThreadPoolExecutor(max_workers=os.cpu_count()) as pool,
        tqdm(total=len(patches), desc=recipe.name, unit="patch", disable=not progress) as bar,
    ):
        for done in pool.map(compute, starts):
            bar.update(done)
    return descriptors


def _compute(
    cv2: ModuleType, recipe: _Recipe, patches: UInt8[np.ndarray, "patches n n"]
) -> Iterator[np.ndarray]:
    extractor = recipe.create()
    keypoint = cv2.KeyPoint(*recipe.keypoint(patches.shape[1]))
    for patch in patches:
        _, (descriptor,) = extractor.compute(np.ascontiguousarray(patch), [keypoint])
        yield np.unpackbits(descriptor) if recipe.bits else descriptor
