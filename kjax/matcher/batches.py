"""Pairs of views for a training step, drawn on the device.

Two views of a group show a common point, about which each is cropped: they overlap in part, as real
photographs do. Some of a crop's keypoints are taken, mostly the most repeatable ones, or the
largest. No pixel is touched: all of this is a choice of keypoints. Positions and angles are also
rotated, which does not change the matches.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Key

from kjax.errors import InputError
from kjax.matcher.assignment import Seen, Truth, find_truth, project
from kjax.matcher.network import MatcherInput
from kjax.matcher.view_set import ViewSet


@dataclasses.dataclass(frozen=True)
class DrawConfig:
    """How pairs are drawn.

    Attributes:
        keypoints: maximum keypoints per view.
        least_keypoints: lowest maximum; each pair draws its own.
        least_crop: minimum side of a crop over that of the view.
        whole_share: fraction of views that are not cropped.
        largest_share: fraction of pairs with the largest keypoints instead of the most repeatable.
        rank_noise: σ of the log rank, by which weaker keypoints are taken, too.
        upright_share: fraction of pairs that are near-upright; others are rotated uniformly.
        tilt_degrees: σ of the tilt of near-upright views.
        zoom_noise: σ of the log of the image side that positions are measured in.
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
    """A `ViewSet` on the device, with what is computed once."""

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
    """Cumulative probabilities of the groups; None if they are equal."""


def to_device(views: ViewSet) -> DeviceViews:
    """Copy a set to the device."""
    ranks = np.argsort(np.argsort(-views.scales, axis=-1, kind="stable"), axis=-1)
    columns = {name: jnp.asarray(getattr(views, name)) for name in DeviceViews._fields[:-2]}
    chances = views.chances
    return DeviceViews(
        **columns,
        ranks_by_size=jnp.asarray(ranks, jnp.int32),
        up_to=None if chances is None else jnp.asarray(np.cumsum(chances / chances.sum())),
    )


class Batch(NamedTuple):
    """Pairs for the network, and their true matches."""

    points: MatcherInput
    truth: Truth


def draw_batch(
    key: Key[Array, ""],
    views: DeviceViews,
    *,
    pairs: int,
    config: DrawConfig,
    by_lines: bool = False,
) -> Batch:
    """Draw a batch, a function of the key alone; `by_lines`: see `find_truth`."""

    def draw_pair(key: Key[Array, ""]) -> tuple[Seen, MatcherInput]:
        """Draw keypoints of two views of a group: in pixels, and as the network takes them."""
        groups, several = views.counts.shape
        which, one, two, anchor, ordering, amount, upright, left, right = jax.random.split(key, 9)
        if views.up_to is None:
            group = jax.random.randint(which, (), 0, groups)
        else:
            # The last sum may be just below 1, by rounding.
            place = jnp.searchsorted(views.up_to, jax.random.uniform(which), side="right")
            group = jnp.minimum(place, groups - 1).astype(jnp.int32)
        first = jax.random.randint(one, (), 0, several)
        second = (first + jax.random.randint(two, (), 1, several)) % several
        # Of the descriptors, only the chosen ones are fetched.
        light = views._replace(descriptors=views.counts, up_to=None)
        sides = [jax.tree.map(lambda leaf, i=i: leaf[group, i], light) for i in (first, second)]
        by_size = jax.random.uniform(ordering) < config.largest_share
        most = jax.random.randint(amount, (), config.least_keypoints, config.keypoints + 1)
        is_upright = jax.random.uniform(upright) < config.upright_share

        def choose(
            key: Key[Array, ""], view: DeviceViews, seen: Float[Array, "2"]
        ) -> tuple[Array, ...]:
            """Crop a view about a point; return the chosen keypoints' columns and their number."""
            crop, noise, turn, zoom = jax.random.split(key, 4)
            crop, whole, place = jax.random.split(crop, 3)
            size = view.sizes.astype(jnp.float32)
            share = jax.random.uniform(crop, (2,), minval=config.least_crop, maxval=1.0)
            share = jnp.where(jax.random.uniform(whole) < config.whole_share, 1.0, share)
            half = share * size / 2
            middle = seen + half * jax.random.uniform(place, (2,), minval=-1.0, maxval=1.0)
            middle = jnp.clip(middle, half, size - half)
            room = view.xy.shape[0]
            ranks = jnp.where(by_size, view.ranks_by_size, jnp.arange(room))
            noisy = jnp.log1p(ranks) + config.rank_noise * jax.random.normal(noise, (room,))
            inside = (jnp.abs(view.xy - middle[None]) <= half[None]).all(axis=-1)
            there = inside & (jnp.arange(room) < view.counts)
            best, chosen = jax.lax.top_k(jnp.where(there, -noisy, -jnp.inf), config.keypoints)
            found = jnp.minimum(jnp.isfinite(best).sum(dtype=jnp.int32), most)
            # Rotate near-upright or uniformly; not at all if keypoints have no angles.
            tilt = jnp.deg2rad(config.tilt_degrees) * jax.random.normal(turn)
            uniform = jax.random.uniform(turn, minval=-jnp.pi, maxval=jnp.pi)
            angle = jnp.where(is_upright, tilt - view.turns, uniform)
            angle = jnp.where(jnp.isnan(view.turns), 0.0, angle)
            unit = half.max() * jnp.exp(config.zoom_noise * jax.random.normal(zoom))
            xy = view.xy[chosen]
            x, y = (xy - middle[None]).T
            cosine, sine = jnp.cos(angle), jnp.sin(angle)
            rotated = jnp.stack([cosine * x - sine * y, sine * x + cosine * y], axis=1)
            log_scales = jnp.log(view.scales[chosen] / unit)
            angles = view.angles[chosen] + angle
            return chosen, xy, view.places[chosen], rotated / unit, log_scales, angles, found

        # A point that a keypoint of the first view sees, in both; if the second sees none of them,
        # any keypoint of the first, and any position in the second.
        one_view, other_view = sides
        there = project(other_view.cameras[None], one_view.places[None])[0]
        shown = ((there >= 0) & (there < other_view.sizes[None])).all(axis=-1)
        exists = jnp.arange(len(there)) < one_view.counts
        chance = jax.random.uniform(anchor, (len(there),))
        place = jnp.argmax(jnp.where(exists, chance + (shown & exists), -1.0))
        whole = other_view.sizes.astype(jnp.float32)
        other = jnp.where(shown[place], there[place], whole * chance[:2])
        middles = one_view.xy[place], other
        chosen = [choose(*one) for one in zip((left, right), sides, middles, strict=True)]
        rows, xy, places, *columns, found = (
            jnp.stack(column) for column in zip(*chosen, strict=True)
        )
        descriptors = jnp.stack(
            [views.descriptors[group, view, rows[i]] for i, view in enumerate((first, second))]
        )
        points = MatcherInput(*[*columns, descriptors.astype(jnp.float32), found])
        return Seen(xy, places, jnp.stack([side.cameras for side in sides])), points

    seen, points = jax.vmap(draw_pair)(jax.random.split(key, pairs))
    truth = find_truth(seen, points.descriptors, points.counts, by_lines=by_lines)
    return Batch(points, truth)
