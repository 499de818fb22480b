"""HPatches' three tasks on descriptors: patch verification, image matching, patch retrieval.

Two protocols are in use, and differ. "python" is the official Python evaluator: areas under the
precision–recall curve by trapezoids; in verification a tie ranks negatives first; retrieval in
pools of 100 to 20,000 patches. "matlab" is the official MATLAB code: precision averaged over the
positives; a tie ranks positives first; retrieval among the first 2000 distractors; matching
averaged over illumination and viewpoint sequences apart. Both follow from the ranks of positives
alone, so that what lies between them is counted, not sorted.

Ties are exact, whatever the device: distances that decide ranks in matching and retrieval are
computed in double precision, and those that rounding cannot tell apart count as equal.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Float64, Int32, Integer
from tqdm import tqdm

from kjax.errors import InputError, unknown_name
from kjax.eval.hpatches.descriptors import SetDescriptors
from kjax.eval.hpatches.distances import (
    PAIRS_IN_BLOCK,
    count_closer,
    double,
    nearest,
    pair_distances,
)
from kjax.eval.hpatches.tasks import TARGETS, Pairs, Tasks, VerificationTask
from kjax.eval.results import LEVELS, NEGATIVES, HPatchesScores
from kjax.model.kernels.group_minima import Metric
from kjax.model.nearest import Neighbours

PROTOCOLS = ("python", "matlab")
DISTANCES = ("L2", "L1")
POOLS = {"python": (100, 500, 1000, 5000, 10000, 15000, 20000), "matlab": (2000, 20000)}
"""Sizes of the pools that retrieval looks in. Python: patches, the five to find among them; MATLAB:
distractors of the file, of which those in the query's own sequence then fall away."""
HEADLINE_POOL = {"python": 20000, "matlab": 2000}
"""The pool of each evaluator by default. MATLAB's can be told to take the other one above."""
POSITIVES_PER_NEGATIVE = 0.2
"""Ratio of pairs in verification by average precision."""

_SMALL = 1e-10
"""The number for zero in a denominator, as in the official evaluators."""
PAIRS_AT_ONCE = 1 << 14
"""Pairs whose distances the device computes at a time."""
QUERIES_AT_ONCE = 32
"""Queries that look through their pool on the device at a time."""
_IN_FLIGHT = 4
"""Results that may be worked on at once: the device never waits for the host, nor fills up."""

Job = TypeVar("Job")


class Verification(NamedTuple):
    """One value per level (easy, hard, tough) and kind of negatives (intra, inter)."""

    average_precision: Float64[np.ndarray, "3 2"]
    auc: Float64[np.ndarray, "3 2"]


def evaluate(
    descriptors: SetDescriptors,
    tasks: Tasks,
    *,
    split: str,
    protocol: str = "python",
    distance: str = "L2",
    progress: bool = True,
) -> HPatchesScores:
    """All three tasks.

    Args:
        descriptors: of the tasks' sequences; others are ignored, so that one set serves all splits.
        tasks: of the split.
        split: its name, for the report.
        protocol: "python" or "matlab".
        distance: "L2" or "L1"; for bits, L1 is the Hamming distance.
        progress: whether to show bars.

    Raises:
        InputError: descriptors that are missing, too few or not finite; tasks without pairs,
            queries or distractors.
    """
    descriptors = descriptors.on_device()
    options: dict[str, Any] = {"protocol": protocol, "distance": distance, "progress": progress}
    verified = verification(descriptors, tasks, **options)
    matched = matching(descriptors, tasks, **options)
    retrieved = retrieval(descriptors, tasks, **options).mean(axis=0)
    by_level = _matching_by_level(matched, list(tasks.patches), protocol)
    headline = retrieved[:, POOLS[protocol].index(HEADLINE_POOL[protocol])]
    return HPatchesScores(
        protocol=protocol,
        split=split,
        tasks=tasks.origin,
        sequences=len(tasks.patches),
        verification=_by_level(verified.average_precision, NEGATIVES),
        verification_auc=_by_level(verified.auc, NEGATIVES),
        matching=dict(zip(LEVELS, by_level.tolist(), strict=True)),
        matching_by_sequence={
            name: dict(zip(LEVELS, values.tolist(), strict=True))
            for name, values in zip(tasks.patches, matched.mean(axis=2), strict=True)
        },
        retrieval=dict(zip(LEVELS, headline.tolist(), strict=True)),
        retrieval_by_pool=_by_level(retrieved, [str(size) for size in POOLS[protocol]]),
        verification_map=float(verified.average_precision.mean()),
        matching_map=float(by_level.mean()),
        retrieval_map=float(headline.mean()),
    )


