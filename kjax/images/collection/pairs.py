"""Choose the pairs of images to match: all, neighbours in order or space, or by retrieval.

Retrieval uses VLAD (Jégou et al., 2010): k-means clusters are learned from the collection itself,
and an image's vector sums, per cluster, the differences between its descriptors and the nearest
centre. Each cluster's part is normalised, so that repeated structures do not dominate
(Arandjelović and Zisserman, 2013).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, Int
from tqdm import tqdm

from kjax.errors import InputError
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.photographs import CollectionPhoto, FeatureFiles
from kjax.images.features import unit_rows

PairSelection = Literal["auto", "exhaustive", "retrieval", "sequential", "spatial"]
Indices = tuple[int, int]
"""Two images of a collection, in order."""
SIDE = 16
"""Maximum number of images on either side of a block of pairs."""
ROWS = 256
"""Images compared with all others at once."""
CLUSTERS = 64
SAMPLED = 50_000
"""Descriptors of the whole collection used for clustering."""
WIDER = 4
"""Nearest images among which pairs are chosen, over the neighbours wanted."""
ITERATIONS = 15
SEED = 0
AT_ONCE = 16
"""Images whose descriptors are sent to another machine together."""


def choose_pairs(
    photographs: Sequence[CollectionPhoto],
    files: FeatureFiles,
    selection: PairSelection,
    neighbours: int,
    engine: Engine = HERE,
) -> list[Indices]:
    """Return the pairs to match; "auto" means retrieval if that gives fewer than all pairs."""
    count = len(photographs)
    match selection:
        case "sequential":
            return sequential(count, neighbours)
        case "spatial":
            return spatial([one.position for one in photographs], neighbours)
        case "auto" | "retrieval" if selection == "retrieval" or count > 2 * neighbours + 1:
            return most_similar(aggregate(photographs, files, engine), neighbours)
        case _:
            return exhaustive(count)


def exhaustive(count: int) -> list[Indices]:
    """Return all pairs."""
    return list(itertools.combinations(range(count), 2))


def sequential(count: int, neighbours: int) -> list[Indices]:
    """Pair each image with those that follow it."""
    return [(i, j) for i in range(count) for j in range(i + 1, min(i + 1 + neighbours, count))]


def spatial(positions: Sequence[Float[np.ndarray, "3"] | None], neighbours: int) -> list[Indices]:
    """Pair each image with those taken nearest to it."""
    known = [position for position in positions if position is not None]
    if missing := len(positions) - len(known):
        images = f"{missing} of {len(positions)} images"
        raise InputError(f"{images} have no GPS position: use --pairs retrieval")
    xyz = np.stack(known)
    order, _ = _nearest(xyz, neighbours, lambda rows: np.linalg.norm(rows[:, None] - xyz, axis=-1))
    return sorted(set(_pairs(order)))


def most_similar(vectors: Float[np.ndarray, "N D"], neighbours: int) -> list[Indices]:
    """Pair images with large dot products of their vectors, each with `neighbours` on average.

    There are as many pairs as if each image had its nearest ones. Each gets a quarter of them; the
    other pairs are the most similar ones of all, since some images overlap far more than others.
    """
    order, distances = _nearest(vectors, WIDER * neighbours, lambda rows: -(rows @ vectors.T))
    wanted = len(set(_pairs(order[:, :neighbours])))
    certain, every = _pairs(order[:, : math.ceil(neighbours / 4)]), _pairs(order)
    ranked = (every[place] for place in np.argsort(distances, axis=None, kind="stable"))
    return sorted(list(dict.fromkeys([*certain, *ranked]))[:wanted])


def _pairs(order: Int[np.ndarray, "N most"]) -> list[Indices]:
    """Return the pairs of images and others, in order; some occur twice."""
    return [(min(i, j), max(i, j)) for i, row in enumerate(order.tolist()) for j in row]


def _nearest(
    rows: np.ndarray, most: int, distances: Callable[[np.ndarray], np.ndarray]
) -> tuple[Int[np.ndarray, "N most"], Float[np.ndarray, "N most"]]:
    """Return the nearest others of each image and their distances, given from some rows to all."""
    found = []
    for start in range(0, len(rows), ROWS):
        block = distances(rows[start : start + ROWS])
        block[np.arange(len(block)), start + np.arange(len(block))] = np.inf
        nearest = np.argsort(block, axis=1, kind="stable")[:, : min(most, len(rows) - 1)]
        found.append((nearest, np.take_along_axis(block, nearest, axis=1)))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def in_blocks(pairs: Iterable[Indices], most: int) -> Iterator[list[Indices]]:
    """Yield all pairs in blocks of few images and at most `most` pairs."""

    def tile(pair: Indices) -> Indices:
        return pair[0] // SIDE, pair[1] // SIDE

    for _, same in itertools.groupby(sorted(pairs, key=lambda pair: (tile(pair), pair)), tile):
        block = list(same)
        yield from (block[at : at + most] for at in range(0, len(block), most))


def renumbered(block: Sequence[Indices]) -> tuple[list[int], list[Indices]]:
    """Return the images of some pairs, and the pairs as indices into these images."""
    used = sorted({index for pair in block for index in pair})
    return used, [(used.index(first), used.index(second)) for first, second in block]


def aggregate(
    photographs: Sequence[CollectionPhoto], files: FeatureFiles, engine: Engine = HERE
) -> Float32[np.ndarray, "N clusters_by_D"]:
    """Compute the unit vectors of images; images without keypoints have zero vectors."""

    def rows(photograph: CollectionPhoto) -> Float32[np.ndarray, "N D"]:
        return files.read(photograph).descriptors.astype(np.float32)

    samples, each = [], max(1, SAMPLED // len(photographs))
    for photograph in tqdm(photographs, desc="clustering", unit="photo"):
        # Evenly spaced, as keypoints are sorted by strength.
        all_rows = rows(photograph)
        spread = np.linspace(0, len(all_rows) - 1, min(each, len(all_rows)))
        samples.append(all_rows[spread.round().astype(int)])
    describe = functools.partial(vlad, centres=learn_centres(np.concatenate(samples)))
    items = ((rows(one),) for one in photographs)
    vectors = engine.map(describe, items, threads=1, shard=AT_ONCE)
    return np.stack(list(tqdm(vectors, "choosing pairs", len(photographs), unit="photo")))


def learn_centres(rows: Float32[np.ndarray, "N D"]) -> Float32[np.ndarray, "clusters D"]:
    """Compute k-means centres deterministically."""
    generator = np.random.default_rng(SEED)
    centres = rows[generator.choice(len(rows), min(CLUSTERS, len(rows)), replace=False)]
    for _ in range(ITERATIONS):
        nearest = nearest_centres(rows, centres)
        counts = np.bincount(nearest, minlength=len(centres))
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, rows)
        # Empty clusters keep their centres.
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        centres = centres.astype(np.float32)
    return centres


def nearest_centres(rows: np.ndarray, centres: np.ndarray) -> Int[np.ndarray, " N"]:
    """Return the index of the centre nearest to each row."""
    return np.argmax(rows @ centres.T - (centres**2).sum(axis=1) / 2, axis=1)


def vlad(
    rows: Float32[np.ndarray, "N D"], centres: Float32[np.ndarray, "clusters D"]
) -> Float32[np.ndarray, " clusters_by_D"]:
    """Compute the vector of one image from its descriptors."""
    nearest = nearest_centres(rows, centres)
    sums = np.zeros_like(centres)
    np.add.at(sums, nearest, rows - centres[nearest])
    return unit_rows(unit_rows(sums).reshape(1, -1))[0]
