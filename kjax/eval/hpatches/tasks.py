"""HPatches' tasks: which pairs are verified, which patches are looked for, and among which.

The official files are `verif_pos_split-<split>.csv`, `verif_neg_intra_…`, `verif_neg_inter_…`,
`retr_queries_…` and `retr_distractors_…`. For a folder without them, tasks are drawn by the rules
and from the random stream of the official generator: the same seed, sequences and counts give the
same files, row by row. It has two oddities, kept here: pairs never use the fifth target image, and
"inter" negatives may come from one sequence, a few of them even from one patch.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int8, Int16, Int32, Int64, UInt8
from tqdm import tqdm

from kjax.errors import InputError, unknown_name

PAIRS, QUERIES, DISTRACTORS = 1_000_000, 10_000, 20_000
"""How many of each the full benchmark has in a split."""
OFFICIAL_SEED = 42
TARGETS = 5
"""Images of a sequence beside the reference image, at each level of noise."""

PAIR_COLUMNS = ("s1", "t1", "idx1", "s2", "t2", "idx2")
PATCH_COLUMNS = ("s", "idx")
_DRAWN_IMAGES = 5
"""The generator draws images 0 (the reference) to 4."""
_LEAST_CONTRAST = 10
"""Standard deviation in grey values that a patch must exceed to be looked for."""
_DIGITS = 9
"""Decimal digits that an int32 always holds."""
_BAR_STEP = 1000

Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of patches: sequences as places in a list of names; image 0 is the reference."""

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
class VerificationTask:
    """Pairs to tell apart; the same pairs serve all three levels of noise."""

    positives: Pairs
    intra: Pairs
    inter: Pairs


