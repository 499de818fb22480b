"""What a rival descriptor is; `kjax.baselines` knows which there are.

A rival that cannot be had, because its weights or its library are missing, is `Unavailable` and
says why; it is never replaced by something else.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float32

from kjax.errors import InputError

SIDES = (64, 65)
"""Sides of PhotoTourism's and HPatches' patches."""


class Unavailable(Exception):  # noqa: N818  # part of the interface: it is news, not a mistake
    """A rival that cannot be had here. The message says why, in one line."""


@dataclasses.dataclass(frozen=True)
class PatchDescriptor:
    """A descriptor to compare with.

    Attributes:
        name: for people, e.g. "RootSIFT".
        source: where it came from: "OpenCV 5.0.0", or a weights file.
        distance: "L2" or "L1". Bits come as zeros and ones, so that L1 is the Hamming distance.
        dimension: of a descriptor.
        parameters: learned ones; None if there are none, or if they are unknown.
        describe: from uint8 patches [count, 64, 64] or [count, 65, 65], any count, to float32
            descriptors [count, dimension]. Takes `progress=True` to show a bar. Never gives NaN;
            refuses other patches with an InputError.
    """

    name: str
    source: str
    distance: str
    dimension: int
    parameters: int | None
    describe: Callable[..., Float32[np.ndarray, "patches dim"]]


def check_patches(patches: np.ndarray) -> None:
    """Refuses, in one line, anything but uint8 patches of the sides that rivals know."""
    if patches.dtype != np.uint8:
        raise InputError(f"rivals describe uint8 patches, not {patches.dtype}")
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or patches.shape[1] not in SIDES:
        raise InputError(
            f"rivals describe patches of shape [count, 64, 64] or [count, 65, 65], "
            f"not {list(patches.shape)}"
        )
