"""Patches about keypoints, cut out of images on the device that describes them, or by NumPy.

Patch pixel (u, v) of S×S is read at

    xy + t · R(a) · (u − (S−1)/2, v − (S−1)/2),    t = side / S,

in the image: the geometry of `kjax.data.cutting`. An affine frame has its matrix, of determinant
±1, instead of R(a). `kjax.images.conventions` converts the scales, angles and positions of other
libraries. `kjax.data.cutting.patches` chooses the low-passed copy of the image that is read.
"""

import functools
import os
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image

from kjax.data.cutting.patches import KORNIA, PYRAMIDS, plan_levels
from kjax.data.cutting.photographs import (
    ORDERS,
    as_image,
    as_pixels,
    grey_values,
    read_photograph,
    read_reduced,
    to_grey,
)
from kjax.errors import InputError, check_name, unknown_name
from kjax.extras import is_jax_array, jax
from kjax.images.conventions import (
    ANGLE_UNITS,
    DIAMETERS,
    FIRST_PIXEL,
    HALF_WIDTH,
    PatchFrames,
    as_array,
    neutral_where,
    patch_frames,
)
from kjax.images.pyramid import Inside, locate_windows, pack_pyramid, sample_on_host, sample_windows
from kjax.model.describe import on_cpu

MAX_PIXELS = 2**31 - 1
"""Maximum pixels in all levels of all images of a call: they are indexed with 32 bits."""
CANVAS, LARGEST_SQUARE = 512, 2048
"""On accelerators images are padded to multiples of `CANVAS`, up to `LARGEST_SQUARE` to squares."""
MAX_SIDE = 1e9
"""Maximum side of a patch on the image: beyond it float32 has no precision left."""


class ExtractedPatches(NamedTuple):
    """Grey patches, and which of them are valid.

    Patches are zero, and not valid, for keypoints that `mask` excludes, that are not finite, whose
    scale is not positive, or whose patch lies entirely outside the image.
    """

    patches: Float[Any, "*batch N size size"]
    valid: Bool[Any, "*batch N"]


