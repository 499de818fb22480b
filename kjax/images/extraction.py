"""Patches about keypoints, cut out of photographs on the device that describes them.

Patch pixel (u, v) of S×S looks at

    xy + t · R(a) · (u − (S−1)/2, v − (S−1)/2),    t = side / S,

in the image, where the centre of the first pixel is (0, 0), y points down, and angles run from x
towards y: the geometry of `kjax.data.cutting`. An affine frame has its matrix, of determinant ±1,
in the place of R(a). `kjax.images.conventions` says how the scales,
angles and positions of other libraries become (xy, side, a), and `kjax.data.cutting.patches` which
low-passed copy of the image is read, bilinearly, where t > 1. Beyond its border an image is
repeated.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from kjax.data.cutting.patches import KORNIA, check_pyramid, plan_levels
from kjax.data.cutting.photographs import as_image, check_order, to_grey
from kjax.errors import InputError
from kjax.images.conventions import PatchFrames, check_conventions, patch_frames
from kjax.images.given import open_image
from kjax.images.pyramid import Inside, pack_pyramid
from kjax.images.sampling import locate_windows, sample_windows

Numbers = ArrayLike | Sequence[Any]
"""Arrays, or lists of what OpenCV's keypoints hold."""

MAX_PIXELS = 2**31 - 1
"""Of all levels of all images of a call: they are counted in 32 bits."""
MAX_SIDE = 1e9
"""Of a patch on the image: beyond it, float32 has no meaning left and squares overflow."""


class ExtractedPatches(NamedTuple):
    """Patches, and which of them show something.

    Attributes:
        patches: grey, in the range that `kjax.data.cutting.photographs.to_grey` gives.
        valid: False for keypoints that `mask` leaves out, that are not finite, whose scale is not
            positive, or whose patch lies wholly outside the image. Their patches are zero.
    """

    patches: Float[Array, "*batch N size size"]
    valid: Bool[Array, "*batch N"]


def extract_patches(
    image: ArrayLike | str | os.PathLike[str],
    xy: Numbers,
    scale: Numbers,
    angle: Numbers | None = None,
    *,
    shape: Numbers | None = None,
    mask: Numbers | None = None,
    size: int = 32,
    size_is: str = "diameter",
    extent: float = 12.0,
    angle_is: str = "opencv",
    pixel_origin: str = "center",
    pyramid: str = "thirds",
    order: str = "rgb",
) -> ExtractedPatches:
    """Cuts out the patch of each keypoint.

    The defaults take OpenCV's keypoints as they are:

        keypoints = cv2.SIFT_create(enable_precise_upscale=True).detect(image)
        patches, valid = kjax.extract_patches(
            image, [k.pt for k in keypoints], [k.size for k in keypoints],
            [k.angle for k in keypoints],
        )

    PhotoTourism's patches are 64×64, reduced to 32×32 for training. To cut them as sharp, ask for
    `size=64` and give them to `kjax.model.patches.resize_patches`; `size=32` is smoother, and
    quicker.

    Differentiable with respect to the image and the keypoints; which level of the pyramid is read
    counts as constant. It may be called inside `jax.jit` and `jax.vmap`; called outside, it
    compiles once for a range of numbers of keypoints and a range of shapes: images of NumPy are
    filled up to one of few, unless the pyramid is kornia's.

    Args:
        image: `[H,W]` or `[H,W,C]`, with one more axis in front for a batch; uint8, uint16 or
            floating. An empty image has no valid keypoints. Or the path of a photograph.
        xy: positions `[N,2]`, or `[B,N,2]` for a batch. N may be 0.
        scale: sizes `[N]` or `[B,N]`.
        angle: orientations `[N]` or `[B,N]`; upright if not given.
        shape: matrices `[N,2,2]` or `[B,N,2,2]` of affine frames, in the place of angles: patches
            are cut along their columns, with the area that `scale` says.
        mask: bool `[N]` or `[B,N]`, False for what only pads a batch; all True if not given.
        size: side of the patches in pixels.
        size_is: what `scale` holds: see `kjax.images.conventions` for this and the next three.
        extent: side of a patch in units of the keypoint's diameter.
        angle_is: what `angle` holds.
        pixel_origin: which point of the first pixel is (0, 0).
        pyramid: how the image is low-passed: see `kjax.data.cutting.patches`. `"octaves"` takes a
            third of the default's memory; `"off"` equals `cv2.warpAffine`; `"kornia"` and
            `"kornia0.8"` equal `kornia.feature.extract_patches_from_pyramid`.
        order: of an image's colours, `"rgb"` or `"bgr"`.

    Returns:
        The patches `[N,size,size]` or `[B,N,size,size]`, and which of them are valid.
    """
    check_conventions(size_is, angle_is, pixel_origin)
    check_pyramid(pyramid)
    check_order(order)
    if size < 1:
        raise InputError(f"size must be at least 1, not {size}")
    xy = _as_array(xy, like=(2,))
    opened, order = open_image(image, order)
    photos = as_image(opened, batched=xy.ndim == 3)
    keypoints = _check_keypoints(photos.shape[: xy.ndim - 2], xy, scale, angle, mask, shape)
    options = _Options(size, size_is, float(extent), angle_is, pixel_origin, pyramid, order)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (photos, *keypoints)):
        return _extract(photos, None, keypoints, options)
    padded, count = pad_keypoints(keypoints), xy.shape[-2]
    filled = pad_image(photos, xy.ndim - 2, size=options.size, pyramid=options.pyramid)
    found = _extract(*filled, padded, options)
    return found if padded is keypoints else _first(found, count)


