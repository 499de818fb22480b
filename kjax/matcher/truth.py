"""Which keypoints of two views are the same: those that see the same place.

A place is a point of the world. Of a flat photograph, every keypoint's is known; of a scene that
was reconstructed, those of some. Of the others it is known which they cannot be: those off the line
on which the other view has all that they might see.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

NONE = -1
"""In the place of a keypoint's partner."""
MATCH, FAR = 3.0, 5.0
"""Pixels: up to how many, in both views, keypoints are the same, and from how many on another."""
OFF_LINE = 8.0
"""Pixels, in both views: what is farther from the other's epipolar line is another place."""
UNLIKE = 1.5
"""Pixels that keypoints of opposite descriptors count as farther apart: SIFT may give one place
several angles, and the one that agrees is meant."""
_BEYOND = 1e6
"""Pixels: where a camera has what is behind it."""


class Truth(NamedTuple):
    """What is known of the keypoints of pairs of views. Of some, nothing is."""

    partners: Int32[Array, "B N"]
    """The match of each of the first view's keypoints, or `NONE`."""
    alone: Bool[Array, "B 2 N"]
    """Keypoints that surely have no match."""
    off_line: Bool[Array, "B N N"] | None = None
    """Pairs, one of whose places is not known, that cannot be the same; None if all are known."""


class Seen(NamedTuple):
    """Keypoints of pairs of views; those that count come first."""

    xy: Float[Array, "B 2 N 2"]
    """Pixels, as a camera without distortion has them."""
    places: Float[Array, "B 2 N 3"]
    """What keypoints see; NaN if it is not known."""
    cameras: Float[Array, "B 2 3 4"]
    """From places to pixels."""


def find_truth(
    seen: Seen,
    descriptors: Float[Array, "B 2 N dim"],
    counts: Int32[Array, "B 2"],
    *,
    by_lines: bool = False,
) -> Truth:
    """Matches are the nearest of each other, near in both views.

    Args:
        seen: the keypoints.
        descriptors: which decide between keypoints at one place.
        counts: of keypoints in each view.
        by_lines: tell, too, which keypoints of unknown places are off each other's lines.
    """
    first, second = seen.xy[:, 0], seen.xy[:, 1]
    there = project(seen.cameras[:, 1], seen.places[:, 0])
    back = project(seen.cameras[:, 0], seen.places[:, 1])
    ahead, behind = _distances(there, second), _distances(first, back)
    exist = jnp.arange(first.shape[1])[None, None] < counts[:, :, None]
    both = exist[:, 0, :, None] & exist[:, 1, None, :]
    # Where one of the two is not known, the other tells how far they are at least.
    apart = jnp.where(both, jnp.fmax(ahead, behind), jnp.inf)
    alike = jnp.einsum("bnd,bmd->bnm", descriptors[:, 0], descriptors[:, 1])
    known = jnp.isfinite(seen.places).all(axis=-1)
    certain = known[:, 0, :, None] & known[:, 1, None, :]
    cost = jnp.where(certain, apart + UNLIKE / 2 * (1 - alike), jnp.inf)
    best, returned = (jnp.argmin(cost, axis=axis).astype(jnp.int32) for axis in (2, 1))
    mutual = jnp.take_along_axis(returned, best, axis=1) == jnp.arange(first.shape[1])[None]
    nearest = jnp.take_along_axis(jnp.where(certain, apart, jnp.inf), best[:, :, None], axis=2)
    # Of keypoints without a place, `apart` is NaN in part: they are left out at the end.
    far = jnp.stack([_least(apart, 2) > FAR, _least(apart, 1) > FAR], axis=1)
    partners = jnp.where(mutual & (nearest[..., 0] <= MATCH), best, NONE)
    off_line = both & ~certain & _off_line(seen) if by_lines else None
    return Truth(partners, exist & known & far, off_line)


def _off_line(seen: Seen) -> Bool[Array, "B N N"]:
    """Whether keypoints are far from each other's epipolar lines; of views from one place, none."""
    first, second = (
        jnp.pad(one, ((0, 0), (0, 0), (0, 1)), constant_values=1)
        for one in (seen.xy[:, 0], seen.xy[:, 1])
    )
    fundamental = _fundamental(seen.cameras[:, 0], seen.cameras[:, 1])
    in_second = jnp.einsum("bij,bnj->bni", fundamental, first, precision="highest")
    in_first = jnp.einsum("bji,bmj->bmi", fundamental, second, precision="highest")
    residual = jnp.abs(jnp.einsum("bni,bmi->bnm", in_second, second, precision="highest"))
    steepest = jnp.maximum(_steepness(in_second)[:, :, None], _steepness(in_first)[:, None, :])
    return residual > OFF_LINE * steepest


def _fundamental(first: Float[Array, "B 3 4"], second: Float[Array, "B 3 4"]) -> Array:
    """From pixels of the first camera to lines of the second; zero of two at one place."""
    back = jnp.linalg.inv(first[:, :, :3])
    middle = -jnp.einsum("bij,bj->bi", back, first[:, :, 3], precision="highest")
    epipole = jnp.einsum("bij,bj->bi", second[:, :, :3], middle, precision="highest")
    x, y, z = jnp.moveaxis(epipole + second[:, :, 3], -1, 0)
    zero = jnp.zeros_like(x)
    cross = jnp.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=-1).reshape(-1, 3, 3)
    parts = (cross, second[:, :, :3], back)
    return jnp.einsum("bij,bjk,bkl->bil", *parts, precision="highest")


def _steepness(lines: Float[Array, "B N 3"]) -> Float[Array, "B N"]:
    """By how much a pixel across changes what a line says of a point."""
    return jnp.linalg.norm(lines[..., :2], axis=-1)


def project(cameras: Float[Array, "B 3 4"], places: Float[Array, "B N 3"]) -> Float[Array, "B N 2"]:
    """Where cameras see places; far away what is behind them, NaN what is not known."""
    # In all digits: on GPUs, pixels would come out wrong otherwise.
    mapped = jnp.einsum("bij,bnj->bni", cameras[:, :, :3], places, precision="highest")
    mapped = mapped + cameras[:, None, :, 3]
    depth = mapped[..., 2:]
    return jnp.where(depth <= 0, _BEYOND, mapped[..., :2] / jnp.where(depth <= 0, 1.0, depth))


def _least(values: Float[Array, "B N M"], axis: int) -> Float[Array, "..."]:
    """The smallest that is a number."""
    return jnp.where(jnp.isnan(values), jnp.inf, values).min(axis=axis)


def _distances(first: Float[Array, "B N 2"], second: Float[Array, "B M 2"]) -> Array:
    # Not by inner products: pixels squared have too many digits for float32.
    difference = first[:, :, None] - second[:, None]
    return jnp.sqrt((difference**2).sum(axis=-1))
