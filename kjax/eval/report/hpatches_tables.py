"""Tables of the three HPatches tasks. Every caption names the protocol and the split."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kjax.eval.averages import TASKS
from kjax.eval.report.page_parts import Column, Table, TableCell, TableRow
from kjax.eval.report.phrases import NOTHING, count
from kjax.eval.report.published import (
    HPATCHES_SETTING,
    HPATCHES_SOURCE,
    PUBLISHED_HPATCHES,
    PublishedHPatches,
)
from kjax.eval.report.table_cells import (
    NAME,
    SIZES,
    mark_best,
    mean_cell,
    result_row,
    share_cell,
    size_cells,
)
from kjax.eval.results import (
    LEVELS,
    MEAN,
    NEGATIVES,
    DescriptorResult,
    HPatchesScores,
)

_SPLITS_FIRST = ("abc", "full")
"""The paper reports the mean over a, b and c."""


class HPatchesSetting(NamedTuple):
    """What figures must share to stand in one table."""

    protocol: str
    split: str
    tasks: str
    sequences: int

    @property
    def label(self) -> str:
        """Protocol and split in words."""
        split = "mean of splits a, b, c" if self.split == "abc" else f"split {self.split}"
        return f"protocol {self.protocol}, {split}"

    @property
    def caption(self) -> str:
        """Everything, for a caption."""
        return f"HPatches, {self.label} ({self.sequences} sequences, tasks: {self.tasks})"


class Scored(NamedTuple):
    """A descriptor and its scores on one benchmark."""

    result: DescriptorResult
    scores: HPatchesScores


Scoreboard = dict[HPatchesSetting, list[Scored]]


def scoreboard(results: Sequence[DescriptorResult]) -> Scoreboard:
    """Scores by benchmark; of each protocol the split of its headline first."""
    boards: Scoreboard = {}
    for result in results:
        for scores in result.hpatches:
            key = HPatchesSetting(scores.protocol, scores.split, scores.tasks, scores.sequences)
            boards.setdefault(key, []).append(Scored(result, scores))
    protocols = list(dict.fromkeys(key.protocol for key in boards))
    order = {split: place for place, split in enumerate(_SPLITS_FIRST)}
    ordered = sorted(
        boards, key=lambda k: (protocols.index(k.protocol), order.get(k.split, len(order)))
    )
    return {key: boards[key] for key in ordered}


def headline_table(benchmark: HPatchesSetting, scored: list[Scored], *, digits: int = 2) -> Table:
    """Mean average precision of the three tasks, with published rows where they fit."""
    columns = [NAME, *SIZES, *(Column(task.capitalize()) for task in TASKS)]
    rows = mark_best([_headline_row(one, digits) for one in scored], lower_is_better=False)
    published = (benchmark.protocol, benchmark.split) == HPATCHES_SETTING
    if published:
        rows += [_published_row(one) for one in PUBLISHED_HPATCHES]
    notes = [HPATCHES_SOURCE] if published else []
    if any(one.scores.map_std for one in scored):
        notes.append("±: standard deviation over seeds.")
    return Table(
        f"{benchmark.caption}: mean average precision, %: higher is better.", columns, rows, notes
    )


def levels_table(benchmark: HPatchesSetting, scored: list[Scored], *, digits: int = 2) -> Table:
    """The three tasks by level of noise, verification by kind of negatives too."""
    kinds = _kinds(one.scores.verification for one in scored)

    def cells(scores: HPatchesScores) -> Iterable[TableCell]:
        yield from _by_kind(scores.verification, kinds, scores.part_std, digits)
        for task, levels in (("matching", scores.matching), ("retrieval", scores.retrieval)):
            for level in LEVELS:
                std = scores.part_std.get(f"{task}/{level}")
                yield share_cell(levels.get(level), std=std, digits=digits)

    columns = _kind_columns("Verification", kinds)
    columns += [
        Column(level, group=task) for task in ("Matching", "Retrieval") for level in LEVELS.values()
    ]
    return _numbers_table(f"{benchmark.caption}: by level, mAP in %.", columns, scored, cells)


def auc_table(benchmark: HPatchesSetting, scored: list[Scored]) -> Table:
    """Balanced ROC areas of verification."""
    kinds = _kinds(one.scores.verification_auc for one in scored)
    return _numbers_table(
        f"{benchmark.caption}: verification, balanced ROC area in %.",
        _kind_columns("ROC area", kinds),
        scored,
        lambda scores: _by_kind(scores.verification_auc, kinds),
    )


def pool_table(benchmark: HPatchesSetting, scored: list[Scored]) -> Table:
    """Retrieval as the pool of distractors grows: the mean over levels."""
    sizes = sorted(
        {
            size
            for one in scored
            for pools in one.scores.retrieval_by_pool.values()
            for size in pools
        },
        key=int,
    )

    def cells(scores: HPatchesScores) -> Iterable[TableCell]:
        for size in sizes:
            yield mean_cell(pools.get(size) for pools in scores.retrieval_by_pool.values())

    columns = [Column(count(int(size)), group="Pool of", flat=f"pool {size}") for size in sizes]
    return _numbers_table(
        f"{benchmark.caption}: retrieval by size of the pool, mean over levels, mAP in %.",
        columns,
        scored,
        cells,
    )


def sequences_table(benchmark: HPatchesSetting, scored: list[Scored]) -> Table:
    """Matching by sequence, a column per descriptor: where one is weak, it can be seen."""
    names = sorted({name for one in scored for name in one.scores.matching_by_sequence})
    columns = [Column("Sequence", numeric=False), *(Column(one.result.name) for one in scored)]
    rows = []
    for name in names:
        found = [one.scores.matching_by_sequence.get(name, {}) for one in scored]
        rows.append(TableRow([TableCell(name), *(mean_cell(levels.values()) for levels in found)]))
    caption = f"{benchmark.caption}: matching by sequence, mean over levels, mAP in %."
    return Table(caption, columns, rows)


def _numbers_table(
    caption: str,
    columns: list[Column],
    scored: list[Scored],
    cells: Callable[[HPatchesScores], Iterable[TableCell]],
) -> Table:
    """A table of a row per descriptor, with its name before the given columns."""
    rows = [result_row(one.result, cells(one.scores)) for one in scored]
    return Table(caption, [NAME, *columns], mark_best(rows, lower_is_better=False))


def _headline_row(one: Scored, digits: int) -> TableRow:
    shares = [
        share_cell(
            getattr(one.scores, f"{task}_map"), std=one.scores.map_std.get(task), digits=digits
        )
        for task in TASKS
    ]
    return result_row(one.result, [*size_cells(one.result), *shares])


def _published_row(one: PublishedHPatches) -> TableRow:
    shares = (one.verification, one.matching, one.retrieval)
    cells = [TableCell(f"{one.name} (published)"), TableCell(NOTHING), TableCell(NOTHING)]
    return TableRow([*cells, *(share_cell(share, contends=False) for share in shares)], "published")


def _kinds(parts: Iterable[dict[str, dict[str, float]]]) -> list[str]:
    """The kinds of negatives that any scores tell of."""
    found = {kind for by_level in parts for by_kind in by_level.values() for kind in by_kind}
    return [kind for kind in (*NEGATIVES, MEAN) if kind in found]


def _kind_columns(task: str, kinds: Sequence[str]) -> list[Column]:
    return [
        Column(level if kind == MEAN else f"{level} {kind}", group=task)
        for level in LEVELS.values()
        for kind in kinds
    ]


def _by_kind(
    values: dict[str, dict[str, float]],
    kinds: Sequence[str],
    stds: Mapping[str, float] = {},
    digits: int = 2,
) -> Iterable[TableCell]:
    for level in LEVELS:
        for kind in kinds:
            std = stds.get(f"verification/{level}/{kind}")
            yield share_cell(values.get(level, {}).get(kind), std=std, digits=digits)