def _first(found: ExtractedPatches, count: int) -> ExtractedPatches:
    """Drops what pads the keypoints."""
    return ExtractedPatches(found.patches[..., :count, :, :], found.valid[..., :count])


class _Options(NamedTuple):
    """What a program is compiled for."""

    size: int
    size_is: str
    extent: float
    angle_is: str
    pixel_origin: str
    pyramid: str
    order: str


class KeypointArrays(NamedTuple):
    """What `extract_patches` takes as its arguments of these names, in the caller's convention."""

    xy: jax.Array | np.ndarray
    scale: jax.Array | np.ndarray
    angle: jax.Array | np.ndarray
    mask: jax.Array | np.ndarray
    shape: jax.Array | np.ndarray | None = None


def _as_array(values: Numbers, like: tuple[int, ...] = ()) -> jax.Array | np.ndarray:
    """An array; an empty list, which has no shape of its own, becomes [0, …]."""
    if not isinstance(values, jax.Array | np.ndarray):
        values = np.asarray(values)
    return values.reshape(0, *like) if values.shape == (0,) else values


def _check_keypoints(
    batch: tuple[int, ...],
    xy: jax.Array | np.ndarray,
    scale: Numbers,
    angle: Numbers | None,
    mask: Numbers | None,
    shape: Numbers | None,
) -> KeypointArrays:
    """Refuses shapes that do not fit each other; fills in what is not given."""
    counts = xy.shape[:-1]
    if xy.ndim not in (2, 3) or xy.shape[-1] != 2 or counts[:-1] != batch:
        images = f" for {batch[0]} images" if batch else ""
        raise InputError(f"xy must be [N,2] or [B,N,2], not {list(xy.shape)}{images}")
    rows = {
        "scale": _as_array(scale),
        "angle": np.zeros(counts, np.float32) if angle is None else _as_array(angle),
        "mask": np.ones(counts, bool) if mask is None else _as_array(mask),
    }
    for name, row in rows.items():
        if row.shape != counts:
            raise InputError(
                f"{name} must have one value per keypoint, {list(counts)}, not {list(row.shape)}"
            )
    matrices = None if shape is None else _as_array(shape, like=(2, 2))
    if matrices is not None and matrices.shape != (*counts, 2, 2):
        raise InputError(
            f"shape must have one matrix per keypoint, {[*counts, 2, 2]}, not "
            f"{list(matrices.shape)}"
        )
    return KeypointArrays(xy, rows["scale"], rows["angle"], rows["mask"], matrices)


def pad_keypoints(keypoints: KeypointArrays) -> KeypointArrays:
    """Adds masked keypoints, up to one of few numbers.

    Photographs of one shape then share few programs, however many keypoints each has. It is done
    in NumPy, where another number of them is not another program. Done twice it adds no more, so
    that `extract_patches` takes what is padded as it is.
    """
    count = keypoints.scale.shape[-1]
    extra = padded_count(count) - count
    if extra == 0:
        return keypoints
    batch = keypoints.scale.ndim - 1
    padding = [*[(0, 0)] * batch, (0, extra), (0, 0), (0, 0)]
    xy, scale, angle, mask = (np.pad(row, padding[: np.ndim(row)]) for row in keypoints[:4])
    shape = None if keypoints.shape is None else np.pad(keypoints.shape, padding)
    return KeypointArrays(xy, scale, angle, mask, shape)


