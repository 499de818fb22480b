"""Load descriptors of given keypoints by name, ours and others.

    out/first, weights.npz:polar,s=1     ours: names that `kjax.load` takes, except rivals' names
    kjax-hardnet                         ours, with a prefix where a rival has the name
    rootsift, sift                       OpenCV's, computed in the photo itself
    mkd, teblid, orb, …                  other rivals, of 64×64 patches cut like ours

A patch has the side `extent` · KeyPoint.size: by default the weights' own, and for rivals 12 (24σ).
SIFT has its own window.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

from kjax.baselines import BASELINES, load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.baselines.opencv import root_sift
from kjax.data.cutting.keypoints import Keypoints
from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError
from kjax.images.describer import load
from kjax.images.extract import extract_patches
from kjax.images.features import Distance
from kjax.images.sift import describe_sift
from kjax.weights.source import WHOLE_EXTENT

Describe = Callable[[UInt8[np.ndarray, "height width"], Keypoints], Float32[np.ndarray, "N dim"]]


class KeypointDescriptor(NamedTuple):
    """A descriptor of keypoints, which takes a grey photo and its keypoints."""

    name: str
    distance: Distance
    describe: Describe


def load_keypoint_descriptors(
    names: Iterable[str], *, extent: float | None = None
) -> dict[str, KeypointDescriptor]:
    """Load descriptors; `extent` is the patch side over KeyPoint.size, None for each one's own."""
    found = {}
    for name in names:
        if name in ("sift", "rootsift"):
            found[name] = _sift(rooted=name == "rootsift")
        elif name in BASELINES:
            found[name] = _rival(name, extent or WHOLE_EXTENT)
        else:
            found[name] = _ours(name, extent)
    return found


def _ours(name: str, extent: float | None) -> KeypointDescriptor:
    describer = load(name)
    if extent is not None:
        describer.extent = extent

    def describe(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        return _one_each(describer.describe_image(image, keypoints).descriptors, keypoints)

    return KeypointDescriptor(name, "L2", describe)


def _sift(*, rooted: bool) -> KeypointDescriptor:
    def describe(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        descriptors = describe_sift(image, keypoints)
        return root_sift(descriptors) if rooted else descriptors

    return KeypointDescriptor("RootSIFT" if rooted else "SIFT", "L2", describe)


def _rival(name: str, extent: float) -> KeypointDescriptor:
    try:
        rival = load_baseline(name)
    except Unavailable as unavailable:
        raise InputError(f"{name}: {unavailable}") from None

    def describe(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        xy, scales, angles, _ = keypoints
        patches, _ = extract_patches(image, xy, scales, angles, size=PATCH_SIDE, extent=extent)
        return rival.describe(np.asarray(patches).round().clip(0, 255).astype(np.uint8))

    return KeypointDescriptor(rival.name, "Hamming" if rival.distance == "L1" else "L2", describe)


def _one_each(descriptors: Any, keypoints: Keypoints) -> np.ndarray:
    if len(descriptors) != len(keypoints.xy):
        raise InputError(
            f"{len(keypoints.xy) - len(descriptors)} keypoints lie outside the photo: remove them"
        )
    return descriptors
