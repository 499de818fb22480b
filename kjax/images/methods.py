"""Names of the ways to match and to verify, without what does it: to check words is quick."""

from typing import Literal

MatchingMethod = Literal["nearest", "mutual", "ratio", "mutual_ratio", "learned"]
Distance = Literal["L2", "Hamming"]
Kind = Literal["homography", "fundamental"]