def padded_count(count: int) -> int:
    """The next multiple of a quarter of a power of two, or of 16."""
    step = max(2 ** max(count - 1, 0).bit_length() // 8, 16)
    return -(-count // step) * step


def pad_image(
    image: jax.Array | np.ndarray, batch: int, *, size: int, pyramid: str
) -> tuple[jax.Array | np.ndarray, Inside | None]:
    """Repeats the border up to one of few shapes; `batch` is the number of axes before them."""
    if isinstance(image, jax.Array) or pyramid in KORNIA or 0 in image.shape:
        return image, None
    height, width = image.shape[batch : batch + 2]
    sides = padded_count(height), padded_count(width)
    padding = [(0, 0)] * image.ndim
    padding[batch : batch + 2] = [(0, sides[0] - height), (0, sides[1] - width)]
    own, padded = (
        plan_levels(*shape, size=size, kind=pyramid) for shape in ((height, width), sides)
    )
    return np.pad(image, padding, mode="edge"), Inside.of(height, width, own, len(padded))


@functools.partial(jax.jit, static_argnums=3)
def _extract(
    image: jax.Array | np.ndarray,
    inside: Inside | None,
    keypoints: KeypointArrays,
    options: _Options,
) -> ExtractedPatches:
    """Everything from here on is one program."""
    batched = keypoints.xy.ndim == 3
    grey = to_grey(image, batched=batched, order=options.order)
    shape = keypoints.shape
    frames = patch_frames(
        *(jnp.asarray(values).astype(grey.dtype) for values in keypoints[:3]),
        shape=None if shape is None else jnp.asarray(shape).astype(grey.dtype),
        size_is=options.size_is,
        extent=options.extent,
        angle_is=options.angle_is,
        pixel_origin=options.pixel_origin,
    )
    size = np.array(grey.shape[:-3:-1]) if inside is None else inside.size
    sound = _is_sound(frames) & _touches(frames, jnp.asarray(size).astype(grey.dtype))
    valid = jnp.asarray(keypoints.mask).astype(bool) & sound
    if 0 in (grey.size, valid.size):
        patches = jnp.zeros((*valid.shape, options.size, options.size), grey.dtype)
        return ExtractedPatches(patches, jnp.zeros_like(valid))
    frames = neutral_where(~valid, frames, options.size)
    if batched:
        patches = _cut(grey, inside, frames, options)
    else:
        single = PatchFrames(*(values[None] for values in frames))
        patches = _cut(grey[None], inside, single, options)[0]
    return ExtractedPatches(jnp.where(valid[..., None, None], patches, 0), valid)


def _cut(
    images: Float[Array, "B height width"],
    inside: Inside | None,
    frames: PatchFrames,
    options: _Options,
) -> Float[Array, "B N size size"]:
    """The patches of sound frames."""
    batch, height, width = images.shape
    levels = plan_levels(height, width, size=options.size, kind=options.pyramid)
    pixels = sum(level.height * level.width for level in levels)
    if batch * pixels > MAX_PIXELS:
        raise InputError(
            f"{batch} × {height}×{width} pixels and their pyramids are more than 2³¹: "
            "give fewer images at a time, or pyramid='octaves'"
        )
    packed = pack_pyramid(images, levels=levels, kind=options.pyramid, inside=inside)
    whole = inside or Inside.of(height, width, levels, len(levels))
    windows = locate_windows(frames, levels, whole, size=options.size, pyramid=options.pyramid)
    own = jnp.arange(batch, dtype=jnp.int32) * pixels
    windows = windows._replace(start=windows.start + own[:, None])
    # Without the barrier, sines and cosines may be taken anew for every pixel of a patch.
    windows = jax.lax.optimization_barrier(windows)
    # Gradients need the indices and weights of every pixel: cheaper to find again than to keep.
    sample = jax.checkpoint(functools.partial(sample_windows, size=options.size))
    return sample(packed.reshape(-1), windows)


def _is_sound(frames: PatchFrames) -> Bool[Array, "*batch N"]:
    """Finite, and of a size that means something."""
    finite = jnp.isfinite(frames.center).all(axis=-1)
    return finite & (frames.side > 0) & (frames.side <= MAX_SIDE)


def _touches(frames: PatchFrames, size: Float[Array, "2"]) -> Bool[Array, "*batch N"]:
    """Whether the upright box about each patch overlaps the image."""
    reach = frames.side[..., None] / 2 * jnp.abs(frames.axes).sum(axis=-1)
    ahead, behind = frames.center + reach, frames.center - reach
    inside = (behind[..., 0] < size[0] - 0.5) & (behind[..., 1] < size[1] - 0.5)
    return inside & (ahead > -0.5).all(axis=-1)


def neutral_where(bad: Bool[Array, "*batch N"], frames: PatchFrames, size: int) -> PatchFrames:
    """Harmless numbers for patches that will be blank, so that no NaN reaches a gradient."""
    return PatchFrames(
        jnp.where(bad[..., None], 0, frames.center),
        jnp.where(bad, size, frames.side),
        jnp.where(bad[..., None, None], 0, frames.axes),
    )
