"""Reconstruct photos by COLMAP, with its own SIFT, and by `kjax colmap`.

    python benchmarks/reconstruct.py photos --command fast best+learned --out out/reconstruction
    python benchmarks/reconstruct.py photos --command fast --max-keypoints 4000 --ratio 0.94 ...
    python benchmarks/reconstruct.py photos --matcher sift --out out/sift

The first row is COLMAP as it comes: its SIFT (which is RootSIFT), matched exhaustively with a ratio
of 0.8; on a CPU it searches neighbours approximately, without a seed. The second row has the same
descriptors, matched exactly by kjax: mutual, with --ratio. COLMAP verifies and maps both with the
same cameras and a fixed seed; with one thread the second row is reproducible. The other rows are
`kjax colmap` as users run it: its own keypoints, cameras, threads and ratio. A row may name another
detector (fast:kjax) and the learned matcher (fast+learned). --matcher adds a row of COLMAP's
descriptors, matched by that matcher. Written for COLMAP 3.8 (Debian: apt-get install colmap).

Expected: `kjax colmap` registers at least as many images and 3-D points as both rows of COLMAP's
SIFT; such figures are marked with ≥.
"""

import argparse
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
from kjax.images.features import Features, unit_rows
from kjax.images.learned import Matcher, load_matcher
from kjax.interrupts import run_script
from kjax.weights.shipped import matcher_for

COLMAP = "COLMAP's SIFT"
EXACT = "COLMAP's SIFT, exact matches"
LEARNED = "+learned"
COLUMNS = ("method", "keypoints", "verified pairs", "verified matches", "images", "3-D points")
MODEL = ("observations", "track length", "error, px")
SECONDS = ("describe, s", "match + verify, s", "map, s")


@dataclasses.dataclass(frozen=True)
class ReconstructionRow(Summary):
    """Figures of a reconstruction by one method, with the seconds of each stage."""

    method: str
    seconds: dict[str, float]


def run_colmap(folder: Path, args: argparse.Namespace) -> ReconstructionRow:
    """Reconstruct by COLMAP with its own features."""
    database, options = folder / "database.db", {"log": folder / "log.txt", "threads": args.threads}
    single = colmap_program.of_one_size(args.photos)
    sift = {"max_keypoints": args.max_keypoints, "single_camera": single, **options}
    stages = {
        "describe": lambda: colmap_program.extract_sift(database, args.photos, **sift),
        "match": lambda: colmap_program.match_and_verify(database, **options),
    }
    return run_stages(COLMAP, folder, stages, args)


def run_exact(
    base: Path, folder: Path, args: argparse.Namespace, matcher: Matcher | None = None
) -> ReconstructionRow:
    """Reconstruct by COLMAP with the features of its database `base`, matched by kjax."""
    database = folder / "database.db"
    features: dict[str, Features] = {}
    options = {"ratio": args.ratio, "log": folder / "log.txt", "threads": args.threads}

    def describe() -> None:
        features.update(colmap_sift(base))
        if matcher is not None:  # it takes unit length; neighbours are the same for bytes
            for name, one in features.items():
                unit = unit_rows(one.descriptors.astype(np.float32))
                features[name] = dataclasses.replace(one, descriptors=unit)

    match = functools.partial(match_and_verify_all, database, features, base=base, **options)
    stages = {"describe": describe, "match": lambda: match(matcher=matcher)}
    method = EXACT if matcher is None else f"COLMAP's SIFT, matcher {matcher.name}"
    return run_stages(method, folder, stages, args)


def run_stages(
    method: str, folder: Path, stages: Mapping[str, Callable[[], Any]], args: argparse.Namespace
) -> ReconstructionRow:
    """Run the stages of a method, map, and summarise the largest model."""
    database, options = folder / "database.db", {"log": folder / "log.txt", "threads": args.threads}
    reconstruct = functools.partial(colmap_program.reconstruct, database, args.photos, **options)
    seconds: dict[str, float] = {}
    models = None
    for name, work in {**stages, "map": lambda: reconstruct(folder / "sparse")}.items():
        print(f"{method}: {name}", file=sys.stderr)
        seconds[name], models = program.timed(work)
    figures = dataclasses.asdict(summarize(database, models))
    return ReconstructionRow(**figures, method=method, seconds=seconds)


def load_command(name: str) -> tuple[Describer, Matcher | None]:
    """Load weights with a detector, and their matcher if the name ends with +learned."""
    weights, _, detector = name.removesuffix(LEARNED).partition(":")
    own = matcher_for(weights, detector)
    matcher = load_matcher(own) if name.endswith(LEARNED) else None
    return load(weights, detector=detector or LARGEST), matcher


def run_command(
    name: str, base: ReconstructionRow, folder: Path, args: argparse.Namespace
) -> ReconstructionRow:
    """Run `kjax colmap` with its own keypoints, as many as COLMAP's."""
    loading, (describer, matcher) = program.timed(lambda: load_command(name))
    built = build(
        args.photos,
        folder,
        describer,
        find_reconstructor("colmap"),
        max_keypoints=round(base.keypoints / base.photos),
        selection="exhaustive",
        ratio=describer.ratio,
        matcher=matcher,
        single_camera=colmap_program.of_one_size(args.photos),
    )
    seconds = {
        "describe": loading + built.seconds["describe"],
        "match": sum(built.seconds[stage] for stage in ("pairs", "match", "verify")),
        "map": built.seconds["map"],
    }
    options = name.replace(":", " --detector ").replace(LEARNED, " --matcher learned")
    method = f"kjax colmap --weights {options}"
    figures = dataclasses.asdict(summarize(built.database, built.models))
    return ReconstructionRow(**figures, method=method, seconds=seconds)


def table(rows: Sequence[ReconstructionRow]) -> str:
    """Return a Markdown table; figures that reach both rows of COLMAP's SIFT are marked."""
    lines = []
    most = {name: max(getattr(sift, name) for sift in rows[:2]) for name in ("images", "points")}
    for number, row in enumerate(rows):
        reached = {name: number > 1 and getattr(row, name) >= most[name] for name in most}
        marks = {name: " ≥" if one else "" for name, one in reached.items()}
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
    return program.table((*COLUMNS, *MODEL, *SECONDS), lines)


def run(args: argparse.Namespace) -> None:
    """Reconstruct with each method, and print the table."""
    colmap_program.require_colmap()
    list_photos(args.photos)
    if args.out.exists() and any(args.out.iterdir()):
        raise InputError(f"{args.out} is not empty: choose another folder")
    for name in args.command:
        load_command(name)  # report a wrong name before COLMAP's minutes
    matcher = load_matcher(args.matcher) if args.matcher else None
    rows = [run_colmap(_new_folder(args.out, 0, "colmap"), args)]
    base = args.out / "0-colmap" / "database.db"
    rows.append(run_exact(base, _new_folder(args.out, 1, "colmap-exact"), args))
    if matcher is not None:
        rows.append(run_exact(base, _new_folder(args.out, 2, "colmap-learned"), args, matcher))
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


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("photos", type=Path, help="folder of photos of one scene")
    add("--command", nargs="+", default=[], metavar="NAME", help="kjax colmap rows")
    add("--matcher", help="a matcher for COLMAP's own descriptors, such as sift")
    add("--threads", type=int, default=1, help="threads of COLMAP (default: 1)")
    add("--out", type=Path, required=True, help="new folder for databases and models")
    add("--max-keypoints", type=int, default=8192, help="maximum per photo (default: 8192)")
    add("--ratio", type=float, default=0.9, help="maximum distance ratio (default: 0.9)")


if __name__ == "__main__":
    run_script(main)
