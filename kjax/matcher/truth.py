"""Which keypoints of two views of one plane are the same, by the homography between them."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

NONE = -1
"""In the place of a keypoint's partner."""
MATCH, FAR = 3.0, 5.0
"""Pixels: up to how many, in both views, keypoints are the same, and from how many on another."""
TURN_COST = 1.5
"""Pixels that keypoints of opposite angles count as farther apart: SIFT may give one place several
angles, and the one that agrees is meant."""


class Truth(NamedTuple):
    """What is known of the keypoints of pairs of views. Of some, nothing is."""

    partners: Int32[Array, "B N"]
    """The match of each of the first view's keypoints, or `NONE`."""
    alone: Bool[Array, "B 2 N"]
    """Keypoints that surely have no match."""


class Moved(NamedTuple):
    """Keypoints as a homography shows them."""

    xy: Float[Array, "B N 2"]
    angles: Float[Array, "B N"]


def homography_truth(
    xy: Float[Array, "B 2 N 2"],
    angles: Float[Array, "B 2 N"],
    between: Float[Array, "B 2 3 3"],
    counts: Int32[Array, "B 2"],
) -> Truth:
    """Matches are the nearest of each other, near in both views.

    Args:
        xy: of keypoints, in pixels; those that count come first.
        angles: radians.
        between: homographies from the first view's pixels to the second's, and back.
        counts: of keypoints in each view.
    """
    there = move(xy[:, 0], angles[:, 0], between[:, 0])
    back = move(xy[:, 1], angles[:, 1], between[:, 1])
    apart = jnp.maximum(_distances(there.xy, xy[:, 1]), _distances(xy[:, 0], back.xy))
    exist = jnp.arange(xy.shape[2])[None, None] < counts[:, :, None]
    both = exist[:, 0, :, None] & exist[:, 1, None, :]
    apart = jnp.where(both, apart, jnp.inf)
    turned = 1 - jnp.cos(there.angles[:, :, None] - angles[:, 1, None, :])
    cost = apart + TURN_COST / 2 * turned
    best, returned = (jnp.argmin(cost, axis=axis).astype(jnp.int32) for axis in (2, 1))
    mutual = jnp.take_along_axis(returned, best, axis=1) == jnp.arange(xy.shape[2])[None]
    near = jnp.take_along_axis(apart, best[:, :, None], axis=2)[..., 0] <= MATCH
    far = jnp.stack([apart.min(axis=2) > FAR, apart.min(axis=1) > FAR], axis=1)
    return Truth(jnp.where(mutual & near, best, NONE), exist & far)


def move(
    xy: Float[Array, "B N 2"], angles: Float[Array, "B N"], homographies: Float[Array, "B 3 3"]
) -> Moved:
    """Keypoints under homographies, whose linear part at each place turns its angle."""
    homogeneous = jnp.concatenate([xy, jnp.ones_like(xy[..., :1])], axis=-1)
    mapped = jnp.einsum("bij,bnj->bni", homographies, homogeneous, precision="highest")
    moved = mapped[..., :2] / mapped[..., 2:]
    # The derivative of (h₁·x, h₂·x) / (h₃·x), up to a factor.
    direction = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    along = jnp.einsum("bij,bnj->bni", homographies[:, :, :2], direction, precision="highest")
    turned = (along[..., :2] - moved * along[..., 2:]) * jnp.sign(mapped[..., 2:])
    return Moved(moved, jnp.arctan2(turned[..., 1], turned[..., 0]))


def _distances(first: Float[Array, "B N 2"], second: Float[Array, "B M 2"]) -> Array:
    # Not by inner products: pixels squared have too many digits for float32.
    difference = first[:, :, None] - second[:, None]
    return jnp.sqrt((difference**2).sum(axis=-1))
