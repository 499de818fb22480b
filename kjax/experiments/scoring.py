"""Scores of trained models on everything there is to test, with the tests kept on the device."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, Integer, UInt8

from kjax.architecture import Descriptor
from kjax.augment import resize_patches
from kjax.data.hpatches import read_sequence
from kjax.data.phototour import PatchSet
from kjax.data.test_sets import TestSet
from kjax.errors import InputError
from kjax.eval.describe import in_flight, preferred_batch
from kjax.eval.hpatches import evaluate
from kjax.eval.hpatches_benchmark import Benchmark
from kjax.eval.hpatches_descriptors import SetDescriptors
from kjax.eval.hpatches_distances import PAIRS_IN_BLOCK, pair_distances
from kjax.eval.metrics import fpr_at_recall
from kjax.eval.misalignment import MatchingSet, controlled_set, matching_scores, noisy_set
from kjax.eval.results import LEVELS, HPatchesScores
from kjax.folding import fold

JITTER = {
    "translation": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25),
    "rotation": (0.0, 10.0, 20.0, 30.0, 40.0, 50.0),
    "scale": (0.0, 0.15, 0.3, 0.45, 0.6, 0.75),
}
"""Amounts of each misalignment whose effect is measured."""


@dataclasses.dataclass(frozen=True)
class Tests:
    """What models are tested on; each may be absent.

    Attributes:
        sets: of pairs, by the PhotoTourism protocol.
        benchmark: HPatches, or a folder in its format.
        validation: a set whose noisy matching decides between settings.
        jittered: a set on which the tolerance of misalignment is measured, noise and one by one.
    """

    sets: Sequence[TestSet] = ()
    benchmark: Benchmark | None = None
    validation: PatchSet | None = None
    jittered: PatchSet | None = None


class Scorer:
    """Scores models; patches are resized and placed once per patch size."""

    def __init__(self, tests: Tests) -> None:
        """Places nothing yet."""
        self._tests = tests
        self._placed: dict[tuple[str, int], UInt8[Array, "patches N N"]] = {}
        self._matching_sets: dict[tuple[str, int], MatchingSet] = {}

    def score(
        self, model: Descriptor, variables: Mapping[str, Any], *, trained_on: Sequence[str] = ()
    ) -> dict[str, float]:
        """All metrics, named as in `kjax.experiments.records`.

        Args:
            model: with BatchNorm.
            variables: its weights.
            trained_on: names of sets that it is not tested on.
        """
        # In float32 whatever it was trained in: that is how weights are used.
        folded, weights = fold(model.clone(dtype=jnp.float32, axis_name=None), variables)
        describe = functools.partial(describe_placed, folded, weights)
        tests, size = self._tests, model.patch_size
        scores = {
            f"fpr95/{test.patches.name}": self._false_positives(describe, test, size)
            for test in tests.sets
            if test.patches.name not in trained_on
        }
        if tests.validation is not None:
            scores |= self._noisy("validation", describe, tests.validation, size)
        jittered = tests.jittered
        if jittered is not None and jittered.name not in trained_on:
            found = matching_scores(*self._matched(describe, "jitter", jittered, size))
            scores |= {f"jitter/{name}": value for name, value in found.items()}
            scores |= self._noisy(f"noisy/{jittered.name}", describe, jittered, size)
        if tests.benchmark is not None:
            scores |= dict(self._on_benchmark(describe, tests.benchmark, size))
        return scores

    def warm_up(self, model: Descriptor, variables: Mapping[str, Any]) -> None:
        """Compiles the description."""
        folded, weights = fold(model.clone(dtype=jnp.float32, axis_name=None), variables)
        blank = jnp.zeros((preferred_batch(), model.patch_size, model.patch_size), jnp.uint8)
        jax.block_until_ready(_described(folded, weights, blank))

    def tested_pairs(self, trained_on: Sequence[str] = ()) -> dict[str, list[int]]:
        """Numbers of matching and of non-matching pairs, by test set."""
        return {
            test.patches.name: [int(test.pairs.matching.sum()), int((~test.pairs.matching).sum())]
            for test in self._tests.sets
            if test.patches.name not in trained_on
        }

    def _false_positives(self, describe: Any, test: TestSet, size: int) -> float:
        rows = describe(self._place(test.patches.name, test.patches.patches, size))
        first, second = (_in_blocks(side) for side in (test.pairs.first, test.pairs.second))
        distances = pair_distances(rows, first, second[:, None, :], distance="L2")
        count = len(test.pairs.matching)
        return fpr_at_recall(np.asarray(distances).reshape(-1)[:count], test.pairs.matching)

    def _noisy(self, name: str, describe: Any, patches: PatchSet, size: int) -> dict[str, float]:
        by_level = matching_scores(*self._matched(describe, name, patches, size))
        scores = {f"{name}/matching/{level}": value for level, value in by_level.items()}
        return {f"{name}/matching": float(np.mean(list(by_level.values())))} | scores

    def _matched(
        self, describe: Any, use: str, patches: PatchSet, size: int
    ) -> tuple[Float32[Array, "patches dim"], MatchingSet]:
        if (use, size) not in self._matching_sets:
            self._matching_sets[use, size] = (
                controlled_set(patches, JITTER, size=size)
                if use == "jitter"
                else noisy_set(patches, size=size)
            )
        matching_set = self._matching_sets[use, size]
        return describe(self._place(use, matching_set.patches, size)), matching_set

    def _on_benchmark(
        self, describe: Any, benchmark: Benchmark, size: int
    ) -> Iterable[tuple[str, float]]:
        for split in benchmark.splits:
            # Split by split: with long descriptors, those of all sequences may be too many.
            counts = split.tasks.patches
            parts = [describe(self._place_sequence(benchmark, name, size)) for name in counts]
            placed = SetDescriptors(dict(counts), jnp.concatenate(parts))
            for protocol in benchmark.protocols:
                scores = evaluate(
                    placed, split.tasks, split=split.name, protocol=protocol, progress=False
                )
                yield from hpatches_metrics(scores).items()

    def _place_sequence(
        self, benchmark: Benchmark, name: str, size: int
    ) -> UInt8[Array, "patches N N"]:
        key = (f"hpatches/{name}", size)
        if key not in self._placed:
            if benchmark.folder is None:
                raise InputError("a folder of descriptors has no patches to describe")
            images = read_sequence(benchmark.folder / name).patches
            self._placed[key] = _resized_to(images.reshape(-1, *images.shape[2:]), size)
        return self._placed[key]

    def _place(
        self, name: str, patches: UInt8[np.ndarray, "patches side side"], size: int
    ) -> UInt8[Array, "patches N N"]:
        if (name, size) not in self._placed:
            self._placed[name, size] = _resized_to(patches, size)
        return self._placed[name, size]


def _in_blocks(places: Integer[np.ndarray, " pairs"]) -> Int32[np.ndarray, "blocks block"]:
    filling = -len(places) % PAIRS_IN_BLOCK
    return np.pad(places, (0, filling)).astype(np.int32).reshape(-1, PAIRS_IN_BLOCK)


def hpatches_metrics(scores: HPatchesScores) -> dict[str, float]:
    """The headlines and levels of one split, by the names of metrics."""
    prefix = f"hpatches/{scores.split}/{scores.protocol}"
    found = {
        f"{prefix}/verification": scores.verification_map,
        f"{prefix}/matching": scores.matching_map,
        f"{prefix}/retrieval": scores.retrieval_map,
    }
    for level, name in LEVELS.items():
        found[f"{prefix}/verification/{name}"] = float(
            np.mean(list(scores.verification[level].values()))
        )
        found[f"{prefix}/matching/{name}"] = scores.matching[level]
        found[f"{prefix}/retrieval/{name}"] = scores.retrieval[level]
    return found


# Describing on the device


def describe_placed(
    model: Descriptor, weights: Any, patches: UInt8[Array, "patches N N"]
) -> Float32[Array, "patches dim"]:
    """Descriptors of patches that lie on the device, and stay there."""
    batch = preferred_batch()
    blocks = [
        _batch(patches, np.int32(start), size=batch) for start in range(0, len(patches), batch)
    ]
    with in_flight(functools.partial(_described, model, weights)) as begin:
        parts = [finish() for finish in [begin(block) for block in blocks]]
    return jnp.concatenate(parts)[: len(patches)]


@functools.partial(jax.jit, static_argnames="size")
def _batch(
    patches: UInt8[Array, "patches N N"], start: Array, *, size: int
) -> UInt8[Array, "batch N N"]:
    """Of one size, whatever there is: the network then compiles once for all test sets."""
    return patches[jnp.minimum(start + jnp.arange(size), patches.shape[0] - 1)]


@functools.partial(jax.jit, static_argnums=0)
def _described(
    model: Descriptor, weights: Any, patches: UInt8[Array, "batch N N"]
) -> Float32[Array, "batch dim"]:
    return jnp.asarray(model.apply(weights, patches.astype(jnp.float32)), jnp.float32)


def _resized_to(
    patches: UInt8[np.ndarray, "patches side side"], size: int
) -> UInt8[Array, "patches N N"]:
    """As HardNet resizes at test time, in batches."""
    if patches.shape[1:] == (size, size):
        return jnp.asarray(patches)
    batch = preferred_batch()
    parts = [
        _resized_batch(np.asarray(patches[start : start + batch]), size=size)
        for start in range(0, len(patches), batch)
    ]
    return jnp.concatenate(parts)


@functools.partial(jax.jit, static_argnames="size")
def _resized_batch(
    patches: UInt8[Array, "batch side side"], *, size: int
) -> UInt8[Array, "batch N N"]:
    return resize_patches(patches, size, rounded=True).astype(jnp.uint8)
