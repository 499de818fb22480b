"""Rows and cells that tables share, and the best of each column."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from kjax.eval.report.page_parts import Column, TableCell, TableRow
from kjax.eval.report.phrases import NOTHING, count, finite, percent_with_std
from kjax.eval.results import DescriptorResult

NAME = Column("Descriptor", numeric=False)
SIZES = (Column("Dimension"), Column("Parameters"))


def result_row(result: DescriptorResult, cells: Iterable[TableCell]) -> TableRow:
    """A descriptor's row: its name, then the cells."""
    return TableRow([TableCell(result.name), *cells], "ours" if result.ours else "rival")


def size_cells(result: DescriptorResult) -> list[TableCell]:
    """What stands under `SIZES`."""
    return [count_cell(result.dimension), count_cell(result.parameters)]


def share_cell(
    share: float | None, *, std: float | None = None, contends: bool = True, digits: int = 2
) -> TableCell:
    """A share in per cent, with its standard deviation if there is one."""
    known = finite(share)
    text = percent_with_std(share, std, digits)
    return TableCell(text, known, contends=contends and known is not None)


def mean_cell(shares: Iterable[float | None]) -> TableCell:
    """The mean of those shares that are there."""
    known = [share for share in shares if share is not None and finite(share) is not None]
    return share_cell(float(np.mean(known)) if known else None)


def count_cell(number: int | None) -> TableCell:
    """A whole number."""
    return TableCell(count(number), number)


def difference_cell(difference: float | None) -> TableCell:
    """A difference of shares in percentage points, with its sign and a true minus."""
    if difference is None:
        return TableCell(NOTHING)
    return TableCell(f"{100 * difference:+.2f}".replace("-", "−"), difference)


def mark_best(rows: Sequence[TableRow], *, lower_is_better: bool) -> list[TableRow]:
    """Marks the best entry of each column; one without rivals wins nothing."""
    cells = [list(row.cells) for row in rows]
    for place in range(len(cells[0]) if cells else 0):
        values = [one[place].value for one in cells if one[place].contends]
        known = [value for value in values if value is not None]
        if len(known) < 2:
            continue
        best = min(known) if lower_is_better else max(known)
        for one in cells:
            if one[place].contends and one[place].value == best:
                one[place] = dataclasses.replace(one[place], best=True)
    return [dataclasses.replace(row, cells=one) for row, one in zip(rows, cells, strict=True)]
