"""Photographs reconstructed by COLMAP, with its own SIFT and with other descriptors.

    python benchmarks/reconstruct.py photos --descriptors out/base --out out/reconstruction
    python benchmarks/reconstruct.py photos --descriptors out/base rootsift --keypoints opencv ...
    python benchmarks/reconstruct.py photos --command fast best+learned --max-keypoints 4000 ...

COLMAP first runs as it comes: its SIFT (which is RootSIFT), matched exhaustively with a ratio of
0.8 both ways; on a CPU it finds neighbours only approximately, by random trees without a seed. A
looser ratio alone gives more points, so a second row has the same descriptors matched as all others
are: exactly, by kjax, mutual, with --ratio. Each descriptor gets the keypoints that COLMAP found,
or OpenCV's. The matches go into a database with the same cameras, and COLMAP verifies and maps them
as it did its own: from the second row on, only descriptors differ. The seed is fixed and COLMAP has
one thread: all rows but the first come out the same again. Needs COLMAP (written for 3.8; Debian:
apt-get install colmap). --command adds `kjax colmap` as a user runs it: its own keypoints, cameras,
threads, and the ratio that suits the weights, or with +learned the matcher that ships for them.

What it should print: a trained descriptor that registers at least as many images, and gives at
least as many 3-D points, as both rows of COLMAP's SIFT: then both figures bear a ≥.
"""

import argparse
import dataclasses
import functools
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from keypoint_descriptors import KeypointDescriptor, extent_words, load_keypoint_descriptors
from tqdm import tqdm

from kjax.data.cutting.detectors import LARGEST
from kjax.data.cutting.keypoints import detect
from kjax.data.cutting.photographs import list_photos, read_grey
from kjax.errors import InputError, exit_code
from kjax.files.atomic import write_json, write_text
from kjax.images.collection.build import Summary, build, summarize
from kjax.images.collection.matching import match_and_verify_all
from kjax.images.describer import Describer, load
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import read_features
from kjax.images.exchange.colmap_program import find_reconstructor
from kjax.images.features import Features
from kjax.images.learned_matching import Matcher, load_matcher
from kjax.images.matching import Distance
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
class Row(Summary):
    """What became of the photographs with one descriptor.

    Attributes:
        method: whose descriptor.
        seconds: of describing, of matching and verifying, and of mapping.
    """

    method: str
    seconds: dict[str, float]


class FeatureSource(NamedTuple):
    """Whose features are matched."""

    name: str
    describe: Callable[[], dict[str, Features]]
    """Makes the features of all photographs, by name."""
    distance: Distance = "L2"


