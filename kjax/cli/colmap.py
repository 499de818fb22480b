"""`kjax colmap`: a folder of photographs to COLMAP's database and a reconstruction."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.cli.checks import check_count, check_matcher, check_output_folder, check_positive
from kjax.cli.feature_options import add_features, check_features
from kjax.counts import counted
from kjax.errors import InputError
from kjax.extras import require

if TYPE_CHECKING:
    from kjax.images.collection.build import Built
    from kjax.images.collection.engine import Engine
    from kjax.images.collection.summary import Summary
    from kjax.images.describer import Describer
    from kjax.images.learned_matching import Matcher

HELP = "match a folder of photographs and reconstruct the scene with COLMAP"
EXAMPLES = """examples:
  kjax colmap photos --out scene                        # scene/database.db, scene/sparse/0
  kjax colmap photos --out scene --weights fast --report        # and scene/report.html
  kjax colmap photos --out scene --no-map               # the database alone
  kjax colmap photos --out scene --matcher out/matcher  # a learned one: see docs/howto/matcher.md
  kjax colmap video --out scene --pairs sequential --neighbours 10 --single-camera
  kjax colmap photos --out scene --cluster auto         # on the machines of a Ray cluster

Keypoints are SIFT's, descriptors ours, matches mutual with a ratio test; COLMAP verifies them and
maps: pycolmap where it is installed, otherwise the program colmap (3.8). Cameras are guessed from
EXIF as COLMAP does.

--pairs says which photographs are matched: all (exhaustive); each with those most similar by their
descriptors (retrieval), that follow it by name (sequential), or that were taken nearest by EXIF's
positions (spatial), --neighbours of them. auto is exhaustive up to 2 × neighbours + 1 photographs,
then retrieval.

The same command goes on where it stopped, at the photograph or the pair. Work that other settings
share is not done again; the database and the models are those of the last command.

A photograph that cannot be read is reported and left out, and the exit code is then 1; so it is if
COLMAP finds no model.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("photographs", type=Path, help="folder, searched for photographs")
    parser.add_argument("--out", type=Path, required=True, help="new folder, or an earlier run's")
    add_features(parser, keypoints=4000, detector="SIFT-largest")
    parser.add_argument("--ratio", type=float, help="largest that is kept (what suits the weights)")
    parser.add_argument(
        "--matcher",
        metavar="FILE",
        help="a learned one, instead of mutual nearest neighbours with a ratio test: learned (the "
        "one that ships for the weights), matcher.npz or its workdir",
    )
    parser.add_argument(
        "--pairs",
        default="auto",
        help="auto (default), exhaustive, retrieval, sequential or spatial",
    )
    parser.add_argument("--neighbours", type=int, default=20, help="of each photograph (20)")
    parser.add_argument(
        "--single-camera", action="store_true", help="photographs of one size are one camera's"
    )
    parser.add_argument(
        "--mapper",
        choices=("auto", "pycolmap", "colmap"),
        default="auto",
        help="who verifies and maps (auto)",
    )
    parser.add_argument("--no-map", action="store_true", help="stop at the database")
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="describe and match on this Ray cluster; auto: the one that runs here",
    )
    parser.add_argument(
        "--report", action="store_true", help="a page with cameras, points and the weakest pairs"
    )


def run(args: argparse.Namespace) -> int:
    """Describes, matches, verifies, maps, sums up."""
    _check(args)

    from kjax.images.exchange.reconstructors import find_reconstructor

    reconstructor = find_reconstructor(args.mapper)
    engine = _engine(args.cluster)

    from kjax.images.collection.build import Settings, build
    from kjax.images.collection.summary import summarize
    from kjax.images.compiled_programs import keep_compiled_programs
    from kjax.images.describer import load

    keep_compiled_programs()
    describer = load(args.weights, seed=args.seed, dimension=args.dimension, detector=args.detector)
    matcher = _matcher(args, describer)
    settings = Settings(
        max_keypoints=args.keypoints,
        pairs=args.pairs,
        neighbours=args.neighbours,
        ratio=args.ratio or describer.ratio,
        single_camera=args.single_camera,
        mapping=not args.no_map,
    )
    built = build(
        args.photographs,
        args.out,
        describer,
        reconstructor,
        settings,
        matcher=matcher,
        engine=engine,
    )
    for line in built.left_out:
        print(f"kjax colmap: left out: {line}", file=sys.stderr)
    summary = summarize(built.database, built.models)
    print("\n".join(_lines(built, summary, reconstructor.name)))
    if args.report:
        from kjax.eval.report.reconstruction import write_page

        page = args.out / "report.html"
        write_page(page, args.photographs, built, summary, shlex.join(["kjax", *sys.argv[1:]]))
        print(f"wrote {page}")
    failed = bool(built.left_out) or (settings.mapping and not built.models)
    return 1 if failed else 0


def _matcher(args: argparse.Namespace, describer: "Describer") -> "Matcher | None":
    """The learned matcher, if it is asked for."""
    if args.matcher is None:
        return None
    from kjax.images.learned_matching import load_matcher

    matcher = load_matcher(args.matcher)
    matcher.check_weights(describer.sha256, describer.dimension)
    return matcher


def _engine(cluster: str | None) -> "Engine":
    """What describes and matches."""
    from kjax.images.collection.engine import HERE, Cluster

    return Cluster(cluster) if cluster else HERE


def _lines(built: "Built", summary: "Summary", mapper: str) -> list[str]:
    """What is printed at the end."""
    lines = [
        f"{counted(summary.photos, 'photograph')}, {counted(summary.keypoints, 'keypoint')}",
        f"{counted(summary.pairs, 'pair')} matched, {summary.verified_pairs:,} verified by "
        f"{mapper}, with {counted(summary.verified_matches, 'match')}",
    ]
    if built.models:
        lines.append(
            f"{summary.images} of {counted(summary.photos, 'photograph')} registered, "
            f"{counted(summary.points, 'point')}, track length {summary.track_length:.2f}, "
            f"reprojection error {summary.error:.3f} px"
        )
        if summary.models > 1:
            lines.append(f"{summary.models} models: these are the largest one's figures")
    elif "map" in built.seconds:
        lines.append(f"{mapper} finds no model in these matches: see {built.database.parent}/work")
    times = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in built.seconds.items())
    lines.append(f"seconds: {times}")
    wrote = [built.database, *built.models[:1]]
    return [*lines, f"wrote {' and '.join(map(str, wrote))}"]


def _check(args: argparse.Namespace) -> None:
    """Refuses, before any work, what cannot be."""
    if args.photographs.is_file():
        raise InputError(f"{args.photographs} is a file: give a folder of photographs")
    if not args.photographs.is_dir():
        raise InputError(f"no such folder: {args.photographs}")

    from kjax.data.cutting.photographs import list_photos
    from kjax.images.collection.pairs import check_word

    list_photos(args.photographs)
    check_word(args.pairs)
    check_features(args)
    check_count("--neighbours", args.neighbours)
    if args.ratio is not None:
        check_positive("--ratio", args.ratio, most=1.0)
    if args.matcher is not None:
        args.matcher = args.weights if args.matcher == "learned" else args.matcher
        check_matcher(args.matcher, needed=True, option="--matcher")
    check_output_folder(args.out)
    if args.report:
        require("matplotlib", "--report")
