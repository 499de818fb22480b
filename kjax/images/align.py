"""Subpixel alignment of matches: move the second keypoint to where the first one's patch fits.

Gauss–Newton steps (inverse-compositional, after Baker and Matthews) find the affine map between
both patches with the highest correlation: first at the scale of the keypoint, then for the few
pixels in the middle. If that fails, the match stays as it was. This is meant for two-view geometry:
the position that fits one match need not fit another match of the same keypoint.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.patches import plan_levels
from kjax.errors import InputError
from kjax.images.conventions import PatchFrames, neutral_where, patch_frames
from kjax.images.extract import open_grey, pad_image
from kjax.images.features import Features, Matches
from kjax.images.pyramid import Inside, locate_windows, pack_pyramid, sample_windows

EXTENT = 4.0
"""Side of the patch over the keypoint's diameter."""
NARROW = 24.0
"""Maximum side of the final patch, in pixels of the first image."""
SIZE = 16
"""Samples along a patch's side."""
STEPS = 6
"""Gauss–Newton steps at each of the two scales."""
CORRELATION = 0.85
"""Minimum correlation of the aligned patches."""
FARTHEST = 0.7
"""Maximum shift, as a fraction of the second keypoint's diameter."""
LARGEST_STEP = 0.5
"""Maximum step, in halves of the patch's side or entries of the map: larger steps diverge."""
LEAST_CONTRAST = 0.1
"""Minimum standard deviation of a patch, in grey values of 255."""
DAMPING = 1e-6
"""Added to the curvature, which is singular along an edge; gradients are of the order 1."""
BLOCK = 512
"""Matches aligned at a time: any number of matches in images of like shapes shares one program."""
PYRAMID = "thirds"
WINDOW = 0.6
"""σ of the Gaussian weights of a patch's samples, in halves of its side."""

Patches = Float[Array, "N S S"]
_ALONG = (np.arange(SIZE, dtype=np.float32) - (SIZE - 1) / 2) / (SIZE / 2)
_PLACES: Float32[np.ndarray, "2 S S"] = np.stack(np.meshgrid(_ALONG, _ALONG)).astype(np.float32)
"""Coordinates x and y of a patch's samples, in halves of its side."""
_GAUSSIAN = np.exp(-(_PLACES**2).sum(axis=0, keepdims=True) / (2 * WINDOW**2))
_WEIGHTS: Float32[np.ndarray, "1 S S"] = (_GAUSSIAN / _GAUSSIAN.sum()).astype(np.float32)
"""Sample weights; they sum to 1."""


class Aligned(NamedTuple):
    """Positions of matches; those that are not `aligned` are the keypoints' own."""

    xy_a: Float32[np.ndarray, "K 2"]
    xy_b: Float32[np.ndarray, "K 2"]
    aligned: Bool[np.ndarray, " K"]


def align_matches(
    image_a: Any, image_b: Any, a: Features, b: Features, matches: Matches, *, order: str = "rgb"
) -> Aligned:
    """Align matches to a fraction of a pixel, for two-view geometry.

    Matches stay as they are if their patches reach over a border, have no contrast or look too
    different. Images are given as to `kjax.Describer.describe_image`.
    """
    packed_a, packed_b = _pack(image_a, a, order), _pack(image_b, b, order)
    keypoints_a, keypoints_b = a.keypoints(), b.keypoints()
    rows = matches.indices
    if len(rows) and (rows.min() < 0 or (rows.max(axis=0) >= (len(a), len(b))).any()):
        raise InputError(
            f"matches do not fit {len(a)} and {len(b)} keypoints: give the features they are of"
        )
    xy_a, xy_b = a.xy[rows[:, 0]], b.xy[rows[:, 1]]
    moved, aligned = xy_b.copy(), np.zeros(len(rows), bool)
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        sides = keypoints_a.keep(rows[part, 0]), keypoints_b.keep(rows[part, 1])
        padded = (side.padded(BLOCK) for side in sides)
        there, good = map(np.asarray, _align(packed_a, packed_b, *padded))
        count = len(rows[part])
        aligned[part] = good[:count]
        moved[part] = np.where(good[:count, None], there[:count], xy_b[part])
    return Aligned(xy_a, moved, aligned)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Packed:
    """An image's pyramid, padded to one of few shapes, for which programs are compiled."""

    pixels: Float[Array, " pixels"]
    inside: Inside
    shape: tuple[int, int] = dataclasses.field(metadata={"static": True})


