r"""Adds photographs to the ledger of what weights may learn from.

    python benchmarks/ledger.py reduce originals/seneca --out photos/seneca
    python benchmarks/ledger.py add photos/seneca --scene seneca \
        --source github.com/OpenDroneMap/odm_data_seneca \
        --author "Ohio Department of Transportation" --licence CC0-1.0
    python benchmarks/ledger.py seal

`reduce` writes photographs as those in the ledger are: grey JPEGs of their names, reduced to 1,536
pixels a side, quality 88, by OpenCV (whose version decides on the last bits, and so on the hashes).

`add` takes the files that a set will be cut from: their hashes are what is known of them.
Photographs of a scene with several authors or licences are added one after the other, as files.
Where no licence was stated it is none-stated. Commit kjax/weights/trained/photographs.csv and
SHA256SUMS.

`seal` is for after an edit by hand: it takes the ledger and the cards as they are, if they agree.
"""

import argparse
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kjax.data.cutting.photographs import list_photos
from kjax.data.phototour import SetPhotograph
from kjax.errors import InputError, exit_code, unknown_name
from kjax.extras import require
from kjax.files.atomic import CHECKSUMS, checksum_lines, sha256, write_text, write_whole
from kjax.interrupts import run_script
from kjax.weights import shipped
from kjax.weights.ledger import (
    LEDGER_FILE,
    NONE_STATED,
    OPEN_LICENCES,
    UNKNOWN,
    Ledger,
    LedgerRow,
    PhotoGroup,
    read_ledger,
)

LONGEST, QUALITY = 1536, 88
"""Pixels of the longer side, and JPEG's quality, of reduced photographs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Adds or seals; bad input is one line on stderr and exit code 2."""
    args = make_parser().parse_args(argv)
    return exit_code("ledger", lambda: args.run(args))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adding = commands.add_parser("add", help="add photographs")
    adding.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file or a folder")
    for field in ("scene", "source", "author", "licence"):
        adding.add_argument(f"--{field}", required=True)
    adding.set_defaults(run=add)
    reducing = commands.add_parser("reduce", help="make grey, smaller copies of photographs")
    reducing.add_argument("folder", type=Path, help="of the originals")
    reducing.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the copies")
    reducing.set_defaults(run=reduce)
    sealing = commands.add_parser("seal", help="take ledger and cards as they are")
    sealing.set_defaults(run=seal)
    return parser


def add(args: argparse.Namespace) -> None:
    """Adds the photographs, or nothing if one of them will not do."""
    for name in shipped.list_weights():
        if args.scene in {one.scene for one in shipped.card(name).photographs}:
            raise InputError(f"{name} learned from {args.scene}: choose another name for the scene")
    before = shipped.photographs()
    more = [
        LedgerRow(sha256(path), args.scene, name, args.source, args.author, args.licence)
        for given in args.paths
        for path, name in _named(given)
    ]
    text = io.StringIO()
    rows = ledger_lines(make_ledger([*before.values(), *more]))
    csv.writer(text, lineterminator="\n").writerows([LedgerRow._fields, *rows])
    write_text(shipped.FOLDER / LEDGER_FILE, text.getvalue())
    seal_folder()
    print(f"{args.scene}: {len(more)} photographs added, {len(rows)} in the ledger")