def _by_level(
    values: Float64[np.ndarray, "levels kinds"], kinds: Iterable[str]
) -> dict[str, dict[str, float]]:
    return {
        level: dict(zip(kinds, row.tolist(), strict=True))
        for level, row in zip(LEVELS, values, strict=True)
    }


def _matching_by_level(
    precisions: Float64[np.ndarray, "sequences 3 5"], names: list[str], protocol: str
) -> Float64[np.ndarray, "3"]:
    """Means over sequences and images, for MATLAB within each category of sequences first."""
    categories = np.array([name[:2] if protocol == "matlab" else "" for name in names])
    groups = [precisions[categories == category] for category in np.unique(categories)]
    return np.mean([group.mean(axis=(0, 2)) for group in groups], axis=0)


# Verification


def verification(
    descriptors: SetDescriptors,
    tasks: Tasks,
    *,
    protocol: str = "python",
    distance: str = "L2",
    progress: bool = True,
    pairs_at_once: int = PAIRS_AT_ONCE,
) -> Verification:
    """Scores how well distances tell matching pairs from others.

    The average precision takes all negatives and a fifth as many positives, the first ones (at
    least one); the ROC area takes all. Arguments as in `evaluate`; `pairs_at_once` go through the
    device together.
    """
    _check(descriptors, tasks, protocol, distance)
    positives, *negatives = _all_pair_distances(
        descriptors.on_device(), tasks, distance, pairs_at_once, progress
    )

    def of_level(level: int) -> list[tuple[float, float]]:
        return [_verified(positives[level], others[level], protocol) for others in negatives]

    with ThreadPoolExecutor() as pool:  # sorting a million distances takes time
        values = np.array(list(pool.map(of_level, range(len(LEVELS)))))
    return Verification(values[..., 0], values[..., 1])


def _verified(
    positives: Float32[np.ndarray, " positives"],
    negatives: Float32[np.ndarray, " negatives"],
    protocol: str,
) -> tuple[float, float]:
    """Average precision and ROC area, from how many negatives rank before each positive."""
    # In a tie, the Python evaluator ranks negatives first and the MATLAB code positives.
    side: Any = "right" if protocol == "python" else "left"
    negatives = np.sort(negatives)
    first = np.sort(positives[: max(1, int(POSITIVES_PER_NEGATIVE * len(negatives)))])
    found = np.arange(1, len(first) + 1)
    retrieved = found + np.searchsorted(negatives, first, side)
    average_precision = _precision(found, retrieved, protocol).mean()
    before = np.searchsorted(negatives, np.sort(positives), side)
    return float(average_precision), float(1 - before.mean() / len(negatives))


def _all_pair_distances(
    descriptors: SetDescriptors, tasks: Tasks, distance: str, pairs_at_once: int, progress: bool
) -> list[Float32[np.ndarray, "3 pairs"]]:
    """Distances of positives, intra and inter negatives, at the three levels."""
    kinds = _kinds(tasks.verification)
    for kind, pairs in kinds.items():
        if not len(pairs):
            raise InputError(f"no {kind} pairs: verification needs matching pairs and others")
    listed = list(kinds.values())
    # The official files give one patch three partners: its descriptor then is read once.
    groups = [listed] if _same_first(listed) else [[pairs] for pairs in listed]
    table = _image_rows(descriptors, tasks)
    metric = _metric(descriptors, distance)
    return [
        distances
        for group in groups
        for distances in _group_distances(
            descriptors, table, group, metric, pairs_at_once, progress
        )
    ]


