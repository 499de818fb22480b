"""Writes the report of an evaluation, or another page with its pictures."""

import functools
from collections.abc import Mapping
from pathlib import Path

from kjax.eval.report.document import compose
from kjax.eval.report.html import to_html
from kjax.eval.report.markdown import FIGURES, Written, to_markdown
from kjax.eval.results import Evaluation, Illustrations
from kjax.files.atomic import explain_write_errors, write_whole


def write_report(
    folder: Path, evaluation: Evaluation, illustrations: Illustrations | None = None
) -> None:
    """Writes `report.html`, which needs no other file, and `report.md` with `figures/` beside it.

    Each file is written whole or not at all. Sections without data are left out.

    Args:
        folder: made if it is not there.
        evaluation: the figures.
        illustrations: what to show besides.

    Raises:
        InputError: matplotlib is missing, or the folder cannot be written to.
    """
    document = compose(evaluation, illustrations or Illustrations())
    pages = {"report.html": to_html(document)}
    write_pages(folder, to_markdown(document), "report.md", pages, what="the report")


def write_pages(
    folder: Path,
    written: Written,
    name: str,
    others: Mapping[str, str] | None = None,
    *,
    what: str,
) -> None:
    """Writes a page of Markdown with its pictures, each file whole or not at all.

    Args:
        folder: made if it is not there.
        written: text and pictures.
        name: of the text's file.
        others: more texts by file name.
        what: the pages are, for the message if they cannot be written.
    """
    files = {f"{FIGURES}/{file}": draw() for file, draw in written.pictures.items()}
    texts = {name: written.text, **(others or {})}
    files |= {file: text.encode() for file, text in texts.items()}
    with explain_write_errors(f"{what} to {folder}", "free some space or choose another folder"):
        for file, content in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, functools.partial(Path.write_bytes, data=content))