def reduce(args: argparse.Namespace) -> None:
    """Writes the copies; those that are there already stay."""
    cv2 = require("cv2", "reducing photographs")
    args.out.mkdir(parents=True, exist_ok=True)
    for path in list_photos(args.folder):
        target = args.out / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', path.stem)}.jpg"
        grey = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        if grey is None:
            raise InputError(f"{path} cannot be read: leave it out")
        factor = LONGEST / max(grey.shape)
        if factor < 1:
            size = (round(grey.shape[1] * factor), round(grey.shape[0] * factor))
            grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        _, encoded = cv2.imencode(".jpg", grey, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
        if not target.exists():
            write_whole(target, lambda partial, data=encoded: partial.write_bytes(data.tobytes()))


def seal(args: argparse.Namespace) -> None:
    """Seals what agrees with each other; the old seal stays if anything does not."""
    del args
    known = make_ledger(read_ledger(shipped.FOLDER / LEDGER_FILE).values())
    old = (shipped.FOLDER / CHECKSUMS).read_text(encoding="utf-8")
    seal_folder()
    try:
        names = shipped.list_weights()
        cards = [shipped.FOLDER / f"{name}.json" for name in names]
        for path in [*cards, *(shipped.FOLDER / shipped.MATCHERS).glob("*.json")]:
            check_card(json.loads(path.read_bytes()), known)
    except InputError:
        write_text(shipped.FOLDER / CHECKSUMS, old)
        raise
    print(f"sealed: {len(cards)} cards, {len(known)} photographs")


def _named(given: Path) -> Iterator[tuple[Path, str]]:
    """Photographs, and their names below what is given."""
    if given.is_file():
        yield given, given.name
    else:
        for path in list_photos(given):
            yield path, path.relative_to(given).as_posix()


# Rules of the ledger


def make_ledger(rows: Iterable[LedgerRow]) -> Ledger:
    """Return rows by hash; raise if a field is empty or unknown, or a photograph comes twice."""
    ledger: dict[str, LedgerRow] = {}
    places = set()
    for row in rows:
        place = f"{row.scene}/{row.file}"
        for field, text in row._asdict().items():
            if not text.strip():
                raise InputError(f"{row.file or row.sha256} has no {field}: the ledger needs it")
        if not re.fullmatch("[0-9a-f]{64}", row.sha256):
            raise InputError(f"{place}: {row.sha256!r} is not a SHA-256")
        if row.licence not in (*OPEN_LICENCES, NONE_STATED):
            raise unknown_name("licence", row.licence, (*OPEN_LICENCES, NONE_STATED))
        if OPEN_LICENCES.get(row.licence) and row.author == UNKNOWN:
            raise InputError(f"{place}: {row.licence} requires the author's name: give --author")
        if row.sha256 in ledger:
            twin = ledger[row.sha256]
            raise InputError(f"{place} is in the ledger as {twin.scene}/{twin.file}: add it once")
        if place in places:
            raise InputError(f"{place} is in the ledger with another content: rename it")
        ledger[row.sha256] = row
        places.add(place)
    return ledger


def ledger_lines(ledger: Ledger) -> list[LedgerRow]:
    """Return all rows in file order."""
    return sorted(ledger.values(), key=lambda row: (row.scene, row.file))


def find_photographs(
    listed: Iterable[SetPhotograph], ledger: Ledger
) -> tuple[list[LedgerRow], list[SetPhotograph]]:
    """Return the ledger rows of a dataset's photographs, and those that are not in the ledger."""
    listed = list(listed)
    found = [ledger[one.sha256] for one in listed if one.sha256 in ledger]
    return found, [one for one in listed if one.sha256 not in ledger]


def summarize(rows: Iterable[LedgerRow]) -> list[PhotoGroup]:
    """Group photographs by scene, source and licence; each counts once."""
    groups: dict[tuple[str, str, str], list[LedgerRow]] = {}
    for row in sorted(set(rows), key=lambda row: (row.scene, row.source, row.licence)):
        groups.setdefault((row.scene, row.source, row.licence), []).append(row)
    return [
        PhotoGroup(scene, len(some), licence, sorted({row.author for row in some}), source)
        for (scene, source, licence), some in groups.items()
    ]


def scenes_digest(groups: Iterable[PhotoGroup], ledger: Ledger) -> str:
    """Return the SHA-256 of all ledger rows of the groups' scenes."""
    scenes = {group.scene for group in groups}
    rows = sorted(row for row in ledger.values() if row.scene in scenes)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def check_card(card: dict, ledger: Ledger) -> None:
    """Raise if a card's photographs differ from the ledger."""
    groups = [PhotoGroup(**group) for group in card["photographs"]]
    if card["ledger_sha256"] != scenes_digest(groups, ledger):
        raise InputError(f"{card['name']}: its photographs are not those of the ledger")
    whole = {(one.scene, one.source, one.licence): one for one in summarize(ledger.values())}
    for one in groups:
        known = whole.get((one.scene, one.source, one.licence))
        if (
            known is None
            or not 0 < one.count <= known.count
            or not {*one.authors} <= {*known.authors}
        ):
            raise InputError(f"{card['name']}: the ledger has no such photographs of {one.scene}")


def seal_folder() -> None:
    """Write the hashes of all cards and of the ledger."""
    cards = [*sorted(shipped.FOLDER.glob("*.json")), *sorted(shipped.FOLDER.glob("*/*.json"))]
    files = [*cards, shipped.FOLDER / LEDGER_FILE]
    write_text(shipped.FOLDER / CHECKSUMS, "".join(checksum_lines(shipped.FOLDER, files)))


if __name__ == "__main__":
    run_script(main)
