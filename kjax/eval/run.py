"""A whole evaluation: entries and data in, results and the contents of a report out."""

import datetime
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from kjax.data.test_sets import TestSet
from kjax.errors import InputError
from kjax.eval.averages import mean_of_seeds
from kjax.eval.degenerate import degeneracies, scorable
from kjax.eval.descriptor_cache import cached
from kjax.eval.entries import Entry
from kjax.eval.example_pictures import similarity_figures, training_curves
from kjax.eval.hpatches.benchmark import Benchmark, score
from kjax.eval.phototour import hardest_pairs, score_pairs, warnings_of
from kjax.eval.results import (
    DescriptorResult,
    Evaluation,
    HardPairs,
    HPatchesScores,
    Illustrations,
    PhototourScores,
)
from kjax.metrics import pair_distances
from kjax.train.workdir import plain_versions


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
    """What was found out about one entry."""

    entry: Entry
    dimension: int | None
    warnings: list[str]
    phototour: list[PhototourScores]
    hpatches: list[HPatchesScores]
    hard_pairs: list[HardPairs]

    def result(
        self,
        name: str | None = None,
        *,
        phototour: list[PhototourScores] | None = None,
        hpatches: list[HPatchesScores] | None = None,
    ) -> DescriptorResult:
        """A row of the tables: the entry's own name and scores, or others."""
        entry = self.entry
        return DescriptorResult(
            name=entry.name if name is None else name,
            ours=entry.ours,
            source=entry.source,
            dimension=self.dimension,
            parameters=entry.parameters,
            distance=entry.distance,
            missing=entry.missing,
            warnings=self.warnings,
            phototour=self.phototour if phototour is None else phototour,
            hpatches=self.hpatches if hpatches is None else hpatches,
        )


def run(
    entries: Sequence[Entry],
    test_sets: Sequence[TestSet],
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
    test_sets: Sequence[TestSet],
    benchmark: Benchmark | None,
    options: Options,
) -> Found:
    """Scores one entry on everything but the sets that it was trained on."""
    found = Found(entry, None, [], [], [], [])
    if entry.missing is not None:
        return found
    dimension = None
    for test in test_sets if entry.members else ():
        if test.patches.name not in (entry.train or "").split("+"):
            dimension = _verify(entry, test, found, options)
    if benchmark is not None:
        scores, described = score(
            entry, benchmark, cache_dir=options.cache_dir, progress=options.progress
        )
        found.hpatches.extend(scores)
        rows = np.asarray(described[0].rows)
        found.warnings.extend(f"HPatches: {line}" for line in degeneracies(rows))
        dimension = described[0].dimension
    return found._replace(dimension=dimension)


def _verify(entry: Entry, test: TestSet, found: Found, options: Options) -> int:
    """Adds the scores on one test set, and returns the descriptors' dimension."""
    patches, pairs = test
    scores, dimension = [], 0
    for number, member in enumerate(entry.members):
        describe = cached(
            functools.partial(member.describe, progress=options.progress),
            member.identity,
            cache_dir=options.cache_dir,
        )
        rows: Float32[np.ndarray, "patches dim"] = describe(patches.patches)
        dimension = rows.shape[1]
        if number == 0:
            found.warnings.extend(f"{patches.name}: {line}" for line in degeneracies(rows))
        if not scorable(rows):
            return dimension  # with the warning above
        distances = pair_distances(rows, pairs.first, pairs.second, metric=entry.distance)
        scores.append(
            score_pairs(
                distances,
                pairs.matching,
                test=patches.name,
                train=entry.train,
                rule=options.rule,
            )
        )
        if number == 0:
            found.hard_pairs.extend(
                hardest_pairs(
                    distances,
                    pairs.matching,
                    patches.patches,
                    pairs.first,
                    pairs.second,
                    descriptor=entry.name,
                    test=patches.name,
                )
            )
    found.phototour.append(mean_of_seeds(scores))
    found.warnings.extend(warnings_of(found.phototour[-1]))
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
        trains = [one.entry.train for one in group]
        if len(group) == 1:
            yield group[0].result()
        elif trained and len(set(trains)) == len(group):
            scores = [score for one in group for score in one.phototour]
            yield group[0].result(phototour=scores, hpatches=[])
            for one in group:
                if one.hpatches:
                    yield one.result(f"{name}, {one.entry.train}", phototour=[])
        else:
            for one in group:
                yield one.result(f"{name} ({one.entry.source})")


def _illustrations(found: Sequence[Found], test_sets: Sequence[TestSet]) -> Illustrations:
    ours = [one.entry for one in found if one.entry.ours]
    similarity = []
    if test_sets and ours:
        patches, pairs = test_sets[0]
        place = int(np.argmax(pairs.matching))
        pair = patches.patches[[pairs.first[place], pairs.second[place]]]
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
    rivals = [one for one in found if one.phototour and not one.entry.ours]
    if rivals:
        yield min(rivals, key=lambda one: float(np.mean([s.fpr95 for s in one.phototour])))
