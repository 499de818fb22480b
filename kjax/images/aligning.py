"""Matched keypoints brought into register: the second one moves to where the first one's patch is.

A detector finds a large blob to a fraction of its size, pixels beside where it finds it again. The
patches about both say more: Gauss–Newton steps (inverse-compositional, after Baker and Matthews)
look for the affine map between them under which they correlate best, first about as much as
the keypoints stand for, then about the few pixels in the middle. Where that does not end well the
match stays as it was.

The position that fits one match need not fit another one of the same keypoint: it is for the
geometry of two photographs, not for tracks through many.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kjax.data.cutting.patches import plan_levels
from kjax.data.cutting.photographs import grey_values
from kjax.errors import InputError
from kjax.images.conventions import PatchFrames, patch_frames
from kjax.images.extraction import neutral_where, pad_image
from kjax.images.features import Features
from kjax.images.given import open_image
from kjax.images.matches import Matches
from kjax.images.pyramid import Inside, pack_pyramid
from kjax.images.sampling import locate_windows, sample_windows

EXTENT = 4.0
"""Side of the patch over the keypoint's diameter."""
NARROW = 24.0
"""Pixels of the first photograph: the largest side of the patch in the end."""
SIZE = 16
"""Samples along a patch's side."""
STEPS = 6
"""Of Gauss and Newton, with either side."""
CORRELATION = 0.85
"""The least, of the patches in the end, that is believed."""
FARTHEST = 0.7
"""Of the second keypoint's diameter: what would move farther stays where it is."""
LARGEST_STEP = 0.5
"""Of half the patch's side, or of the map's numbers: beyond it the steps have lost their way."""
LEAST_CONTRAST = 0.1
"""Standard deviation, of 255 greys: below it a patch shows nothing but rounding."""
DAMPING = 1e-6
"""Keeps apart from 0 what an edge tells about the way along it; gradients are of the order 1."""
BLOCK = 512
"""Matches at a time: however many there are, photographs of like shapes share one program."""
PYRAMID = "thirds"
WINDOW = 0.6
"""σ of the Gaussian that weighs a patch's samples, in halves of its side."""

Patches = Float[Array, "N S S"]


class Aligned(NamedTuple):
    """Where matches lie.

    Attributes:
        xy_a: positions in the first photograph, which are the keypoints'.
        xy_b: in the second one.
        aligned: which of these were brought into register; the others are the keypoints'.
    """

    xy_a: Float32[np.ndarray, "K 2"]
    xy_b: Float32[np.ndarray, "K 2"]
    aligned: Bool[np.ndarray, " K"]


def align_matches(
    image_a: Any, image_b: Any, a: Features, b: Features, matches: Matches, *, order: str = "rgb"
) -> Aligned:
    """Positions of matches to a fraction of a pixel, for the geometry of two photographs.

    Matches of patches that reach over a border, show nothing or look too different stay as they
    are; a gain or an offset of the greys makes no difference.

    Args:
        image_a: the first photograph, as `kjax.Describer.describe_image` takes it.
        image_b: the second one.
        a: features of the first one.
        b: features of the second one.
        matches: of both.
        order: of the photographs' colours, "rgb" or "bgr".

    Raises:
        InputError: keypoints without scales, or features or matches of other photographs.
    """
    view_a, view_b = _view(image_a, a, order), _view(image_b, b, order)
    rows = matches.indices
    if len(rows) and (rows.min() < 0 or (rows.max(axis=0) >= (len(a), len(b))).any()):
        raise InputError(
            f"matches do not fit {len(a)} and {len(b)} keypoints: give the features they are of"
        )
    xy_a, xy_b = a.xy[rows[:, 0]], b.xy[rows[:, 1]]
    moved, aligned = xy_b.copy(), np.zeros(len(rows), bool)
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        sides = (_keypoints(a, rows[part, 0]), _keypoints(b, rows[part, 1]))
        there, good = map(np.asarray, _aligned(view_a, view_b, *sides))
        count = len(rows[part])
        aligned[part] = good[:count]
        moved[part] = np.where(good[:count, None], there[:count], xy_b[part])
    return Aligned(xy_a, moved, aligned)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["packed", "inside"], meta_fields=["shape"]
)
@dataclasses.dataclass(frozen=True)
class _View:
    """A photograph's pyramid, filled up to one of few shapes, which a program is compiled for."""

    packed: Float[Array, " pixels"]
    inside: Inside
    shape: tuple[int, int]


class _Keypoints(NamedTuple):
    xy: Float32[Array, "N 2"]
    scale: Float32[Array, " N"]
    angle: Float32[Array, " N"]


