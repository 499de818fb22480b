"""What is known of a photograph's keypoints, in kjax's own conventions: OpenCV's.

The centre of the first pixel is (0, 0). Scales are diameters, which of SIFT are 2σ; angles are
degrees, clockwise on screen. `kjax.images.exchange` turns them into what other programs expect.
"""

import dataclasses
import math
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, UInt8

from kjax.data.cutting.keypoints import NO_ANGLE, SIGMA, Keypoints, upright_without
from kjax.errors import InputError
from kjax.model.quantization import FORMS, quantize

MatchingMethod = Literal["nearest", "mutual", "ratio", "mutual_ratio", "learned"]
Distance = Literal["L2", "Hamming"]


@dataclasses.dataclass(frozen=True)
class Features:
    """The keypoints of one photograph and their descriptors. There may be none.

    Attributes:
        xy: positions; the centre of the first pixel is (0, 0).
        descriptors: numbers, bytes that are numbers, or bits packed into bytes as OpenCV does.
        image_size: width and height of the photograph in pixels.
        scales: diameters in pixels, as OpenCV's `KeyPoint.size`.
        angles: degrees, clockwise on screen, as OpenCV's `KeyPoint.angle`; −1 is "none".
        scores: how sure the detector is; higher is better.
        distance: that compares descriptors, for `kjax.match`: "Hamming" for bits.
        weights_sha256: of the weights that described them, if it is known.
    """

    xy: Float32[np.ndarray, "N 2"]
    descriptors: Float32[np.ndarray, "N D"] | UInt8[np.ndarray, "N D"]
    image_size: tuple[int, int]
    scales: Float32[np.ndarray, " N"] | None = None
    angles: Float32[np.ndarray, " N"] | None = None
    scores: Float32[np.ndarray, " N"] | None = None
    distance: Distance = "L2"
    weights_sha256: str | None = None

    def __post_init__(self) -> None:
        if self.xy.ndim != 2 or self.xy.shape[1] != 2 or self.descriptors.ndim != 2:
            raise InputError(
                f"positions of shape {self.xy.shape} and descriptors of shape "
                f"{self.descriptors.shape}: give [N, 2] and [N, D]"
            )
        for name in ("descriptors", "scales", "angles", "scores"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.xy):
                raise InputError(
                    f"{len(self.xy)} keypoints have {len(column)} {name}: give one for each"
                )

    def __len__(self) -> int:
        return len(self.xy)

    def quantized(self, form: str) -> "Features":
        """The same with descriptors as `kjax.quantize` stores them."""
        stored = quantize(self.descriptors, form)
        return dataclasses.replace(self, descriptors=stored, distance=FORMS[form])

    def sigmas(self) -> Float32[np.ndarray, " N"] | None:
        """Scales as COLMAP and hloc have them."""
        return None if self.scales is None else self.scales * np.float32(SIGMA)

    def radians(self) -> Float32[np.ndarray, " N"] | None:
        """Angles in radians, clockwise on screen, 0 for "none"."""
        if self.angles is None:
            return None
        return upright_without(self.angles) * np.float32(math.radians(1))

    def keypoints(self) -> Keypoints:
        """Return the keypoints alone; those without an angle are upright.

        Raises:
            InputError: The keypoints have no scales.
        """
        if self.scales is None:
            raise InputError("keypoints without scales: use a detector that gives them, as SIFT")
        blank = np.full(len(self), NO_ANGLE, np.float32)
        angles = blank if self.angles is None else self.angles
        scores = np.ones(len(self), np.float32) if self.scores is None else self.scores
        return Keypoints(self.xy, self.scales, angles, scores)


def unit_rows(rows: Float32[np.ndarray, "N D"]) -> Float32[np.ndarray, "N D"]:
    """Descriptors of length 1; that of a patch without contrast may be 0, and stays so."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def from_sigmas(sigmas: Float[np.ndarray, " N"] | None) -> Float32[np.ndarray, " N"] | None:
    """`Features.scales` of COLMAP's and hloc's scales."""
    return None if sigmas is None else (sigmas / SIGMA).astype(np.float32)


def from_radians(angles: Float[np.ndarray, " N"] | None) -> Float32[np.ndarray, " N"] | None:
    """`Features.angles` of angles in radians."""
    return None if angles is None else np.rad2deg(angles).astype(np.float32)