@dataclasses.dataclass(frozen=True)
class RetrievalTask:
    """Patches to look for, and patches to look among, beside a query's own five targets."""

    queries: ReferencePatches
    distractors: ReferencePatches


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Everything that a split asks.

    Attributes:
        patches: how many each sequence has in an image, in the order that indices refer to. Image
            matching takes place in all of them.
        verification: pairs.
        retrieval: queries and distractors.
        origin: where they came from, for reports: "official", or the generator's seed.
    """

    patches: dict[str, int]
    verification: VerificationTask
    retrieval: RetrievalTask
    origin: str


# Reading


def read_tasks(folder: Folder, split: str, patches: Mapping[str, int]) -> Tasks:
    """All five official files of a split.

    Args:
        folder: holds the files.
        split: ends the files' names.
        patches: the split's sequences, with the number of patches in each of their images.
    """
    return Tasks(
        dict(patches),
        read_verification(folder, split, patches),
        read_retrieval(folder, split, patches),
        "official",
    )


def read_verification(folder: Folder, split: str, patches: Mapping[str, int]) -> VerificationTask:
    """The three files of pairs; arguments as in `read_tasks`."""
    files = (Path(folder) / f"verif_{kind}_split-{split}.csv" for kind in PAIR_FILES)
    return VerificationTask(*(_read_pairs(path, patches) for path in files))


def read_retrieval(folder: Folder, split: str, patches: Mapping[str, int]) -> RetrievalTask:
    """The files of queries and of distractors; arguments as in `read_tasks`."""
    files = (Path(folder) / f"retr_{kind}_split-{split}.csv" for kind in PATCH_FILES)
    return RetrievalTask(*(_read_patches(path, patches) for path in files))


PAIR_FILES = ("pos", "neg_intra", "neg_inter")
PATCH_FILES = ("queries", "distractors")


def _read_pairs(path: Path, patches: Mapping[str, int]) -> Pairs:
    table = _Table(path, PAIR_COLUMNS)
    sides = []
    for names, images, numbers in ((0, 1, 2), (3, 4, 5)):
        sequence = table.sequences(names, patches)
        image = table.numbers(images, lambda value: value <= TARGETS, f"is no image 0 to {TARGETS}")
        sides.append((sequence, image, table.patches(numbers, sequence, patches)))
    sequence, image, patch = (np.stack(both, axis=1) for both in zip(*sides, strict=True))
    return Pairs(sequence, image.astype(np.int8), patch)


def _read_patches(path: Path, patches: Mapping[str, int]) -> ReferencePatches:
    table = _Table(path, PATCH_COLUMNS)
    sequence = table.sequences(0, patches)
    return ReferencePatches(sequence, table.patches(1, sequence, patches))


class _Table:
    """A CSV file taken apart with array operations: a row of Python objects each would be slow."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.path = path
        self._columns = columns
        self._bytes, header = _content(path)
        if header != ",".join(columns):
            raise InputError(
                f"{path} begins with {header[:60]!r}, not {','.join(columns)}: "
                "give a task file of the HPatches benchmark"
            )
        ends = self._field_ends()
        self._ends = ends.reshape(-1, len(columns))
        starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        self._starts = starts.reshape(self._ends.shape)

    def _field_ends(self) -> Int64[np.ndarray, " fields"]:
        breaks = self._bytes == ord("\n")
        ends = np.flatnonzero(breaks | (self._bytes == ord(",")))
        last_of_row = breaks[ends].nonzero()[0]
        per_row = np.diff(last_of_row, prepend=-1)
        wrong = np.flatnonzero(per_row != len(self._columns))
        if len(wrong):
            row = int(wrong[0])
            raise InputError(
                f"{self._line(row)} has {per_row[row]} columns, not {len(self._columns)}: "
                "fetch the file again"
            )
        return ends

    def sequences(self, column: int, known: Mapping[str, int]) -> Int16[np.ndarray, " rows"]:
        """The places of a column's names in the list of known ones."""
        starts, lengths = self._starts[:, column], self._lengths(column)
        # Beyond the longest known name, one character shows that a name is none of them.
        width = max(map(len, known), default=0) + 1
        letters = np.empty((len(starts), width), np.uint8)
        for place in range(width):
            letters[:, place] = self._bytes.take(starts + place, mode="clip") * (place < lengths)
        found = letters.view(f"S{width}")[:, 0]
        names = np.array([name.encode() for name in known], f"S{width}")
        order = np.argsort(names)
        places = order[np.searchsorted(names, found, sorter=order).clip(max=len(names) - 1)]
        wrong = np.flatnonzero(names[places] != found)
        if len(wrong):
            row = int(wrong[0])
            problem = unknown_name("sequence", self._text(row, column), known)
            raise InputError(f"{self._line(row)}: {problem}")
        return places.astype(np.int16)

    def patches(
        self, column: int, sequence: Int16[np.ndarray, " rows"], known: Mapping[str, int]
    ) -> Int32[np.ndarray, " rows"]:
        """A column of numbers of patches, each within its sequence."""
        counts = np.array(list(known.values()), np.int64)[sequence]
        return self.numbers(
            column, lambda value: value < counts, "is beyond its sequence's last patch"
        )

    def numbers(
        self,
        column: int,
        allowed: Callable[[Int64[np.ndarray, " rows"]], Bool[np.ndarray, " rows"]],
        problem: str,
    ) -> Int32[np.ndarray, " rows"]:
        """A column of whole numbers from 0, all of them allowed."""
        ends, lengths = self._ends[:, column], self._lengths(column)
        values = np.zeros(len(ends), np.int64)
        digits_only = (lengths > 0) & (lengths <= _DIGITS)
        for place in range(min(int(lengths.max(initial=0)), _DIGITS)):
            digits = self._bytes.take(ends - 1 - place, mode="clip") - np.uint8(ord("0"))
            outside = place >= lengths
            values += np.where(outside, 0, digits).astype(np.int64) * 10**place
            digits_only &= outside | (digits <= 9)  # other characters wrap round to more
        self._refuse(~digits_only, column, "is no whole number from 0")
        self._refuse(~allowed(values), column, problem)
        return values.astype(np.int32)

    def _refuse(self, wrong: Bool[np.ndarray, " rows"], column: int, problem: str) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"{self._line(row)}: {self._columns[column]} {self._text(row, column)!r} {problem}"
            )

    def _lengths(self, column: int) -> Int64[np.ndarray, " rows"]:
        return self._ends[:, column] - self._starts[:, column]

    def _text(self, row: int, column: int) -> str:
        start, end = self._starts[row, column], self._ends[row, column]
        return self._bytes[start:end].tobytes().decode(errors="replace")

    def _line(self, row: int) -> str:
        return f"{self.path}, line {row + 2}"