def _view(image: Any, features: Features, order: str) -> _View:
    """Refuses what cannot be aligned."""
    opened, order = open_image(image, order)
    grey = np.asarray(grey_values(np.asarray(opened), order=order), np.float32)
    if grey.shape[::-1] != tuple(features.image_size):
        size, expected = (
            "×".join(map(str, one)) for one in (grey.shape[::-1], features.image_size)
        )
        raise InputError(f"a photograph of {size} pixels has features of one of {expected}")
    if features.scales is None:
        raise InputError("keypoints without scales cannot be aligned: give SIFT's, or scales")
    padded, inside = pad_image(grey, 0, size=SIZE, pyramid=PYRAMID)
    assert inside is not None
    return _View(_packed(padded, inside), inside, (padded.shape[0], padded.shape[1]))


@jax.jit
def _packed(grey: Float[Array, "height width"], inside: Inside) -> Float[Array, " pixels"]:
    levels = plan_levels(*grey.shape, size=SIZE, kind=PYRAMID)
    return pack_pyramid(grey[None], levels=levels, kind=PYRAMID, inside=inside)[0]


def _keypoints(features: Features, rows: np.ndarray) -> _Keypoints:
    """Of one block; those that fill it up have no size, and so no patch."""
    assert features.scales is not None
    angles = np.zeros(len(features), np.float32) if features.angles is None else features.angles
    filling = (0, BLOCK - len(rows))
    return _Keypoints(
        jnp.asarray(np.pad(features.xy[rows], (filling, (0, 0)))),
        jnp.asarray(np.pad(features.scales[rows], filling)),
        jnp.asarray(np.pad(angles[rows], filling)),
    )


def _aligned(
    view_a: _View, view_b: _View, a: _Keypoints, b: _Keypoints
) -> tuple[Float[Array, "N 2"], Bool[Array, " N"]]:
    """Where the second keypoints lie then, and which of them are in register.

    Several programs, not one: XLA would read samples anew for each of the sums over them.
    """
    frames_a, frames_b, usable = _frames(a, b, view_a.inside.size, view_b.inside.size)
    found, aligned = frames_b, jnp.zeros_like(usable)
    for largest in (np.inf, NARROW):
        narrow_a, narrow_b = _narrowed(frames_a, found, largest)
        moved, good = _registered(view_a, view_b, narrow_a, narrow_b)
        found, good = _accepted(found, moved, good & usable, frames_b, view_b.inside.size)
        aligned |= good
    return found.center, aligned


@jax.jit
def _frames(
    a: _Keypoints, b: _Keypoints, size_a: Int32[Array | np.ndarray, "2"], size_b: Int32[Array, "2"]
) -> tuple[PatchFrames, PatchFrames, Bool[Array, " N"]]:
    """Patches of both sides, and which of them are two that can be compared."""
    frames_a, frames_b = (patch_frames(*one, extent=EXTENT) for one in (a, b))
    usable = _within(frames_a, size_a) & _within(frames_b, size_b)
    frames_a, frames_b = (neutral_where(~usable, one, SIZE) for one in (frames_a, frames_b))
    return frames_a, frames_b, usable


@jax.jit
def _narrowed(
    a: PatchFrames, b: PatchFrames, largest: float | Float[Array, ""]
) -> tuple[PatchFrames, PatchFrames]:
    """The middle of patches, of at most so many of the first photograph's pixels."""
    share = jnp.minimum(1, largest / a.side)
    return a._replace(side=share * a.side), b._replace(side=share * b.side)


@jax.jit
def _accepted(
    found: PatchFrames,
    moved: PatchFrames,
    good: Bool[Array, " N"],
    start: PatchFrames,
    size: Int32[Array | np.ndarray, "2"],
) -> tuple[PatchFrames, Bool[Array, " N"]]:
    """Frames that move to where they fit, if it is near, and which of them do."""
    way = jnp.linalg.norm(moved.center - start.center, axis=-1)
    good &= _within(moved, size) & (way <= FARTHEST / EXTENT * start.side)
    center = jnp.where(good[:, None], moved.center, found.center)
    axes = jnp.where(good[:, None, None], moved.axes, found.axes)
    return PatchFrames(center, found.side, axes), good


def _within(frames: PatchFrames, size: Int32[Array | np.ndarray, "2"]) -> Bool[Array, " N"]:
    """Whether patches lie wholly in the photograph; of numbers that are none, they do not."""
    reach = frames.side[:, None] / 2 * jnp.abs(frames.axes).sum(axis=-1)
    last = (jnp.asarray(size) - 1).astype(reach.dtype)[None]
    inside = (frames.center - reach >= 0) & (frames.center + reach <= last)
    return inside.all(axis=-1) & (frames.side > 0)


