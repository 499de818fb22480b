"""The tasks of HPatches: sequences and splits, pairs to verify, patches to retrieve.

The official files are `verif_pos_split-<split>.csv`, `verif_neg_intra_…`, `verif_neg_inter_…`,
`retr_queries_…` and `retr_distractors_…`. Without them, tasks are drawn by the rules and from the
random stream of the official generator: the same seed, sequences and counts give the same rows. It
has two oddities, kept here: pairs never use the fifth target image, and "inter" negatives may come
from one sequence, a few of them even from one patch.
"""

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int8, Int16, Int32, Int64, UInt8
from tqdm import tqdm

from kjax.data import hpatches as data
from kjax.data.hpatches import SPLITS
from kjax.errors import InputError, check_name, first_line
from kjax.eval.hpatches.scores import PROTOCOLS

PAIRS, QUERIES, DISTRACTORS = 1_000_000, 10_000, 20_000
"""Number of each in a split of the full benchmark."""
OFFICIAL_SEED = 42
TARGETS = 5
"""Images of a sequence beside the reference image, at each level of noise."""

PAIR_COLUMNS = ("s1", "t1", "idx1", "s2", "t2", "idx2")
PATCH_COLUMNS = ("s", "idx")
PAIR_FILES = ("pos", "neg_intra", "neg_inter")
PATCH_FILES = ("queries", "distractors")
_DRAWN_IMAGES = 5
"""The generator draws images 0 (the reference) to 4."""
_LEAST_CONTRAST = 10
"""Standard deviation in grey values that a query or distractor must exceed."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of patches: sequences as indices into a list of names; image 0 is the reference."""

    sequence: Int16[np.ndarray, "pairs 2"]
    image: Int8[np.ndarray, "pairs 2"]
    patch: Int32[np.ndarray, "pairs 2"]

    def __len__(self) -> int:
        return len(self.patch)


@dataclasses.dataclass(frozen=True)
class ReferencePatches:
    """Patches of reference images."""

    sequence: Int16[np.ndarray, " patches"]
    patch: Int32[np.ndarray, " patches"]

    def __len__(self) -> int:
        return len(self.patch)


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The tasks of a split.

    Attributes:
        patches: number of patches per image of each sequence, in the order that indices refer to.
            Image matching takes place in all of them.
        positives: matching pairs, the same for all three levels of noise.
        intra, inter: non-matching pairs from one sequence, and from two.
        queries: patches to look for; each has five targets.
        origin: "official", or the generator's seed.
    """

    patches: dict[str, int]
    positives: Pairs
    intra: Pairs
    inter: Pairs
    queries: ReferencePatches
    distractors: ReferencePatches
    origin: str


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Sequences, and tasks by the split's name, that descriptors are scored on.

    `folder` is None if there are descriptors only. `kept` are the sequences' patches, if they stay
    in memory; otherwise they are read when needed.
    """

    folder: Path | None
    splits: dict[str, Tasks]
    protocols: tuple[str, ...]
    kept: tuple[data.Sequence, ...] = ()

    @property
    def patches(self) -> dict[str, int]:
        """Number of patches of every sequence that any split needs."""
        return {name: n for tasks in self.splits.values() for name, n in tasks.patches.items()}


def open_benchmark(
    folder: Path,
    *,
    splits: Sequence[str] = (),
    tasks_folder: Path | None = None,
    protocols: Sequence[str] = ("python",),
    progress: bool = True,
) -> Benchmark:
    """Open a folder of patches, or of descriptors, in HPatches' layout.

    Without names of official splits, all sequences are one split, named like the folder. Without a
    folder of official task files, tasks are generated.
    """
    for name in protocols:
        check_name("protocol", name, PROTOCOLS)
    for name in splits:
        check_name("HPatches split", name, SPLITS)
    listed = {split: SPLITS[split] for split in splits}
    if not listed:
        found = sorted({path.parent.name for path in folder.glob("*/ref.*")})
        if not found:
            raise InputError(
                f"{folder} holds no sequence: give the folder above <sequence>/ref.png or ref.csv"
            )
        listed = {folder.resolve().name: tuple(found)}
    names = dict.fromkeys(name for group in listed.values() for name in group)
    counts: dict[str, int] = {}
    textured: dict[str, np.ndarray] = {}
    for name in tqdm(names, desc="reading sequences", unit="sequence", disable=not progress):
        table = folder / name / "ref.csv"
        if table.is_file():
            counts[name] = len(table.read_bytes().splitlines())
        else:
            reference = data.read_column(folder / name / "ref.png")
            counts[name], textured[name] = len(reference), textured_patches(reference)
    has_patches = len(textured) == len(names)
    tasks = {}
    for split, sequences in listed.items():
        patches = {name: counts[name] for name in sequences}
        tasks[split] = (
            generate_tasks(patches, textured=textured if has_patches else None, progress=progress)
            if tasks_folder is None
            else read_tasks(tasks_folder, split, patches)
        )
    return Benchmark(folder if has_patches else None, tasks, tuple(protocols))


