"""The pixels of Pillow's pictures, whatever their mode."""

import numpy as np
from jaxtyping import Float32, UInt8, UInt16
from PIL import Image

Pixels = (
    UInt8[np.ndarray, "height width 3"]
    | UInt8[np.ndarray, "height width"]
    | UInt16[np.ndarray, "height width"]
    | Float32[np.ndarray, "height width"]
)


def as_pixels(picture: Image.Image) -> Pixels:
    """Grey or RGB. Nothing is clipped: deep pictures keep their depth.

    Returns:
        uint8 of ordinary pictures, uint16 of those with 16 bits. What Pillow has as 32 bits
        becomes floating, and its largest value tells its range: see
        `kjax.images.grey.grey_values`.
    """
    if picture.mode.startswith("I;16"):
        return np.asarray(picture).astype(np.uint16)
    if picture.mode in ("I", "F"):
        return np.asarray(picture, np.float32)
    return np.asarray(picture.convert("L" if picture.mode in ("L", "1") else "RGB"))
