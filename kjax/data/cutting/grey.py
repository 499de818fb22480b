"""Any photograph in grey: 8 or 16 bits or floating, grey or colour, one or a batch."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, UInt8
from PIL import Image

from kjax.data.cutting.photographs import as_pixels, read_photograph
from kjax.errors import InputError, unknown_name

REC_601 = (0.299, 0.587, 0.114)
"""Share of red, green and blue in grey, as OpenCV and Pillow take them."""
CHANNELS = (1, 3, 4)
ORDERS = {"rgb": (0, 1, 2), "bgr": (2, 1, 0)}
"""Where red, green and blue lie among the channels."""
UINT16_STEPS = 257
"""65535 / 255: 16 bits and 8 bits of one photograph give the same grey."""
WHITES = (1.0, 255.0, 65535.0)
"""What white is in floating images, of the three ranges that are in use."""
OVERSHOOT = 2.0
"""Resizing and sharpening leave values beyond white; never twice of it."""


def read_grey(path: Path) -> UInt8[np.ndarray, "height width"] | None:
    """A photograph in grey, or None if it cannot be read: see `kjax.files.images` for what can.

    Its pixels stay as they are stored, whatever orientation the camera noted: so does COLMAP.
    """
    try:
        return whole_greys(grey_values(read_photograph(path, upright=False)))
    except InputError:
        return None


def picture_greys(picture: Image.Image) -> UInt8[np.ndarray, "height width"]:
    """A picture of Pillow's in grey, as bytes."""
    return whole_greys(grey_values(as_pixels(picture)))


def to_grey(
    image: Any, *, batched: bool = False, order: str = "rgb"
) -> Float[Any, "*batch height width"]:
    """A photograph, or a batch of them, as floating grey.

    Args:
        image: `[H,W]`, or `[H,W,C]` with 1, 3 or 4 channels, the fourth of which (alpha) is not
            looked at. uint8, uint16 or floating.
        batched: there is one more axis in front.
        order: of the channels: `"rgb"`, or `"bgr"` for what `cv2.imread` returns.

    Returns:
        0–255 of either integer type, unrounded; floating values keep their own range. JAX's array
        of JAX's, in their precision if that is higher; of all else NumPy's in float32.
    """
    check_order(order)
    image = as_image(image, batched=batched)
    numpys = isinstance(image, np.ndarray)
    dtype = np.dtype(np.float32) if numpys else np.promote_types(image.dtype, np.float32)

    def floating(channel: Any) -> Any:
        values = channel.astype(dtype)
        return values / UINT16_STEPS if image.dtype == np.uint16 else values

    if image.ndim == 2 + batched:
        return floating(image)
    if image.shape[-1] == 1:
        return floating(image[..., 0])
    # Floating first: the sum of three uint8 channels would overflow.
    red, green, blue = (floating(image[..., channel]) for channel in ORDERS[order])
    return REC_601[0] * red + REC_601[1] * green + REC_601[2] * blue


def grey_values(
    image: np.ndarray, *, order: str = "rgb"
) -> UInt8[np.ndarray, "height width"] | Float32[np.ndarray, "height width"]:
    """A photograph in grey from 0 (black) to 255 (white), whatever its type and range.

    Of a floating image the largest value tells the range, by the same rule wherever it matters: up
    to 2 it is 0–1, up to 510 it is 0–255, up to 131,070 it is 0–65,535. That leaves room for what
    resizing and sharpening add: an image from −0.1 to 1.5 is one of 0–1. Values beyond black and
    white stay beyond them.

    Args:
        image: as for `to_grey`, one photograph.
        order: of the channels.

    Returns:
        The image itself if it is grey uint8, otherwise float32.

    Raises:
        InputError: it is no image, or it has pixels that are not finite, or far too large.
    """
    check_order(order)
    image = np.asarray(as_image(image))
    check_finite(image, "the image has NaN or infinite pixels: mend or leave it out")
    if image.dtype == np.uint8 and image.ndim == 2:
        return image
    with np.errstate(over="ignore"):  # of numbers beyond float32, which no range has
        grey = to_grey(image, order=order)
    if not _is_floating(image):
        return grey
    return grey * np.float32(255 / _white(float(grey.max(initial=0))))


def whole_greys(
    grey: UInt8[np.ndarray, "height width"] | Float32[np.ndarray, "height width"],
) -> UInt8[np.ndarray, "height width"]:
    """What `grey_values` gives as bytes, for what takes no others."""
    return grey if grey.dtype == np.uint8 else grey.round().clip(0, 255).astype(np.uint8)


def check_finite(values: np.ndarray, message: str) -> None:
    """Refuses NaN and infinity; integers have none, and are not looked at."""
    if _is_floating(values) and not np.isfinite(values).all():
        raise InputError(message)


def _white(largest: float) -> float:
    for white in WHITES:
        if largest <= OVERSHOOT * white:
            return white
    raise InputError(
        f"the image has floating pixels up to {largest:.3g}: scale it to 0–1, 0–255 or 0–65535"
    )


def check_order(order: str) -> None:
    """Refuses an unknown order of colours."""
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)


def as_image(image: Any, *, batched: bool = False) -> Any:
    """The same as NumPy's or JAX's array, if it is a photograph or a batch of them.

    Raises:
        InputError: it is none.
    """
    if not hasattr(image, "__array_namespace__"):
        image = np.asarray(image)
    if image.dtype not in (np.uint8, np.uint16) and not _is_floating(image):
        raise InputError(
            f"an image must be uint8, uint16 or floating point, not {image.dtype}: "
            "convert it, e.g. with image.astype('float32')"
        )
    axes = image.ndim - batched
    if axes != 2 and not (axes == 3 and image.shape[-1] in CHANNELS):
        wanted = "[B,H,W] or [B,H,W,C]" if batched else "[H,W] or [H,W,C]"
        first = axes == 3 and image.shape[-3] in CHANNELS
        hint = ": move the channels to the end" if first else ""
        raise InputError(
            f"an image must be {wanted} with 1, 3 or 4 channels, not {list(image.shape)}{hint}"
        )
    return image


def _is_floating(values: Any) -> bool:
    """Also bfloat16, which NumPy itself does not know."""
    return "float" in values.dtype.name


def read_for_describing(path: Path) -> UInt8[np.ndarray, "height width"]:
    """A photograph in grey, its pixels as they are stored, or one line that it cannot be read."""
    photo = read_grey(path)
    if photo is None:
        raise InputError(f"cannot read {path}: give a JPEG, PNG or the like")
    return photo
