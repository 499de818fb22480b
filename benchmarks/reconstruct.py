"""Reconstruct photos by COLMAP, with its own SIFT, and by `kjax colmap`.

    python benchmarks/reconstruct.py photos --command fast best+learned --out out/reconstruction
    python benchmarks/reconstruct.py photos --command fast --max-keypoints 4000 --ratio 0.94 ...

The first row is COLMAP as it comes: its SIFT (which is RootSIFT), matched exhaustively with a ratio
of 0.8; on a CPU it searches neighbours approximately, without a seed. The second row has the same
descriptors, matched exactly by kjax: mutual, with --ratio. COLMAP verifies and maps both with the
same cameras and a fixed seed; with one thread the second row is reproducible. The other rows are
`kjax colmap` as users run it: its own keypoints, cameras, threads and ratio, or the learned matcher
with +learned. Written for COLMAP 3.8 (Debian: apt-get install colmap).

Expected: `kjax colmap` registers at least as many images and 3-D points as both rows of COLMAP's
SIFT; such figures are marked with ≥.
"""

import argparse
import dataclasses
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import program
from peer_table.scenes import colmap_sift

from kjax.data.cutting.keypoints import LARGEST
from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.images.collection.build import Summary, build, summarize
from kjax.images.collection.matching import match_and_verify_all
from kjax.images.describer import Describer, load
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_program import find_reconstructor
from kjax.images.learned import Matcher, load_matcher
from kjax.interrupts import run_script

COLMAP = "COLMAP's SIFT"
EXACT = "COLMAP's SIFT, exact matches"
LEARNED = "+learned"
COLUMNS = (
    "method",
    "keypoints",
    "verified pairs",
    "verified matches",
    "images",
    "3-D points",
    "observations",
    "track length",
    "error, px",
    "describe, s",
    "match + verify, s",
    "map, s",
)


@dataclasses.dataclass(frozen=True)
class ReconstructionRow(Summary):
    """Figures of a reconstruction by one method.

    Attributes:
        method: name in the table.
        seconds: by stage: describe, match (and verify), map.
    """

    method: str
    seconds: dict[str, float]


@contextmanager
def stage(name: str, seconds: dict[str, float], method: str, quiet: bool) -> Iterator[None]:
    """Announce and time one stage of a method."""
    if not quiet:
        print(f"{method}: {name}", file=sys.stderr)
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


def run_colmap(photos: Path, folder: Path, args: argparse.Namespace) -> ReconstructionRow:
    """Reconstruct by COLMAP with its own features."""
    database, log = folder / "database.db", folder / "log.txt"
    seconds: dict[str, float] = {}
    with stage("describe", seconds, COLMAP, args.quiet):
        colmap_program.extract_sift(
            database,
            photos,
            max_keypoints=args.max_keypoints,
            single_camera=colmap_program.of_one_size(photos),
            log=log,
            threads=args.threads,
        )
    with stage("match", seconds, COLMAP, args.quiet):
        colmap_program.match_and_verify(database, log=log, threads=args.threads)
    return finish(COLMAP, photos, folder, seconds, args)


def run_exact(
    photos: Path, base: Path, folder: Path, args: argparse.Namespace
) -> ReconstructionRow:
    """Reconstruct by COLMAP with the features of its database `base`, matched by kjax."""
    seconds: dict[str, float] = {}
    with stage("describe", seconds, EXACT, args.quiet):
        features = colmap_sift(base)
    with stage("match", seconds, EXACT, args.quiet):
        match_and_verify_all(
            folder / "database.db",
            features,
            base=base,
            ratio=args.ratio,
            log=folder / "log.txt",
            threads=args.threads,
        )
    return finish(EXACT, photos, folder, seconds, args)


def finish(
    method: str, photos: Path, folder: Path, seconds: dict[str, float], args: argparse.Namespace
) -> ReconstructionRow:
    """Map, and summarise the largest model."""
    database, log = folder / "database.db", folder / "log.txt"
    with stage("map", seconds, method, args.quiet):
        models = colmap_program.reconstruct(
            database, photos, folder / "sparse", log=log, threads=args.threads
        )
    figures = dataclasses.asdict(summarize(database, models))
    return ReconstructionRow(**figures, method=method, seconds=seconds)


