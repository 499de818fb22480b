"""Poses with the threshold of RANSAC that suits each method, chosen on another scene.

As the Image Matching Challenge does: one threshold for all would be in favour of those whose
matches happen to be off by about as much.
"""

import dataclasses
from collections.abc import Iterable

from peer_table.records import Record
from peer_table.scores import ESSENTIAL_PIXELS, STRICTER_PIXELS

VALIDATION = "fountain"
AUC = 10
"""Degrees: the threshold with the most of this area is chosen."""


def suited(records: Iterable[Record]) -> tuple[list[Record], dict[str, float]]:
    """Poses with each method's own threshold, and these in pixels.

    Args:
        records: of poses, with one number of keypoints. Methods that have not been on `VALIDATION`,
            and scenes that were measured with one threshold alone, are left out.
    """
    known = [one for one in records if one.stricter]
    chosen = {one.method: _best_pixels(one) for one in known if one.scene == VALIDATION}
    found = [_by_pixels(one)[chosen[one.method]] for one in known if one.method in chosen]
    return found, chosen


def _best_pixels(one: Record) -> float:
    return max(_by_pixels(one).items(), key=lambda item: item[1].area(AUC))[0]


def _by_pixels(one: Record) -> dict[float, Record]:
    stricter = zip(STRICTER_PIXELS, one.stricter, strict=True)
    alternatives = {pixels: dataclasses.replace(one, errors=errors) for pixels, errors in stricter}
    return alternatives | {ESSENTIAL_PIXELS: one}
