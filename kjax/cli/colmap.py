"""`kjax colmap`: match a folder of photographs and reconstruct the scene with COLMAP."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.cli import options
from kjax.cli.options import add_option, at_least
from kjax.errors import counted
from kjax.extras import require

if TYPE_CHECKING:
    from kjax.images.collection.build import Built, Summary

HELP = "match a folder of photographs and reconstruct the scene with COLMAP"
EXAMPLES = """examples:
  kjax colmap photos --out scene                        # scene/database.db, scene/sparse/0
  kjax colmap photos --out scene --weights fast --report        # and scene/report.html
  kjax colmap photos --out scene --no-map               # only the database
  kjax colmap photos --out scene --matcher learned      # with the matcher of the weights
  kjax colmap video --out scene --pairs sequential --neighbours 10 --single-camera
  kjax colmap photos --out scene --cluster auto         # on the machines of a Ray cluster

Matches are mutual nearest neighbours that pass the ratio test. pycolmap verifies and maps if it is
installed, otherwise the program colmap (3.8). Camera parameters are guessed from EXIF, as in
COLMAP.

--pairs chooses the image pairs: all (exhaustive), or each image with --neighbours others that have
similar descriptors (retrieval: on average), follow it by name (sequential) or are nearest by EXIF
position (spatial). auto is exhaustive up to 2 × neighbours + 1 images, then retrieval.

Run the same command to resume. Work shared with other settings is reused; the database and the
models are those of the last command. The exit code is 1 if a photograph cannot be read or COLMAP
finds no model.
"""
METHODS = ("mutual_ratio", "learned")
PAIRS = ("auto", "exhaustive", "retrieval", "sequential", "spatial")
MAPPERS = ("auto", "pycolmap", "colmap")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    text = "folder of photographs, searched recursively"
    parser.add_argument("photographs", type=Path, metavar="DIR", help=text)
    add_option(parser, "--out", Path, "DIR", options.RESUMABLE, required=True)
    options.add_features(parser, advanced, detector="SIFT-largest")
    options.add_matcher(parser, METHODS)
    add_option(parser, "--pairs", PAIRS, "NAME", "image pairs to match", default="auto")
    add_option(parser, "--neighbours", at_least(1), "N", "neighbours per image", default=20)
    text = "assume one camera for all images of the same size"
    parser.add_argument("--single-camera", action="store_true", help=text)
    parser.add_argument("--no-map", action="store_true", help="stop after the database")
    text = "write a page with cameras, points and the weakest pairs"
    parser.add_argument("--report", action="store_true", help=text)
    options.add_shared(advanced, "--ratio")
    text = "program for verification and mapping"
    add_option(advanced, "--mapper", MAPPERS, "NAME", text, default="auto")
    text = "describe and match on this Ray cluster; auto: the one running on this machine"
    add_option(advanced, "--cluster", str, "ADDRESS", text)


def run(args: argparse.Namespace) -> int:
    """Describe, match, verify, map and summarise."""
    options.check_folder(args.photographs)

    from kjax.data.cutting.photographs import list_photos

    list_photos(args.photographs)
    options.check_features(args)
    _, source = options.check_matcher(args, METHODS)
    options.check_output_folder(args.out)
    if args.report:
        require("matplotlib", "--report")

    from kjax.images.exchange.colmap_program import find_reconstructor

    reconstructor = find_reconstructor(args.mapper)

    from kjax.images.collection.build import build, summarize
    from kjax.images.collection.engine import HERE, Cluster
    from kjax.images.describer import load
    from kjax.images.learned import load_matcher
    from kjax.images.runner import keep_compiled_programs

    engine = Cluster(args.cluster) if args.cluster else HERE
    keep_compiled_programs()
    describer = load(args.weights, **options.model_options(args))
    describer.max_side, describer.upright = args.max_side, args.upright
    matcher = None if source is None else load_matcher(source)
    if matcher is not None:
        matcher.check_weights(describer.sha256, describer.dimension)
    built = build(
        args.photographs,
        args.out,
        describer,
        reconstructor,
        max_keypoints=args.keypoints,
        selection=args.pairs,
        neighbours=args.neighbours,
        ratio=args.ratio or describer.ratio,
        matcher=matcher,
        single_camera=args.single_camera,
        mapping=not args.no_map,
        engine=engine,
    )
    for line in built.left_out:
        print(f"kjax colmap: left out: {line}", file=sys.stderr)
    summary = summarize(built.database, built.models)
    print("\n".join(summary_lines(built, summary, reconstructor.name)))
    if args.report:
        from kjax.eval.report.reconstruction import write_page

        page = args.out / "report.html"
        write_page(page, args.photographs, built, summary, shlex.join(["kjax", *sys.argv[1:]]))
        print(f"wrote {page}")
    failed = bool(built.left_out) or (not args.no_map and not built.models)
    return 1 if failed else 0


def summary_lines(built: "Built", summary: "Summary", mapper: str) -> list[str]:
    """Return the lines printed at the end."""
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
            lines.append(f"{summary.models} models: the figures are those of the largest")
    elif "map" in built.seconds:
        lines.append(f"{mapper} finds no model in these matches: see {built.database.parent}/work")
    times = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in built.seconds.items())
    lines.append(f"seconds: {times}")
    wrote = [built.database, *built.models[:1]]
    return [*lines, f"wrote {' and '.join(map(str, wrote))}"]
