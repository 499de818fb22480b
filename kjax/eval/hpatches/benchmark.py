"""HPatches as a whole: which sequences, splits and tasks, and an entry's scores on them."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool
from tqdm import tqdm

from kjax.data import hpatches as data
from kjax.data.hpatches import SPLITS
from kjax.errors import InputError, unknown_name
from kjax.eval.averages import mean_of_seeds, mean_of_splits
from kjax.eval.degenerate import scorable
from kjax.eval.descriptor_cache import cached
from kjax.eval.entries import Entry
from kjax.eval.hpatches.descriptors import SetDescriptors, describe_sequences, read_descriptors
from kjax.eval.hpatches.protocol import PROTOCOLS, evaluate
from kjax.eval.hpatches.tasks import Tasks, generate_tasks, read_tasks, textured_patches
from kjax.eval.results import HPatchesScores

AVERAGED = ("a", "b", "c")
"""The splits whose mean papers report."""


class Split(NamedTuple):
    """A named part of the benchmark."""

    name: str
    tasks: Tasks


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What entries are scored on.

    Attributes:
        folder: of the patches; None if only ready descriptors are scored.
        sequences: all that any split needs.
        splits: with their tasks.
        protocols: by whose rules.
        kept: the sequences' patches, where they stay in memory; else they are read when needed.
    """

    folder: Path | None
    sequences: tuple[str, ...]
    splits: tuple[Split, ...]
    protocols: tuple[str, ...]
    kept: tuple[data.Sequence, ...] = ()


def open_benchmark(
    folder: Path,
    *,
    splits: Sequence[str] = (),
    tasks_folder: Path | None = None,
    protocols: Sequence[str] = ("python",),
    progress: bool = True,
    known_splits: Mapping[str, tuple[str, ...]] = SPLITS,
) -> Benchmark:
    """The benchmark in a folder.

    Args:
        folder: in HPatches' format; or of descriptors, then only such can be scored.
        splits: names of HPatches' own; none for all sequences there, as a split of that name.
        tasks_folder: holds the official task files; without it, tasks are generated.
        protocols: "python", "matlab" or both.
        progress: whether to show bars.
        known_splits: the sequences of each split that can be named.
    """
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise unknown_name("protocol", protocol, PROTOCOLS)
    listed = _sequences_of(folder, splits, known_splits)
    names = tuple(dict.fromkeys(name for group in listed.values() for name in group))
    counts, textured = _measure(folder, names, progress)

    def tasks_of(split: str) -> Tasks:
        patches = {name: counts[name] for name in listed[split]}
        if tasks_folder is not None:
            return read_tasks(tasks_folder, split, patches)
        return generate_tasks(patches, textured=textured, progress=progress)

    return Benchmark(
        folder=None if textured is None else folder,
        sequences=names,
        splits=tuple(Split(split, tasks_of(split)) for split in listed),
        protocols=tuple(protocols),
    )


def score(
    entry: Entry,
    benchmark: Benchmark,
    *,
    cache_dir: Path | None = None,
    progress: bool = True,
) -> tuple[list[HPatchesScores], list[SetDescriptors]]:
    """Scores by protocol and split, means over seeds; and each seed's descriptors."""
    described = list(_descriptors(entry, benchmark, cache_dir, progress))
    if not all(scorable(np.asarray(one.rows)) for one in described):
        return [], described  # the caller warns
    return list(_scores(entry, benchmark, described, progress)), described


def _scores(
    entry: Entry,
    benchmark: Benchmark,
    described: Sequence[SetDescriptors],
    progress: bool,
) -> Iterator[HPatchesScores]:
    by_seed = [_of_seed(one, entry.distance, benchmark, progress) for one in described]
    for protocol in benchmark.protocols:
        of_protocol = [scores[protocol] for scores in by_seed]
        yield from (mean_of_seeds(list(of_split)) for of_split in zip(*of_protocol, strict=True))
        if set(AVERAGED) <= {split.name for split in benchmark.splits}:
            # Each seed's mean over splits first: its spread is what the figure's ± is about.
            yield mean_of_seeds([mean_of_splits(_averaged(scores)) for scores in of_protocol])


def _of_seed(
    descriptors: SetDescriptors, distance: str, benchmark: Benchmark, progress: bool
) -> dict[str, list[HPatchesScores]]:
    """One seed's scores on every split, by protocol."""
    found: dict[str, list[HPatchesScores]] = {protocol: [] for protocol in benchmark.protocols}
    for split in benchmark.splits:
        # Split by split: with long descriptors, those of all sequences may be too many.
        placed = descriptors.of(split.tasks.patches).on_device()
        for protocol, scores in found.items():
            scores.append(
                evaluate(
                    placed,
                    split.tasks,
                    split=split.name,
                    protocol=protocol,
                    distance=distance,
                    progress=progress,
                )
            )
    return found


def _averaged(scores: Sequence[HPatchesScores]) -> list[HPatchesScores]:
    return [next(one for one in scores if one.split == name) for name in AVERAGED]


def read_sequences(
    benchmark: Benchmark, *, name: str, progress: bool = True
) -> Iterator[data.Sequence]:
    """The patches of all sequences, one by one.

    Args:
        benchmark: with patches.
        name: who needs them.
        progress: whether to show a bar.
    """
    if benchmark.kept:
        yield from benchmark.kept
        return
    if benchmark.folder is None:
        raise InputError(f"{name} needs patches: give their folder with --hpatches")
    paths = [benchmark.folder / sequence for sequence in benchmark.sequences]
    for path in tqdm(paths, desc=name, unit="sequence", disable=not progress):
        yield data.read_sequence(path)


def _descriptors(
    entry: Entry, benchmark: Benchmark, cache_dir: Path | None, progress: bool
) -> Iterator[SetDescriptors]:
    counts = {name: n for split in benchmark.splits for name, n in split.tasks.patches.items()}
    if entry.csv_folder is not None:
        yield read_descriptors(
            entry.csv_folder, names=benchmark.sequences, patches=counts, progress=progress
        )
    for member in entry.members:
        sequences = read_sequences(benchmark, name=entry.name, progress=progress)
        describe = functools.partial(member.describe, progress=False)
        yield describe_sequences(cached(describe, member.identity, cache_dir=cache_dir), sequences)


def _sequences_of(
    folder: Path, splits: Sequence[str], known: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Names of the sequences of every split."""
    for split in splits:
        if split not in known:
            raise unknown_name("HPatches split", split, known)
    if splits:
        return {split: known[split] for split in splits}
    found = sorted({path.parent.name for path in folder.glob("*/ref.*")})
    if not found:
        raise InputError(
            f"{folder} holds no sequence: give the folder above <sequence>/ref.png or ref.csv"
        )
    return {folder.resolve().name: tuple(found)}


def _measure(
    folder: Path, names: Sequence[str], progress: bool
) -> tuple[Mapping[str, int], Mapping[str, Bool[np.ndarray, "..."]] | None]:
    """Patches per sequence, and which of them have contrast; None where only descriptors are."""
    counts: dict[str, int] = {}
    textured: dict[str, np.ndarray] = {}
    bar = tqdm(names, desc="reading sequences", unit="sequence", disable=not progress)
    for name in bar:
        if (folder / name / "ref.csv").is_file():
            # Lines, not line breaks: the last one may have none.
            counts[name] = len((folder / name / "ref.csv").read_bytes().splitlines())
            continue
        reference = data.read_column(folder / name / "ref.png")
        counts[name] = len(reference)
        textured[name] = textured_patches(reference)
    return counts, textured if len(textured) == len(names) else None
