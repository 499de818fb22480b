"""Score trained models on several test sets, which stay in memory."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, UInt8

from kjax.data.phototour import PatchSet
from kjax.errors import check_name
from kjax.eval import misalignment
from kjax.eval.entries import Describe, Entry, model_describer
from kjax.eval.hpatches.tasks import Benchmark, read_sequences
from kjax.eval.misalignment import noisy_set
from kjax.eval.results import Curve, Histogram, Result
from kjax.eval.run import score
from kjax.model.describe import preferred_batch
from kjax.model.descriptor import Descriptor, parameter_count
from kjax.model.patches import resize_patches

JITTER = {
    "translation": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25),
    "rotation": (0.0, 10.0, 20.0, 30.0, 40.0, 50.0),
    "scale": (0.0, 0.15, 0.3, 0.45, 0.6, 0.75),
}
"""Amounts of each misalignment."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MisalignmentScores:
    """Matching of misaligned patches, as mean average precision."""

    test: str
    validation: bool
    """Whether the set selects settings rather than reports."""
    by_level: dict[str, float]
    """Under HPatches' levels of noise (easy, hard, tough)."""
    by_amount: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class SweepResult(Result):
    """A row of the tables, with scores of misaligned patches."""

    misaligned: list[MisalignmentScores] = dataclasses.field(default_factory=list)


def concise(result: Result, **changes: Any) -> SweepResult:
    """Drop curves, histograms and scores by sequence, to fit on one line of a file."""
    blank: Any = {"roc": Curve(), "precision_recall": Curve(), "distances": Histogram()}
    phototour = [dataclasses.replace(one, **blank) for one in result.phototour]
    hpatches = [dataclasses.replace(one, matching_by_sequence={}) for one in result.hpatches]
    return SweepResult(**vars(result) | {"phototour": phototour, "hpatches": hpatches} | changes)


def controlled_set(
    patch_set: PatchSet,
    amounts: Mapping[str, Sequence[float]],
    *,
    size: int,
    points: int = 2000,
    group: int = 1000,
) -> misalignment.MatchingSet:
    """Make targets with one kind and amount of misalignment each; named "<kind>/<amount>".

    Amounts are given by kind: translation in sides of the reference (in a random direction),
    rotation in degrees and scale as a binary logarithm (with random sign).
    """
    for kind in amounts:
        check_name("misalignment", kind, JITTER)
    wanted = {f"{kind}/{amount:g}": (kind, amount) for kind in amounts for amount in amounts[kind]}

    def draw(name: str, count: int, rng: np.random.Generator) -> misalignment.Maps:
        return known_maps(*wanted[name], count, rng)

    return misalignment.make_set(
        patch_set, tuple(wanted), draw, size=size, points=points, group=group
    )


def known_maps(
    kind: str, amount: float, count: int, rng: np.random.Generator
) -> Float64[np.ndarray, "{count} 2 3"]:
    """Draw misalignments of one kind and amount, with random direction or sign."""
    maps = np.tile(np.eye(2, 3), (count, 1, 1))
    sign = rng.choice([-1.0, 1.0], count)
    if kind == "rotation":
        maps[:, :, :2] = misalignment.rotations(sign * np.deg2rad(amount))
    elif kind == "scale":
        maps[:, :, :2] *= (2.0 ** (sign * amount))[:, None, None]
    else:
        direction = rng.uniform(0, 2 * np.pi, count)
        # A side is two half sides.
        maps[:, :, 2] = 2 * amount * np.stack([np.cos(direction), np.sin(direction)], axis=1)
    return maps


@dataclasses.dataclass(frozen=True)
class Tests:
    """Test sets; each may be absent."""

    sets: Sequence[PatchSet] = ()
    benchmark: Benchmark | None = None
    validation: PatchSet | None = None
    """Set whose noisy matching decides between settings."""
    jittered: PatchSet | None = None
    """Set on which the tolerance of misalignment is measured."""