class Stopwatch:
    """Seconds of a method's stages, which it announces."""

    def __init__(self, method: str, *, quiet: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._method, self._quiet = method, quiet

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Measures one stage."""
        if not self._quiet:
            print(f"{self._method}: {stage}", file=sys.stderr)
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start


def run_colmap(photos: Path, folder: Path, args: argparse.Namespace) -> Row:
    """COLMAP with its own features."""
    database, log = folder / "database.db", folder / "log.txt"
    stage = Stopwatch(COLMAP, quiet=args.quiet)
    with stage("describe"):
        colmap_program.extract_sift(
            database,
            photos,
            max_keypoints=args.max_keypoints,
            single_camera=colmap_program.of_one_size(photos),
            log=log,
            threads=args.threads,
        )
    with stage("match"):
        colmap_program.match_and_verify(database, log=log, threads=args.threads)
    return finish(COLMAP, photos, folder, stage, args.threads)


def run_matches(
    method: FeatureSource, photos: Path, base: Path, folder: Path, args: argparse.Namespace
) -> Row:
    """COLMAP with the matches of another method.

    Args:
        method: whose.
        photos: the folder.
        base: COLMAP's own database of the photographs.
        folder: of the result.
        args: of the command line.
    """
    database, log = folder / "database.db", folder / "log.txt"
    stage = Stopwatch(method.name, quiet=args.quiet)
    with stage("describe"):
        features = method.describe()
    with stage("match"):
        match_and_verify_all(
            database,
            features,
            base=base,
            ratio=args.ratio,
            log=log,
            distance=method.distance,
            threads=args.threads,
        )
    return finish(method.name, photos, folder, stage, args.threads)


def own_sift(base: Path) -> dict[str, Features]:
    """What COLMAP itself found and described."""
    rows = colmap_program.read_sift(base)
    found = read_features(base, colmap_program.photo_sizes(base))
    return {name: dataclasses.replace(one, descriptors=rows[name]) for name, one in found.items()}


def describe_photos(
    descriptor: KeypointDescriptor, photos: Path, base: Path, args: argparse.Namespace
) -> dict[str, Features]:
    """Keypoints and descriptors of all photographs that COLMAP read."""
    sizes = colmap_program.photo_sizes(base)
    theirs = read_features(base, sizes)
    described = {}
    for name in tqdm(sizes, desc="describing", unit="photo", disable=args.quiet):
        photo = read_grey(photos / name)
        if args.keypoints == "colmap":
            keypoints = theirs[name].keypoints()
        else:
            keypoints = detect(photo, max_keypoints=args.max_keypoints)
        xy, scales, angles, scores = keypoints
        rows = descriptor.describe(photo, keypoints)
        described[name] = Features(xy, rows, sizes[name], scales, angles, scores)
    return described


def finish(method: str, photos: Path, folder: Path, stage: Stopwatch, threads: int) -> Row:
    """Maps, and sums up the largest model."""
    database, log = folder / "database.db", folder / "log.txt"
    with stage("map"):
        folders = colmap_program.reconstruct(
            database, photos, folder / "sparse", log=log, threads=threads
        )
    return row(method, database, folders, stage.seconds)


def row(method: str, database: Path, folders: Sequence[Path], seconds: dict[str, float]) -> Row:
    """The figures of a database and its models."""
    figures = dataclasses.asdict(summarize(database, folders))
    return Row(**figures, method=method, seconds=seconds)


def load_command(word: str) -> tuple[Describer, Matcher | None]:
    """Weights, and their matcher if the word asks for it."""
    weights = word.removesuffix(LEARNED)
    matcher = load_matcher(weights) if word.endswith(LEARNED) else None
    return load(weights, detector=LARGEST), matcher


def run_command(word: str, base: Row, folder: Path, args: argparse.Namespace) -> Row:
    """`kjax colmap` itself: keypoints of its own, as many as COLMAP's with all orientations."""
    photos = args.photos
    start = time.perf_counter()
    describer, matcher = load_command(word)
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
    method = f"kjax colmap --weights {word.replace(LEARNED, ' --matcher learned')}"
    return row(method, built.database, built.models, seconds)


def table(rows: Sequence[Row]) -> str:
    """Markdown; figures that reach those of COLMAP's SIFT, the first two rows, are marked."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    for row in rows:
        marks = {
            name: " ≥"
            if row not in rows[:2]
            and all(getattr(row, name) >= getattr(sift, name) for sift in rows[:2])
            else ""
            for name in ("images", "points")
        }
        cells = (
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
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> None:
    """Reconstructs with each method, prints and writes the table."""
    colmap_program.require_colmap()
    list_photos(args.photos)
    if not 0 < args.ratio <= 1 or args.max_keypoints < 1:
        raise InputError("--ratio must be above 0 and at most 1, --max-keypoints positive")
    if args.out.exists() and any(args.out.iterdir()):
        raise InputError(f"{args.out} is not empty: choose another folder")
    descriptors = load_keypoint_descriptors(
        dict.fromkeys(args.descriptors), extent=args.extent, seed=args.seed, weights=args.weights
    )
    for word in args.command:
        load_command(word)  # a wrong word is told before COLMAP's minutes
    rows = [run_colmap(args.photos, _new_folder(args.out, 0, "colmap"), args)]
    base = args.out / "0-colmap" / "database.db"
    methods = {"colmap-exact": FeatureSource(EXACT, functools.partial(own_sift, base))}
    for word, descriptor in descriptors.items():
        describe = functools.partial(describe_photos, descriptor, args.photos, base, args)
        methods[word] = FeatureSource(descriptor.name, describe, descriptor.distance)
    for number, (word, method) in enumerate(methods.items(), start=1):
        folder = _new_folder(args.out, number, word)
        rows.append(run_matches(method, args.photos, base, folder, args))
    for number, word in enumerate(args.command, start=len(rows)):
        folder = _new_folder(args.out, number, f"command-{word}")
        rows.append(run_command(word, rows[0], folder, args))
    settings = {
        name: getattr(args, name)
        for name in ("keypoints", "max_keypoints", "ratio", "extent", "seed", "threads")
    }
    results = {"settings": settings, "methods": [dataclasses.asdict(row) for row in rows]}
    write_json(args.out / "results.json", results)
    text = (
        f"{args.photos.resolve().name}: keypoints of {args.keypoints}, mutual matches with a ratio "
        f"of at most {args.ratio:g} (the first row: 0.8), {extent_words(args.extent)}. "
        f"COLMAP's threads: {args.threads}; its describing, and that of kjax colmap, includes "
        "finding the keypoints.\n\n" + table(rows)
    )
    write_text(args.out / "table.md", text + "\n")
    print(text)


def _new_folder(out: Path, number: int, word: str) -> Path:
    folder = out / f"{number}-{re.sub(r'[^A-Za-z0-9.]+', '-', word).strip('-.')}"
    folder.mkdir(parents=True)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("photos", type=Path, help="folder of photographs of one scene")
    add("--descriptors", nargs="+", default=[], metavar="WORD", help="what to compare")
    add(
        "--command",
        nargs="+",
        default=[],
        metavar="WORD",
        help="kjax colmap with weights[+learned]",
    )
    add("--threads", type=int, default=1, help="of COLMAP (1); kjax colmap takes all")
    add("--out", type=Path, required=True, help="new folder for databases, models and the table")
    add("--keypoints", choices=("colmap", "opencv"), default="colmap", help="whose (colmap)")
    add("--max-keypoints", type=int, default=8192, help="at most per photograph (8192)")
    add("--ratio", type=float, default=0.9, help="largest that is kept (0.9)")
    add("--extent", type=float, help="patch's side over KeyPoint.size (each one's own)")
    add("--weights", nargs="+", default=[], metavar="RIVAL=FILE", help="files of learned rivals")
    add("--seed", type=int, help="which of a run's several seeds")
    add("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
    return exit_code("reconstruct", lambda: run(args))


if __name__ == "__main__":
    run_script(main)
