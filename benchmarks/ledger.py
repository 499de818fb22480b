r"""Show and extend the ledger of photos that weights may be trained on.

    python benchmarks/ledger.py check                          all scenes of the ledger
    python benchmarks/ledger.py check data/castle data/garden  photos of these sets
    python benchmarks/ledger.py check data/lund --only-open    fail unless all licences are open
    python benchmarks/ledger.py reduce originals/seneca --out photos/seneca [--colour --side 1024]
    python benchmarks/ledger.py add photos/seneca --scene seneca \
        --source github.com/OpenDroneMap/odm_data_seneca \
        --author "Ohio Department of Transportation" --licence CC0-1.0
    python benchmarks/ledger.py seal

`check` returns 1 if a photo is not in the ledger, and 2 if --only-open refuses one.

`reduce` writes photos as the ledger has them: grey, or with `--colour --side 1024` if the scene's
name ends in -colour or -aligned, by OpenCV (whose version determines the last bits, hence the
hashes). `--align` turns and moves the photos of a place so that they show what the first one shows,
pixel by pixel; `--cut 88` removes the caption above NEON's photos.

`add` takes the files that a set will be cut from and stores their hashes. Add photos of several
authors or licences in several calls. Without a stated licence it is none-stated. Commit
photographs.csv and SHA256SUMS in kjax/weights/trained.

`seal` accepts ledger and cards after an edit by hand, if they agree.
"""

import argparse
import csv
import hashlib
import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import program

from kjax.cli.options import at_least
from kjax.data.cutting.photographs import list_photos
from kjax.data.phototour import SetPhotograph
from kjax.data.sets import read_photographs
from kjax.errors import InputError, check_name
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
    check_open,
    permitted_use,
    read_ledger,
)

LEAST_ALIKE = 0.1
"""Minimum correlation of the details of a place in two photos; at least 0.17 in the ledger's."""


def check(args: argparse.Namespace) -> int:
    """Print the scenes of sets, and the permitted use of weights trained on them."""
    ledger = shipped.photographs()
    listed = {name: read_photographs(name) for name in args.sets}
    if args.only_open:
        for name, photographs in listed.items():
            check_open(name, photographs, ledger)
    known, strangers = find_photographs(itertools.chain.from_iterable(listed.values()), ledger)
    scenes = summarize(known if args.sets else ledger.values())
    rows = [(one.scene, one.count, one.licence, "; ".join(one.authors)) for one in scenes]
    print(program.table(("scene", "photos", "licence", "author"), rows, text=4))
    for one in strangers:
        print(f"not in the ledger: {one.name} ({one.sha256})", file=sys.stderr)
    if args.sets and not strangers:
        print(f"use: {permitted_use(scenes)}")
    return 1 if strangers else 0


def add(args: argparse.Namespace) -> None:
    """Add photos, or nothing if one of them is refused."""
    for name in shipped.list_weights():
        if args.scene in {one.scene for one in shipped.card(name).photographs}:
            raise InputError(f"{name} was trained on {args.scene}: choose another --scene")
    more = []
    for given in args.paths:
        for path in [given] if given.is_file() else list_photos(given):
            name = path.name if path == given else path.relative_to(given).as_posix()
            fields = (args.scene, name, args.source, args.author, args.licence)
            more.append(LedgerRow(sha256(path), *fields))
    text = io.StringIO()
    rows = ledger_lines(make_ledger([*shipped.photographs().values(), *more]))
    csv.writer(text, lineterminator="\n").writerows([LedgerRow._fields, *rows])
    write_text(shipped.FOLDER / LEDGER_FILE, text.getvalue())
    seal_folder()
    print(f"{args.scene}: {len(more)} photos added, {len(rows)} in the ledger")


def reduce(args: argparse.Namespace) -> None:
    """Write the copies; existing ones stay."""
    cv2 = require("cv2", "reducing photos")
    settings = [cv2.IMWRITE_JPEG_QUALITY, 88]
    colour = args.colour or args.align
    if colour:  # 4:4:4
        settings += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, 0x111111, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    args.out.mkdir(parents=True, exist_ok=True)
    first = None
    for path in list_photos(args.folder):
        target = args.out / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', path.stem)}.jpg"
        photo = cv2.imread(str(path), cv2.IMREAD_COLOR if colour else cv2.IMREAD_GRAYSCALE)
        if photo is None:
            raise InputError(f"cannot read {path}: remove it from the folder")
        photo = photo[args.cut :]
        factor = args.side / max(photo.shape)
        if factor < 1:
            size = (round(photo.shape[1] * factor), round(photo.shape[0] * factor))
            photo = cv2.resize(photo, size, interpolation=cv2.INTER_AREA)
        if args.align:
            first = photo if first is None else first
            photo = aligned(photo, first)
        _, encoded = cv2.imencode(".jpg", photo, settings)
        if not target.exists():
            write_whole(target, lambda partial, data=encoded: partial.write_bytes(data.tobytes()))


