"""A whole evaluation: entries and data in, results and the contents of a report out."""

import dataclasses
import datetime
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kjax.data.hpatches import IMAGES, list_sequences, read_sequence
from kjax.data.phototour import PatchSet
from kjax.data.sets import EMBEDDED, read_test_sets
from kjax.errors import InputError
from kjax.eval.entries import Entry
from kjax.eval.hpatches import protocol
from kjax.eval.hpatches.descriptors import (
    SetDescriptors,
    describe_sequences,
    read_descriptors,
    write_descriptors,
)
from kjax.eval.hpatches.scores import TASKS, HPatchesScores
from kjax.eval.hpatches.tasks import Benchmark, open_benchmark, read_sequences
from kjax.eval.phototour import degeneracies, hardest_pairs, scorable, score_pairs
from kjax.eval.results import (
    Curve,
    Evaluation,
    HardPairs,
    Illustrations,
    PhototourScores,
    Result,
    mean_of_seeds,
    mean_of_splits,
)
from kjax.eval.similarity_maps import similarity_figures
from kjax.files.atomic import write_json
from kjax.files.json import parse_json
from kjax.metrics import pair_distances
from kjax.runs.workdir import plain_versions
from kjax.train.metrics_log import read_metrics
from kjax.version import __version__

AVERAGED = ("a", "b", "c")
"""The HPatches splits whose mean papers report."""
SUSPICIOUS_FPR = 0.5
"""A higher FPR@95 means swapped labels or distances: even broken descriptors do better."""
RECORD = "kjax-describe-patches.json"
"""File that says which descriptor a folder of CSV files holds."""
_CURVE_POINTS = 300


def evaluate(
    entries: Sequence[Entry],
    *,
    phototour: Sequence[str] | None,
    hpatches: Path | None,
    splits: Sequence[str] = (),
    tasks: Path | None = None,
    protocols: Sequence[str] = ("python",),
    rule: str = "hardnet",
    title: str,
    command: str,
    progress: bool = True,
) -> tuple[Evaluation, Illustrations]:
    """Score every entry by the PhotoTourism protocol and on HPatches; arguments as in kjax eval.

    `phototour` defaults to the test sets of the runs, or the embedded one.
    """
    names = [one.name for one in entries]
    entries = [
        one
        if names.count(one.name) == 1
        else dataclasses.replace(one, name=str(one.workdir or f"{one.name} ({one.source})"))
        for one in entries
    ]
    ready = [one.csv_folder for one in entries if one.csv_folder is not None]
    if phototour is None:
        of_runs = list(dict.fromkeys(name for one in entries for name in one.test_sets))
        phototour = of_runs or ([] if len(ready) == len(entries) else [EMBEDDED])
    benchmark, folder = None, hpatches or next(iter(ready), None)
    if folder is not None:
        benchmark = open_benchmark(
            folder, splits=splits, tasks_folder=tasks, protocols=protocols, progress=progress
        )
    elif splits or tasks:
        raise InputError("--splits and --tasks need HPatches: give --hpatches FOLDER too")
    test_sets = read_test_sets(phototour, progress=progress)
    if not test_sets and benchmark is None:
        raise InputError("nothing to evaluate on: give --phototour SET … or --hpatches FOLDER")
    scored = [score(one, test_sets, benchmark, rule=rule, progress=progress) for one in entries]
    evaluation = Evaluation(
        title=title,
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=plain_versions(),
        descriptors=list(_rows(entries, [result for result, _ in scored])),
    )
    # Errors of our entries and of the best baseline: those of all would fill a long page.
    baselines = [(one, pairs) for one, pairs in scored if one.phototour and not one.ours]
    baselines.sort(key=lambda one: float(np.mean([s.fpr95 for s in one[0].phototour])))
    shown = [*(pairs for one, pairs in scored if one.ours), *(pairs for _, pairs in baselines[:1])]
    similarity: dict[str, bytes] = {}
    for test in test_sets[:1]:
        models = {one.name: one.model for one in entries if one.model is not None}
        index = int(np.argmax(test.pairs.matching))
        pair = test.patches[[test.pairs.first[index], test.pairs.second[index]]]
        similarity = similarity_figures(models, pair)
    curves = {one.name: training_curves(one.workdir) for one in entries if one.workdir is not None}
    return evaluation, Illustrations(
        hard_pairs=[pair for pairs in shown for pair in pairs],
        similarity=similarity,
        training={name: found for name, found in curves.items() if found},
    )