def _group_distances(
    descriptors: SetDescriptors,
    table: Int32[np.ndarray, "3 sequences images"],
    group: list[Pairs],
    metric: str,
    pairs_at_once: int,
    progress: bool,
) -> Float32[np.ndarray, "kinds 3 pairs"]:
    """Distances of pairs that share their first patches."""
    count = len(group[0])
    parts = -(-count // pairs_at_once)
    size = -(-count // (parts * PAIRS_IN_BLOCK)) * PAIRS_IN_BLOCK

    def dispatch(job: tuple[int, int]) -> Array:
        level, start = job
        first = _places(table[level], group[0], 0, start, size)
        second = [_places(table[level], pairs, 1, start, size) for pairs in group]
        return pair_distances(descriptors.rows, first, np.stack(second, axis=1), distance=metric)

    distances = np.empty((len(group), len(LEVELS), count), np.float32)
    jobs = [(level, start) for start in range(0, count, size) for level in range(len(LEVELS))]
    for (level, start), blocks in _computed(dispatch, jobs, "verification", progress):
        block = np.moveaxis(np.asarray(blocks), 1, 0).reshape(len(group), -1)
        distances[:, level, start : start + size] = block[:, : count - start]
    return distances


def _places(
    table: Int32[np.ndarray, "sequences images"], pairs: Pairs, side: int, start: int, size: int
) -> Int32[np.ndarray, "blocks block"]:
    """Rows of one side of `size` pairs, with row 0 where there are no more."""
    part = slice(start, start + size)
    sequence, image = pairs.sequence[part, side], pairs.image[part, side]
    places = table[sequence, image] + pairs.patch[part, side]
    return np.pad(places, (0, size - len(places))).reshape(-1, PAIRS_IN_BLOCK)


def _kinds(task: VerificationTask) -> dict[str, Pairs]:
    return {"matching": task.positives, "intra": task.intra, "inter": task.inter}


def _same_first(kinds: list[Pairs]) -> bool:
    one = kinds[0]
    return all(
        np.array_equal(one.patch[:, 0], other.patch[:, 0])
        and np.array_equal(one.image[:, 0], other.image[:, 0])
        and np.array_equal(one.sequence[:, 0], other.sequence[:, 0])
        for other in kinds[1:]
    )


# Matching


def matching(
    descriptors: SetDescriptors,
    tasks: Tasks,
    *,
    protocol: str = "python",
    distance: str = "L2",
    progress: bool = True,
) -> Float64[np.ndarray, "sequences 3 5"]:
    """Finds reference patches in the five other images, by nearest neighbours.

    Arguments as in `evaluate`.

    Returns:
        Average precision of each sequence, in the tasks' order, level and image.
    """
    _check(descriptors, tasks, protocol, distance)
    descriptors = descriptors.on_device()
    rows, metric = jnp.asarray(descriptors.rows), _metric(descriptors, distance)

    def dispatch(name: str) -> Neighbours:
        start, count = descriptors.starts[name], tasks.patches[name]
        return nearest(rows, start, count, images=TARGETS * len(LEVELS), distance=metric)

    precisions = [
        matched_precision(found.place, found.nearest, protocol).reshape(len(LEVELS), TARGETS)
        for _, found in _computed(dispatch, tasks.patches, "matching", progress)
    ]
    return np.stack(precisions)


def matched_precision(
    index: Integer[np.ndarray, "images n"],
    distances: Float64[np.ndarray, "images n"],
    protocol: str,
) -> Float64[np.ndarray, " images"]:
    """Average precision when the closest pairs are accepted first, of n pairs to find.

    Args:
        index: of each reference patch's nearest patch; its own number, if that is the right one.
        distances: to it.
        protocol: "python" or "matlab".
    """
    # Stable: in a tie, what comes first in the file is accepted first.
    order = np.argsort(distances, axis=1, kind="stable")
    count = distances.shape[1]
    hits = np.take_along_axis(index == np.arange(count)[None, :], order, axis=1)
    retrieved = np.broadcast_to(np.arange(1, count + 1), hits.shape)
    precision = _precision(np.cumsum(hits, axis=1), retrieved, protocol)
    return np.where(hits, precision, 0).sum(axis=1) / count


# Retrieval


def retrieval(
    descriptors: SetDescriptors,
    tasks: Tasks,
    *,
    protocol: str = "python",
    distance: str = "L2",
    progress: bool = True,
    pools: Sequence[int] | None = None,
    queries_at_once: int = QUERIES_AT_ONCE,
) -> Float64[np.ndarray, "queries 3 pools"]:
    """Looks for a reference patch's five targets among the distractors.

    Arguments as in `evaluate`; `pools` are other sizes than `POOLS[protocol]`, in their order, and
    `queries_at_once` go through the device together.

    Returns:
        Average precision of each query, level, and pool. A pool that asks for more distractors than
        there are takes all.
    """
    _check(descriptors, tasks, protocol, distance)
    if not len(tasks.retrieval.queries):
        raise InputError("no queries: retrieval has nothing to look for")
    lengths = _pool_parts(len(tasks.retrieval.distractors), pools or POOLS[protocol], protocol)
    closer = _closer_than_targets(
        descriptors.on_device(), tasks, lengths, queries_at_once, protocol, distance, progress
    )
    # Distances and these counts grow together: no need to know which target is which.
    before = np.sort(np.cumsum(closer, axis=2), axis=3)
    found = np.broadcast_to(np.arange(1, TARGETS + 1), before.shape)
    return _precision(found, found + before, protocol).mean(axis=3)


def _closer_than_targets(
    descriptors: SetDescriptors,
    tasks: Tasks,
    lengths: tuple[int, ...],
    queries_at_once: int,
    protocol: str,
    distance: str,
    progress: bool,
) -> Int32[np.ndarray, "queries 3 parts 5"]:
    """How many distractors, of each part of the pool, are closer to a query than its targets."""
    table, metric = _image_rows(descriptors, tasks), _metric(descriptors, distance)
    queries = tasks.retrieval.queries
    pools = {
        sequence: jnp.asarray(_pool(tasks, sequence, sum(lengths), protocol))
        for sequence in np.unique(queries.sequence).tolist()
    }
    distractors = tasks.retrieval.distractors
    with jax.enable_x64(True):
        others = double(descriptors.rows, table[0, distractors.sequence, 0] + distractors.patch)

    def dispatch(chosen: Integer[np.ndarray, " chosen"]) -> Array:
        # Filled up with the last query, to one shape.
        filled = np.pad(chosen, (0, queries_at_once - len(chosen)), mode="edge")
        sequence, patch = queries.sequence[filled], queries.patch[filled]
        images = np.moveaxis(table[:, sequence], 1, 2) + patch[None, None, :]
        targets = images[:, 1:].reshape(-1, len(filled))
        pool = pools[int(sequence[0])]
        with jax.enable_x64(True):
            return count_closer(
                *(descriptors.rows, images[0, 0], targets, others, pool),
                lengths=lengths,
                distance=metric,
            )

    closer = np.empty((len(queries), len(LEVELS), len(lengths), TARGETS), np.int32)
    blocks = _query_blocks(tasks, queries_at_once)
    for chosen, counts in _computed(dispatch, blocks, "retrieval", progress):
        by_target = np.asarray(counts).reshape(len(LEVELS), TARGETS, len(lengths), -1)
        closer[chosen] = by_target.transpose(3, 0, 2, 1)[: len(chosen)]
    return closer


def _query_blocks(tasks: Tasks, most: int) -> list[Integer[np.ndarray, " chosen"]]:
    """Queries of one sequence at a time, which share their pool."""
    sequences = tasks.retrieval.queries.sequence
    blocks = []
    for sequence in np.unique(sequences):
        of_sequence = np.flatnonzero(sequences == sequence)
        starts = range(0, len(of_sequence), most)
        blocks += [of_sequence[start : start + most] for start in starts]
    return blocks


def _pool_parts(distractors: int, pools: Sequence[int], protocol: str) -> tuple[int, ...]:
    """How many distractors each pool has beyond the one before."""
    sizes = np.array(pools) - (TARGETS if protocol == "python" else 0)
    return tuple(np.diff(np.minimum(sizes, distractors), prepend=0).tolist())


def _pool(tasks: Tasks, sequence: int, size: int, protocol: str) -> Int32[np.ndarray, " {size}"]:
    """The distractors for queries of one sequence, in order, and -1 where there is none."""
    of_others = tasks.retrieval.distractors.sequence != sequence
    if not of_others[:size].any():
        raise InputError(
            f"{list(tasks.patches)[sequence]} has queries, but no other sequence has distractors: "
            "retrieval needs two sequences or more"
        )
    places = np.arange(len(of_others), dtype=np.int32)
    if protocol == "matlab":
        return np.where(of_others, places, -1)[:size]
    kept = places[of_others][:size]
    return np.pad(kept, (0, size - len(kept)), constant_values=-1)


# Parts that tasks share


def _precision(
    found: Integer[np.ndarray, "*ranks"], retrieved: Integer[np.ndarray, "*ranks"], protocol: str
) -> Float64[np.ndarray, "*ranks"]:
    """What each positive adds to average precision, times the number of positives.

    Args:
        found: positives retrieved so far, with this one.
        retrieved: all that is retrieved so far.
        protocol: "matlab": the precision at the positive. "python": its mean with the precision
            just before, which is the trapezoid under the curve and counts as 1 at the start.
    """
    after = found / retrieved
    if protocol == "matlab":
        return after
    before = np.maximum(found - 1, _SMALL) / np.maximum(retrieved - 1, _SMALL)
    return (before + after) / 2


def _check(descriptors: SetDescriptors, tasks: Tasks, protocol: str, distance: str) -> None:
    for kind, name, known in (
        ("protocol", protocol, PROTOCOLS),
        ("distance", distance, DISTANCES),
    ):
        if name not in known:
            raise unknown_name(kind, name, known)
    if not tasks.patches:
        raise InputError("the split has no sequences: there is nothing to evaluate")
    for name, count in tasks.patches.items():
        if name not in descriptors.patches:
            raise InputError(f"no descriptors of {name}, which the tasks ask for: describe it too")
        if descriptors.patches[name] != count:
            raise InputError(
                f"{name} has descriptors of {descriptors.patches[name]} patches, but the tasks are "
                f"for {count}: describe the patches that the tasks were made for"
            )
    if descriptors.not_finite:
        raise InputError(
            f"{descriptors.not_finite} of {len(descriptors.rows)} descriptors hold NaN or an "
            "infinity, which no distance ranks: check the model or the export"
        )


def _metric(descriptors: SetDescriptors, distance: str) -> Metric:
    """The distance to compute: between bits, L1 is the square of L2, which is a matrix product."""
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
    """Jobs with their results, in order; a few run at once, or ahead on the device.

    In threads, since XLA runs a small program on one core of a CPU.
    """
    jobs = list(jobs)
    workers = min(_IN_FLIGHT, os.cpu_count() or 1)
    pending: deque[tuple[Job, Future[Any]]] = deque()
    with (
        ThreadPoolExecutor(workers) as pool,
        tqdm(total=len(jobs), desc=name, disable=not progress) as bar,
    ):
        for place in range(len(jobs) + workers):
            if place < len(jobs):
                call = pool.submit(lambda job: jax.block_until_ready(dispatch(job)), jobs[place])
                pending.append((jobs[place], call))
            if place >= workers:
                job, call = pending.popleft()
                yield job, call.result()
                bar.update()
