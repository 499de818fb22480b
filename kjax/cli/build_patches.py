"""`kjax build-patches`: photographs in, a PhotoTourism-format patch set out."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.counts import counted
from kjax.errors import InputError

if TYPE_CHECKING:
    from kjax.data.photos import CutSet

HELP = "cut a patch set in PhotoTourism format out of your own photographs"
EXAMPLES = """examples:
  kjax build-patches --colmap sparse/0 --database database.db --images photos --out myset
      from a COLMAP reconstruction: real changes of viewpoint and light
  kjax build-patches --photos photos --out myset
      from any photographs: random homographies and lights

Photographs that cannot be read are named and left out. The set is still written, and the exit code
is then 1.
"""
FILTERS = {
    "max_reprojection_error": (2.0, "of a point, in pixels"),
    "max_view_angle": (60.0, "degrees between two views of a point"),
    "min_view_angle": (2.0, "degrees; points seen from one place only are dropped"),
    "max_octaves": (0.5, "by which keypoints of a point may differ in size, in the world"),
    "max_turn": (22.5, "degrees by which they may differ in orientation, in the world"),
}
"""Default and explanation of each of `TrackFilters` that has an option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--colmap", type=Path, metavar="MODEL", help="folder of a sparse model")
    source.add_argument("--photos", type=Path, metavar="DIR", help="folder of photographs")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the set to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the set that is there")
    parser.add_argument(
        "--pairs",
        type=_at_least(1),
        default=50_000,
        metavar="N",
        help="matching test pairs, and as many others (%(default)s)",
    )
    parser.add_argument(
        "--max-patches",
        type=_at_least(4),
        default=500_000,
        metavar="N",
        help="drop points at random beyond this (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=_at_least(0), default=0, metavar="N", help="of all chance (%(default)s)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_reconstruction_arguments(parser.add_argument_group("with --colmap"))
    _add_view_arguments(parser.add_argument_group("with --photos"))


def run(args: argparse.Namespace) -> int:
    """Cuts and writes the set; the code is 1 if photographs had to be left out."""
    from kjax.data.photos import check_output, sample_test_pairs, write_cut_set

    check_output(args.out, overwrite=args.overwrite)
    cut = _from_photos(args) if args.photos else _from_reconstruction(args)
    pairs = sample_test_pairs(
        cut.point_ids, matching=args.pairs, non_matching=args.pairs, seed=args.seed
    )
    write_cut_set(args.out, cut, pairs=pairs, overwrite=args.overwrite)
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


def _from_reconstruction(args: argparse.Namespace) -> "CutSet":
    from kjax.data.reconstruction import TrackFilters, cut_reconstruction

    if args.database is None or args.images is None:
        raise InputError("--colmap needs --database and --images too")
    filters = TrackFilters(**{name: getattr(args, name) for name in FILTERS})
    return cut_reconstruction(
        args.colmap,
        args.database,
        args.images,
        filters=filters,
        max_patches=args.max_patches,
        seed=args.seed,
        progress=not args.quiet,
    )


def _from_photos(args: argparse.Namespace) -> "CutSet":
    from kjax.data.cutting.photographs import list_photos
    from kjax.data.selfsupervised import ViewConfig, cut_self_supervised

    if args.database or args.images:
        raise InputError("--database and --images go with --colmap, not with --photos")
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
    return cut_self_supervised(
        photos, names, config=config, seed=args.seed, progress=not args.quiet
    )


def _add_reconstruction_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--database", type=Path, metavar="FILE", help="what the model was made from")
    group.add_argument("--images", type=Path, metavar="DIR", help="the photographs COLMAP read")
    for name, (default, text) in FILTERS.items():
        option, told = f"--{name.replace('_', '-')}", f"{text} (%(default)s)"
        group.add_argument(option, type=_non_negative, default=default, metavar="X", help=told)


def _add_view_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--views", type=_at_least(1), default=4, metavar="N", help="made of each (%(default)s)"
    )
    group.add_argument(
        "--max-points", type=_at_least(1), default=1500, metavar="N", help="from each (%(default)s)"
    )
    group.add_argument(
        "--max-side",
        type=_at_least(64),
        default=1024,
        metavar="N",
        help="longer photographs are reduced to this many pixels (%(default)s)",
    )


def _at_least(lowest: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        value = int(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {value}")
        return value

    return integer


def _non_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {text}")
    return value
