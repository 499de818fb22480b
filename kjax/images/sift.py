"""OpenCV's RootSIFT of given keypoints, to train a matcher for it."""

import numpy as np
from jaxtyping import Bool, Float32, Int, Num

from kjax.baselines.opencv import root_sift
from kjax.data.cutting.keypoints import STEADY, Keypoints, to_opencv, upright_without
from kjax.data.cutting.photographs import whole_greys
from kjax.extras import require
from kjax.keypoints import find_detector
from kjax.weights.info import Provenance

ROOT_SIFT = Provenance("rootsift", "", 128)
SIFT_SIZE = 3.2
"""KeyPoint.size at layer 0 of OpenCV's octave 0: twice its first σ."""
LAYERS = 3
"""Layers per octave of OpenCV's SIFT."""
FIRST_OCTAVE = -1
"""First octave of OpenCV's SIFT: the photo at twice its size."""


class RootSift:
    """Describes keypoints in the place of a `Describer`."""

    provenance = ROOT_SIFT

    def __init__(self, *, detector: str = STEADY, upright: bool = False) -> None:
        """Set what detects keypoints, and whether they have no orientation."""
        self.detector, self.upright = find_detector(detector), upright

    def describe_at(
        self, grey: Num[np.ndarray, "_ _"], keypoints: Keypoints
    ) -> tuple[Float32[np.ndarray, "K 128"], Bool[np.ndarray, " N"]]:
        """Return the descriptors of keypoints in the photograph, and which those are."""
        valid = ((keypoints.xy >= 0) & (keypoints.xy < grey.shape[::-1])).all(axis=1)
        valid &= keypoints.scales > 0
        return root_sift(describe_sift(grey, keypoints.keep(valid))), valid


def describe_sift(
    grey: Num[np.ndarray, "_ _"], keypoints: Keypoints
) -> Float32[np.ndarray, "N 128"]:
    """Describe keypoints by OpenCV's SIFT, with the settings of `detect_keypoints`."""
    # OpenCV's histograms wrap angles once: COLMAP's negative ones need this.
    turned = keypoints._replace(angles=upright_without(keypoints.angles) % np.float32(360))
    points = to_opencv(turned)
    for point, octave in zip(points, sift_octaves(keypoints.scales), strict=True):
        point.octave = int(octave)
    if not points:
        return np.empty((0, 128), np.float32)
    extractor = require("cv2", "SIFT").SIFT_create(enable_precise_upscale=True)
    return extractor.compute(whole_greys(grey), points)[1]


def sift_octaves(scales: Float32[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Return OpenCV's `KeyPoint.octave` of SIFT keypoints, from their size.

    OpenCV describes a keypoint in the layer of its pyramid that this number names, and `Keypoints`
    do not keep it. A layer's keypoints are within half a layer's step of its scale, and an octave
    has the layers 1 to 3, so the size determines both.
    """
    steps = LAYERS * np.log2(np.maximum(scales, 1e-6) / SIFT_SIZE)
    octaves = np.maximum(np.floor((steps - 0.5) / LAYERS), FIRST_OCTAVE).astype(np.int64)
    layers = np.clip(np.rint(steps - LAYERS * octaves), 0, LAYERS).astype(np.int64)
    return (octaves & 255) | (layers << 8)
