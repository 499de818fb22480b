"""How far HPatches cuts patches askew: noise on a region's turn, place, size and shape."""

from typing import NamedTuple


class Noise(NamedTuple):
    """Standard deviations of a random misalignment.

    Attributes:
        rotation: in degrees.
        translation: along each side, in half sides of the reference.
        scale: of the binary logarithm.
        ratio: of the binary logarithm of the stretch along a random axis.
    """

    rotation: float
    translation: float
    scale: float
    ratio: float


NOISE = {
    "easy": Noise(10.0, 0.080, 0.080, 0.10),
    "hard": Noise(20.0, 0.165, 0.165, 0.22),
    "tough": Noise(30.0, 0.260, 0.260, 0.35),
}
"""Overlaps of 0.85, 0.72 and 0.60 with the reference in the median; HPatches' notes give the first
two."""
