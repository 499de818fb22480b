"""A whole evaluation: entries and data in, results and the contents of a report out."""

import dataclasses
import datetime
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from kjax.data.phototour import PatchSet
from kjax.errors import InputError
from kjax.eval.averages import mean_of_seeds
from kjax.eval.degenerate import degeneracies, scorable
from kjax.eval.descriptor_cache import cached
from kjax.eval.entries import Entry
from kjax.eval.example_pictures import similarity_figures, training_curves
from kjax.eval.hpatches.benchmark import Benchmark, score
from kjax.eval.phototour import hardest_pairs, score_pairs, warnings_of
from kjax.eval.results import DescriptorResult, Evaluation, HardPairs, Illustrations
from kjax.metrics import pair_distances
from kjax.runs.workdir import plain_versions


class Options(NamedTuple):
    """How entries are scored.

    Attributes:
        rule: of FPR@95.
        cache_dir: where descriptors are kept; None for the usual place.
        progress: whether to show bars.
    """

    rule: str = "hardnet"
    cache_dir: Path | None = None
    progress: bool = True


class Found(NamedTuple):
    """What was found out about one entry: its row of the tables, and its worst errors."""

    entry: Entry
    result: DescriptorResult
    hard_pairs: list[HardPairs]


def run(
    entries: Sequence[Entry],
    test_sets: Sequence[PatchSet],
    benchmark: Benchmark | None,
    *,
    title: str,
    command: str,
    options: Options,
) -> tuple[Evaluation, Illustrations]:
    """Scores every entry on everything that it can be scored on.

    Args:
        entries: in the order of the tables.
        test_sets: of the PhotoTourism protocol.
        benchmark: HPatches, or a folder in its format.
        title: of the report.
        command: that asked for it, as typed.
        options: how.
    """
    if not test_sets and benchmark is None:
        raise InputError("nothing to evaluate on: give --phototour SET … or --hpatches FOLDER")
    found = [examine(entry, test_sets, benchmark, options) for entry in entries]
    evaluation = Evaluation(
        title=title,
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=plain_versions(),
        descriptors=list(_rows(found)),
    )
    return evaluation, _illustrations(found, test_sets)


def examine(
    entry: Entry,
    test_sets: Sequence[PatchSet],
    benchmark: Benchmark | None,
    options: Options,
) -> Found:
    """Scores one entry on everything but the sets that it was trained on."""
    result = DescriptorResult(
        name=entry.name,
        ours=entry.ours,
        source=entry.source,
        dimension=None,
        parameters=entry.parameters,
        distance=entry.distance,
        missing=entry.missing,
        warnings=[],
        phototour=[],
        hpatches=[],
    )
    found = Found(entry, result, [])
    if entry.missing is not None:
        return found
    dimension = None
    for test in test_sets if entry.members else ():
        if test.name not in (entry.train or "").split("+"):
            dimension = _verify(test, found, options)
    if benchmark is not None:
        scores, described = score(
            entry, benchmark, cache_dir=options.cache_dir, progress=options.progress
        )
        result.hpatches.extend(scores)
        rows = np.asarray(described[0].rows)
        result.warnings.extend(f"HPatches: {line}" for line in degeneracies(rows))
        dimension = described[0].dimension
    return found._replace(result=dataclasses.replace(result, dimension=dimension))


def _verify(test: PatchSet, found: Found, options: Options) -> int:
    """Adds the scores on one test set, and returns the descriptors' dimension."""
    entry, result = found.entry, found.result
    pairs = test.pairs
    scores, dimension = [], 0
    for number, member in enumerate(entry.members):
        describe = cached(
            functools.partial(member.describe, progress=options.progress),
            member.identity,
            cache_dir=options.cache_dir,
        )
        rows: Float32[np.ndarray, "patches dim"] = describe(test.patches)
        dimension = rows.shape[1]
        if number == 0:
            result.warnings.extend(f"{test.name}: {line}" for line in degeneracies(rows))
        if not scorable(rows):
            return dimension  # with the warning above
        distances = pair_distances(rows, pairs.first, pairs.second, metric=entry.distance)
        rule = options.rule
        scores.append(
            score_pairs(distances, pairs.matching, test=test.name, train=entry.train, rule=rule)
        )
        if number == 0:
            found.hard_pairs.extend(hardest_pairs(distances, test, descriptor=entry.name))
    result.phototour.append(mean_of_seeds(scores))
    result.warnings.extend(warnings_of(result.phototour[-1]))
    return dimension


# Rows of the tables


def _rows(found: Sequence[Found]) -> Iterator[DescriptorResult]:
    """A row per entry; runs of one model on several training sets share one.

    That is the train/test table of PhotoTourism. On HPatches, where tables have no column for the
    training set, each of them keeps a row of its own, which names it.
    """
    groups: dict[tuple[str, bool], list[Found]] = {}
    for one in found:
        groups.setdefault((one.entry.name, one.entry.train is not None), []).append(one)
    for (name, trained), group in groups.items():
        results = [one.result for one in group]
        if len(group) == 1:
            yield results[0]
        elif trained and len({one.entry.train for one in group}) == len(group):
            scores = [score for result in results for score in result.phototour]
            yield dataclasses.replace(results[0], phototour=scores, hpatches=[])
            for one in group:
                if one.result.hpatches:
                    own = f"{name}, {one.entry.train}"
                    yield dataclasses.replace(one.result, name=own, phototour=[])
        else:
            for result in results:
                yield dataclasses.replace(result, name=f"{name} ({result.source})")


def _illustrations(found: Sequence[Found], test_sets: Sequence[PatchSet]) -> Illustrations:
    ours = [one.entry for one in found if one.entry.ours]
    similarity = []
    if test_sets and ours:
        pairs = test_sets[0].pairs
        place = int(np.argmax(pairs.matching))
        pair = test_sets[0].patches[[pairs.first[place], pairs.second[place]]]
        similarity = list(similarity_figures(ours, pair))
    curves = [training_curves(entry) for entry in ours]
    return Illustrations(
        hard_pairs=[pair for one in _worth_a_look(found) for pair in one.hard_pairs],
        similarity=similarity,
        training=[curve for curve in curves if curve is not None],
    )


def _worth_a_look(found: Sequence[Found]) -> Iterator[Found]:
    """Our entries, and the best of the rivals: the errors of all would be a long page."""
    yield from (one for one in found if one.entry.ours)
    rivals = [one for one in found if one.result.phototour and not one.entry.ours]
    if rivals:
        yield min(rivals, key=lambda one: float(np.mean([s.fpr95 for s in one.result.phototour])))