def _registered(
    view_a: _View, view_b: _View, a: PatchFrames, b: PatchFrames
) -> tuple[PatchFrames, Bool[Array, " N"]]:
    """Frames in the second photograph that show what those in the first one do, and which do."""
    template, sound = _template(_cut(view_a, a))
    patches = _cut(view_b, b)
    before = _correlation(patches, template)
    for _ in range(STEPS):
        b, sound = _improved(patches, template, b, sound)
        patches = _cut(view_b, b)
    after = _correlation(patches, template)
    return b, sound & (after >= CORRELATION) & (after >= before)


@jax.jit
def _cut(view: _View, frames: PatchFrames) -> Patches:
    levels = plan_levels(*view.shape, size=SIZE, kind=PYRAMID)
    single = PatchFrames(*(values[None] for values in frames))
    windows = locate_windows(single, levels, view.inside, size=SIZE, pyramid=PYRAMID)
    # Without the barrier, positions may be found anew for every sample.
    return sample_windows(view.packed, lax.optimization_barrier(windows), size=SIZE)[0]


class _Template(NamedTuple):
    """What the first photograph shows, and what turns a difference from it into a step."""

    patches: Patches
    slopes: Float[Array, "N 6 S S"]
    to_step: Float[Array, "N 6 6"]


@jax.jit
def _template(patches: Patches) -> tuple[_Template, Bool[Array, " N"]]:
    """Also whether there is anything to see."""
    normalized, contrast = _normalized(patches)
    slopes = _slopes(normalized)
    curvature = jnp.einsum("nkuv,nluv->nkl", slopes * _window()[None], slopes, precision="highest")
    damped = curvature + DAMPING * np.eye(slopes.shape[1], dtype=slopes.dtype)[None]
    return _Template(normalized, slopes, jnp.linalg.inv(damped)), contrast >= LEAST_CONTRAST


@jax.jit
def _correlation(patches: Patches, template: _Template) -> Float[Array, " N"]:
    return (_normalized(patches)[0] * template.patches * _window()).sum(axis=(1, 2))


@jax.jit
def _improved(
    patches: Patches, template: _Template, frames: PatchFrames, sound: Bool[Array, " N"]
) -> tuple[PatchFrames, Bool[Array, " N"]]:
    """Frames after one step, unless it, or one before it, is far too large."""
    off = (_normalized(patches)[0] - template.patches) * _window()
    downhill = (template.slopes * off[:, None]).sum(axis=(2, 3))
    step = jnp.einsum("nkl,nl->nk", template.to_step, downhill, precision="highest")
    sound &= (jnp.abs(step) <= LARGEST_STEP).all(axis=1)
    return _composed(frames, jnp.where(sound[:, None], step, 0)), sound


@functools.cache
def _places() -> Float32[np.ndarray, "2 S S"]:
    """Of a patch's samples, x and y, in halves of its side."""
    along = (np.arange(SIZE, dtype=np.float32) - (SIZE - 1) / 2) / (SIZE / 2)
    return np.stack(np.meshgrid(along, along)).astype(np.float32)


@functools.cache
def _window() -> Float32[np.ndarray, "1 S S"]:
    """What samples weigh; the sum is 1."""
    weights = np.exp(-(_places() ** 2).sum(axis=0, keepdims=True) / (2 * WINDOW**2))
    return (weights / weights.sum()).astype(np.float32)


def _normalized(patches: Patches) -> tuple[Patches, Float[Array, " N"]]:
    """Patches of mean 0 and deviation 1, and the deviation they had."""
    centred = patches - (patches * _window()).sum(axis=(1, 2), keepdims=True)
    deviation = jnp.sqrt((centred**2 * _window()).sum(axis=(1, 2)))
    return centred / jnp.maximum(deviation, LEAST_CONTRAST)[:, None, None], deviation


def _slopes(template: Patches) -> Float[Array, "N 6 S S"]:
    """How a patch changes with its shift and with the numbers of its affine map.

    Without what a gain or an offset would do as well: steps then do not follow changes of light.
    """
    down, right = jnp.gradient(template, 2 / SIZE, axis=(1, 2))
    x, y = _places()[:, None]
    slopes = jnp.stack([right, down, right * x, right * y, down * x, down * y], axis=1)
    slopes -= (slopes * _window()[None]).sum(axis=(2, 3), keepdims=True)
    shared = (slopes * (template * _window())[:, None]).sum(axis=(2, 3), keepdims=True)
    return slopes - shared * template[:, None]


def _composed(frames: PatchFrames, step: Float[Array, "N 6"]) -> PatchFrames:
    """Frames after the inverse of a step that the template would take."""
    change = jnp.eye(2, dtype=step.dtype)[None] + step[:, 2:].reshape(-1, 2, 2)
    axes = jnp.einsum("nij,njk->nik", frames.axes, jnp.linalg.inv(change), precision="highest")
    shift = jnp.einsum("nij,nj->ni", axes, step[:, :2], precision="highest")
    return PatchFrames(frames.center - frames.side[:, None] / 2 * shift, frames.side, axes)
