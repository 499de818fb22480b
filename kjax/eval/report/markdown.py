"""The report as Markdown, with its pictures as files beside it."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from kjax.eval.report import page_parts as parts
from kjax.eval.report.patch_pictures import montage_png
from kjax.eval.report.phrases import decimal, printable
from kjax.eval.report.render import charts_image

FIGURES = "figures"
"""The pictures' folder."""


class Written(NamedTuple):
    """The text, and by file name how to make the pictures that it refers to."""

    text: str
    pictures: dict[str, Callable[[], bytes]]


def to_markdown(document: parts.Document, charts: Literal["png", "svg"] = "png") -> Written:
    """The whole report, with charts of that kind."""
    writer = _Writer(charts)
    lines = [f"# {escaped(document.title)}", *_run(document)]
    for section in document.sections:
        lines.append(f"## {escaped(section.title)}")
        lines += [writer.block(block) for block in section.blocks]
    return Written("\n\n".join(lines) + "\n", writer.pictures)


def escaped(text: str) -> str:
    """Text in which no sign means anything to Markdown; underscores inside words mean nothing."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|~$#])", r"\\\1", text)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


@dataclasses.dataclass
class _Writer:
    """Turns blocks into text and gathers their pictures on the way."""

    kind: Literal["png", "svg"]
    pictures: dict[str, Callable[[], bytes]] = dataclasses.field(default_factory=dict)

    def block(self, block: parts.Block) -> str:
        match block:
            case parts.Table():
                return table_text(block)
            case parts.Charts():
                alt = " ".join(panel.alt for panel in block.panels)
                name = f"{block.slug}.{self.kind}"
                draw = functools.partial(charts_image, block, self.kind)
                return self._picture(name, draw, alt, block.caption)
            case parts.PatchPairs():
                distances = ", ".join(decimal(one) for one in block.pairs.distances.tolist())
                caption = f"{block.caption}. Distances, in reading order: {distances}."
                draw = functools.partial(montage_png, block.pairs.patches)
                return self._picture(f"{block.slug}.png", draw, block.caption, caption)
            case parts.Picture():
                return self._picture(
                    f"{block.slug}.png", lambda: block.png, block.alt, block.caption
                )
            case parts.Paragraph():
                return _with_code(block.text)
            case parts.Items():
                return _items(block.texts)
            case parts.Warnings():
                return "\n".join(
                    ["> **Warnings**", ">", *(f"> - {escaped(text)}" for text in block.texts)]
                )
            case parts.Subheading():
                return f"### {escaped(block.text)}"
            case parts.Fold():
                return self._fold(block)

    def _picture(self, name: str, draw: Callable[[], bytes], alt: str, caption: str) -> str:
        self.pictures[name] = draw
        return f"![{escaped(alt)}]({FIGURES}/{name})\n\n{escaped(caption)}"

    def _fold(self, fold: parts.Fold) -> str:
        inner = "\n\n".join(self.block(block) for block in fold.blocks)
        title = escaped(fold.title)
        return f"<details>\n<summary>{title}</summary>\n\n{inner}\n\n</details>"


def _run(document: parts.Document) -> Iterator[str]:
    if document.date:
        yield escaped(document.date)
    if document.command:
        yield _code(document.command)
    if document.versions:
        versions = [f"{escaped(name)} {escaped(text)}" for name, text in document.versions.items()]
        yield " · ".join(versions)


def _items(texts: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)


def _with_code(text: str) -> str:
    """A paragraph, in which every second part between backticks is code."""
    pieces = text.split("`")
    pieces[::2] = map(escaped, pieces[::2])
    return "`".join(pieces)


def _code(text: str) -> str:
    """Indented, since a fence could be closed by what is inside."""
    return f"    {printable(text)}"


def table_text(table: parts.Table) -> str:
    """A table with its caption and notes."""
    heads = [escaped(column.one_line) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row.cells] for row in table.rows]
    for row, source in zip(rows, table.rows, strict=True):
        row[0] = f"**{row[0]}**" if source.kind == "ours" else row[0]
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, rules, *rows)]
    notes = [_items(table.notes)] if table.notes else []
    return "\n\n".join([escaped(table.caption), "\n".join(lines), *notes])


def _cell(cell: parts.TableCell) -> str:
    text = escaped(cell.text)
    text = f"**{text}**" if cell.best else text
    return f"{text} {escaped(cell.detail)}" if cell.detail else text
