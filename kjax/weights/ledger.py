"""The ledger: source, author, licence and SHA-256 of every training photograph.

It is the file photographs.csv beside the shipped weights, sorted by scene and file. A scene is a
collection of photographs from one place. Licences have their SPDX names.
"""

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kjax.errors import InputError, first_line

if TYPE_CHECKING:
    from kjax.data.phototour import SetPhotograph

LEDGER_FILE = "photographs.csv"
OPEN_LICENCES = {
    "CC0-1.0": False,
    "LicenseRef-public-domain": False,
    "CC-BY-2.0": True,
    "CC-BY-3.0": True,
    "CC-BY-4.0": True,
    "MIT": True,
    "BSD-2-Clause": True,
    "BSD-3-Clause": True,
    "Apache-2.0": True,
}
"""Licences that allow every use, and whether they require attribution.

Share-alike and non-commercial licences do not belong here.
"""
NONE_STATED = "none-stated"
"""Licence field of photographs that were published for research without a licence."""
UNKNOWN = "unknown"
"""Author field of photographs whose author is not known."""
MAX_NAMES = 8
"""Maximum number of authors named in one line."""


class LedgerRow(NamedTuple):
    """A photograph in the ledger; no field is empty."""

    sha256: str
    """SHA-256 of the file as it was read for training."""
    scene: str
    file: str
    """File name, unique within the scene."""
    source: str
    """Where the photograph was published."""
    author: str
    licence: str
    """One of `OPEN_LICENCES`, or `NONE_STATED`."""


Ledger = Mapping[str, LedgerRow]
"""Ledger rows by SHA-256."""


@dataclasses.dataclass(frozen=True)
class PhotoGroup:
    """Photographs with the same scene, source and licence."""

    scene: str
    count: int
    licence: str
    authors: list[str]
    source: str


def read_ledger(path: Path) -> Ledger:
    """Read a ledger file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file, strict=True)
        if tuple(header) != LedgerRow._fields:
            raise ValueError(f"its first line is not {','.join(LedgerRow._fields)}")
        return {row[0]: LedgerRow(*row) for row in rows}
    except (ValueError, TypeError, IndexError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({first_line(error)})") from None


def check_open(name: str, listed: Sequence["SetPhotograph"], ledger: Ledger) -> None:
    """Raise unless every photograph of a dataset is in the ledger under an open licence."""
    for one in listed:
        row = ledger.get(one.sha256)
        if row is None:
            raise InputError(
                f"{name}: {one.name} is not in the ledger of photographs: leave it out, or add it "
                "to the ledger with its licence"
            )
        if row.licence not in OPEN_LICENCES:
            raise InputError(
                f"{name}: {one.name} ({row.scene}/{row.file} in the ledger) was published without "
                "a licence: leave it out"
            )


def are_open(groups: Iterable[PhotoGroup]) -> bool:
    """Whether all photographs may be used freely."""
    return all(group.licence in OPEN_LICENCES for group in groups)


def permitted_use(groups: Sequence[PhotoGroup]) -> str:
    """Return, in one line, what weights trained on the photographs may be used for."""
    if not are_open(groups):
        closed = sum(group.count for group in groups if group.licence not in OPEN_LICENCES)
        total = sum(group.count for group in groups)
        return f"research: {closed} of {total} training photographs have no stated licence"
    credits = {
        f"{author} ({group.licence})"
        for group in groups
        for author in group.authors
        if OPEN_LICENCES[group.licence]
    }
    names = ", ".join(sorted(credits))
    if len(credits) > MAX_NAMES:
        names = f"the {len(credits)} authors that the card lists"
    return f"anything, also commercial; name {names}" if credits else "anything, also commercial"
