"""Keypoints of a photograph by a trained detector, in one program on the device."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, Num

from kjax.data.appearance import grey_range
from kjax.data.cutting.keypoints import MAX_KEYPOINTS, NO_ANGLE, Keypoints, check_search
from kjax.files.atomic import sha256
from kjax.keypoints.network import DetectorConfig, DetectorNetwork
from kjax.keypoints.selection import Located, locate, make_octaves, score_octaves, strongest
from kjax.keypoints.weights import DetectorWeights, find_file, read_detector
from kjax.model.describe import on_cpu


@dataclasses.dataclass(frozen=True)
class LearnedDetector:
    """A trained detector, for `detect_in_grey` of `kjax.data.cutting.keypoints`."""

    weights: DetectorWeights
    label: str

    @classmethod
    def load(cls, source: str | Path) -> "LearnedDetector":
        """Load a shipped detector, a file, or that of a training's workdir."""
        path = find_file(source)
        weights = read_detector(path)
        return cls(weights, f"kjax train-detector, SHA-256 {sha256(path)}")

    def __call__(
        self,
        grey: Num[np.ndarray, "H W"],
        *,
        mask: np.ndarray | None = None,
        max_keypoints: int | None = MAX_KEYPOINTS,
        upright: bool = False,
    ) -> Keypoints:
        """Detect the best keypoints of grey values of any range, one at each place and scale."""
        checked = check_search(grey, mask, max_keypoints)
        count, photo = enough(max_keypoints, grey.size), prepare(grey, checked)
        found = detect(self.weights.model, count, self.weights.params, photo)
        located, there = jax.device_get(found)
        return as_keypoints(located, upright=upright).keep(np.flatnonzero(there)[:max_keypoints])


class Prepared(NamedTuple):
    """A photograph on its way to a program, padded to one of few sizes."""

    pixels: Num[Any, "H W"]
    darkest: Num[Any, ""]
    contrast: Num[Any, ""]  # range of grey values
    where: Bool[Any, "H W"] | None  # keypoints are wanted; None: everywhere
    size: Int32[Any, "2"]  # width and height without the padding


def prepare(grey: Num[np.ndarray, "_ _"], mask: np.ndarray | None) -> Prepared:
    """Pad a photograph of any range of grey values, and its mask."""
    sides = padded_sides(*grey.shape)
    missing = [(0, end - side) for side, end in zip(grey.shape, sides, strict=True)]
    where = None if mask is None else np.pad(mask.astype(bool), missing)
    darkest, contrast = grey_range(grey.astype(np.float32))
    size = np.array(grey.shape[::-1], np.int32)
    return Prepared(np.pad(grey, missing, mode="edge"), darkest, contrast, where, size)


def enough(most: int | None, pixels: int) -> int:
    """Return the number of keypoints that a program finds: a power of two, so they are few."""
    return 2 ** max((pixels if most is None else most) - 1, 63).bit_length()


def as_keypoints(found: Located, *, upright: bool) -> Keypoints:
    """Convert to OpenCV's conventions."""
    xp = found.xy.__array_namespace__()
    x, y = found.directions[:, 0], found.directions[:, 1]
    angles = xp.rad2deg(xp.arctan2(y, x)) % np.float32(360)
    angles = xp.full_like(angles, NO_ANGLE) if upright else angles
    return Keypoints(found.xy, found.sizes, angles, found.scores)


def padded_sides(height: int, width: int) -> tuple[int, int]:
    """Return the sides to which a photograph is padded: few, since each is a program of its own."""
    if not on_cpu():
        height = width = max(height, width)
    step = 128 if on_cpu() else 512
    return -(-height // step) * step, -(-width // step) * step


@functools.partial(jax.jit, static_argnums=(0, 1))
def detect(
    config: DetectorConfig, count: int, params: Any, photo: Prepared
) -> tuple[Located, Bool[Array, " K"]]:
    """Return the best keypoints of a photograph, and which of them are there."""
    grey = (photo.pixels.astype(jnp.float32) - photo.darkest) / photo.contrast
    where = jnp.ones(grey.shape, bool) if photo.where is None else photo.where
    octaves = make_octaves(grey.clip(0, 1)[None], config)
    grid, scores, frames, _, peaks = score_octaves(
        DetectorNetwork(config), params, octaves, where[None], (photo.size[0], photo.size[1])
    )
    wanted = jnp.where(peaks, scores, -jnp.inf)
    best, index = strongest(grid, wanted, min(count, wanted.shape[1] // 4))
    found = locate(grid, scores[0], frames[0], index[0], smallest=config.smallest)
    return found, jnp.isfinite(best[0])