def _content(path: Path) -> tuple[UInt8[np.ndarray, " bytes"], str]:
    """The bytes after the header, every line ended by one line break, and the header."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}): fetch the task files, or generate them"
        ) from error
    header, _, body = content.replace(b"\r\n", b"\n").partition(b"\n")
    if body and not body.endswith(b"\n"):
        body += b"\n"
    return np.frombuffer(body, np.uint8), header.decode(errors="replace")


# Generating


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
    """Tasks for any set of sequences, as the official generator draws them.

    Args:
        patches: the sequences, with the number of patches in each of their images. The order
            matters; HPatches' lists are alphabetical.
        textured: which reference patches may be looked for, by sequence; all if not given. The
            benchmark asks for some contrast: `textured_patches`.
        seed: 42 in the benchmark.
        pairs: of each kind; the benchmark's million, but no more than there are matching pairs.
        queries: the benchmark's ten thousand, but at most a seventh of all patches.
        distractors: at most; all other patches if they are fewer.
        progress: whether to show a bar.
    """
    total = sum(patches.values())
    if pairs is None:
        pairs = min(PAIRS, total * _DRAWN_IMAGES * (_DRAWN_IMAGES - 1))
    if queries is None:
        queries = min(QUERIES, max(1, total // 7))
    return Tasks(
        dict(patches),
        generate_verification(patches, seed=seed, pairs=pairs, progress=progress),
        generate_retrieval(
            patches, textured=textured, seed=seed, queries=queries, distractors=distractors
        ),
        f"generated, seed {seed}",
    )


def generate_verification(
    patches: Mapping[str, int],
    *,
    seed: int = OFFICIAL_SEED,
    pairs: int = PAIRS,
    progress: bool = True,
) -> VerificationTask:
    """Pairs; arguments as in `generate_tasks`.

    Sequences of one patch have no negative pair and are left out, where the official generator
    fails. Its random stream forces a loop: a minute or two for a million pairs.
    """
    names, counts = _sequences({name: count for name, count in patches.items() if count > 1})
    places = np.array([list(patches).index(name) for name in names], np.int16)
    random = np.random.RandomState(seed)  # the official stream
    drawn = random.randint(0, len(names), pairs)
    bar = tqdm(total=2 * pairs, desc="drawing pairs", unit="pair", disable=not progress)
    with bar:
        patch = _two_of_each(random, counts[drawn], bar)
        image = _two_of_each(random, np.full(pairs, _DRAWN_IMAGES), bar).astype(np.int8)
    other = random.randint(0, len(names), pairs)
    other_patch = random.randint(0, counts[other]).astype(np.int32)
    within = np.repeat(places[drawn][:, None], 2, axis=1)
    return VerificationTask(
        positives=Pairs(within, image, np.repeat(patch[:, :1], 2, axis=1)),
        intra=Pairs(within, image, patch),
        inter=Pairs(
            np.stack([within[:, 0], places[other]], axis=1),
            image,
            np.stack([patch[:, 0], other_patch], axis=1),
        ),
    )


def generate_retrieval(
    patches: Mapping[str, int],
    *,
    textured: Mapping[str, Bool[np.ndarray, "..."]] | None = None,
    seed: int = OFFICIAL_SEED,
    queries: int = QUERIES,
    distractors: int = DISTRACTORS,
) -> RetrievalTask:
    """Queries and distractors, no patch twice; arguments as in `generate_tasks`."""
    names, counts = _sequences(patches)
    random = np.random.RandomState(seed)  # the official stream
    usable = np.ones(counts.sum(), bool)
    if textured is not None:
        usable = np.concatenate([textured[name] for name in names])
    # More draws than needed: patches drawn again and flat ones fall away.
    asked = _draw_patches(random, counts, 4 * queries)
    others = _draw_patches(random, counts, 10 * distractors)
    asked = _distinct(asked[usable[asked]])[:queries]
    others = _distinct(others[usable[others]])
    others = others[~np.isin(others, asked)][:distractors]
    return RetrievalTask(_reference_patches(asked, counts), _reference_patches(others, counts))


def textured_patches(reference: UInt8[np.ndarray, "n 65 65"]) -> Bool[np.ndarray, " n"]:
    """Marks the patches of a reference image with contrast enough to be looked for."""
    grey = reference.reshape(len(reference), -1).astype(np.int64)
    size = grey.shape[1]
    # In whole numbers, so that no rounding decides.
    variance = size * (grey**2).sum(axis=1) - grey.sum(axis=1) ** 2
    return variance > (_LEAST_CONTRAST * size) ** 2


def _sequences(patches: Mapping[str, int]) -> tuple[list[str], Int64[np.ndarray, " sequences"]]:
    if not patches:
        raise InputError("no sequence to draw from: tasks need patches, two or more in a sequence")
    return list(patches), np.array(list(patches.values()), np.int64)


def _two_of_each(
    random: np.random.RandomState, counts: Int64[np.ndarray, " draws"], bar: tqdm
) -> Int32[np.ndarray, "draws 2"]:
    """Two different numbers below each count, with the official generator's use of the stream."""
    drawn = np.empty((len(counts), 2), np.int32)
    for place, count in enumerate(counts.tolist()):
        drawn[place] = random.permutation(count)[:2]
        if (place + 1) % _BAR_STEP == 0:
            bar.update(_BAR_STEP)
    return drawn


def _draw_patches(
    random: np.random.RandomState, counts: Int64[np.ndarray, " sequences"], draws: int
) -> Int64[np.ndarray, " draws"]:
    """Patches, with repetition, numbered through all sequences."""
    sequence = random.randint(0, len(counts), draws)
    return (np.cumsum(counts) - counts)[sequence] + random.randint(0, counts[sequence])


def _distinct(values: Int64[np.ndarray, " draws"]) -> Int64[np.ndarray, " values"]:
    """The values, each once, where it was first drawn."""
    return values[np.sort(np.unique(values, return_index=True)[1])]


def _reference_patches(
    numbers: Int64[np.ndarray, " patches"], counts: Int64[np.ndarray, " sequences"]
) -> ReferencePatches:
    ends = np.cumsum(counts)
    sequence = np.searchsorted(ends, numbers, side="right")
    patch = numbers - (ends - counts)[sequence]
    return ReferencePatches(sequence.astype(np.int16), patch.astype(np.int32))