def _pack(image: Any, features: Features, order: str) -> _Packed:
    grey = np.asarray(open_grey(image, order)[0], np.float32)
    if grey.shape[::-1] != tuple(features.image_size):
        (height, width), (own_width, own_height) = grey.shape, features.image_size
        raise InputError(
            f"the image has {width}×{height} pixels, its features are of {own_width}×{own_height}: "
            "give the same image"
        )
    padded, inside = pad_image(grey, 0, size=SIZE, pyramid=PYRAMID)
    assert inside is not None
    return _Packed(pack_grey(padded, inside), inside, (padded.shape[0], padded.shape[1]))


@jax.jit
def pack_grey(grey: Float[Array, "height width"], inside: Inside) -> Float[Array, " pixels"]:
    """Compute the pyramid of a padded grey image."""
    levels = plan_levels(*grey.shape, size=SIZE, kind=PYRAMID)
    return pack_pyramid(grey[None], levels=levels, kind=PYRAMID, inside=inside)[0]


def _align(
    packed_a: _Packed, packed_b: _Packed, a: Keypoints, b: Keypoints
) -> tuple[Float[Array, "N 2"], Bool[Array, " N"]]:
    """Return the new positions of the second keypoints, and which of them are aligned.

    Several programs, not one: XLA would read samples anew for each of the sums over them.
    """
    frames_a, frames_b, usable = _frames(a[:3], b[:3], packed_a.inside.size, packed_b.inside.size)
    found, aligned = frames_b, jnp.zeros_like(usable)
    for largest in (np.inf, NARROW):
        # The middle of the patches, at most `largest` pixels of the first image wide.
        share = jnp.minimum(1, largest / frames_a.side)
        narrow_a = frames_a._replace(side=share * frames_a.side)
        moved = found._replace(side=share * found.side)
        template, sound = _template(_cut(packed_a, narrow_a))
        patches = _cut(packed_b, moved)
        before = _correlation(patches, template)
        for _ in range(STEPS):
            moved, sound = _step(patches, template, moved, sound)
            patches = _cut(packed_b, moved)
        after = _correlation(patches, template)
        good = sound & (after >= CORRELATION) & (after >= before) & usable
        found, good = _accept(found, moved, good, frames_b, packed_b.inside.size)
        aligned |= good
    return found.center, aligned


@jax.jit
def _frames(
    a: tuple[Array, ...], b: tuple[Array, ...], size_a: Int32[Array, "2"], size_b: Int32[Array, "2"]
) -> tuple[PatchFrames, PatchFrames, Bool[Array, " N"]]:
    """Return the patches of both sides, and which pairs lie inside both images."""
    frames_a, frames_b = (patch_frames(*one, extent=EXTENT) for one in (a, b))
    usable = _within(frames_a, size_a) & _within(frames_b, size_b)
    frames_a, frames_b = (neutral_where(~usable, one, SIZE) for one in (frames_a, frames_b))
    return frames_a, frames_b, usable


@jax.jit
def _accept(
    found: PatchFrames,
    moved: PatchFrames,
    good: Bool[Array, " N"],
    start: PatchFrames,
    size: Int32[Array | np.ndarray, "2"],
) -> tuple[PatchFrames, Bool[Array, " N"]]:
    """Move the frames that are good and near their start; also return which moved."""
    shift = jnp.linalg.norm(moved.center - start.center, axis=-1)
    good &= _within(moved, size) & (shift <= FARTHEST / EXTENT * start.side)
    center = jnp.where(good[:, None], moved.center, found.center)
    axes = jnp.where(good[:, None, None], moved.axes, found.axes)
    return PatchFrames(center, found.side, axes), good


