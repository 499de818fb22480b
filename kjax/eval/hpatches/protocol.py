"""The three HPatches tasks on descriptors: patch verification, image matching, patch retrieval.

Two protocols are in use, and differ. "python" is the official Python evaluator: areas under the
precision–recall curve by trapezoids; in verification a tie ranks negatives first; retrieval in
pools of 100 to 20,000 patches. "matlab" is the official MATLAB code: precision averaged over the
positives; a tie ranks positives first; retrieval among the first 2000 distractors; matching
averaged over illumination and viewpoint sequences apart. Both follow from the ranks of positives
alone, so negatives between them are counted, not sorted.

Ties are exact on every device: distances that decide ranks in matching and retrieval are computed
in double precision, and those that rounding cannot distinguish count as equal.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int32, Integer
from tqdm import tqdm

from kjax.errors import InputError
from kjax.eval.hpatches.descriptors import (
    PAIRS_IN_BLOCK,
    SetDescriptors,
    count_closer,
    in_double,
    nearest,
    pair_distances,
)
from kjax.eval.hpatches.scores import LEVELS, NEGATIVES, HPatchesScores
from kjax.eval.hpatches.tasks import TARGETS, Tasks
from kjax.model.kernels.group_minima import Metric
from kjax.model.nearest import Neighbours

POOLS = {"python": (100, 500, 1000, 5000, 10000, 15000, 20000), "matlab": (2000, 20000)}
"""Pool sizes in retrieval. Python: patches, the five targets among them; MATLAB: distractors of the
file, before those in the query's own sequence are dropped."""
HEADLINE_POOL = {"python": 20000, "matlab": 2000}
"""The default pool of each evaluator."""
POSITIVES_PER_NEGATIVE = 0.2
"""Ratio of pairs in verification by average precision."""

_SMALL = 1e-10
"""Replaces zero in a denominator, as in the official evaluators."""
PAIRS_AT_ONCE = 1 << 14
"""Number of pairs per call to the device."""
QUERIES_AT_ONCE = 32
"""Number of queries per call to the device."""
_IN_FLIGHT = 4
"""Maximum number of calls that run at the same time."""

Job = TypeVar("Job")


def evaluate(
    descriptors: SetDescriptors,
    tasks: Tasks,
    *,
    split: str,
    protocol: str = "python",
    distance: str = "L2",
    progress: bool = True,
) -> HPatchesScores:
    """Score all three tasks on a split; descriptors of other sequences are ignored.

    `protocol` is "python" or "matlab". `distance` is "L2" or "L1"; for bits, L1 is the Hamming
    distance.
    """
    descriptors = descriptors.on_device()
    options: dict[str, Any] = {"protocol": protocol, "distance": distance, "progress": progress}
    precision, area = verification(descriptors, tasks, **options)
    matched = matching(descriptors, tasks, **options)
    retrieved = retrieval(descriptors, tasks, **options).mean(axis=0)
    by_level = matching_by_level(matched, list(tasks.patches), protocol)
    headline = retrieved[:, POOLS[protocol].index(HEADLINE_POOL[protocol])]

    def per_level(values: Float64[np.ndarray, "levels kinds"], kinds: Sequence[str]) -> Any:
        rows = [dict(zip(kinds, row.tolist(), strict=True)) for row in values]
        return dict(zip(LEVELS, rows, strict=True))

    return HPatchesScores(
        protocol=protocol,
        split=split,
        tasks=tasks.origin,
        sequences=len(tasks.patches),
        verification=per_level(precision, NEGATIVES),
        verification_auc=per_level(area, NEGATIVES),
        matching=dict(zip(LEVELS, by_level.tolist(), strict=True)),
        matching_by_sequence={
            name: dict(zip(LEVELS, values.tolist(), strict=True))
            for name, values in zip(tasks.patches, matched.mean(axis=2), strict=True)
        },
        retrieval=dict(zip(LEVELS, headline.tolist(), strict=True)),
        retrieval_by_pool=per_level(retrieved, [str(size) for size in POOLS[protocol]]),
        verification_map=float(precision.mean()),
        matching_map=float(by_level.mean()),
        retrieval_map=float(headline.mean()),
    )


