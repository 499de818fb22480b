"""Photographs from files, and the pixels of Pillow's pictures, whatever their mode."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float32, UInt8, UInt16
from PIL import Image, ImageOps

from kjax.errors import InputError
from kjax.files.images import open_image

Item = TypeVar("Item")
Result = TypeVar("Result")

PHOTO_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

Pixels = (
    UInt8[np.ndarray, "height width 3"]
    | UInt8[np.ndarray, "height width"]
    | UInt16[np.ndarray, "height width"]
    | Float32[np.ndarray, "height width"]
)


def list_photos(folder: Path) -> list[Path]:
    """All photographs below a folder, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    photos = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in PHOTO_SUFFIXES and not path.is_dir()
    ]
    if not photos:
        raise InputError(f"{folder} holds no photographs ({', '.join(sorted(PHOTO_SUFFIXES))})")
    return sorted(photos, key=lambda path: path.relative_to(folder).as_posix())


def read_photograph(
    path: str | Path, *, upright: bool = True, content: bytes | None = None
) -> Pixels:
    """A file as grey [H, W] or RGB [H, W, 3], of the types that `as_pixels` gives.

    Args:
        path: of one of `kjax.files.images.FORMATS`.
        upright: turn it as its camera noted; otherwise its pixels stay as they are stored, which
            is how COLMAP and hloc read photographs.
        content: of the file, where it has been read already.
    """
    if content is None and not Path(path).is_file():
        raise InputError(f"no such file: {path}")
    with open_image(path, content=content) as image:
        return as_pixels(ImageOps.exif_transpose(image) if upright else image)


def as_pixels(picture: Image.Image) -> Pixels:
    """Grey or RGB. Nothing is clipped: deep pictures keep their depth.

    Returns:
        uint8 of ordinary pictures, uint16 of those with 16 bits. What Pillow has as 32 bits
        becomes floating, and its largest value tells its range: see
        `kjax.data.cutting.grey.grey_values`.
    """
    if picture.mode.startswith("I;16"):
        return np.asarray(picture).astype(np.uint16)
    if picture.mode in ("I", "F"):
        return np.asarray(picture, np.float32)
    return np.asarray(picture.convert("L" if picture.mode in ("L", "1") else "RGB"))


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
            while waiting:
                yield waiting.popleft()
        finally:
            for _, future in waiting:
                future.cancel()