class Scorer:
    """Score models as `run_eval.py` does; HPatches is read and resized once per patch size."""

    def __init__(self, tests: Tests) -> None:
        self._tests = tests
        self._benchmarks: dict[int, Benchmark] = {}
        self._matching_sets: dict[tuple[str, bool, int], misalignment.MatchingSet] = {}

    def score(
        self, name: str, model: Descriptor, variables: Any, *, trained_on: Sequence[str] = ()
    ) -> SweepResult:
        """Score a model on all tests except the sets in `trained_on`; curves are not kept."""
        tests, size = self._tests, model.patch_size
        describe = model_describer(model, variables)
        entry = Entry(
            name=name,
            ours=True,
            source="a training of this experiment",
            parameters=parameter_count(variables),
            train="+".join(trained_on) or None,
            describe=(describe,),
        )
        result, _ = score(entry, tests.sets, self._benchmark(size), progress=False)
        return concise(
            result,
            dimension=describe(_blank(model), progress=False).shape[1],
            misaligned=list(self._misaligned(describe, size, trained_on)),
        )

    def warm_up(self, model: Descriptor, variables: Any) -> None:
        """Compile the description."""
        model_describer(model, variables)(_blank(model), progress=False)

    def _benchmark(self, size: int) -> Benchmark | None:
        """Return the benchmark with its patches in memory, resized for the model."""
        whole = self._tests.benchmark
        if whole is not None and size not in self._benchmarks:
            kept = [
                one._replace(patches=_resized(one.patches, size))
                for one in read_sequences(whole, name="a sweep", progress=False)
            ]
            self._benchmarks[size] = dataclasses.replace(whole, kept=tuple(kept))
        return self._benchmarks.get(size)

    def _misaligned(
        self, describe: Describe, size: int, trained_on: Sequence[str]
    ) -> Iterator[MisalignmentScores]:
        validation, jittered = self._tests.validation, self._tests.jittered
        if validation is not None:
            levels = self._matched(describe, validation, size, controlled=False)
            yield MisalignmentScores(test=validation.name, validation=True, by_level=levels)
        if jittered is not None and jittered.name not in trained_on:
            amounts: dict[str, dict[str, float]] = {}
            scores = self._matched(describe, jittered, size, controlled=True)
            for name, value in scores.items():
                kind, _, amount = name.partition("/")
                amounts.setdefault(kind, {})[amount] = value
            yield MisalignmentScores(
                test=jittered.name,
                validation=False,
                by_level=self._matched(describe, jittered, size, controlled=False),
                by_amount=amounts,
            )

    def _matched(
        self, describe: Describe, patches: PatchSet, size: int, *, controlled: bool
    ) -> dict[str, float]:
        key = (patches.name, controlled, size)
        if key not in self._matching_sets:
            make = functools.partial(controlled_set, amounts=JITTER) if controlled else noisy_set
            self._matching_sets[key] = make(patches, size=size)
        matching_set = self._matching_sets[key]
        rows = describe(matching_set.patches, progress=False)
        return misalignment.matching_scores(jnp.asarray(rows), matching_set)


def _blank(model: Descriptor) -> UInt8[np.ndarray, "1 N N"]:
    return np.zeros((1, model.patch_size, model.patch_size), np.uint8)


def _resized(
    images: UInt8[np.ndarray, "images n side side"], size: int
) -> UInt8[np.ndarray, "images n {size} {size}"]:
    """Resize in batches, as HardNet does at test time."""
    patches, batch = images.reshape(-1, *images.shape[2:]), preferred_batch()
    parts = (patches[start : start + batch] for start in range(0, len(patches), batch))
    resized = np.concatenate([np.asarray(_resized_batch(part, size=size)) for part in parts])
    return resized.reshape(*images.shape[:2], size, size)


@functools.partial(jax.jit, static_argnames="size")
def _resized_batch(
    patches: UInt8[Array, "batch side side"], *, size: int
) -> UInt8[Array, "batch N N"]:
    return resize_patches(patches, size, rounded=True).astype(jnp.uint8)