def matching_by_level(
    precisions: Float64[np.ndarray, "sequences 3 5"], names: list[str], protocol: str
) -> Float64[np.ndarray, "3"]:
    """Average over sequences and images, for MATLAB within each category of sequences first."""
    categories = np.array([name[:2] if protocol == "matlab" else "" for name in names])
    groups = [precisions[categories == category] for category in np.unique(categories)]
    return np.mean([group.mean(axis=(0, 2)) for group in groups], axis=0)


# Verification


def verification(
    descriptors: SetDescriptors, tasks: Tasks, *, protocol: str, distance: str, progress: bool
) -> Float64[np.ndarray, "2 3 2"]:
    """Score how well distances separate matching pairs from others; arguments as in `evaluate`.

    Returns average precision and ROC area, by level and kind of negatives. The former uses all
    negatives and a fifth as many positives, the first ones (at least one). The latter uses all.
    """
    metric = _check(descriptors, tasks, distance)
    kinds = {"matching": tasks.positives, "intra": tasks.intra, "inter": tasks.inter}
    for kind, pairs in kinds.items():
        if not len(pairs):
            raise InputError(f"no {kind} pairs: verification needs matching pairs and others")
    rows, table = jnp.asarray(descriptors.rows), _image_rows(descriptors, tasks)
    firsts, seconds = (
        [
            table[:, pairs.sequence[:, side], pairs.image[:, side]] + pairs.patch[None, :, side]
            for pairs in kinds.values()
        ]
        for side in (0, 1)
    )
    # The official files give one patch three partners: its descriptor is then read once.
    shared = all(np.array_equal(firsts[0], other) for other in firsts)
    first = firsts[0] if shared else np.concatenate(firsts, axis=1)
    second = np.stack(seconds) if shared else np.concatenate(seconds, axis=1)[None]
    count = first.shape[1]
    parts = -(-count // PAIRS_AT_ONCE)
    blocks = -(-count // (parts * PAIRS_IN_BLOCK))
    parts = -(-count // (blocks * PAIRS_IN_BLOCK))
    padding = ((0, 0), (0, 0), (0, parts * blocks * PAIRS_IN_BLOCK - count))  # with row 0
    places = np.pad(np.concatenate([first[None], second]), padding)
    places = places.reshape(-1, len(LEVELS), parts, blocks, PAIRS_IN_BLOCK)
    ones, others = places[0], np.moveaxis(places[1:], 0, 3)

    def dispatch(job: tuple[int, ...]) -> Array:
        return pair_distances(rows, ones[job], others[job], distance=metric)

    distances = np.empty(others.shape, np.float32)
    for job, found in _computed(dispatch, np.ndindex(ones.shape[:2]), "verification", progress):
        distances[job] = found
    apart = np.moveaxis(distances, 3, 0).reshape(len(second), len(LEVELS), -1)[..., :count]
    ends = np.cumsum([len(pairs) for pairs in kinds.values()])
    positives, *negatives = apart if shared else np.split(apart[0], ends[:-1], axis=1)
    # In a tie, the Python evaluator ranks negatives first and the MATLAB code positives.
    side: Any = "right" if protocol == "python" else "left"

    def scored(level: int) -> list[tuple[float, float]]:
        """Average precision and ROC area, from the ranks of positives among negatives."""
        scores = []
        for others in (np.sort(kind[level]) for kind in negatives):
            first = np.sort(positives[level][: max(1, int(POSITIVES_PER_NEGATIVE * len(others)))])
            found = np.arange(1, len(first) + 1)
            retrieved = found + np.searchsorted(others, first, side)
            before = np.searchsorted(others, np.sort(positives[level]), side)
            area = float(1 - before.mean() / len(others))
            scores.append((float(_precision(found, retrieved, protocol).mean()), area))
        return scores

    with ThreadPoolExecutor() as pool:  # sorting a million distances takes time
        values = np.array(list(pool.map(scored, range(len(LEVELS)))))
    return np.moveaxis(values, 2, 0)


# Matching


def matching(
    descriptors: SetDescriptors, tasks: Tasks, *, protocol: str, distance: str, progress: bool
) -> Float64[np.ndarray, "sequences 3 5"]:
    """Match reference patches with the five other images by nearest neighbours.

    Returns the average precision of each sequence, in the tasks' order, level and image.
    """
    metric = _check(descriptors, tasks, distance)
    rows = jnp.asarray(descriptors.rows)

    def dispatch(name: str) -> Neighbours:
        start, count = descriptors.starts[name], tasks.patches[name]
        return nearest(rows, start, count, images=TARGETS * len(LEVELS), distance=metric)

    found = _computed(dispatch, tasks.patches, "matching", progress)
    precisions = [matched_precision(one.place, one.nearest, protocol) for _, one in found]
    return np.stack(precisions).reshape(-1, len(LEVELS), TARGETS)


def matched_precision(
    index: Integer[np.ndarray, "images n"],
    distances: Float64[np.ndarray, "images n"],
    protocol: str,
) -> Float64[np.ndarray, " images"]:
    """Compute average precision when the closest pairs are accepted first.

    `index` is that of each reference patch's nearest patch: its own index if that is correct.
    """
    # Stable: in a tie, the first in the file is accepted first.
    order = np.argsort(distances, axis=1, kind="stable")
    count = distances.shape[1]
    hits = np.take_along_axis(index == np.arange(count)[None, :], order, axis=1)
    retrieved = np.broadcast_to(np.arange(1, count + 1), hits.shape)
    precision = _precision(np.cumsum(hits, axis=1), retrieved, protocol)
    return np.where(hits, precision, 0).sum(axis=1) / count


# Retrieval


def retrieval(
    descriptors: SetDescriptors, tasks: Tasks, *, protocol: str, distance: str, progress: bool
) -> Float64[np.ndarray, "queries 3 pools"]:
    """Look for a reference patch's five targets among the distractors.

    Returns the average precision of each query, level and pool. A pool with more distractors than
    there are uses all.
    """
    metric = _check(descriptors, tasks, distance)
    queries, distractors = tasks.queries, tasks.distractors
    if not len(queries):
        raise InputError("no queries: retrieval has nothing to look for")
    sizes = np.array(POOLS[protocol]) - (TARGETS if protocol == "python" else 0)
    # Number of distractors that each pool adds to the one before.
    lengths = tuple(np.diff(np.minimum(sizes, len(distractors)), prepend=0).tolist())
    rows, table = jnp.asarray(descriptors.rows), _image_rows(descriptors, tasks)
    pool_of: dict[int, Array] = {}  # the distractors for queries of one sequence, -1 for none
    for sequence in np.unique(queries.sequence).tolist():
        foreign, size = distractors.sequence != sequence, sum(lengths)
        if not foreign[:size].any():
            raise InputError(
                f"{list(tasks.patches)[sequence]} has queries, but no other sequence has "
                "distractors: retrieval needs two sequences or more"
            )
        pool = np.where(foreign, np.arange(len(foreign)), -1)
        if protocol == "python":  # the next foreign ones take the place of those dropped
            pool = pool[np.argsort(~foreign, kind="stable")]
        pool_of[sequence] = jnp.asarray(pool[:size].astype(np.int32))
    with jax.enable_x64(True):
        others = in_double(rows, table[0, distractors.sequence, 0] + distractors.patch)

    def dispatch(chosen: Integer[np.ndarray, " chosen"]) -> Array:
        # Padded with the last query, to one shape.
        filled = np.pad(chosen, (0, QUERIES_AT_ONCE - len(chosen)), mode="edge")
        sequence, patch = queries.sequence[filled], queries.patch[filled]
        images = np.moveaxis(table[:, sequence], 1, 2) + patch[None, None, :]
        targets = images[:, 1:].reshape(-1, len(filled))
        pool = pool_of[int(sequence[0])]
        with jax.enable_x64(True):
            return count_closer(
                rows, images[0, 0], targets, others, pool, lengths=lengths, distance=metric
            )

    blocks: list[np.ndarray] = []  # of queries of one sequence, which share their pool
    for own in pool_of:
        indices = np.flatnonzero(queries.sequence == own)
        blocks += np.split(indices, range(QUERIES_AT_ONCE, len(indices), QUERIES_AT_ONCE))
    closer = np.empty((len(queries), len(LEVELS), len(lengths), TARGETS), np.int32)
    for chosen, counts in _computed(dispatch, blocks, "retrieval", progress):
        by_target = np.asarray(counts).reshape(len(LEVELS), TARGETS, len(lengths), -1)
        closer[chosen] = by_target.transpose(3, 0, 2, 1)[: len(chosen)]
    # These counts and distances grow together, so it does not matter which target is which.
    before = np.sort(np.cumsum(closer, axis=2), axis=3)
    found = np.broadcast_to(np.arange(1, TARGETS + 1), before.shape)
    return _precision(found, found + before, protocol).mean(axis=3)


# Parts that tasks share


def _precision(
    found: Integer[np.ndarray, "*ranks"], retrieved: Integer[np.ndarray, "*ranks"], protocol: str
) -> Float64[np.ndarray, "*ranks"]:
    """Compute each positive's share of average precision, times the number of positives.

    MATLAB's is the precision at the positive. Python's is its mean with the precision just before,
    the trapezoid under the curve, where precision is 1 at the start. `found` are the positives, and
    `retrieved` all patches, up to and with this one.
    """
    after = found / retrieved
    if protocol == "matlab":
        return after
    before = np.maximum(found - 1, _SMALL) / np.maximum(retrieved - 1, _SMALL)
    return (before + after) / 2


def _check(descriptors: SetDescriptors, tasks: Tasks, distance: str) -> Metric:
    """Check that the descriptors are those of the tasks, and return the distance to compute."""
    for name, count in tasks.patches.items():
        if (described := descriptors.patches.get(name)) != count:
            raise InputError(
                f"{name} has {described or 'no'} descriptors per image, not {count}: describe the "
                "patches that the tasks were made for"
            )
    # Between bits, L1 is the square of L2, which is a matrix product.
    return "L1" if distance == "L1" and not descriptors.binary else "L2"


def _image_rows(
    descriptors: SetDescriptors, tasks: Tasks
) -> Int32[np.ndarray, "3 sequences images"]:
    """The row of the first patch, by level, sequence of the tasks, and image 0 to 5."""
    starts = np.array([descriptors.starts[name] for name in tasks.patches])
    counts = np.array(list(tasks.patches.values()))
    image = np.arange(1, len(LEVELS) * TARGETS + 1).reshape(len(LEVELS), TARGETS)
    image = np.concatenate([np.zeros((len(LEVELS), 1), image.dtype), image], axis=1)
    rows = starts[None, :, None] + image[:, None, :] * counts[None, :, None]
    return rows.astype(np.int32)


def _computed(
    dispatch: Callable[[Job], Any], jobs: Iterable[Job], name: str, progress: bool
) -> Iterator[tuple[Job, Any]]:
    """Yield jobs with their results, in order.

    A few run at once, in threads, since XLA runs a small program on one core of a CPU.
    """
    jobs = list(jobs)
    with ThreadPoolExecutor(min(_IN_FLIGHT, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda job: jax.block_until_ready(dispatch(job)), jobs)
        bar = tqdm(results, desc=name, total=len(jobs), disable=not progress)
        yield from zip(jobs, bar, strict=True)
