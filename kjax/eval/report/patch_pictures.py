"""Patches as PNG."""

import io
import math

import numpy as np
from jaxtyping import UInt8

_GAP = 4
_PER_ROW = 6
_SHOWN = 64
"""Patches are enlarged to about this many pixels."""


def pair_png(pair: UInt8[np.ndarray, "2 height width"]) -> bytes:
    """Both patches side by side, with a gap that shows the page through."""
    return _png(_side_by_side(pair))


def montage_png(pairs: UInt8[np.ndarray, "pairs 2 height width"]) -> bytes:
    """All pairs in rows, in reading order."""
    tiles = [_side_by_side(pair) for pair in pairs]
    height, width = tiles[0].shape[:2]
    rows = math.ceil(len(tiles) / _PER_ROW)
    columns = min(len(tiles), _PER_ROW)
    step = height + 3 * _GAP, width + 3 * _GAP
    sheet = np.zeros((rows * step[0] - 3 * _GAP, columns * step[1] - 3 * _GAP, 2), np.uint8)
    for place, tile in enumerate(tiles):
        top, left = (place // _PER_ROW) * step[0], (place % _PER_ROW) * step[1]
        sheet[top : top + height, left : left + width] = tile
    return _png(sheet)


def _side_by_side(
    pair: UInt8[np.ndarray, "2 height width"],
) -> UInt8[np.ndarray, "tall wide 2"]:
    """Grey and opacity; whole multiples of the pixels, so that nothing is smoothed."""
    scale = max(1, _SHOWN // max(pair.shape[1:]))
    large = pair.repeat(scale, axis=1).repeat(scale, axis=2)
    opaque = np.stack([large, np.full_like(large, 255)], axis=-1)
    gap = np.zeros((opaque.shape[1], _GAP, 2), np.uint8)
    return np.concatenate([opaque[0], gap, opaque[1]], axis=1)


def _png(image: UInt8[np.ndarray, "height width 2"]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image, "LA").save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
