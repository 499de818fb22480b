"""Any photograph in grey: 8 or 16 bits or floating, grey or colour, one or a batch."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from kjax.errors import InputError, unknown_name
from kjax.precision import at_least_float32

REC_601 = (0.299, 0.587, 0.114)
"""Share of red, green and blue in grey, as OpenCV and Pillow take them."""
CHANNELS = (1, 3, 4)
ORDERS = {"rgb": (0, 1, 2), "bgr": (2, 1, 0)}
"""Where red, green and blue lie among the channels."""
UINT16_STEPS = 257
"""65535 / 255: 16 bits and 8 bits of one photograph give the same grey."""


def to_grey(
    image: ArrayLike, *, batched: bool = False, order: str = "rgb"
) -> Float[Array, "*batch height width"]:
    """A photograph, or a batch of them, as floating grey.

    Args:
        image: `[H,W]`, or `[H,W,C]` with 1, 3 or 4 channels, the fourth of which (alpha) is not
            looked at. uint8, uint16 or floating.
        batched: there is one more axis in front.
        order: of the channels: `"rgb"`, or `"bgr"` for what `cv2.imread` returns.

    Returns:
        0–255 of either integer type, unrounded; floating values keep their own range.
    """
    check_order(order)
    image = as_image(image, batched=batched)
    # Floating first: the sum of three uint8 channels would overflow.
    grey = jnp.asarray(image)
    grey = grey.astype(at_least_float32(grey.dtype))
    if image.dtype == np.uint16:
        grey = grey / UINT16_STEPS
    if grey.ndim == 2 + batched:
        return grey
    if grey.shape[-1] == 1:
        return grey[..., 0]
    red, green, blue = (grey[..., channel] for channel in ORDERS[order])
    return REC_601[0] * red + REC_601[1] * green + REC_601[2] * blue


def check_order(order: str) -> None:
    """Refuses an unknown order of colours."""
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)


def as_image(image: ArrayLike, *, batched: bool = False) -> jax.Array | np.ndarray:
    """The same as an array, if it is a photograph or a batch of them; refuses it by name if not."""
    if not isinstance(image, jax.Array | np.ndarray):
        image = np.asarray(image)
    if image.dtype not in (np.uint8, np.uint16) and not jnp.issubdtype(image.dtype, jnp.floating):
        raise InputError(
            f"an image must be uint8, uint16 or floating point, not {image.dtype}: "
            "convert it, e.g. with image.astype('float32')"
        )
    axes = image.ndim - batched
    if axes != 2 and not (axes == 3 and image.shape[-1] in CHANNELS):
        wanted = "[B,H,W] or [B,H,W,C]" if batched else "[H,W] or [H,W,C]"
        raise InputError(
            f"an image must be {wanted} with 1, 3 or 4 channels, not {list(image.shape)}"
        )
    return image
