"""Read photographs from files, and convert images of any type to grey."""

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Float32, UInt8, UInt16
from PIL import Image

from kjax.errors import InputError, check_name
from kjax.files.images import HEIF_SUFFIXES, open_image

Item = TypeVar("Item")
Result = TypeVar("Result")

PHOTO_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
PHOTO_SUFFIXES |= {".avif", *HEIF_SUFFIXES}
REC_601 = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey, as in OpenCV and Pillow."""
CHANNELS = (1, 3, 4)
ORDERS = {"rgb": (0, 1, 2), "bgr": (2, 1, 0)}
"""Indices of red, green and blue among the channels."""
UINT16_STEPS = 257
"""Ratio 65535 / 255: a photograph in 16 and in 8 bits gives the same grey."""
UINT16_WHITES = (255, 1023, 4095, 16383, 65535)
"""Possible values of white in uint16 images: 8, 10, 12, 14 and 16 bits."""
WHITES = (1.0, 255.0, 65535.0)
"""Possible values of white in floating-point images."""
OVERSHOOT = 2.0
"""Maximum value over white: resizing and sharpening leave values beyond it, but never twice."""

Photo = UInt8[np.ndarray, "height width"]
Grey = Photo | Float32[np.ndarray, "height width"]
Pixels = UInt8[np.ndarray, "height width 3"] | UInt16[np.ndarray, "height width"] | Grey


def list_photos(folder: Path) -> list[Path]:
    """List all photographs below a folder, sorted by name, without hidden files and folders."""
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    photos = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in PHOTO_SUFFIXES
        and not any(part[0] == "." or part == "__MACOSX" for part in path.relative_to(folder).parts)
        and not path.is_dir()
    ]
    if not photos:
        raise InputError(f"{folder} holds no photographs ({', '.join(sorted(PHOTO_SUFFIXES))})")
    return sorted(photos, key=lambda path: path.relative_to(folder).as_posix())


def read_photograph(path: str | Path) -> Pixels:
    """Read a file as grey [H, W] or RGB [H, W, 3], as stored, like COLMAP and hloc."""
    return read_reduced(path, None)[0]


def read_reduced(
    path: str | Path, max_side: int | None, *, content: bytes | None = None
) -> tuple[Pixels, tuple[int, int]]:
    """Read a photograph reduced to `max_side`, and return its original width and height, too.

    A JPEG file is decoded at a half, a quarter or an eighth of its size if that is large enough.
    """
    if content is None and not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    with open_image(path, content=content) as image:
        if image.format == "TIFF":
            image.load()  # Pillow turns it now
        size, picture = image.size, with_plain_mode(image)
        if max_side and max(size) > max_side:
            gap = None if picture.mode == "I;16" else 1.0  # Pillow's quick reduction has 8 bits
            picture.thumbnail((max_side, max_side), Image.Resampling.HAMMING, reducing_gap=gap)
        return as_pixels(picture), size


def as_pixels(picture: Image.Image) -> Pixels:
    """Convert a Pillow image to grey or RGB: uint8, uint16, or float32 for 32-bit modes."""
    picture = with_plain_mode(picture)
    kinds = {"I": np.float32, "F": np.float32, "I;16": np.uint16}
    return np.asarray(picture, kinds.get(picture.mode, np.uint8))


def with_plain_mode(picture: Image.Image) -> Image.Image:
    """Convert colours of any kind to RGB and black and white to grey; keep 16 and 32 bits."""
    if picture.mode in ("L", "RGB", "I", "F", "I;16"):
        return picture
    if picture.mode.startswith("I;16"):  # another order of bytes
        return Image.fromarray(np.asarray(picture).astype(np.uint16))
    return picture.convert("L" if picture.mode == "1" else "RGB")


def read_grey(path: Path) -> Photo:
    """Read a photograph as 8-bit grey, ignoring its EXIF orientation as COLMAP does."""
    return whole_greys(grey_values(read_photograph(path)))


def read_grey_or_none(path: Path) -> Photo | None:
    """Like `read_grey`, but return None if the file cannot be read."""
    with contextlib.suppress(InputError):
        return read_grey(path)
    return None


def to_grey(
    image: Any, *, batched: bool = False, order: str = "rgb"
) -> Float[Any, "*batch height width"]:
    """Convert an image `[H,W]` or `[H,W,C]`, or a batch of them, to floating-point grey.

    Integer types give 0–255, unrounded; floating-point values keep their range. Alpha is ignored.
    JAX arrays give JAX arrays of at least float32, everything else NumPy's float32.
    """
    check_name("order", order, ORDERS)
    image = as_image(image, batched=batched)
    in_numpy = isinstance(image, np.ndarray)
    dtype = np.dtype(np.float32) if in_numpy else np.promote_types(image.dtype, np.float32)

    def floating(channel: Any) -> Any:
        values = channel.astype(dtype)
        return values / UINT16_STEPS if image.dtype == np.uint16 else values

    if image.ndim == 2 + batched or image.shape[-1] == 1:
        return floating(image.reshape(image.shape[: 2 + batched]))
    # Convert before adding: the sum of three uint8 channels would overflow.
    red, green, blue = (floating(image[..., channel]) for channel in ORDERS[order])
    return REC_601[0] * red + REC_601[1] * green + REC_601[2] * blue


def grey_values(image: np.ndarray, *, order: str = "rgb") -> Grey:
    """Convert an image of any type and range to grey from 0 (black) to 255 (white).

    The range of a floating-point image follows from its largest value: up to 2 it is 0–1, up to 510
    it is 0–255, up to 131,070 it is 0–65,535. Values beyond black and white stay beyond. White of a
    uint16 image is the smallest of 255, 1023, 4095, 16,383 and 65,535 that no pixel exceeds, since
    cameras store 10 to 14 bits in 16. A dark image of 16 bits thus becomes brighter, by a constant
    factor. The result is the image itself if it is grey uint8, else float32.
    """
    check_name("order", order, ORDERS)
    image = np.asarray(as_image(image))
    if _is_floating(image) and not np.isfinite(image).all():
        raise InputError("the image has NaN or infinite pixels: fix the image or leave it out")
    if image.dtype == np.uint8 and image.ndim == 2:
        return image
    with np.errstate(over="ignore"):  # values beyond float32, which no range includes
        grey = to_grey(image, order=order)
    if image.dtype == np.uint16:
        depth = next(white for white in UINT16_WHITES if image.max(initial=0) <= white)
        return grey if depth == UINT16_WHITES[-1] else grey * np.float32(65535 / depth)
    if not _is_floating(image):
        return grey
    largest = float(grey.max(initial=0))
    white = next((white for white in WHITES if largest <= OVERSHOOT * white), None)
    if white is None:
        raise InputError(
            f"the image has floating pixels up to {largest:.3g}: scale it to 0–1, 0–255 or 0–65535"
        )
    return grey * np.float32(255 / white)


def whole_greys(grey: Grey) -> Photo:
    """Round the result of `grey_values` to uint8."""
    return grey if grey.dtype == np.uint8 else grey.round().clip(0, 255).astype(np.uint8)


def as_image(image: Any, *, batched: bool = False) -> Any:
    """Return the image as a NumPy or JAX array; raise if its type or shape is not an image's."""
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
        raise InputError(
            f"an image must be {wanted} with 1, 3 or 4 channels, not {list(image.shape)}: "
            "reshape it, or move the channels to the end"
        )
    return image


def _is_floating(values: Any) -> bool:
    return "float" in values.dtype.name  # includes bfloat16, which NumPy itself does not know


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[tuple[Item, Future[Result]], None, None]:
    """Yield each item with the future of `work(item)`, in order; few results wait at a time."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > threads + 1:
                    yield waiting.popleft()
            yield from waiting
        finally:
            for _, future in waiting:
                future.cancel()
