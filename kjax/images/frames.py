"""Keypoints as callers have them, affine ones among them: kornia's LAFs.

A LAF is a matrix [A | t]: its patch is A · [−1, 1]² about t, where the centre of the first pixel is
(0, 0). It is the patch itself, so that no extent enlarges it.
"""

from typing import Any

import numpy as np
from jaxtyping import Float32

from kjax.data.cutting.keypoints import Keypoints, as_keypoints
from kjax.images.given import as_array

LAF = (2, 3)
"""Shape of one."""


def as_frames(
    keypoints: Any, extent: float
) -> tuple[Keypoints, Float32[np.ndarray, "N 2 2"] | None]:
    """Keypoints, and the shapes of their patches if they are affine.

    Args:
        keypoints: as for `kjax.data.cutting.keypoints.as_keypoints`, or LAFs [N,2,3] or [1,N,2,3].
        extent: side of a patch over the keypoint's diameter: LAFs get the diameter that makes
            their patch of it, and the direction of their patch's rows as their angle.
    """
    if isinstance(keypoints, list | tuple) and all(hasattr(one, "pt") for one in keypoints):
        return as_keypoints(keypoints), None
    if isinstance(keypoints, Keypoints):
        return keypoints, None
    table = np.asarray(as_array(keypoints, "keypoints"))
    if table.ndim == 4 and len(table) == 1:
        table = table[0]
    if table.ndim != 3 or table.shape[1:] != LAF:
        return as_keypoints(table), None
    lafs = table.astype(np.float32)
    shapes = lafs[:, :, :2]
    sides = 2 * np.sqrt(np.abs(np.linalg.det(shapes)))
    angles = np.rad2deg(np.arctan2(shapes[:, 1, 0], shapes[:, 0, 0])) % 360
    ones = np.ones(len(lafs), np.float32)
    return Keypoints(lafs[:, :, 2], sides / np.float32(extent), angles, ones), shapes