def summary(evaluation: Evaluation) -> Iterator[str]:
    """Yield a line for the terminal per descriptor."""
    width = max(len(row.name) for row in evaluation.descriptors)
    for row in evaluation.descriptors:
        figures = [f"missing: {row.missing}"] if row.missing is not None else []
        for on_set in row.phototour:
            spread = f" ± {100 * on_set.fpr95_std:.2f}" if on_set.fpr95_std is not None else ""
            figures.append(f"FPR@95 {on_set.test} {100 * on_set.fpr95:.2f}{spread} %")
        for one in row.hpatches:
            texts = " / ".join(f"{100 * getattr(one, f'{task}_map'):.2f}" for task in TASKS)
            figures.append(f"HPatches {one.split} ({one.protocol}) {texts} %")
        figures += [f"warning: {warning}" for warning in row.warnings]
        yield f"{row.name:{width}s}  {'; '.join(figures)}"


def score(
    entry: Entry,
    test_sets: Sequence[PatchSet],
    benchmark: Benchmark | None,
    *,
    rule: str = "hardnet",
    progress: bool = True,
) -> tuple[Result, list[HardPairs]]:
    """Score one entry on all sets that it was not trained on, and collect its worst errors."""
    dimension: int | None = None
    warnings: list[str] = []
    phototour: list[PhototourScores] = []
    hpatches: list[HPatchesScores] = []
    hard_pairs: list[HardPairs] = []
    trained_on = (entry.train or "").split("+")
    for test in test_sets if entry.describe else ():
        if test.name in trained_on:
            continue
        described = [one(test.patches, progress=progress) for one in entry.describe]
        dimension = described[0].shape[1]
        warnings += [f"{test.name}: {line}" for line in degeneracies(described[0])]
        if not all(map(scorable, described)):
            continue
        pairs = test.pairs
        distances = [
            pair_distances(rows, pairs.first, pairs.second, metric=entry.distance)
            for rows in described
        ]
        options: dict[str, Any] = {"test": test.name, "train": entry.train, "rule": rule}
        mean = mean_of_seeds([score_pairs(one, pairs.matching, **options) for one in distances])
        phototour.append(mean)
        hard_pairs += hardest_pairs(distances[0], test, descriptor=entry.name)
        if mean.fpr95 > SUSPICIOUS_FPR:
            warnings.append(
                f"FPR@95 on {mean.test} is {100 * mean.fpr95:.1f} %: worse than any working "
                "descriptor; check weights, patches and labels"
            )
    if benchmark is not None and entry.missing is None:
        sets = []
        if entry.csv_folder is not None:
            sets.append(read_descriptors(entry.csv_folder, benchmark.patches, progress=progress))
        for one in entry.describe:
            sequences = read_sequences(benchmark, name=entry.name, progress=progress)
            sets.append(describe_sequences(functools.partial(one, progress=False), sequences))
        dimension = sets[0].dimension
        warnings += [f"HPatches: {line}" for line in degeneracies(np.asarray(sets[0].rows))]
        if all(scorable(np.asarray(one.rows)) for one in sets):
            hpatches += _score_benchmark(entry, benchmark, sets, progress)
    shared = ("name", "ours", "source", "parameters", "distance", "missing")
    result = Result(
        **{name: getattr(entry, name) for name in shared},
        dimension=dimension,
        warnings=warnings,
        phototour=phototour,
        hpatches=hpatches,
    )
    return result, hard_pairs