def _within(frames: PatchFrames, size: Int32[Array | np.ndarray, "2"]) -> Bool[Array, " N"]:
    """Return which patches are finite and lie entirely inside the image."""
    reach = frames.reach()
    last = (jnp.asarray(size) - 1).astype(reach.dtype)[None]
    inside = (frames.center - reach >= 0) & (frames.center + reach <= last)
    return inside.all(axis=-1) & (frames.side > 0)


@jax.jit
def _cut(packed: _Packed, frames: PatchFrames) -> Patches:
    levels = plan_levels(*packed.shape, size=SIZE, kind=PYRAMID)
    single = PatchFrames(*(values[None] for values in frames))
    windows = locate_windows(single, levels, packed.inside, size=SIZE, pyramid=PYRAMID)
    # Without the barrier, positions may be computed anew for every sample.
    return sample_windows(packed.pixels, lax.optimization_barrier(windows), size=SIZE)[0]


class _Template(NamedTuple):
    """Patches of the first image, their gradients, and the inverse Gauss–Newton matrix."""

    patches: Patches
    slopes: Float[Array, "N 6 S S"]
    to_step: Float[Array, "N 6 6"]


@jax.jit
def _template(patches: Patches) -> tuple[_Template, Bool[Array, " N"]]:
    """Prepare templates; also return which have enough contrast."""
    normalized, contrast = _normalize(patches)
    # Gradients with respect to the shift and the entries of the affine map.
    down, right = jnp.gradient(normalized, 2 / SIZE, axis=(1, 2))
    x, y = _PLACES[:, None]
    slopes = jnp.stack([right, down, right * x, right * y, down * x, down * y], axis=1)
    # Project out gain and offset: steps then do not follow changes of light.
    slopes -= (slopes * _WEIGHTS[None]).sum(axis=(2, 3), keepdims=True)
    shared = (slopes * (normalized * _WEIGHTS)[:, None]).sum(axis=(2, 3), keepdims=True)
    slopes = slopes - shared * normalized[:, None]
    curvature = jnp.einsum("nkuv,nluv->nkl", slopes * _WEIGHTS[None], slopes, precision="highest")
    damped = curvature + DAMPING * np.eye(slopes.shape[1], dtype=slopes.dtype)[None]
    return _Template(normalized, slopes, jnp.linalg.inv(damped)), contrast >= LEAST_CONTRAST


@jax.jit
def _correlation(patches: Patches, template: _Template) -> Float[Array, " N"]:
    return (_normalize(patches)[0] * template.patches * _WEIGHTS).sum(axis=(1, 2))


@jax.jit
def _step(
    patches: Patches, template: _Template, frames: PatchFrames, sound: Bool[Array, " N"]
) -> tuple[PatchFrames, Bool[Array, " N"]]:
    """Take one step; frames stop for good at the first step that is far too large."""
    off = (_normalize(patches)[0] - template.patches) * _WEIGHTS
    downhill = (template.slopes * off[:, None]).sum(axis=(2, 3))
    step = jnp.einsum("nkl,nl->nk", template.to_step, downhill, precision="highest")
    sound &= (jnp.abs(step) <= LARGEST_STEP).all(axis=1)
    step = jnp.where(sound[:, None], step, 0)
    # Compose the frames with the inverse of the template's step.
    change = jnp.eye(2, dtype=step.dtype)[None] + step[:, 2:].reshape(-1, 2, 2)
    axes = jnp.einsum("nij,njk->nik", frames.axes, jnp.linalg.inv(change), precision="highest")
    shift = jnp.einsum("nij,nj->ni", axes, step[:, :2], precision="highest")
    moved = frames.center - frames.side[:, None] / 2 * shift
    return PatchFrames(moved, frames.side, axes), sound


def _normalize(patches: Patches) -> tuple[Patches, Float[Array, " N"]]:
    """Return patches of mean 0 and deviation 1, and their former deviation."""
    centred = patches - (patches * _WEIGHTS).sum(axis=(1, 2), keepdims=True)
    deviation = jnp.sqrt((centred**2 * _WEIGHTS).sum(axis=(1, 2)))
    return centred / jnp.maximum(deviation, LEAST_CONTRAST)[:, None, None], deviation
