"""Keypoints with descriptors, and matches between them, in OpenCV's conventions.

`kjax.images.exchange` converts them to what other programs expect.
"""

import dataclasses
import math
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, UInt8

from kjax.data.cutting.keypoints import NO_ANGLE, SIGMA, Keypoints, upright_without
from kjax.errors import InputError, counted
from kjax.model.quantization import FORMS, quantize

MatchingMethod = Literal["nearest", "mutual", "ratio", "mutual_ratio", "learned"]
Distance = Literal["L2", "Hamming"]
NO_SCALE = 8.0
"""Diameter in pixels that a learned matcher assumes for keypoints without a scale."""
LEAST_SCALE = 1e-6
"""Minimum diameter for a learned matcher, which takes its logarithm."""


@dataclasses.dataclass(frozen=True)
class Features:
    """The keypoints of one image, possibly none, and their descriptors.

    Attributes:
        xy: positions; the centre of the first pixel is (0, 0).
        descriptors: floats, bytes that are numbers, or bits packed into bytes as in OpenCV.
        scales: diameters in pixels, as OpenCV's `KeyPoint.size`.
        angles: degrees, clockwise on screen, as OpenCV's `KeyPoint.angle`; −1 is "none".
        distance: distance that compares the descriptors; "Hamming" for bits.
        weights_sha256: checksum of the weights that described them, if known.
        ratio: default of the ratio test with these weights, if known.
        image: the RGB image or its path, for `kjax.plot_matches`; not compared and not saved.
    """

    xy: Float32[np.ndarray, "N 2"]
    descriptors: Float32[np.ndarray, "N D"] | UInt8[np.ndarray, "N D"]
    image_size: tuple[int, int]
    scales: Float32[np.ndarray, " N"] | None = None
    angles: Float32[np.ndarray, " N"] | None = None
    scores: Float32[np.ndarray, " N"] | None = None
    distance: Distance = "L2"
    weights_sha256: str | None = None
    ratio: float | None = None
    image: Any = dataclasses.field(default=None, repr=False, compare=False)

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

    def __repr__(self) -> str:
        width, height = self.image_size
        form = f"{self.descriptors.shape[1]} × {self.descriptors.dtype}"
        form += "" if self.distance == "L2" else f" ({self.distance})"
        return f"Features({counted(len(self), 'keypoint')}, {form}, image {width} × {height})"

    def quantized(self, form: str) -> "Features":
        """Return the features with descriptors stored as `kjax.quantize` does."""
        stored = quantize(self.descriptors, form)
        return dataclasses.replace(self, descriptors=stored, distance=FORMS[form])

    def resized(self, size: tuple[int, int]) -> "Features":
        """Return the features in pixels of the same image at another width and height."""
        if self.image_size == size:
            return self
        factors = (np.array(size) / self.image_size).astype(np.float32)
        xy = (self.xy + np.float32(0.5)) * factors[None] - np.float32(0.5)
        scales = None if self.scales is None else self.scales * np.sqrt(factors.prod())
        return dataclasses.replace(self, xy=xy, scales=scales, image_size=size)

    def keypoints(self) -> Keypoints:
        """Return the keypoints; those without an angle are upright."""
        if self.scales is None:
            raise InputError("the keypoints have no scales: use a detector with scales, e.g. SIFT")
        upright = np.full(len(self), NO_ANGLE, np.float32)
        angles = upright if self.angles is None else self.angles
        scores = np.ones(len(self), np.float32) if self.scores is None else self.scores
        return Keypoints(self.xy, self.scales, angles, scores)

    def sigmas(self) -> Float32[np.ndarray, " N"] | None:
        """Return scales as σ, as in COLMAP and hloc."""
        return None if self.scales is None else self.scales * np.float32(SIGMA)

    def radians(self) -> Float32[np.ndarray, " N"] | None:
        """Return angles in radians, clockwise on screen, 0 for "none"."""
        if self.angles is None:
            return None
        return upright_without(self.angles) * np.float32(math.radians(1))

    def for_matcher(
        self,
    ) -> tuple[Float32[np.ndarray, " N"], Float32[np.ndarray, " N"], Float32[np.ndarray, "N D"]]:
        """Return scales, radians and unit descriptors; constants replace absent columns."""
        if self.distance != "L2" or self.descriptors.dtype == np.uint8:
            raise InputError("learned matching needs descriptors that are not quantized")
        for name in ("descriptors", "xy", "scales", "angles"):
            if (rows := getattr(self, name)) is not None and not np.isfinite(rows).all():
                raise InputError(f"{name} have NaN or infinite values: check the extractor")
        scales = np.full(len(self), NO_SCALE, "f4") if self.scales is None else self.scales
        radians = self.radians()
        radians = np.zeros(len(self), "f4") if radians is None else radians
        return np.maximum(scales, LEAST_SCALE), radians, unit_rows(self.descriptors)


def unit_rows(rows: Float32[np.ndarray, "N D"]) -> Float32[np.ndarray, "N D"]:
    """Normalise descriptors to length 1; zero descriptors, of blank patches, stay zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def from_sigmas(sigmas: Float[np.ndarray, " N"] | None) -> Float32[np.ndarray, " N"] | None:
    """Convert the scales of COLMAP and hloc to `Features.scales`."""
    return None if sigmas is None else (sigmas / SIGMA).astype(np.float32)


def from_radians(angles: Float[np.ndarray, " N"] | None) -> Float32[np.ndarray, " N"] | None:
    """Convert radians to `Features.angles`."""
    return None if angles is None else np.rad2deg(angles).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Matches:
    """Pairs of descriptors, ordered by the index in the first image.

    `ratios` are distances over those to the second nearest: near 0 is distinctive, 1 is a tie. For
    "mutual_ratio" they are the larger of both directions, for "learned" one minus the score.
    """

    indices: Int32[np.ndarray, "K 2"]
    distances: Float32[np.ndarray, " K"]
    ratios: Float32[np.ndarray, " K"]

    @classmethod
    def none(cls) -> "Matches":
        """Return an empty set of matches."""
        return cls(np.empty((0, 2), np.int32), np.empty(0, np.float32), np.empty(0, np.float32))

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        typical = f", median ratio {np.median(self.ratios):.2f}" if len(self) else ""
        return f"Matches({counted(len(self), 'match')}{typical})"

    def keep(self, mask: Bool[np.ndarray, " K"]) -> "Matches":
        """Select matches by a mask, such as the inliers of a geometric verification."""
        return Matches(self.indices[mask], self.distances[mask], self.ratios[mask])
