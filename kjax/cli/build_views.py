"""`kjax build-views`: photographs in, the features that a matcher learns from out."""

import argparse
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjax.cli.checks import (
    check_count,
    check_output_file,
    check_output_folder,
    check_positive,
    check_weights,
)
from kjax.cli.feature_options import add_weights
from kjax.counts import counted
from kjax.errors import InputError
from kjax.extras import require

if TYPE_CHECKING:
    from kjax.matcher.view_set import ViewSet

HELP = "describe random views of photographs, to train a matcher on"
EXAMPLES = """examples:
  kjax build-views photos --out views.npz
  kjax build-views photos/garden photos/church --weights fast --views 7 --out views.npz
  kjax build-views photos --colmap sparse/0 --out scene.npz
      no homographies but real photographs of one scene, and what COLMAP found in them
      made-up worlds: each photograph with up to three parts of others before it
  python -m kjax.matcher --config=configs/matcher.py --workdir=out/matcher

For descriptors of others: write the views as pictures, let any extractor describe them in hloc's
HDF5, and read that.
  kjax build-views photos --write-views pictures --rotation 30
  kjax build-views pictures --features features.h5 --out views.npz

The matcher will be for the descriptors of these weights, or of the features' extractor. Photographs
that cannot be read are named and left out, and the exit code is then 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add("photographs", type=Path, nargs="+", help="folders, searched for photographs")
    add("--out", type=Path, metavar="FILE", help="to write, .npz")
    add("--write-views", type=Path, metavar="DIR", help="write pictures only, for --features")
    add("--features", type=Path, metavar="FILE", help="HDF5 of such pictures, in place of weights")
    add("--name", help="of the descriptor of --features, for people; that of the file")
    add("--colmap", type=Path, metavar="MODEL", help="folder of a sparse model of the photographs")
    add_weights(parser)
    add("--views", type=int, default=7, metavar="N", help="of each, besides itself (%(default)s)")
    add("--rotation", type=float, default=180.0, metavar="DEGREES", help="of a view at most (180)")
    add("--keypoints", type=int, default=2048, metavar="N", help="of a view at most (%(default)s)")
    add("--max-side", type=int, default=800, metavar="N", help="longer ones are reduced (800)")
    add("--seed", type=int, default=0, metavar="N", help="of all chance (%(default)s)")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Makes views, describes them, writes the file."""
    _check(args)
    unreadable = _write_pictures(args) if args.write_views else _write_features(args)
    for name in unreadable:
        print(f"left out, cannot be read: {name}", file=sys.stderr)
    return 1 if unreadable else 0


def _write_pictures(args: argparse.Namespace) -> list[str]:
    """Views for others to describe; returns what could not be read."""
    from kjax.images.written_views import write_views

    written, unreadable = write_views(args.write_views, **_photographs(args))
    print(
        f"{args.write_views}: {1 + args.views} views each of "
        f"{counted(len(written.photographs), 'photograph')}: describe them into an HDF5 file, and "
        "give it as --features"
    )
    return unreadable


def _write_features(args: argparse.Namespace) -> list[str]:
    """The file to train on; returns what could not be read."""
    from kjax.images.compiled_programs import keep_compiled_programs
    from kjax.matcher.view_set import write_view_set

    keep_compiled_programs()
    views, unreadable = _views(args)
    write_view_set(args.out, views)
    print(
        f"{args.out}: {counted(len(views), 'group')} of {counted(views.counts.shape[1], 'view')} "
        f"of {counted(len(views.photographs), 'photograph')}, described with "
        f"{views.described_with.name}"
    )
    return unreadable


def _views(args: argparse.Namespace) -> "tuple[ViewSet, list[str]]":
    if args.features:
        return _of_features(args), []
    return _of_scene(args) if args.colmap else _of_photographs(args)


def _of_features(args: argparse.Namespace) -> "ViewSet":
    """Pictures that others described."""
    from kjax.images.exchange.hloc import read_features
    from kjax.images.written_views import views_of_features

    return views_of_features(
        args.photographs[0],
        functools.partial(read_features, args.features),
        descriptor=args.name or args.features.stem,
        max_keypoints=args.keypoints,
        progress=not args.quiet,
    )


def _of_photographs(args: argparse.Namespace) -> "tuple[ViewSet, list[str]]":
    """Each photograph by homographies."""
    from kjax.images.describer import load
    from kjax.images.view_features import describe_views

    describer = load(args.weights, dimension=args.dimension)
    return describe_views(
        describer=describer,
        max_keypoints=args.keypoints,
        **_photographs(args),
    )


def _photographs(args: argparse.Namespace) -> dict[str, Any]:
    """Files, their names, and how views of them differ, as functions take them."""
    import dataclasses

    from kjax.data.cutting.photographs import list_photos
    from kjax.images.view_features import VIEWS

    found = [(folder, path) for folder in args.photographs for path in list_photos(folder)]
    return {
        "photographs": [path for _, path in found],
        "names": [f"{top.name}/{path.relative_to(top).as_posix()}" for top, path in found],
        "config": dataclasses.replace(
            VIEWS,
            views=args.views,
            max_side=args.max_side,
            max_rotation_degrees=args.rotation,
        ),
        "seed": args.seed,
        "progress": not args.quiet,
    }


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
    _check_output(args)
    if args.features:
        _check_features(args)
    check_count("--views", args.views)
    check_count("--keypoints", args.keypoints)
    check_count("--max-side", args.max_side)
    check_positive("--rotation", args.rotation, most=180.0)
    check_weights(args.weights)
    require("cv2", "making views")


def _check_output(args: argparse.Namespace) -> None:
    if args.write_views:
        if args.out or args.features or args.colmap:
            raise InputError("--write-views goes without --out, --features and --colmap")
        return check_output_folder(args.write_views, "--write-views")
    if args.out is None:
        raise InputError("give --out FILE.npz, or --write-views DIR")
    if args.out.suffix != ".npz":
        raise InputError(f"--out {args.out}: let it end with .npz")
    return check_output_file(args.out)


def _check_features(args: argparse.Namespace) -> None:
    if args.colmap or len(args.photographs) > 1:
        raise InputError("--features is of one folder that --write-views wrote: give that one")
    if not args.features.is_file():
        raise InputError(f"no such file: {args.features}")
