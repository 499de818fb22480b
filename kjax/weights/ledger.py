"""The ledger: source, author, licence and SHA-256 of every photograph that weights learned from.

It is photographs.csv in this folder, in the order of scenes and files. A scene is a collection of
photographs that came from one place. Licences are named as SPDX does.
"""

import csv
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kjax.errors import InputError, first_line, unknown_name

if TYPE_CHECKING:
    from kjax.data.set_photographs import SetPhotograph

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
"""Licences that allow every use and ask at most for the author's name, and whether they do.

None that asks to share alike, or that forbids commerce, belongs here.
"""
NONE_STATED = "none-stated"
"""In the place of a licence: published without one, for research."""
UNKNOWN = "unknown"
"""In the place of an author."""
MOST_NAMES = 8
"""Authors that one line can name."""


class Photograph(NamedTuple):
    """A row of the ledger; no field is empty."""

    sha256: str
    """Of the file as it was read for training."""
    scene: str
    file: str
    """Its name there; unique within the scene."""
    source: str
    """Where it can be had."""
    author: str
    licence: str
    """One of `OPEN_LICENCES`, or `NONE_STATED`."""


Ledger = Mapping[str, Photograph]
"""Photographs by their SHA-256."""


@dataclasses.dataclass(frozen=True)
class Photographs:
    """Photographs of one scene, source and licence, in short."""

    scene: str
    count: int
    licence: str
    authors: list[str]
    source: str


def read_ledger(path: Path) -> Ledger:
    """The photographs of a file.

    Raises:
        InputError: it is damaged, or a row of it will not do.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file, strict=True)
        if tuple(header) != Photograph._fields:
            raise ValueError(f"its first line is not {','.join(Photograph._fields)}")
        found = [Photograph(*row) for row in rows]
    except (ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({first_line(error)})") from None
    return make_ledger(found)


def make_ledger(photographs: Iterable[Photograph]) -> Ledger:
    """The photographs by their hashes.

    Raises:
        InputError: a field is empty or unknown, or a photograph comes twice.
    """
    ledger: dict[str, Photograph] = {}
    places = set()
    for one in photographs:
        _check(one)
        if one.sha256 in ledger:
            twin = ledger[one.sha256]
            raise InputError(f"{_place(one)} is in the ledger as {_place(twin)}: add it once")
        if _place(one) in places:
            raise InputError(f"{_place(one)} is in the ledger with another content: rename it")
        ledger[one.sha256] = one
        places.add(_place(one))
    return ledger


def ledger_lines(ledger: Ledger) -> list[Photograph]:
    """All rows in the order that they are written in."""
    return sorted(ledger.values(), key=lambda one: (one.scene, one.file))


def find_photographs(
    listed: Iterable["SetPhotograph"], ledger: Ledger
) -> tuple[list[Photograph], list["SetPhotograph"]]:
    """What the ledger knows about a set's photographs, and those that it does not know."""
    found, strangers = [], []
    for one in listed:
        if one.sha256 in ledger:
            found.append(ledger[one.sha256])
        else:
            strangers.append(one)
    return found, strangers


def check_open(name: str, listed: Sequence["SetPhotograph"], ledger: Ledger) -> None:
    """Refuses a set with photographs that are not in the ledger, or have no open licence.

    Args:
        name: of the set.
        listed: its photographs.
        ledger: what is known about photographs.
    """
    for one in listed:
        known = ledger.get(one.sha256)
        if known is None:
            raise InputError(
                f"{name}: {one.name} is not in the ledger of photographs: leave it out, or add it "
                "to the ledger with its licence"
            )
        if known.licence not in OPEN_LICENCES:
            raise InputError(
                f"{name}: {one.name} ({_place(known)} in the ledger) was published without a "
                "licence: leave it out"
            )


def summarize(photographs: Iterable[Photograph]) -> list[Photographs]:
    """The photographs in short, by scene, source and licence; each counts once."""
    groups: dict[tuple[str, str, str], list[Photograph]] = {}
    for one in sorted(set(photographs), key=lambda one: (one.scene, one.source, one.licence)):
        groups.setdefault((one.scene, one.source, one.licence), []).append(one)
    return [
        Photographs(scene, len(some), licence, sorted({one.author for one in some}), source)
        for (scene, source, licence), some in groups.items()
    ]


def scenes_digest(groups: Iterable[Photographs], ledger: Ledger) -> str:
    """SHA-256 of all that the ledger says about the scenes.

    Of whole scenes: a reconstruction leaves some photographs out, and their names would be too many
    for a card.
    """
    scenes = {group.scene for group in groups}
    rows = sorted(row for row in ledger.values() if row.scene in scenes)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def check_told(told: Sequence[Photographs], digest: str, ledger: Ledger) -> None:
    """Refuses what a card tells about its photographs if the ledger tells otherwise.

    Args:
        told: in short.
        digest: of their scenes.
        ledger: to be compared with.
    """
    if digest != scenes_digest(told, ledger):
        raise InputError("its photographs are not those of the ledger")
    whole = {(one.scene, one.source, one.licence): one for one in summarize(ledger.values())}
    for one in told:
        known = whole.get((one.scene, one.source, one.licence))
        if (
            known is None
            or not 0 < one.count <= known.count
            or not {*one.authors} <= {*known.authors}
        ):
            raise InputError(f"the ledger knows no such photographs of {one.scene}")


def are_open(groups: Iterable[Photographs]) -> bool:
    """Whether all may be used freely."""
    return all(group.licence in OPEN_LICENCES for group in groups)


def use(groups: Sequence[Photographs]) -> str:
    """What weights that learned from the photographs may be used for, in one line."""
    if not are_open(groups):
        closed = sum(group.count for group in groups if group.licence not in OPEN_LICENCES)
        total = sum(group.count for group in groups)
        return f"research: {closed} of {total} training photographs have no stated licence"
    named = {
        f"{author} ({group.licence})"
        for group in groups
        for author in group.authors
        if OPEN_LICENCES[group.licence]
    }
    names = ", ".join(sorted(named))
    if len(named) > MOST_NAMES:
        names = f"the {len(named)} authors that the card lists"
    return f"anything, also commercial; name {names}" if named else "anything, also commercial"


def _check(one: Photograph) -> None:
    for field, text in one._asdict().items():
        if not text.strip():
            raise InputError(f"{one.file or one.sha256} has no {field}: the ledger needs it")
    if not re.fullmatch("[0-9a-f]{64}", one.sha256):
        raise InputError(f"{_place(one)}: {one.sha256!r} is no SHA-256")
    if one.licence not in (*OPEN_LICENCES, NONE_STATED):
        raise unknown_name("licence", one.licence, (*OPEN_LICENCES, NONE_STATED))
    if OPEN_LICENCES.get(one.licence) and one.author == UNKNOWN:
        raise InputError(f"{_place(one)}: {one.licence} asks for the author's name: tell it")


def _place(one: Photograph) -> str:
    return f"{one.scene}/{one.file}"
