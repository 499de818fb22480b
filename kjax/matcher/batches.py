"""Pairs of views for a step, drawn on the device that trains.

Two views of a group see one place in common, about which each is cropped: so they overlap in part,
as real photographs do. Of a crop's keypoints some are taken, mostly the steadiest, or the largest.
All of this is choosing: no pixel is touched. Positions and angles are turned, too, which changes
nothing about who matches whom.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, Key

from kjax.errors import InputError
from kjax.matcher.network import Points
from kjax.matcher.truth import Seen, Truth, find_truth, project
from kjax.matcher.view_set import ViewSet


@dataclasses.dataclass(frozen=True)
class DrawConfig:
    """How pairs are drawn.

    Attributes:
        keypoints: of a view at most.
        least_keypoints: crops of some pairs have as few.
        least_crop: shortest side of a crop, over that of the view.
        whole_share: of views that are not cropped.
        largest_share: of pairs of the largest keypoints instead of the steadiest.
        rank_noise: σ of the logarithm of a keypoint's rank, by which weaker ones are taken too.
        upright_share: of pairs that are turned as their photographs are; others anyhow.
        tilt_degrees: σ of how upright ones are tilted.
        zoom_noise: σ of the logarithm of the photograph's side that positions are measured in.
    """

    keypoints: int = 512
    least_keypoints: int = 256
    least_crop: float = 0.4
    whole_share: float = 0.3
    largest_share: float = 0.3
    rank_noise: float = 0.3
    upright_share: float = 0.5
    tilt_degrees: float = 8.0
    zoom_noise: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.least_keypoints <= self.keypoints:
            raise InputError(
                f"draw.least_keypoints must be from 1 to draw.keypoints, {self.keypoints}, not "
                f"{self.least_keypoints}"
            )
        for name in ("whole_share", "largest_share", "upright_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"draw.{name} must be from 0 to 1, not {getattr(self, name)}")
        if not 0 < self.least_crop <= 1:
            raise InputError(f"draw.least_crop must be above 0 and at most 1: {self.least_crop}")
        for name in ("rank_noise", "tilt_degrees", "zoom_noise"):
            if getattr(self, name) < 0:
                raise InputError(f"draw.{name} must not be negative: {getattr(self, name)}")


class DeviceViews(NamedTuple):
    """A `ViewSet` on the device, with what is worth computing once."""

    xy: Float[Array, "P V K 2"]
    scales: Float[Array, "P V K"]
    angles: Float[Array, "P V K"]
    descriptors: Float[Array, "P V K dim"]
    counts: Int32[Array, "P V"]
    sizes: Int32[Array, "P V 2"]
    places: Float[Array, "P V K 3"]
    cameras: Float[Array, "P V 3 4"]
    turns: Float[Array, "P V"]
    ranks_by_size: Int32[Array, "P V K"]
    up_to: Float[Array, " P"] | None
    """Chances of drawing groups, summed up; None if they are equal."""


def to_device(views: ViewSet) -> DeviceViews:
    """The set where a training takes place."""
    ranks = np.argsort(np.argsort(-views.scales, axis=-1, kind="stable"), axis=-1)
    given = {name: jnp.asarray(getattr(views, name)) for name in DeviceViews._fields[:-2]}
    chances = views.chances
    return DeviceViews(
        **given,
        ranks_by_size=jnp.asarray(ranks, jnp.int32),
        up_to=None if chances is None else jnp.asarray(np.cumsum(chances / chances.sum())),
    )


class Batch(NamedTuple):
    """Pairs for the network, and what it should say about them."""

    points: Points
    truth: Truth


def draw_batch(
    key: Key[Array, ""],
    views: DeviceViews,
    *,
    pairs: int,
    config: DrawConfig,
    by_lines: bool = False,
) -> Batch:
    """A batch, wholly a function of the key; `by_lines`: see `find_truth`."""
    keys = jax.random.split(key, pairs)
    seen, points = jax.vmap(lambda own: _draw_pair(own, views, config))(keys)
    truth = find_truth(seen, points.descriptors, points.counts, by_lines=by_lines)
    return Batch(points, truth)


class _Window(NamedTuple):
    """What a crop shows of a view."""

    middle: Float[Array, "2"]
    half: Float[Array, "2"]

    def holds(self, xy: Float[Array, "K 2"]) -> Bool[Array, " K"]:
        return (jnp.abs(xy - self.middle[None]) <= self.half[None]).all(axis=-1)


def _draw_pair(key: Key[Array, ""], views: DeviceViews, config: DrawConfig) -> tuple[Seen, Points]:
    """Keypoints as they lie in two views of a group, and as the network gets them."""
    groups, several = views.counts.shape
    which, one, two, anchor, ordering, amount, upright, left, right = jax.random.split(key, 9)
    group = _draw_group(which, groups, views.up_to)
    first = jax.random.randint(one, (), 0, several)
    second = (first + jax.random.randint(two, (), 1, several)) % several
    # Of descriptors, only those that are chosen are fetched.
    light = views._replace(descriptors=views.counts, up_to=None)
    sides = [jax.tree.map(lambda leaf, i=i: leaf[group, i], light) for i in (first, second)]
    shared = _Shared(
        jax.random.uniform(ordering) < config.largest_share,
        jax.random.randint(amount, (), config.least_keypoints, config.keypoints + 1),
        jax.random.uniform(upright) < config.upright_share,
    )
    middles = _seen_by_both(anchor, *sides)
    chosen = [
        _draw_side(own_key, side, middle, shared, config)
        for own_key, side, middle in zip((left, right), sides, middles, strict=True)
    ]
    descriptors = jnp.stack(
        [
            views.descriptors[group, view, side.rows]
            for view, side in zip((first, second), chosen, strict=True)
        ]
    )
    both = _Side(*(jnp.stack(column) for column in zip(*chosen, strict=True)))
    points = Points(
        both.positions,
        both.log_scales,
        both.turned,
        descriptors.astype(jnp.float32),
        both.found,
    )
    return Seen(both.xy, both.places, jnp.stack([side.cameras for side in sides])), points


def _draw_group(
    key: Key[Array, ""], groups: int, up_to: Float[Array, " P"] | None
) -> Int32[Array, ""]:
    if up_to is None:
        return jax.random.randint(key, (), 0, groups)
    # The last sum may be just below 1, by rounding.
    place = jnp.searchsorted(up_to, jax.random.uniform(key), side="right")
    return jnp.minimum(place, groups - 1).astype(jnp.int32)


def _seen_by_both(
    key: Key[Array, ""], first: DeviceViews, second: DeviceViews
) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
    """Where the views have a place that both show, by a keypoint of the first.

    If there is none, any keypoint of the first and any place in the second.
    """
    there = project(second.cameras[None], first.places[None])[0]
    shown = ((there >= 0) & (there < second.sizes[None])).all(axis=-1)
    exists = jnp.arange(len(there)) < first.counts
    chance = jax.random.uniform(key, (len(there),))
    chosen = jnp.argmax(jnp.where(exists, chance + (shown & exists), -1.0))
    whole = second.sizes.astype(jnp.float32)
    other = jnp.where(shown[chosen], there[chosen], whole * chance[:2])
    return first.xy[chosen], other


class _Shared(NamedTuple):
    """What both views of a pair have in common."""

    by_size: Bool[Array, ""]
    most: Int32[Array, ""]
    """Keypoints of each."""
    upright: Bool[Array, ""]


class _Side(NamedTuple):
    """The chosen keypoints of one view, as they are and as the network gets them."""

    rows: Int32[Array, " N"]
    xy: Float[Array, "N 2"]
    places: Float[Array, "N 3"]
    positions: Float[Array, "N 2"]
    log_scales: Float[Array, " N"]
    turned: Float[Array, " N"]
    found: Int32[Array, ""]


def _draw_side(
    key: Key[Array, ""],
    view: DeviceViews,
    seen: Float[Array, "2"],
    shared: _Shared,
    config: DrawConfig,
) -> _Side:
    """Crops a view about a place, and chooses keypoints."""
    crop, noise, turn, zoom = jax.random.split(key, 4)
    window = _crop(crop, view.sizes.astype(jnp.float32), seen, config)
    room = view.xy.shape[0]
    ranks = jnp.where(shared.by_size, view.ranks_by_size, jnp.arange(room))
    noisy = jnp.log1p(ranks) + config.rank_noise * jax.random.normal(noise, (room,))
    there = window.holds(view.xy) & (jnp.arange(room) < view.counts)
    best, chosen = jax.lax.top_k(jnp.where(there, -noisy, -jnp.inf), config.keypoints)
    found = jnp.minimum(jnp.isfinite(best).sum(dtype=jnp.int32), shared.most)
    angle = _draw_turn(turn, view.turns, shared.upright, config)
    unit = window.half.max() * jnp.exp(config.zoom_noise * jax.random.normal(zoom))
    xy = view.xy[chosen]
    return _Side(
        chosen,
        xy,
        view.places[chosen],
        _turned(xy - window.middle[None], angle) / unit,
        jnp.log(view.scales[chosen] / unit),
        view.angles[chosen] + angle,
        found,
    )


def _draw_turn(
    key: Key[Array, ""], turned: Float[Array, ""], upright: Bool[Array, ""], config: DrawConfig
) -> Float[Array, ""]:
    """By how much to turn a view: nearly back, or anyhow; not at all where no angle would tell."""
    tilt = jnp.deg2rad(config.tilt_degrees) * jax.random.normal(key)
    anyhow = jax.random.uniform(key, minval=-jnp.pi, maxval=jnp.pi)
    return jnp.where(jnp.isnan(turned), 0.0, jnp.where(upright, tilt - turned, anyhow))


def _crop(
    key: Key[Array, ""],
    size: Float[Array, "2"],
    seen: Float[Array, "2"],
    config: DrawConfig,
) -> _Window:
    """A window of the view that shows a place."""
    crop, whole, place = jax.random.split(key, 3)
    share = jax.random.uniform(crop, (2,), minval=config.least_crop, maxval=1.0)
    share = jnp.where(jax.random.uniform(whole) < config.whole_share, 1.0, share)
    half = share * size / 2
    middle = seen + half * jax.random.uniform(place, (2,), minval=-1.0, maxval=1.0)
    return _Window(jnp.clip(middle, half, size - half), half)


def _turned(xy: Float[Array, "N 2"], angle: Float[Array, ""]) -> Float[Array, "N 2"]:
    x, y = xy[:, 0], xy[:, 1]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([cosine * x - sine * y, sine * x + cosine * y], axis=1)