def load_command(name: str) -> tuple[Describer, Matcher | None]:
    """Load weights, and their matcher if the name ends with +learned."""
    weights = name.removesuffix(LEARNED)
    matcher = load_matcher(weights) if name.endswith(LEARNED) else None
    return load(weights, detector=LARGEST), matcher


def run_command(
    name: str, base: ReconstructionRow, folder: Path, args: argparse.Namespace
) -> ReconstructionRow:
    """Run `kjax colmap` with its own keypoints, as many as COLMAP's."""
    photos = args.photos
    start = time.perf_counter()
    describer, matcher = load_command(name)
    loading = time.perf_counter() - start
    built = build(
        photos,
        folder,
        describer,
        find_reconstructor("colmap"),
        max_keypoints=round(base.keypoints / base.photos),
        selection="exhaustive",
        ratio=describer.ratio,
        matcher=matcher,
        single_camera=colmap_program.of_one_size(photos),
    )
    seconds = {
        "describe": loading + built.seconds["describe"],
        "match": sum(built.seconds[stage] for stage in ("pairs", "match", "verify")),
        "map": built.seconds["map"],
    }
    method = f"kjax colmap --weights {name.replace(LEARNED, ' --matcher learned')}"
    figures = dataclasses.asdict(summarize(built.database, built.models))
    return ReconstructionRow(**figures, method=method, seconds=seconds)


def table(rows: Sequence[ReconstructionRow]) -> str:
    """Return a Markdown table; figures that reach both rows of COLMAP's SIFT are marked."""
    lines = []
    for number, row in enumerate(rows):
        marks = {
            name: " ≥"
            if number > 1 and all(getattr(row, name) >= getattr(sift, name) for sift in rows[:2])
            else ""
            for name in ("images", "points")
        }
        lines.append(
            [
                row.method,
                f"{row.keypoints:,}",
                f"{row.verified_pairs}",
                f"{row.verified_matches:,}",
                f"{row.images} of {row.photos}{marks['images']}",
                f"{row.points:,}{marks['points']}",
                f"{row.observations:,}",
                f"{row.track_length:.2f}" if row.points else "–",
                f"{row.error:.3f}" if row.points else "–",
                *(f"{seconds:.0f}" for seconds in row.seconds.values()),
            ]
        )
    return program.table(COLUMNS, lines)


def run(args: argparse.Namespace) -> None:
    """Reconstruct with each method, and print the table."""
    colmap_program.require_colmap()
    list_photos(args.photos)
    if args.out.exists() and any(args.out.iterdir()):
        raise InputError(f"{args.out} is not empty: choose another folder")
    for name in args.command:
        load_command(name)  # report a wrong name before COLMAP's minutes
    rows = [run_colmap(args.photos, _new_folder(args.out, 0, "colmap"), args)]
    base = args.out / "0-colmap" / "database.db"
    rows.append(run_exact(args.photos, base, _new_folder(args.out, 1, "colmap-exact"), args))
    for number, name in enumerate(args.command, start=len(rows)):
        folder = _new_folder(args.out, number, f"command-{name}")
        rows.append(run_command(name, rows[0], folder, args))
    print(
        f"{args.photos.resolve().name}: exact matches with a ratio of at most {args.ratio:g} "
        f"(COLMAP's: 0.8). COLMAP threads: {args.threads}. Describing includes detecting keypoints."
        f"\n\n{table(rows)}"
    )


def _new_folder(out: Path, number: int, name: str) -> Path:
    folder = out / f"{number}-{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-.')}"
    folder.mkdir(parents=True)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    add = parser.add_argument
    add("photos", type=Path, help="folder of photos of one scene")
    add("--command", nargs="+", default=[], metavar="WEIGHTS[+learned]", help="kjax colmap rows")
    add("--threads", type=int, default=1, help="threads of COLMAP (default: 1)")
    add("--out", type=Path, required=True, help="new folder for databases and models")
    add("--max-keypoints", type=int, default=8192, help="maximum per photo (default: 8192)")
    add("--ratio", type=float, default=0.9, help="maximum distance ratio (default: 0.9)")
    add("--quiet", action="store_true", help="show no progress")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main)
