"""Matching when patches are not cut alike: how much of it a descriptor tolerates.

Points of a set in the PhotoTourism format become what HPatches calls a sequence: a reference patch
of each point, and targets in which another patch of the same point is cut askew. The descriptor
has to find every point among all others by its nearest neighbour; the score is HPatches' average
precision (its Python rule). The reference shows the middle of the stored patch, so that a target
can turn, move or grow without leaving its own.

Two uses: random misalignment as strong as HPatches' (`NOISE`) makes a validation set of any set of
patches; one kind at a time, in known amounts, shows what a descriptor owes to its coordinates.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int, UInt8

from kjax.data.hpatches import NOISE, Noise
from kjax.data.phototour import PatchSet
from kjax.data.sampler import make_point_table
from kjax.errors import InputError
from kjax.eval.hpatches.distances import nearest
from kjax.eval.hpatches.protocol import matched_precision
from kjax.model.patches import to_pixels, warp_patch

SHARE = 0.5
"""Share of the stored patch's side that a reference shows: turned by 45°, or twice as large, or
moved by half its side, a target still fits."""
KINDS = ("translation", "rotation", "scale")
_PATCHES_AT_ONCE = 4096

Maps = Float64[np.ndarray, "n 2 3"]


TARGETS_PER_LEVEL = 5


@dataclasses.dataclass(frozen=True)
class MatchingSet:
    """Patches to describe, and what they are.

    Attributes:
        patches: group after group; in each, its references, then its targets one after the other.
        groups: the number of points in each.
        names: of the targets, which every group has; several may share one, and are averaged.
    """

    patches: UInt8[np.ndarray, "patches N N"]
    groups: tuple[int, ...]
    names: tuple[str, ...]


def noisy_set(
    patch_set: PatchSet, *, size: int, points: int = 2000, group: int = 1000, seed: int = 0
) -> MatchingSet:
    """Targets with HPatches' three levels of noise, five of each; named after the level.

    Args:
        patch_set: the patches and their points.
        size: side of the patches that the descriptor sees.
        points: how many to draw; all, if the set has fewer.
        group: points that compete with each other.
        seed: of points, patches and noise.
    """
    names = tuple(level for level in NOISE for _ in range(TARGETS_PER_LEVEL))

    def draw(name: str, count: int, rng: np.random.Generator) -> Maps:
        return random_maps(NOISE[name], count, rng)

    return _make_set(patch_set, names, draw, size=size, points=points, group=group, seed=seed)


def controlled_set(
    patch_set: PatchSet,
    amounts: Mapping[str, Sequence[float]],
    *,
    size: int,
    points: int = 2000,
    group: int = 1000,
    seed: int = 0,
    share: float = SHARE,
) -> MatchingSet:
    """Targets with one kind of misalignment each, by a given amount; named "<kind>/<amount>".

    Args:
        patch_set: the patches and their points.
        amounts: by kind: translation in sides of the reference (in a random direction), rotation in
            degrees and scale as a binary logarithm (either way at random).
        size: side of the patches that the descriptor sees.
        points: how many to draw; all, if the set has fewer.
        group: points that compete with each other.
        seed: of points, patches, directions and signs.
        share: of the stored patch's side that a reference shows.
    """
    if unknown := set(amounts) - set(KINDS):
        raise InputError(f"misalignments are {', '.join(KINDS)}, not {', '.join(sorted(unknown))}")
    wanted = {f"{kind}/{amount:g}": (kind, amount) for kind in amounts for amount in amounts[kind]}

    def draw(name: str, count: int, rng: np.random.Generator) -> Maps:
        return known_maps(*wanted[name], count, rng)

    return _make_set(
        patch_set,
        tuple(wanted),
        draw,
        size=size,
        points=points,
        group=group,
        seed=seed,
        share=share,
    )


def matching_scores(
    rows: Float32[Array, "patches dim"], matching_set: MatchingSet
) -> dict[str, float]:
    """Average precision of descriptors, one per patch of the set; means over groups, by name."""
    mean = mean_precision(rows, matching_set.groups, targets=len(matching_set.names))
    names = np.array(matching_set.names)
    return {name: float(mean[names == name].mean()) for name in dict.fromkeys(matching_set.names)}


def mean_precision(
    rows: Float32[Array, "patches dim"], groups: Sequence[int], *, targets: int
) -> Float64[np.ndarray, " {targets}"]:
    """Average precision of descriptors in the order of `MatchingSet.patches`, mean over groups."""
    precisions, start = [], 0
    for count in groups:
        found = nearest(rows, start, count, images=targets, distance="L2")
        precisions.append(matched_precision(found.place, found.nearest, "python"))
        start += count * (1 + targets)
    return np.mean(precisions, axis=0)


# Affine maps of the square [−1, 1]²: where a target's pixels look, in half sides of the reference.


def random_maps(
    noise: Noise, count: int, rng: np.random.Generator
) -> Float64[np.ndarray, "{count} 2 3"]:
    """Misalignments with normally distributed turn, shift, scale and stretch."""
    turn = _turns(rng.normal(0, np.deg2rad(noise.rotation), count))
    axes = _turns(rng.uniform(0, np.pi, count))
    scale, ratio = rng.normal(0, noise.scale, count), rng.normal(0, noise.ratio, count) / 2
    factors = 2.0 ** np.stack([scale + ratio, scale - ratio], axis=1)
    linear = turn @ (axes * factors[:, None, :]) @ axes.swapaxes(1, 2)
    shift = rng.normal(0, noise.translation, (count, 2, 1))
    return np.concatenate([linear, shift], axis=2)


def known_maps(
    kind: str, amount: float, count: int, rng: np.random.Generator
) -> Float64[np.ndarray, "{count} 2 3"]:
    """Misalignments of one kind by one amount; direction or sign at random."""
    maps = np.tile(np.eye(2, 3), (count, 1, 1))
    sign = rng.choice([-1.0, 1.0], count)
    if kind == "rotation":
        maps[:, :, :2] = _turns(sign * np.deg2rad(amount))
    elif kind == "scale":
        maps[:, :, :2] *= (2.0 ** (sign * amount))[:, None, None]
    else:
        direction = rng.uniform(0, 2 * np.pi, count)
        # A side is two half sides.
        maps[:, :, 2] = 2 * amount * np.stack([np.cos(direction), np.sin(direction)], axis=1)
    return maps


def _turns(angles: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 2 2"]:
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)


# Sets


def _make_set(
    patch_set: PatchSet,
    names: tuple[str, ...],
    draw: Callable[[str, int, np.random.Generator], Maps],
    *,
    size: int,
    points: int,
    group: int,
    seed: int,
    share: float = SHARE,
) -> MatchingSet:
    """Draws points and patches, and for every name the maps of its targets."""
    rng = np.random.default_rng(seed)
    table = make_point_table(patch_set.point_ids)
    chosen = rng.permutation(len(table.starts))[:points]
    parts, groups = [], []
    for first in range(0, len(chosen), group):
        members = chosen[first : first + group]
        starts, counts = (np.asarray(each)[members] for each in (table.starts, table.counts))
        places = _draw_patches(starts, counts, len(names), rng)
        aligned = np.tile(np.eye(2, 3), (len(members), 1, 1))
        maps = np.stack([aligned, *(draw(name, len(members), rng) for name in names)])
        stored = patch_set.patches[np.asarray(table.patches)[places].reshape(-1)]
        parts.append(_cut(stored, maps.reshape(-1, 2, 3), size, share))
        groups.append(len(members))
    return MatchingSet(np.concatenate(parts), tuple(groups), names)


def _draw_patches(
    starts: Int[np.ndarray, " n"],
    counts: Int[np.ndarray, " n"],
    targets: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "images n"]:
    """A reference per point, and for each target another patch of the same point."""
    reference = rng.integers(0, counts)
    other = rng.integers(0, counts - 1, (targets, len(counts)))
    other = other + (other >= reference[None, :])
    return starts[None, :] + np.concatenate([reference[None, :], other])


def _cut(
    patches: UInt8[np.ndarray, "n side side"],
    maps: Float64[np.ndarray, "n 2 3"],
    size: int,
    share: float,
) -> UInt8[np.ndarray, "n {size} {size}"]:
    # From half sides of the reference to sides of the stored patch: a half side is share / 2 of it.
    centred = maps * np.array([share, share, share / 2])[None, None, :]
    cut = np.empty((len(patches), size, size), np.uint8)
    at_once = min(_PATCHES_AT_ONCE, len(patches))
    for start in range(0, len(patches), at_once):
        block = np.minimum(np.arange(start, start + at_once), len(patches) - 1)
        warped = _warped(patches[block], centred[block].astype(np.float32), size=size)
        kept = cut[start : start + at_once]
        kept[:] = np.asarray(warped)[: len(kept)]
    return cut


@functools.partial(jax.jit, static_argnames="size")
def _warped(
    patches: UInt8[Array, "n side side"], maps: Float[Array, "n 2 3"], *, size: int
) -> UInt8[Array, "n {size} {size}"]:
    shape = (patches.shape[1], patches.shape[2])

    def warp(patch: Array, own: Array) -> Array:
        return warp_patch(patch, to_pixels(own, shape, size), size=size)

    return jnp.round(jax.vmap(warp)(patches, maps)).astype(jnp.uint8)
