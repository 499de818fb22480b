"""Descriptors of given keypoints of a photograph, ours and the rivals', asked for by one word.

    out/first, weights.npz:polar,s=1     ours: whatever `kjax.load` takes, but rivals' names
    kjax-hardnet                         ours too, with the prefix where a rival has the name
    rootsift, sift                       OpenCV's, computed in the photograph itself
    mkd, tfeat, orb, …                   other rivals, of 64×64 patches cut as ours are

For ours and for patches a keypoint's square has the side `extent` · KeyPoint.size: by default what
suits our weights, and for rivals 24σ of SIFT's keypoints. SIFT has its own window.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int, UInt8

from kjax.baselines import BASELINES, baseline_file, load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.baselines.opencv import root_sift
from kjax.data.cutting.keypoints import Keypoints, to_opencv, upright_without
from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.describer import load
from kjax.images.extraction import extract_patches
from kjax.images.matching import Distance
from kjax.weights.source import WHOLE_EXTENT, is_workdir

IN_THE_PHOTOGRAPH = ("sift", "rootsift")
SIFT_SIZE = 3.2
"""KeyPoint.size at layer 0 of OpenCV's octave 0: twice its first σ."""
LAYERS = 3
"""Of OpenCV's SIFT, per octave."""
FIRST_OCTAVE = -1
"""Of OpenCV's SIFT: the photograph at twice its size."""

Describe = Callable[[UInt8[np.ndarray, "height width"], Keypoints], Float32[np.ndarray, "N dim"]]


class KeypointDescriptor(NamedTuple):
    """A descriptor of keypoints."""

    name: str
    """For tables: a rival's name, or the word that it was asked for with."""
    distance: Distance
    describe: Describe
    """From a grey photograph and its keypoints to a row for each keypoint."""


def load_keypoint_descriptors(
    words: Iterable[str],
    *,
    extent: float | None = None,
    seed: int | None = None,
    weights: Iterable[str] = (),
) -> dict[str, KeypointDescriptor]:
    """The descriptors that words stand for, by word.

    Args:
        words: see the top of this file.
        extent: side of a patch over KeyPoint.size; None for what suits our weights, and for rivals
            that of PhotoTourism's patches.
        seed: which of several, of words that are training runs.
        weights: RIVAL=FILE for rivals that need one.

    Raises:
        InputError: there is no such descriptor, or what it needs is missing.
    """
    if extent is not None and not extent > 0:
        raise InputError(f"extent is {extent}: give a positive multiple of KeyPoint.size, as 12")
    files = dict(baseline_file(item) for item in weights)
    return {word: _load(word, extent, seed, files.get(word)) for word in words}


def _load(
    word: str, extent: float | None, seed: int | None, weights: str | None
) -> KeypointDescriptor:
    if word in IN_THE_PHOTOGRAPH:
        return _sift(rooted=word == "rootsift")
    if word in BASELINES:
        return _rival(word, WHOLE_EXTENT if extent is None else extent, weights)
    describer = load(word, seed=seed if is_workdir(word) else None)

    if extent is not None:
        describer.extent = extent

    def describe(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        return _one_each(describer.describe_image(image, keypoints).descriptors, keypoints)

    return KeypointDescriptor(word, "L2", describe)


def extent_words(extent: float | None) -> str:
    """What a table says about the patches."""
    if extent is None:
        return "patches of the extent that suits each"
    return f"patches of {extent:g} × KeyPoint.size"


def sift_octaves(scales: Float32[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """OpenCV's `KeyPoint.octave` of SIFT's keypoints, told by their size.

    OpenCV describes a keypoint in the layer of its pyramid that this number names, and `Keypoints`
    do not keep it. A layer has the keypoints within half a layer's step of its own scale, and an
    octave the layers 1 to 3, so that the size tells both.
    """
    steps = LAYERS * np.log2(np.maximum(scales, 1e-6) / SIFT_SIZE)
    octaves = np.maximum(np.floor((steps - 0.5) / LAYERS), FIRST_OCTAVE).astype(np.int64)
    layers = np.clip(np.rint(steps - LAYERS * octaves), 0, LAYERS).astype(np.int64)
    return (octaves & 255) | (layers << 8)


def _sift(*, rooted: bool) -> KeypointDescriptor:
    cv2 = require("cv2", "SIFT")
    # As `kjax.data.cutting.keypoints.detect` has it: what finds a keypoint describes it.
    extractor = cv2.SIFT_create(enable_precise_upscale=True)

    def describe(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        # OpenCV's histograms wrap an angle once only: COLMAP's, below 0, would leave them.
        turned = keypoints._replace(angles=upright_without(keypoints.angles) % np.float32(360))
        points = to_opencv(turned)
        for point, octave in zip(points, sift_octaves(keypoints.scales), strict=True):
            point.octave = int(octave)
        if not points:
            return np.empty((0, extractor.descriptorSize()), np.float32)
        descriptors = _one_each(extractor.compute(image, points)[1], keypoints)
        return root_sift(descriptors) if rooted else descriptors

    return KeypointDescriptor("RootSIFT" if rooted else "SIFT", "L2", describe)


def _rival(word: str, extent: float, weights: str | None) -> KeypointDescriptor:
    try:
        rival = load_baseline(word, weights)
    except Unavailable as unavailable:
        raise InputError(f"{word}: {unavailable}") from None

    def describe(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        xy, scales, angles, _ = keypoints
        patches, _ = extract_patches(image, xy, scales, angles, size=PATCH_SIDE, extent=extent)
        return rival.describe(np.asarray(patches).round().clip(0, 255).astype(np.uint8))

    return KeypointDescriptor(rival.name, "Hamming" if rival.distance == "L1" else "L2", describe)


def _one_each(descriptors: Any, keypoints: Keypoints) -> np.ndarray:
    if len(descriptors) != len(keypoints.xy):
        raise InputError(
            f"{len(keypoints.xy) - len(descriptors)} keypoints lie outside the photograph: "
            "leave them out"
        )
    return descriptors