def extract_patches(
    image: Any,
    xy: Any,
    scale: Any,
    angle: Any = None,
    *,
    shape: Any = None,
    mask: Any = None,
    size: int = 32,
    size_is: str = "diameter",
    extent: float = 12.0,
    angle_is: str = "opencv",
    pixel_origin: str = "center",
    pyramid: str = "thirds",
    order: str = "rgb",
    backend: str = "jax",
) -> ExtractedPatches:
    """Cut out the patch of each keypoint.

    The defaults take OpenCV's keypoints as they are:

        keypoints = cv2.SIFT_create(enable_precise_upscale=True).detect(image)
        patches, valid = kjax.extract_patches(
            image, [k.pt for k in keypoints], [k.size for k in keypoints],
            [k.angle for k in keypoints],
        )

    PhotoTourism's patches are 64×64, reduced to 32×32 for training. For equally sharp patches, ask
    for `size=64` and reduce them with `kjax.model.patches.resize_patches`.

    Differentiable with respect to the image and the keypoints. Works inside `jax.jit` and
    `jax.vmap`. Outside, NumPy images and keypoints are padded so that few programs compile.

    Args:
        image: `[H,W]` or `[H,W,C]`, with a leading axis for a batch; uint8, uint16 or floating. Or
            the path of a file.
        xy: positions `[N,2]`, or `[B,N,2]` for a batch.
        scale: `[N]` or `[B,N]`; `angle` and `mask`, too.
        angle: orientations (default: upright).
        shape: matrices `[N,2,2]` or `[B,N,2,2]` of affine frames, used instead of angles. Patches
            are cut along their columns, with the area given by `scale`.
        mask: False for keypoints that only pad a batch.
        size: side of the patches in pixels.
        size_is: see `kjax.images.conventions`, also for `angle_is` and `pixel_origin`.
        extent: side of a patch over the keypoint's diameter.
        angle_is: meaning of `angle`.
        pixel_origin: point of the first pixel that is (0, 0).
        pyramid: low-passed copies of the image: see `kjax.data.cutting.patches`. `"octaves"` takes
            a third of the default's memory; `"off"` equals `cv2.warpAffine`; `"kornia"` and
            `"kornia0.8"` equal `kornia.feature.extract_patches_from_pyramid`.
        order: order of an image's colours, `"rgb"` or `"bgr"`.
        backend: `"jax"`, or `"numpy"`, which imports no JAX and returns NumPy arrays.
    """
    for name, value, known in (
        ("size_is", size_is, (*DIAMETERS, HALF_WIDTH)),
        ("angle_is", angle_is, ANGLE_UNITS),
        ("pixel_origin", pixel_origin, FIRST_PIXEL),
    ):
        if value not in known:
            raise unknown_name(name, value, known)
    check_name("pyramid", pyramid, PYRAMIDS)
    check_name("order", order, ORDERS)
    check_name("backend", backend, ("jax", "numpy"))
    if size < 1:
        raise InputError(f"size must be at least 1, not {size}")
    xy = _as_rows(xy, like=(2,))
    opened, order = open_image(image, order)
    photos = as_image(opened, batched=xy.ndim == 3)
    counts, batch = xy.shape[:-1], photos.shape[: xy.ndim - 2]
    if xy.ndim not in (2, 3) or xy.shape[-1] != 2 or counts[:-1] != batch:
        images = f" for {batch[0]} images" if batch else ""
        raise InputError(f"xy must be [N,2] or [B,N,2], not {list(xy.shape)}{images}")
    columns = {
        "scale": _as_rows(scale),
        "angle": np.zeros(counts, np.float32) if angle is None else _as_rows(angle),
        "mask": np.ones(counts, bool) if mask is None else _as_rows(mask),
        "shape": None if shape is None else _as_rows(shape, like=(2, 2)),
    }
    for name, column in columns.items():
        expected = (*counts, 2, 2) if name == "shape" else counts
        if column is not None and column.shape != expected:
            raise InputError(
                f"{name} must have one value per keypoint, {list(expected)}, not "
                f"{list(column.shape)}"
            )
    keypoints = (xy, *columns.values())
    options = (size, size_is, float(extent), angle_is, pixel_origin, pyramid, order)
    if backend == "numpy":
        on_host = (None if one is None else np.asarray(one) for one in keypoints)
        with np.errstate(all="ignore"):
            return extract(options, np.asarray(photos), None, *on_host)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (photos, *keypoints)):
        return _compiled(outermost=False)(options, photos, None, *keypoints)
    # NumPy pads: there another number of keypoints is not another program.
    count, axis = counts[-1], xy.ndim - 2
    extra = padded_count(count) - count
    if extra:
        padding = [*[(0, 0)] * axis, (0, extra), (0, 0), (0, 0)]
        keypoints = tuple(
            None if one is None else np.pad(one, padding[: np.ndim(one)]) for one in keypoints
        )
    padded = pad_image(photos, axis, size=size, pyramid=pyramid)
    found = _compiled()(options, *padded, *keypoints)
    if not extra:
        return found
    return ExtractedPatches(found.patches[..., :count, :, :], found.valid[..., :count])


def open_image(image: Any, order: str) -> tuple[Any, str]:
    """Return an image as an array, and the order of its colours.

    `order` is for arrays. Files are always "rgb", and as stored: EXIF orientations are ignored.
    """
    if image is None:
        raise InputError(
            "the image is None: cv2.imread returns None for a file that is missing or not an image"
        )
    if isinstance(image, str | os.PathLike):
        return read_photograph(os.fspath(image)), "rgb"
    if isinstance(image, Image.Image):
        return as_pixels(image), "rgb"
    return as_array(image, "an image"), order


