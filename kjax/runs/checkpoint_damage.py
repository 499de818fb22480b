"""Damage in checkpoints: found before orbax stumbles over it, or else told in one line."""

import contextlib
import functools
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.files.atomic import CHECKSUMS, checksum_lines
from kjax.files.json import is_number, parse_line

MOST_ERRORS_OF_A_SAVE = 8
"""More than orbax does at once for a checkpoint; each can fail."""


def write_checksums(folder: Path, inner: str) -> None:
    """Lists in `folder` the files of the folder `inner` in it."""
    (folder / CHECKSUMS).write_text("".join(_checksums(folder, inner)))


def check_checksums(folder: Path, inner: str) -> None:
    """Compares the files with the list, if there is one: other programs do not write it.

    Raises:
        ValueError: a file has changed, is missing, or was not there.
    """
    if (folder / CHECKSUMS).exists():
        listed = (folder / CHECKSUMS).read_text().splitlines(keepends=True)
        if changed := {*listed} ^ {*_checksums(folder, inner)}:
            name = min(changed).partition("  ")[2].strip()
            raise ValueError(f"{name or CHECKSUMS} is not as it was written")


def _checksums(folder: Path, inner: str) -> Iterator[str]:
    return checksum_lines(folder, sorted(p for p in (folder / inner).rglob("*") if p.is_file()))


def check_metrics(folder: Path) -> None:
    """Refuses a damaged file of metrics, over which orbax would stumble in many ways."""

    def checked(content: Any) -> None:
        # Null where a checkpoint is no candidate for the best.
        if content is not None and not all(map(is_number, content.values())):
            raise ValueError("a value is not a number")

    for path in sorted(folder.glob("*/metrics/metrics")):
        try:
            parse_line(path.read_bytes(), checked)
        except ValueError as error:
            raise InputError(
                f"{path} is damaged ({error}): remove the folder {path.parent}; all that is lost "
                "is whether this checkpoint was the best"
            ) from error


@contextlib.contextmanager
def mendable(what: str, advice: str) -> Iterator[None]:
    """Turns whatever orbax raises into one line.

    Its errors have no common class, and what a damaged file makes it stumble over is not
    documented, so all ordinary exceptions are caught.
    """
    _silence_orbax()
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(reason.split())
        shortened = f"{reason[:200]}…" if len(reason) > 200 else reason
        raise InputError(f"{what} ({shortened or type(error).__name__}): {advice}") from error


def close_failed(close: Callable[[], None]) -> None:
    """Calls orbax's `close` after an error, and tells nothing more: what else fails, it caused.

    Closing ends at the next error it meets and forgets it, so it is called until it comes through.
    """
    for _ in range(MOST_ERRORS_OF_A_SAVE):
        with contextlib.suppress(Exception):
            close()
            return


@functools.cache
def _silence_orbax() -> None:
    """Keeps off the terminal what is raised as well.

    That is its log, and the writes that are under way when one fails: they report to nobody, which
    asyncio and TensorStore print in ways of their own.
    """
    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
    logging.getLogger("asyncio").addFilter(lambda record: not _is_of_orbax(record))
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            usual(unraisable)

    sys.unraisablehook = hook


def _is_of_orbax(record: logging.LogRecord) -> bool:
    """Whether asyncio tells of an error in orbax's files, or one that went through its code."""
    frames = traceback.extract_tb(record.exc_info[2] if record.exc_info else None)
    went_through = any("orbax" in Path(frame.filename).parts for frame in frames)
    return went_through or ".orbax-checkpoint-tmp" in record.getMessage()
