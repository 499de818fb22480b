"""`kjax ledger`: which photographs a set was cut from, and what their licences allow."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.data.sets import EMBEDDED, TFDS_PREFIX
from kjax.errors import InputError
from kjax.weights import shipped

if TYPE_CHECKING:
    from kjax.weights.ledger import PhotoGroup

HELP = "check that a set's photographs are in the ledger, and under which licences"
EXAMPLES = """examples:
  kjax ledger                             all scenes of the ledger that ships with kjax
  kjax ledger data/castle data/garden     what these sets were cut from
  kjax ledger data/lund --only-open       refuse it unless all photographs may be used freely

The exit code is 1 if a photograph is not in the ledger, and 2 if --only-open refuses one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "sets",
        nargs="*",
        metavar="SET",
        help="folder that kjax build-patches has written, or embedded; none lists the ledger",
    )
    parser.add_argument(
        "--only-open", action="store_true", help="refuse photographs without an open licence"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the scenes, and what weights that learn from them may be used for."""
    for name in args.sets:
        if not (name == EMBEDDED or name.startswith(TFDS_PREFIX) or Path(name).is_dir()):
            raise InputError(f"no such folder: {name}")

    from ledger import find_photographs, summarize

    from kjax.data.sets import read_photographs
    from kjax.weights.ledger import check_open, permitted_use

    ledger = shipped.photographs()
    if not args.sets:
        _print_table(summarize(ledger.values()))
        return 0
    listed = {name: read_photographs(name) for name in args.sets}
    if args.only_open:
        for name, photographs in listed.items():
            check_open(name, photographs, ledger)
    known, strangers = find_photographs(itertools.chain.from_iterable(listed.values()), ledger)
    scenes = summarize(known)
    _print_table(scenes)
    for one in strangers:
        print(f"not in the ledger: {one.name} ({one.sha256})", file=sys.stderr)
    if strangers:
        return 1
    print(f"use: {permitted_use(scenes)}")
    return 0


def _print_table(scenes: "Sequence[PhotoGroup]") -> None:
    rows = [("scene", "photographs", "licence", "author")]
    rows += [(one.scene, str(one.count), one.licence, "; ".join(one.authors)) for one in scenes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