def open_grey(
    image: Any, order: str, max_side: int | None = None
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return an image, as `open_image` takes it, in grey from 0 to 255, reduced to `max_side`.

    The second value is the width and height before that.
    """
    if isinstance(image, str | os.PathLike):
        pixels, size = read_reduced(os.fspath(image), max_side)
        return grey_values(pixels), size
    opened, order = open_image(image, order)
    grey = grey_values(np.asarray(opened), order=order)
    size = grey.shape[1], grey.shape[0]
    if not max_side or max(size) <= max_side:
        return grey, size
    picture = Image.fromarray(grey)
    picture.thumbnail((max_side, max_side), Image.Resampling.HAMMING, reducing_gap=1.0)
    return np.asarray(picture), size


def _as_rows(values: Any, like: tuple[int, ...] = ()) -> Any:
    """Convert to an array; an empty list, which has no shape of its own, becomes [0, …]."""
    if not is_jax_array(values):
        values = np.asarray(values)
    return values.reshape(0, *like) if values.shape == (0,) else values


def padded_count(count: int) -> int:
    """Round up to a multiple of a quarter of a power of two, or of 16: few programs compile."""
    step = max(2 ** max(count - 1, 0).bit_length() // 8, 16)
    return -(-count // step) * step


def padded_sides(height: int, width: int) -> tuple[int, int]:
    """Return the sides to which an image is padded.

    Accelerators get fewer shapes, since they take longer to compile a program and less per pixel.
    """
    if on_cpu():
        return padded_count(height), padded_count(width)
    longest = max(height, width)
    if longest <= LARGEST_SQUARE:
        height = width = longest
    return -(-height // CANVAS) * CANVAS, -(-width // CANVAS) * CANVAS


def pad_image(image: Any, axis: int, *, size: int, pyramid: str) -> tuple[Any, Inside | None]:
    """Repeat a NumPy image's border up to one of few shapes; `axis` is that of its height."""
    if is_jax_array(image) or pyramid in KORNIA or 0 in image.shape:
        return image, None
    height, width = image.shape[axis : axis + 2]
    sides = padded_sides(height, width)
    padding = [(0, 0)] * image.ndim
    padding[axis : axis + 2] = [(0, sides[0] - height), (0, sides[1] - width)]
    own, padded = (
        plan_levels(*shape, size=size, kind=pyramid) for shape in ((height, width), sides)
    )
    return np.pad(image, padding, mode="edge"), Inside.of(height, width, own, len(padded))


@functools.cache
def _compiled(*, outermost: bool = True) -> Any:
    # To choose the fastest product of small matrices takes seconds and saves nothing.
    quickly = {"xla_gpu_autotune_level": 0} if outermost and not on_cpu() else None
    return jax.jit(extract, static_argnums=0, compiler_options=quickly)


def extract(
    options: tuple[Any, ...],
    image: Any,
    inside: Inside | None,
    xy: Any,
    scale: Any,
    angle: Any,
    mask: Any,
    shape: Any,
) -> ExtractedPatches:
    """Cut all patches, in one program; the options are the last arguments of `extract_patches`."""
    size, size_is, extent, angle_is, pixel_origin, pyramid, order = options
    batched = xy.ndim == 3
    grey = to_grey(image, batched=batched, order=order)
    xp = grey.__array_namespace__()
    frames = patch_frames(
        *(values.astype(grey.dtype) for values in (xy, scale, angle)),
        shape=None if shape is None else shape.astype(grey.dtype),
        size_is=size_is,
        extent=extent,
        angle_is=angle_is,
        pixel_origin=pixel_origin,
    )
    image_size = np.array(grey.shape[:-3:-1]) if inside is None else inside.size
    valid = mask.astype(bool) & xp.isfinite(frames.center).all(axis=-1)
    valid &= (frames.side > 0) & (frames.side <= MAX_SIDE)
    # The upright box about the patch must overlap the image.
    last = xp.asarray(image_size, dtype=grey.dtype) - 0.5
    low, high = frames.center - frames.reach(), frames.center + frames.reach()
    valid &= (low[..., 0] < last[0]) & (low[..., 1] < last[1]) & (high > -0.5).all(axis=-1)
    if 0 in (grey.size, valid.size):
        patches = xp.zeros((*valid.shape, size, size), grey.dtype)
        return ExtractedPatches(patches, xp.zeros_like(valid))
    frames = neutral_where(~valid, frames, size)
    if not batched:
        grey, frames = grey[None], PatchFrames(*(values[None] for values in frames))
    batch, height, width = grey.shape
    levels = plan_levels(height, width, size=size, kind=pyramid)
    pixels = sum(level.height * level.width for level in levels)
    if batch * pixels > MAX_PIXELS:
        raise InputError(
            f"{batch} × {height}×{width} pixels and their pyramids are more than 2³¹: "
            "give fewer images at a time, or pyramid='octaves'"
        )
    whole = inside or Inside.of(height, width, levels, len(levels))
    windows = locate_windows(frames, levels, whole, size=size, pyramid=pyramid)
    own = xp.arange(batch, dtype=np.int32) * pixels
    windows = windows._replace(start=windows.start + own[:, None])
    if xp is np:
        patches = sample_on_host(grey, windows, levels=levels, kind=pyramid, size=size)
        patches[~valid.reshape(batch, -1)] = 0
        return ExtractedPatches(patches if batched else patches[0], valid)
    packed = pack_pyramid(grey, levels=levels, kind=pyramid, inside=inside)
    # Without the barrier, XLA may recompute sines and cosines for every pixel of a patch.
    windows = jax.lax.optimization_barrier(windows)
    # Gradients need the indices and weights of every pixel: cheaper to find again than to keep.
    sample = jax.checkpoint(functools.partial(sample_windows, size=size))
    patches = sample(packed.reshape(-1), windows)
    patches = patches if batched else patches[0]
    return ExtractedPatches(xp.where(valid[..., None, None], patches, 0), valid)