def read_sequences(
    benchmark: Benchmark, *, name: str, progress: bool = True
) -> Iterator[data.Sequence]:
    """Yield the patches of all sequences; `name` says in messages which descriptor needs them."""
    if benchmark.kept:
        yield from benchmark.kept
        return
    if benchmark.folder is None:
        raise InputError(f"{name} needs patches: give their folder with --hpatches")
    for sequence in tqdm(benchmark.patches, desc=name, unit="sequence", disable=not progress):
        yield data.read_sequence(benchmark.folder / sequence)


# Official files


def read_tasks(folder: Path, split: str, patches: Mapping[str, int]) -> Tasks:
    """Read the five official files of a split; `patches` as in `Tasks`."""
    read: list[Any] = []
    for kind in PAIR_FILES:
        path = folder / f"verif_{kind}_split-{split}.csv"
        table = _read_table(path, PAIR_COLUMNS, patches)
        sides = [[table[f"{name}{side}"] for side in (1, 2)] for name in ("s", "t", "idx")]
        sequence, image, patch = (np.stack(both, axis=1) for both in sides)
        read.append(Pairs(sequence.astype(np.int16), image.astype(np.int8), patch))
    for kind in PATCH_FILES:
        path = folder / f"retr_{kind}_split-{split}.csv"
        table = _read_table(path, PATCH_COLUMNS, patches)
        read.append(ReferencePatches(table["s"].astype(np.int16), table["idx"]))
    read.append("official")
    return Tasks(dict(patches), *read)


def _read_table(
    path: Path, columns: tuple[str, ...], patches: Mapping[str, int]
) -> dict[str, Int32[np.ndarray, " rows"]]:
    """Read the columns of a task file; names of sequences become indices into `patches`."""
    width = max(map(len, patches), default=0) + 1  # one more, so that longer names differ
    kinds = [(name, f"S{width}" if name[0] == "s" else np.int32) for name in columns]
    try:
        with open(path, encoding="utf-8") as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            if file.readline().strip() != ",".join(columns):
                raise ValueError(f"the first line is not {','.join(columns)}")
            table = np.loadtxt(file, kinds, comments=None, delimiter=",", ndmin=1)
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}): download the task files, or generate them"
        ) from error
    except ValueError as error:
        raise InputError(
            f"{path} is not a task file of HPatches ({first_line(error)}): download it again"
        ) from error
    places = {name.encode(): place for place, name in enumerate(patches)}
    counts = np.array(list(patches.values()), np.int64)
    read: dict[str, np.ndarray] = {}
    for name in columns:
        read[name] = table[name]
        if name[0] == "s":
            found = [places.get(one, -1) for one in table[name].tolist()]
            read[name] = sequence = np.array(found, np.int32)
            wrong, problem = sequence < 0, "unknown sequence"
        else:
            kind, limit = ("image", TARGETS + 1) if name[0] == "t" else ("patch", counts[sequence])
            wrong = (table[name] < 0) | (table[name] >= limit)
            problem = f"its sequence does not have {kind}"
        if wrong.any():
            line = int(np.argmax(wrong))
            value = table[name][line]
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            raise InputError(f"{path}, line {line + 2}: {problem} {text}: download it again")
    return read


# Generated tasks