def _score_benchmark(
    entry: Entry, benchmark: Benchmark, sets: Sequence[SetDescriptors], progress: bool
) -> Iterator[HPatchesScores]:
    """Yield scores by protocol and split, averaged over seeds, and the mean over a, b and c."""
    options: dict[str, Any] = {"distance": entry.distance, "progress": progress}
    found: dict[tuple[str, str], list[HPatchesScores]] = {}
    for descriptors in sets:
        for split, tasks in benchmark.splits.items():
            # Split by split: long descriptors of all sequences may not fit the device.
            placed = descriptors.of(tasks.patches).on_device()
            for name in benchmark.protocols:
                scores = protocol.evaluate(placed, tasks, split=split, protocol=name, **options)
                found.setdefault((name, split), []).append(scores)
    for name in benchmark.protocols:
        for split in benchmark.splits:
            yield mean_of_seeds(found[name, split])
        if set(AVERAGED) <= set(benchmark.splits):
            # Each seed's mean over splits first: the ± is the spread of these.
            by_seed = zip(*(found[name, split] for split in AVERAGED), strict=True)
            yield mean_of_seeds([mean_of_splits(one) for one in by_seed])


def _rows(entries: Sequence[Entry], results: Sequence[Result]) -> Iterator[Result]:
    """Yield the rows of the tables; runs of one model on several training sets share one.

    That is the train/test table of PhotoTourism. HPatches' tables have no column for the training
    set, so there each run keeps a row.
    """
    groups: dict[str, list[tuple[Entry, Result]]] = {}
    for entry, result in zip(entries, results, strict=True):
        model, form = entry.source.partition(",")[0], entry.name.partition(",")[2]
        key = entry.name if entry.workdir is None else f"runs of {model}{form}"
        groups.setdefault(key, []).append((entry, result))
    for group in groups.values():
        if len({entry.train for entry, _ in group}) < len(group) or len(group) == 1:
            yield from (result for _, result in group)
            continue
        name = " + ".join(entry.name for entry, _ in group)
        scores = [one for _, result in group for one in result.phototour]
        yield dataclasses.replace(group[0][1], name=name, phototour=scores, hpatches=[])
        for _, result in group:
            if result.hpatches:
                yield dataclasses.replace(result, phototour=[])


def training_curves(workdir: Path) -> dict[str, Curve]:
    """Read the metrics that a run logged, averaged over its seeds."""
    points: dict[str, dict[int, float]] = {}
    for row in read_metrics(workdir):
        for name, value in row.items():
            values = [one for one in np.atleast_1d(value) if one is not None]
            if name != "step" and values:
                points.setdefault(name, {})[int(row["step"])] = float(np.mean(values))
    curves = {}
    for name, found in points.items():
        steps = np.array(sorted(found))
        kept = steps[np.unique(np.linspace(0, len(steps) - 1, _CURVE_POINTS).astype(int))].tolist()
        curves[name] = Curve([float(step) for step in kept], [found[step] for step in kept])
    return curves


def export_descriptors(
    entry: Entry, folder: Path, out: Path, *, overwrite: bool = False, progress: bool = True
) -> int:
    """Describe the patches of an HPatches folder, as CSV files for the official toolbox.

    Finished sequences are skipped. Files of another descriptor are refused, or replaced if
    `overwrite`. Returns the number of sequences.
    """
    sequences = list_sequences(folder)
    if entry.missing is not None:
        raise InputError(f"{entry.name}: {entry.missing}")
    if len(entry.describe) != 1:
        raise InputError(f"{entry.source} has {len(entry.describe)} sets of weights: choose one")
    files, record = sorted(out.glob("*/*.csv")), out / RECORD
    if overwrite:
        # First, so that an interrupted run never leaves files of two descriptors.
        for file in files:
            file.unlink()
    elif files:
        try:
            before = parse_json(record.read_bytes())
            same, made = before["identity"] == entry.identity, f"was made by {before['name']}"
        except (OSError, ValueError, KeyError, TypeError):
            same, made = False, "does not say which descriptor made it"
        if not same:
            raise InputError(f"{out} {made}: give --overwrite to replace it, or another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_json(record, {"name": entry.name, "identity": entry.identity, "kjax": __version__})
    describe = functools.partial(entry.describe[0], progress=False)
    for path in tqdm(sequences, desc=entry.name, unit="sequence", disable=not progress):
        if not all((out / path.name / f"{image}.csv").exists() for image in IMAGES):
            write_descriptors(describe_sequences(describe, [read_sequence(path)]), out)
    return len(sequences)
