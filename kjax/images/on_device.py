"""Keypoints detected, cut and described by one program, for accelerators."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Num

from kjax.data.cutting.keypoints import Keypoints, check_search
from kjax.data.cutting.patches import plan_levels
from kjax.data.phototour import PATCH_SIDE
from kjax.images.extract import extract
from kjax.images.pyramid import Inside
from kjax.keypoints.detect import LearnedDetector, Prepared, as_keypoints, detect, enough, prepare
from kjax.keypoints.network import DetectorConfig
from kjax.model.patches import resize_patches

PYRAMID = "thirds"
BLOCK = 4096
"""Number of patches that the network describes at a time."""


class Plan(NamedTuple):
    """What is compiled into the program, besides the detector and the number of keypoints."""

    module: Any  # linen module that describes points
    patch: int  # side of its patches in pixels
    context: tuple[float, ...]  # sides of a point's patches over the smallest one's
    extent: float  # side of the smallest one over the keypoint's diameter
    upright: bool


def find_and_describe(
    plan: Plan,
    detector: LearnedDetector,
    weights: Any,
    grey: Num[np.ndarray, "H W"],
    mask: np.ndarray | None,
    most: int | None,
) -> tuple[Keypoints, Float32[np.ndarray, "K dim"]]:
    """Return at most so many keypoints of a photograph with their descriptors, best first."""
    photo = prepare(grey, check_search(grey, mask, most))
    (height, width), (bottom, right) = grey.shape, photo.pixels.shape
    own = plan_levels(height, width, size=PATCH_SIDE, kind=PYRAMID)
    most_levels = len(plan_levels(bottom, right, size=PATCH_SIDE, kind=PYRAMID))
    inside = Inside.of(height, width, own, most_levels)
    static = plan, detector.weights.model, enough(most, grey.size)
    found = _find_and_describe(*static, detector.weights.params, weights, photo, inside)
    keypoints, valid, rows = jax.device_get(found)
    kept = np.flatnonzero(valid)[:most]
    return keypoints.keep(kept), rows[kept]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _find_and_describe(
    plan: Plan,
    config: DetectorConfig,
    count: int,
    params: Any,
    weights: Any,
    photo: Prepared,
    inside: Inside,
) -> tuple[Keypoints, Bool[Array, " K"], Float[Array, "K dim"]]:
    located, there = detect(config, count, params, photo)
    found = as_keypoints(located, upright=plan.upright)
    count, widths = len(there), len(plan.context)
    xy, scales, angles, _ = found.concentric(np.array(plan.context, np.float32))
    mask = there.repeat(widths)
    options = (PATCH_SIDE, "diameter", plan.extent, "opencv", "center", PYRAMID, "rgb")
    patches, valid = extract(options, photo.pixels, inside, xy, scales, angles, mask, None)
    patches = resize_patches(patches, plan.patch)
    shape = (plan.patch, plan.patch) if widths == 1 else (widths, plan.patch, plan.patch)
    block = min(BLOCK // widths, count)
    blocks = jnp.pad(patches, [(0, -count % block * widths), (0, 0), (0, 0)])
    rows = jax.lax.map(
        functools.partial(plan.module.apply, weights), blocks.reshape(-1, block, *shape)
    )
    rows = rows.reshape(-1, rows.shape[-1])[:count]
    return found, valid[::widths], rows.astype(jnp.float32)