def generate_tasks(
    patches: Mapping[str, int],
    *,
    textured: Mapping[str, Bool[np.ndarray, "..."]] | None = None,
    seed: int = OFFICIAL_SEED,
    pairs: int | None = None,
    queries: int | None = None,
    distractors: int = DISTRACTORS,
    progress: bool = True,
) -> Tasks:
    """Draw tasks for any set of sequences, as the official generator does.

    Sequences of one patch have no negative pair. They are left out of verification, where the
    official generator fails. Its random stream forces a loop: a minute or two for a million pairs.

    The order of `patches` matters; HPatches' lists are alphabetical. `textured` marks the reference
    patches that may be queries or distractors, by sequence (`textured_patches`; default: all).
    There are a million pairs of each kind, but no more than matching pairs; ten thousand queries,
    but at most a seventh of all patches; and up to `distractors` other patches.
    """
    total, counts = sum(patches.values()), np.array(list(patches.values()), np.int64)
    if pairs is None:
        pairs = min(PAIRS, total * _DRAWN_IMAGES * (_DRAWN_IMAGES - 1))
    if queries is None:
        queries = min(QUERIES, max(1, total // 7))
    verification = _draw_pairs(counts, seed, pairs, progress)
    random = np.random.RandomState(seed)
    ends = np.cumsum(counts)
    usable = np.ones(total, bool)
    if textured is not None:
        usable = np.concatenate([textured[name] for name in patches])

    def draw(number: int) -> Int64[np.ndarray, " patches"]:
        """Distinct textured patches, numbered through all sequences, in the order drawn."""
        sequence = random.randint(0, len(counts), number)
        drawn = (ends - counts)[sequence] + random.randint(0, counts[sequence])
        drawn = drawn[usable[drawn]]
        return drawn[np.sort(np.unique(drawn, return_index=True)[1])]

    def located(numbers: Int64[np.ndarray, " patches"]) -> ReferencePatches:
        sequence = np.searchsorted(ends, numbers, side="right")
        patch = numbers - (ends - counts)[sequence]
        return ReferencePatches(sequence.astype(np.int16), patch.astype(np.int32))

    # More draws than needed: repeated and flat patches are dropped.
    asked, others = draw(4 * queries)[:queries], draw(10 * distractors)
    others = others[~np.isin(others, asked)][:distractors]
    origin = f"generated, seed {seed}"
    return Tasks(dict(patches), *verification, located(asked), located(others), origin)


def _draw_pairs(
    counts: Int64[np.ndarray, " sequences"], seed: int, pairs: int, progress: bool
) -> tuple[Pairs, Pairs, Pairs]:
    """Draw matching, intra and inter pairs from the official random stream."""
    usable = np.flatnonzero(counts > 1).astype(np.int16)
    if not len(usable):
        raise InputError("no sequence to draw pairs from: at least one with two patches is needed")
    counts, random = counts[usable], np.random.RandomState(seed)
    drawn = random.randint(0, len(usable), pairs)
    limits = [*counts[drawn].tolist(), *[_DRAWN_IMAGES] * pairs]
    bar = tqdm(limits, desc="drawing pairs", unit="pair", disable=not progress)
    chosen = (random.permutation(limit)[:2] for limit in bar)
    two = np.fromiter(chosen, np.dtype((np.int32, 2)))
    patch, image = two[:pairs], two[pairs:].astype(np.int8)
    other = random.randint(0, len(usable), pairs)
    other_patch = random.randint(0, counts[other]).astype(np.int32)
    within = np.repeat(usable[drawn][:, None], 2, axis=1)
    across = np.stack([within[:, 0], usable[other]], axis=1)
    return (
        Pairs(within, image, np.repeat(patch[:, :1], 2, axis=1)),
        Pairs(within, image, patch),
        Pairs(across, image, np.stack([patch[:, 0], other_patch], axis=1)),
    )


def textured_patches(reference: UInt8[np.ndarray, "n 65 65"]) -> Bool[np.ndarray, " n"]:
    """Mark the patches of a reference image with enough contrast for retrieval."""
    grey = reference.reshape(len(reference), -1).astype(np.int64)
    size = grey.shape[1]
    # In integers, so that rounding cannot decide.
    variance = size * (grey**2).sum(axis=1) - grey.sum(axis=1) ** 2
    return variance > (_LEAST_CONTRAST * size) ** 2
