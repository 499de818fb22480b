"""`kjax build-views`: photographs in, the features that a matcher learns from out."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.cli.checks import check_count, check_output_file, check_weights
from kjax.errors import InputError
from kjax.extras import require
from kjax.pretrained import DEFAULT

if TYPE_CHECKING:
    from kjax.matcher.view_set import ViewSet

HELP = "describe random views of photographs, to train a matcher on"
EXAMPLES = """examples:
  kjax build-views photos --out views.npz
  kjax build-views photos/garden photos/church --weights fast --views 7 --out views.npz
  kjax build-views photos --colmap sparse/0 --out scene.npz
      no homographies but real photographs of one scene, and what COLMAP found in them
  python -m kjax.matcher --config=configs/matcher.py --workdir=out/matcher

The matcher will be for the descriptors of these weights. Photographs that cannot be read are named
and left out, and the exit code is then 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add("photographs", type=Path, nargs="+", help="folders, searched for photographs")
    add("--out", type=Path, required=True, metavar="FILE", help="to write, .npz")
    add("--colmap", type=Path, metavar="MODEL", help="folder of a sparse model of the photographs")
    add(
        "--weights",
        default=DEFAULT,
        help="shipped name (kjax info lists them), workdir, or file[:head,s=…] (%(default)s)",
    )
    add("--views", type=int, default=7, metavar="N", help="of each, besides itself (%(default)s)")
    add("--keypoints", type=int, default=2048, metavar="N", help="of a view at most (%(default)s)")
    add("--max-side", type=int, default=800, metavar="N", help="longer ones are reduced (800)")
    add("--dimension", type=int, metavar="D", help="fewer numbers, of weights trained for it")
    add("--seed", type=int, default=0, metavar="N", help="of all chance (%(default)s)")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Makes views, describes them, writes the file."""
    _check(args)

    from kjax.images.compiled_programs import keep_compiled_programs
    from kjax.matcher.view_set import write_view_set

    keep_compiled_programs()
    views, unreadable = _of_scene(args) if args.colmap else _of_photographs(args)
    write_view_set(args.out, views)
    for name in unreadable:
        print(f"left out, cannot be read: {name}", file=sys.stderr)
    print(
        f"{args.out}: {len(views)} groups of {views.counts.shape[1]} views of "
        f"{len(views.photographs)} photographs, described with {args.weights}"
    )
    return 1 if unreadable else 0


def _of_photographs(args: argparse.Namespace) -> "tuple[ViewSet, list[str]]":
    """Each photograph by homographies."""
    import dataclasses

    from kjax.data.cutting.photographs import list_photos
    from kjax.images.describer import load
    from kjax.images.view_features import VIEWS, describe_views

    photographs, names = [], []
    for folder in args.photographs:
        found = list_photos(folder)
        photographs += found
        names += [f"{folder.name}/{path.relative_to(folder).as_posix()}" for path in found]
    return describe_views(
        photographs,
        names,
        load(args.weights, dimension=args.dimension),
        config=dataclasses.replace(VIEWS, views=args.views, max_side=args.max_side),
        max_keypoints=args.keypoints,
        seed=args.seed,
        progress=not args.quiet,
    )


def _of_scene(args: argparse.Namespace) -> "tuple[ViewSet, list[str]]":
    """Photographs of a scene as they are."""
    from kjax.images.describer import load
    from kjax.images.scene_features import describe_scene

    return describe_scene(
        args.colmap,
        args.photographs[0],
        load(args.weights, dimension=args.dimension),
        views=args.views,
        max_keypoints=args.keypoints,
        max_side=args.max_side,
        progress=not args.quiet,
    )


def _check(args: argparse.Namespace) -> None:
    """Refuses, before any work, what cannot be."""
    for folder in args.photographs:
        if not folder.is_dir():
            raise InputError(f"no such folder: {folder}")
    if args.colmap and len(args.photographs) > 1:
        raise InputError("--colmap is of one folder of photographs: give that one")
    if args.out.suffix != ".npz":
        raise InputError(f"--out {args.out}: let it end with .npz")
    check_output_file(args.out)
    check_count("--views", args.views)
    check_count("--keypoints", args.keypoints)
    check_count("--max-side", args.max_side)
    check_weights(args.weights)
    require("cv2", "making views")
