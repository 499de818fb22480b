"""What a report is made of, before it becomes HTML or Markdown. No text is escaped yet."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from kjax.eval.results import HardPairs

RowKind = Literal["ours", "rival", "published"]
Mark = Literal[
    "line", "dashed", "dotted", "dashdot", "bar", "hatched",
    "circle", "square", "cross", "diamond", "triangle",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TableCell:
    """One cell of a table.

    Attributes:
        text: what it says.
        value: what to sort by; None sorts last.
        detail: small print, e.g. an interval.
        contends: whether it may be the best of its column.
        best: whether it is.
    """

    text: str
    value: float | int | None = None
    detail: str = ""
    contends: bool = False
    best: bool = False


@dataclasses.dataclass(frozen=True)
class Column:
    """A column's heading.

    Attributes:
        title: its own words.
        group: words that neighbouring columns share, above the titles.
        flat: both in one, where a heading has a single line.
        numeric: whether to align it right and sort it by value.
    """

    title: str
    group: str = ""
    flat: str = ""
    numeric: bool = True

    @property
    def one_line(self) -> str:
        """The heading in one line."""
        return self.flat or (f"{self.group}, {self.title}" if self.group else self.title)


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A row, and whose figures it shows; the first cell names it."""

    cells: Sequence[TableCell]
    kind: RowKind = "rival"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with a caption above it and notes below."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[TableRow]
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Key:
    """A line of a figure's legend: a label, a colour of the theme, and a mark."""

    label: str
    colour: str
    mark: Mark


@dataclasses.dataclass(frozen=True)
class Panel:
    """One chart.

    Attributes:
        title: above it.
        alt: what it shows, for those who do not see it.
        draw: draws it on a matplotlib axis.
        height: in CSS pixels, at the common width.
        left: room for the labels left of the axis, in CSS pixels.
        right: room for figures right of it.
    """

    title: str
    alt: str
    draw: Callable[[Any], None]
    height: int = 250
    left: int = 46
    right: int = 12


@dataclasses.dataclass(frozen=True)
class Charts:
    """Panels side by side under one caption, with one legend."""

    slug: str
    caption: str
    panels: Sequence[Panel]
    legend: Sequence[Key] = ()


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image that is drawn already, as PNG."""

    slug: str
    caption: str
    alt: str
    png: bytes


@dataclasses.dataclass(frozen=True)
class PatchPairs:
    """Pairs of patches with their distances."""

    slug: str
    caption: str
    pairs: HardPairs


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A few sentences; what stands in `backticks` is code."""

    text: str


@dataclasses.dataclass(frozen=True)
class Items:
    """A list of short statements."""

    texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Warnings:
    """Statements that nobody should overlook."""

    texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Subheading:
    """A title inside a section."""

    text: str


@dataclasses.dataclass(frozen=True)
class Fold:
    """Blocks that are shown on demand."""

    title: str
    blocks: "Sequence[Block]"


Block = Table | Charts | Picture | PatchPairs | Paragraph | Items | Warnings | Subheading | Fold


@dataclasses.dataclass(frozen=True)
class Section:
    """A titled part of the report; `slug` is its anchor."""

    slug: str
    title: str
    blocks: Sequence[Block]


@dataclasses.dataclass(frozen=True)
class Document:
    """A whole report.

    Attributes:
        title: above everything.
        date: of the evaluation.
        command: that made it.
        versions: software and hardware, by name.
        sections: the rest.
    """

    title: str
    date: str
    command: str
    versions: Mapping[str, str]
    sections: Sequence[Section]
