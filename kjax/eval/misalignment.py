"""Matching of misaligned patches: how much misalignment a descriptor tolerates.

Points of a set in the PhotoTourism format become a sequence in the sense of HPatches: a reference
patch of each point, and targets that are jittered crops of another patch of the same point. The
descriptor has to find every point among all others by its nearest neighbour. The score is HPatches'
average precision (its Python rule). The reference shows the middle of the stored patch, so that a
target can turn, move or grow without leaving its own.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, UInt8

from kjax.data.hpatches import NOISE, Noise
from kjax.data.phototour import PatchSet
from kjax.data.sampler import make_point_table
from kjax.eval.entries import model_describer
from kjax.eval.hpatches.descriptors import nearest
from kjax.eval.hpatches.protocol import matched_precision
from kjax.model.patches import to_pixels, warp_patch
from kjax.weights.source import LoadedModel

SHARE = 0.5
"""Fraction of the stored patch's side that a reference shows. A target that is turned by 45°, twice
as large, or moved by half its side still fits."""
TARGETS_PER_LEVEL = 5
HELD_OUT = 8
"""One of this many points is held out in `describe_misaligned`."""
_PATCHES_AT_ONCE = 4096

Maps = Float64[np.ndarray, "n 2 3"]
"""Affine maps of the square [−1, 1]²: where a target's pixels look, in half sides of the
reference."""


@dataclasses.dataclass(frozen=True)
class MatchingSet:
    """Patches to describe: group after group; in each, its references, then target after target.

    `groups` holds the number of points in each. `names` are those of the targets of every group;
    scores of equal names are averaged.
    """

    patches: UInt8[np.ndarray, "patches N N"]
    groups: tuple[int, ...]
    names: tuple[str, ...]


def noisy_set(
    patch_set: PatchSet, *, size: int, points: int = 2000, group: int = 1000, seed: int = 0
) -> MatchingSet:
    """Make targets with HPatches' three levels of noise, five of each; named after the level."""
    names = tuple(level for level in NOISE for _ in range(TARGETS_PER_LEVEL))

    def draw(name: str, count: int, rng: np.random.Generator) -> Maps:
        return random_maps(NOISE[name], count, rng)

    return make_set(patch_set, names, draw, size=size, points=points, group=group, seed=seed)


def make_set(
    patch_set: PatchSet,
    names: tuple[str, ...],
    draw: Callable[[str, int, np.random.Generator], Maps],
    *,
    size: int,
    points: int = 2000,
    group: int = 1000,
    seed: int = 0,
) -> MatchingSet:
    """Draw points and patches, and for every name the maps of its targets by `draw`.

    `size` is the side of the patches that the descriptor sees, `points` the maximum number of
    points, `group` the number of points that compete with each other.
    """
    rng = np.random.default_rng(seed)
    table = make_point_table(patch_set.point_ids)
    chosen = rng.permutation(len(table.starts))[:points]
    parts, groups = [], []
    for first in range(0, len(chosen), group):
        members = chosen[first : first + group]
        starts, counts = (np.asarray(each)[members] for each in (table.starts, table.counts))
        # A reference patch per point, and for each target another patch of the same point.
        reference = rng.integers(0, counts)
        other = rng.integers(0, counts - 1, (len(names), len(counts)))
        other = other + (other >= reference[None, :])
        places = starts[None, :] + np.concatenate([reference[None, :], other])
        aligned = np.tile(np.eye(2, 3), (len(members), 1, 1))
        maps = np.stack([aligned, *(draw(name, len(members), rng) for name in names)])
        # From half sides of the reference to sides of the stored patch.
        centred = maps.reshape(-1, 2, 3) * np.array([SHARE, SHARE, SHARE / 2])[None, None, :]
        stored = patch_set.patches[np.asarray(table.patches)[places].reshape(-1)]
        at_once = min(_PATCHES_AT_ONCE, len(stored))
        for start in range(0, len(stored), at_once):
            block = np.minimum(np.arange(start, start + at_once), len(stored) - 1)
            warped = _warped(stored[block], centred[block].astype(np.float32), size=size)
            parts.append(np.asarray(warped)[: len(stored) - start])
        groups.append(len(members))
    return MatchingSet(np.concatenate(parts), tuple(groups), names)


@functools.partial(jax.jit, static_argnames="size")
def _warped(
    patches: UInt8[Array, "n side side"], maps: Float[Array, "n 2 3"], *, size: int
) -> UInt8[Array, "n {size} {size}"]:
    shape = (patches.shape[1], patches.shape[2])

    def warp(patch: Array, own: Array) -> Array:
        return warp_patch(patch, to_pixels(own, shape, size), size=size)

    return jnp.round(jax.vmap(warp)(patches, maps)).astype(jnp.uint8)


def random_maps(
    noise: Noise, count: int, rng: np.random.Generator
) -> Float64[np.ndarray, "{count} 2 3"]:
    """Draw misalignments with normally distributed rotation, translation, scale and stretch."""
    turn = rotations(rng.normal(0, np.deg2rad(noise.rotation), count))
    axes = rotations(rng.uniform(0, np.pi, count))
    scale, ratio = rng.normal(0, noise.scale, count), rng.normal(0, noise.ratio, count) / 2
    factors = 2.0 ** np.stack([scale + ratio, scale - ratio], axis=1)
    linear = turn @ (axes * factors[:, None, :]) @ axes.swapaxes(1, 2)
    shift = rng.normal(0, noise.translation, (count, 2, 1))
    return np.concatenate([linear, shift], axis=2)


def rotations(angles: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 2 2"]:
    """Rotation matrices by angles in radians."""
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)


def matching_scores(
    rows: Float32[Array, "patches dim"], matching_set: MatchingSet
) -> dict[str, float]:
    """Compute the average precision of descriptors, mean over groups, by name of the targets."""
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


# Refitting the last layer


def describe_misaligned(
    source: LoadedModel, sets: Sequence[PatchSet], *, points: int, progress: bool
) -> tuple[Float32[np.ndarray, "views seen dim"], Float32[np.ndarray, "views held dim"]]:
    """Describe patches with HPatches' noise: points to learn from, and points held out."""
    describe = model_describer(source.model, source.variables)
    views = []
    for one in sets:
        noisy = noisy_set(one, size=source.model.patch_size, points=points, group=points)
        rows = describe(noisy.patches, progress=progress)
        views.append(rows.reshape(1 + len(noisy.names), *noisy.groups, -1))
    described = np.concatenate(views, axis=1)
    held_out = np.arange(described.shape[1]) % HELD_OUT == 0
    return described[:, ~held_out], described[:, held_out]
