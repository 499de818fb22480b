"""Baselines that OpenCV computes: SIFT, RootSIFT, BRIEF, ORB, BBoost and TEBLID.

Each patch is an image with one upright keypoint in its middle, whose region is the whole patch.
SIFT's keypoint is that of the official HPatches script: at side/2, of size side/5.303.

BRIEF, TEBLID and BBoost are in OpenCV's contrib modules, which the wheel opencv-python-headless
lacks and opencv-contrib-python-headless has. BBoost is BoostDesc, whose learned tables are
downloaded when OpenCV is built: wheels of OpenCV 4 lack them, those of OpenCV 5 have them.

A constant patch has no gradients: SIFT and RootSIFT give the zero vector, BRIEF, ORB and TEBLID
fixed bits, and BBoost the signs of its rounding errors.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from kjax.baselines.descriptor import PatchDescriptor, Unavailable, check_patches
from kjax.errors import InputError
from kjax.extras import require

SIFT_MAGNIFICATION = 5.303
"""Patch side divided by the size of SIFT's keypoint: its 4×4 histograms then cover the patch."""
ORB_LEVEL = 4
"""Level of ORB's pyramid whose pattern of 31 pixels, magnified by 1.2⁴, spans 64 pixels."""
BINBOOST_256 = 302
"""OpenCV's number for the BinBoost descriptor of 256 bits."""
PATCHES_AT_ONCE = 256
NAMES = {
    "sift": "SIFT",
    "rootsift": "RootSIFT",
    "brief": "BRIEF",
    "orb": "ORB",
    "bboost": "BBoost",
    "teblid": "TEBLID",
}
CONTRIB = {
    "brief": ("BriefDescriptorExtractor_create", (32,)),
    "teblid": ("TEBLID_create", (1.0,)),
    "bboost": ("BoostDesc_create", (BINBOOST_256, True, 1.0)),
}
"""Factories in `cv2.xfeatures2d`, and their arguments."""


def load(name: str) -> PatchDescriptor:
    """Load one of OpenCV's baselines; raise `Unavailable` if this OpenCV lacks it."""
    try:
        cv2: Any = require("cv2", "this baseline")
    except InputError as error:
        raise Unavailable(str(error)) from None
    is_sift = name in ("sift", "rootsift")
    create = _factory(cv2, name)

    def describe(
        patches: np.ndarray, *, progress: bool = False
    ) -> Float32[np.ndarray, "patches dim"]:
        check_patches(patches)
        side = patches.shape[1]
        if is_sift:
            keypoint = cv2.KeyPoint(side / 2, side / 2, side / SIFT_MAGNIFICATION)
        else:
            middle, level = (side - 1) / 2, ORB_LEVEL if name == "orb" else 0
            keypoint = cv2.KeyPoint(middle, middle, float(side), 0.0, 0.0, level)
        descriptors = np.empty((len(patches), 128 if is_sift else 256), np.float32)

        def compute(start: int) -> int:
            extractor = create()  # each thread has its own
            block = patches[start : start + PATCHES_AT_ONCE]
            for row, patch in enumerate(block, start):
                _, (value,) = extractor.compute(np.ascontiguousarray(patch), [keypoint])
                descriptors[row] = value if is_sift else np.unpackbits(value)
            return len(block)

        # OpenCV releases Python's lock while it works.
        with (
            ThreadPoolExecutor(max_workers=os.cpu_count()) as pool,
            tqdm(total=len(patches), desc=NAMES[name], unit="patch", disable=not progress) as bar,
        ):
            for done in pool.map(compute, range(0, len(patches), PATCHES_AT_ONCE)):
                bar.update(done)
        return root_sift(descriptors) if name == "rootsift" else descriptors

    source, dimension = f"OpenCV {cv2.__version__}", 128 if is_sift else 256
    distance = "L2" if is_sift else "L1"
    return PatchDescriptor(NAMES[name], source, distance, dimension, None, describe)


def root_sift(
    descriptors: Float32[np.ndarray, "patches dim"],
) -> Float32[np.ndarray, "patches dim"]:
    """Return square roots of the ℓ1-normalised histograms; the zero vector stays as it is."""
    sums = np.abs(descriptors).sum(axis=1, keepdims=True)
    return np.sqrt(descriptors / np.maximum(sums, 1e-12))


def _factory(cv2: Any, name: str) -> Callable[[], Any]:
    if name not in CONTRIB:
        return cv2.ORB_create if name == "orb" else cv2.SIFT_create
    function, arguments = CONTRIB[name]
    create = getattr(getattr(cv2, "xfeatures2d", None), function, None)
    if create is None:
        tables = ", from a build with BoostDesc's tables (OpenCV 5)" if name == "bboost" else ""
        raise Unavailable(
            f"{NAMES[name]} is not in this OpenCV ({cv2.__version__}): "
            f"pip install opencv-contrib-python-headless instead of opencv-python-headless{tables}"
        )
    try:
        create(*arguments)
    except cv2.error:
        raise Unavailable(
            f"this OpenCV ({cv2.__version__}) was built without the data of {NAMES[name]}: "
            "use a build with the downloads of opencv_contrib"
        ) from None
    return lambda: create(*arguments)
