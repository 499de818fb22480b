"""`kjax build-patches`: cut a patch set in PhotoTourism format from photographs."""

import argparse
import sys
from pathlib import Path

from kjax.cli.options import add_option, add_quiet, at_least, check_output_folder, positive
from kjax.errors import InputError, counted

HELP = "cut a patch set in PhotoTourism format from your own photographs"
EXAMPLES = """examples:
  kjax build-patches --colmap sparse/0 --database database.db --images photos --out myset
      from a COLMAP reconstruction: real changes of viewpoint and lighting
  kjax build-patches --photos photos --out myset
      from any photographs: random homographies and lighting

Photographs that cannot be read are reported and skipped; the exit code is then 1.
"""
FILTERS = {
    "max_reprojection_error": (2.0, "PX", "maximum reprojection error of a point, in pixels"),
    "max_view_angle": (60.0, "DEG", "maximum angle between two views of a point"),
    "min_view_angle": (2.0, "DEG", "minimum angle between some two views of a point"),
    "max_octaves": (0.5, "X", "maximum scale difference of a point's keypoints, in octaves"),
    "max_turn": (22.5, "DEG", "maximum orientation difference of a point's keypoints"),
}
"""Options of `TrackFilters`: default, metavar, help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--colmap", type=Path, metavar="DIR", help="folder of a sparse model")
    source.add_argument("--photos", type=Path, metavar="DIR", help="folder of photographs")
    add_option(parser, "--database", Path, "PATH", "with --colmap: database of the model")
    add_option(parser, "--images", Path, "DIR", "with --colmap: photographs of the model")
    add_option(parser, "--out", Path, "DIR", "patch set to write", required=True)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing set")
    add_quiet(parser)
    for name, kind, default, metavar, text in (
        ("pairs", at_least(1), 50_000, "N", "matching test pairs, and as many non-matching ones"),
        ("max_patches", at_least(4), 500_000, "N", "maximum patches; points are dropped randomly"),
        ("seed", at_least(0), 0, "N", "random seed"),
        ("views", at_least(1), 4, "N", "with --photos: random views per photograph"),
        ("max_points", at_least(1), 1500, "N", "with --photos: maximum points per photograph"),
        ("max_side", at_least(64), 1024, "PX", "with --photos: larger photographs are reduced"),
        *(
            (name, positive(zero=True), default, metavar, f"with --colmap: {text}")
            for name, (default, metavar, text) in FILTERS.items()
        ),
    ):
        option = f"--{name.replace('_', '-')}"
        add_option(advanced, option, kind, metavar, text, default=default)


def run(args: argparse.Namespace) -> int:
    """Cut and write the set."""
    if args.colmap and (args.database is None or args.images is None):
        raise InputError("--colmap needs --database and --images too")
    if args.photos and (args.database or args.images):
        raise InputError("--database and --images go with --colmap, not with --photos")

    from kjax.data.cutting.photographs import list_photos
    from kjax.data.phototour import check_output, sample_test_pairs, write_phototour
    from kjax.data.reconstruction import TrackFilters, cut_reconstruction
    from kjax.data.selfsupervised import ViewConfig, cut_self_supervised

    check_output(args.out, overwrite=args.overwrite)
    check_output_folder(args.out.resolve().parent)
    if args.colmap:
        cut = cut_reconstruction(
            args.colmap,
            args.database,
            args.images,
            filters=TrackFilters(**{name: getattr(args, name) for name in FILTERS}),
            max_patches=args.max_patches,
            seed=args.seed,
            progress=not args.quiet,
        )
    else:
        photos = list_photos(args.photos)
        share = args.max_patches // (len(photos) * (args.views + 1))
        if not share:
            raise InputError(
                f"--max-patches is too small for {counted(len(photos), 'photograph')}: raise it"
            )
        config = ViewConfig(
            views=args.views, max_side=args.max_side, max_points=min(args.max_points, share)
        )
        names = [path.relative_to(args.photos).as_posix() for path in photos]
        cut = cut_self_supervised(
            photos, names, config=config, seed=args.seed, progress=not args.quiet
        )
    pairs = sample_test_pairs(
        cut.point_ids, matching=args.pairs, non_matching=args.pairs, seed=args.seed
    )
    write_phototour(
        args.out,
        cut.patches,
        cut.point_ids,
        pairs=pairs,
        interest=cut.interest,
        photographs=cut.photographs,
        overwrite=args.overwrite,
    )
    print(
        f"{args.out}: {counted(len(cut.patches), 'patch')} of "
        f"{counted(int(cut.point_ids[-1]) + 1, 'point')} from "
        f"{counted(len(set(cut.interest[:, 0])), 'photograph')}, "
        f"{int(pairs.matching.sum()):,} matching and "
        f"{counted(int((~pairs.matching).sum()), 'other test pair')}"
    )
    for name in cut.unreadable:
        print(f"left out, cannot be read: {name}", file=sys.stderr)
    return 1 if cut.unreadable else 0
