"""Keypoints of a photograph by a trained detector, in one program on the device."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, Num

from kjax.data.appearance import scale_to_range
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
        height, width = grey.shape
        checked = check_search(grey, mask, max_keypoints)
        where = np.ones(grey.shape, bool) if checked is None else checked.astype(bool)
        sides = padded_sides(height, width)
        missing = [(0, sides[0] - height), (0, sides[1] - width)]
        scaled = np.pad(scale_to_range(grey.astype(np.float32)), missing, mode="edge")
        most = grey.size if max_keypoints is None else max_keypoints
        # Programs find a power of two; the best of them are kept.
        count = min(2 ** max(most - 1, 63).bit_length(), scaled.size)
        found, valid = find_best(
            self.weights, scaled, np.pad(where, missing), (width, height), count
        )
        kept = np.flatnonzero(np.asarray(valid))[:most]
        xy, sizes, scores, directions = (np.asarray(column)[kept] for column in found)
        angles = np.rad2deg(np.arctan2(directions[:, 1], directions[:, 0])) % np.float32(360)
        return Keypoints(xy, sizes, np.full_like(angles, NO_ANGLE) if upright else angles, scores)


def find_best(
    weights: DetectorWeights,
    grey: Float[np.ndarray, "H W"],
    where: Bool[np.ndarray, "H W"],
    size: tuple[int, int],
    count: int,
) -> tuple[Located, Bool[Array, " K"]]:
    """Return the best keypoints of a padded photograph of this size, and which of them are there.

    Grey values are from 0 to 1.
    """
    return _detect(weights.model, count, weights.params, grey, where, np.array(size, np.int32))


def padded_sides(height: int, width: int) -> tuple[int, int]:
    """Return the sides to which a photograph is padded: few, since each is a program of its own."""
    if not on_cpu():
        height = width = max(height, width)
    step = 128 if on_cpu() else 512
    return -(-height // step) * step, -(-width // step) * step


@functools.partial(jax.jit, static_argnums=(0, 1))
def _detect(
    config: DetectorConfig,
    count: int,
    params: Any,
    grey: Float[Array, "H W"],
    where: Bool[Array, "H W"],
    size: Int32[Array, "2"],
) -> tuple[Located, Array]:
    octaves = make_octaves(grey[None], config)
    grid, scores, directions, _, peaks = score_octaves(
        DetectorNetwork(config), params, octaves, where[None], (size[0], size[1])
    )
    wanted = jnp.where(peaks, scores, -jnp.inf)
    best, index = strongest(grid, wanted, min(count, wanted.shape[1] // 4))
    found = locate(grid, scores[0], directions[0], index[0], smallest=config.smallest)
    return found, jnp.isfinite(best[0])
