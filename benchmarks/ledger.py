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
Where no licence was stated it is none-stated. Commit kjax/pretrained/photographs.csv and
SHA256SUMS.

`seal` is for after an edit by hand: it takes the ledger and the cards as they are, if they agree.
"""

import argparse
import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError, exit_code
from kjax.extras import require
from kjax.files.atomic import write_text, write_whole
from kjax.files.checksum import sha256
from kjax.interrupts import run_script
from kjax.weights import shipped
from kjax.weights import shipped as pretrained
from kjax.weights.ledger import LEDGER_FILE, Photograph, ledger_lines, make_ledger, read_ledger

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
    for name in pretrained.list_weights():
        if args.scene in {one.scene for one in pretrained.card(name).photographs}:
            raise InputError(f"{name} learned from {args.scene}: choose another name for the scene")
    before = pretrained.photographs()
    more = [
        Photograph(sha256(path), args.scene, name, args.source, args.author, args.licence)
        for given in args.paths
        for path, name in _named(given)
    ]
    text = io.StringIO()
    rows = ledger_lines(make_ledger([*before.values(), *more]))
    csv.writer(text, lineterminator="\n").writerows([Photograph._fields, *rows])
    write_text(shipped.FOLDER / LEDGER_FILE, text.getvalue())
    shipped.seal()
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
    known = read_ledger(shipped.FOLDER / LEDGER_FILE)
    old = (shipped.FOLDER / shipped.CHECKSUMS).read_text(encoding="utf-8")
    shipped.seal()
    try:
        cards = [pretrained.card(name) for name in pretrained.list_weights()]
    except InputError:
        write_text(shipped.FOLDER / shipped.CHECKSUMS, old)
        raise
    print(f"sealed: {len(cards)} cards, {len(known)} photographs")


def _named(given: Path) -> Iterator[tuple[Path, str]]:
    """Photographs, and their names below what is given."""
    if given.is_file():
        yield given, given.name
    else:
        for path in list_photos(given):
            yield path, path.relative_to(given).as_posix()


if __name__ == "__main__":
    run_script(main)
