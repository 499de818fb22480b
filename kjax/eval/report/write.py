"""Writes the report of an evaluation."""

import functools
from pathlib import Path

from kjax.errors import InputError
from kjax.eval.report.document import compose
from kjax.eval.report.html import to_html
from kjax.eval.report.markdown import FIGURES, to_markdown
from kjax.eval.results import Evaluation, Illustrations
from kjax.files.atomic import write_text, write_whole


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
    page, written = to_html(document), to_markdown(document)
    try:
        (folder / FIGURES if written.pictures else folder).mkdir(parents=True, exist_ok=True)
        for name, png in written.pictures.items():
            write_whole(folder / FIGURES / name, functools.partial(Path.write_bytes, data=png))
        write_text(folder / "report.md", written.text)
        write_text(folder / "report.html", page)
    except OSError as error:
        raise InputError(
            f"cannot write the report to {folder} ({error.strerror or error}): "
            "free some space or choose another folder"
        ) from error