def aligned(photo: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Turn and move a photo of a place so that its details lie where the first one has them."""
    cv2 = require("cv2", "aligning photos")

    def details(pixels: np.ndarray) -> np.ndarray:
        grey = np.float32(cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY))
        grey -= cv2.GaussianBlur(grey, (0, 0), 8)
        return grey / (np.sqrt(cv2.GaussianBlur(grey * grey, (0, 0), 8)) + 3)

    start, stop = np.eye(2, 3, dtype=np.float32), (3, 100, 1e-5)
    ends = details(first), details(photo)
    try:
        alike, found = cv2.findTransformECC(*ends, start, cv2.MOTION_EUCLIDEAN, stop, None, 5)
    except cv2.error:
        alike = 0.0
    if alike < LEAST_ALIKE:
        raise InputError("photos of --align do not show one place from one point")
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    size = first.shape[1::-1]
    return cv2.warpAffine(photo, found, size, flags=flags, borderMode=cv2.BORDER_REPLICATE)


def seal(args: argparse.Namespace) -> None:
    """Write new checksums if ledger and cards agree."""
    known = make_ledger(read_ledger(shipped.FOLDER / LEDGER_FILE).values())
    cards = [*shipped.FOLDER.glob("*.json"), *(shipped.FOLDER / shipped.MATCHERS).glob("*.json")]
    for path in cards:
        check_card(json.loads(path.read_bytes()), known)
    seal_folder()
    print(f"sealed: {len(cards)} cards, {len(known)} photos")


def make_ledger(rows: Iterable[LedgerRow]) -> Ledger:
    """Return rows by hash; raise if a field is empty or unknown, or a photo comes twice."""
    ledger: dict[str, LedgerRow] = {}
    places = set()
    for row in rows:
        place = f"{row.scene}/{row.file}"
        for field, text in row._asdict().items():
            if not text.strip():
                raise InputError(f"{row.file or row.sha256} has no {field}: the ledger needs it")
        if not re.fullmatch("[0-9a-f]{64}", row.sha256):
            raise InputError(f"{place}: {row.sha256!r} is not a SHA-256")
        check_name("licence", row.licence, (*OPEN_LICENCES, NONE_STATED))
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
    """Return the ledger rows of a set's photos, and those that are not in the ledger."""
    listed = list(listed)
    found = [ledger[one.sha256] for one in listed if one.sha256 in ledger]
    return found, [one for one in listed if one.sha256 not in ledger]


def summarize(rows: Iterable[LedgerRow]) -> list[PhotoGroup]:
    """Group photos by scene, source and licence; each counts once."""
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
    """Raise if a card's photos differ from the ledger."""
    groups = [PhotoGroup(**group) for group in card["photographs"]]
    if card["ledger_sha256"] != scenes_digest(groups, ledger):
        raise InputError(f"{card['name']}: its photos differ from the ledger")
    whole = {(one.scene, one.source, one.licence): one for one in summarize(ledger.values())}
    for one in groups:
        known = whole.get((one.scene, one.source, one.licence))
        found = known and 0 < one.count <= known.count and {*one.authors} <= {*known.authors}
        if not found:
            raise InputError(f"{card['name']}: the ledger has no such photos of {one.scene}")


def seal_folder() -> None:
    """Write the hashes of all cards and of the ledger."""
    cards = [*sorted(shipped.FOLDER.glob("*.json")), *sorted(shipped.FOLDER.glob("*/*.json"))]
    files = [*cards, shipped.FOLDER / LEDGER_FILE]
    write_text(shipped.FOLDER / CHECKSUMS, "".join(checksum_lines(shipped.FOLDER, files)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = program.make_parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    made = commands.add_parser("check", help="show the photos and licences of sets")
    made.add_argument("sets", nargs="*", metavar="SET", help="folder by build-patches, or embedded")
    made.add_argument("--only-open", action="store_true", help="fail without an open licence")
    made.set_defaults(command=check)
    made = commands.add_parser("add", help="add photos")
    made.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="file or folder")
    for field in ("scene", "source", "author", "licence"):
        made.add_argument(f"--{field}", required=True)
    made.set_defaults(command=add)
    made = commands.add_parser("reduce", help="write smaller copies of photos, grey or in colour")
    made.add_argument("folder", type=Path, help="folder of the originals")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of copies")
    made.add_argument("--colour", action="store_true", help="keep the colours")
    made.add_argument("--cut", type=at_least(0), default=0, metavar="ROWS", help="rows to cut off")
    made.add_argument("--align", action="store_true", help="photos of one place, in colour")
    made.add_argument("--side", type=at_least(1), default=1536, metavar="PX", help="long side")
    made.set_defaults(command=reduce)
    made = commands.add_parser("seal", help="accept ledger and cards after an edit")
    made.set_defaults(command=seal)
    return program.run_main(lambda args: args.command(args), parser, argv)


if __name__ == "__main__":
    run_script(main)
