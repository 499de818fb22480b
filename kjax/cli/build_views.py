"""`kjax build-views`: describe views of photographs, to train a matcher on."""

import argparse
import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

from kjax.cli import options
from kjax.cli.options import add_option, at_least, path_ending, positive
from kjax.errors import InputError, counted
from kjax.extras import require

HELP = "describe random views of photographs, to train a matcher on"
EXAMPLES = """examples:
  kjax build-views photos --out views.npz
  kjax build-views photos/garden photos/church --weights fast --views 7 --out views.npz
  kjax build-views photos --colmap sparse/0 --out scene.npz
      real views of one scene from a COLMAP model, instead of homographies
  kjax build-views photos --weights rootsift --out sift.npz
      for a matcher of OpenCV's RootSIFT
  kjax train-matcher --config matcher --out out/matcher

For other descriptors, write the views as pictures, describe them in hloc's HDF5 with any
extractor, and read that file:
  kjax build-views photos --write-views pictures --rotation 30
  kjax build-views pictures --features features.h5 --out views.npz

The matcher will be for these descriptors. Photographs that cannot be read are reported and
skipped; the exit code is then 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    text = "folders of photographs, searched recursively"
    parser.add_argument("photographs", type=Path, nargs="+", metavar="DIR", help=text)
    add_option(parser, "--out", path_ending(".npz"), "PATH", ".npz file to write")
    add_option(parser, "--colmap", Path, "DIR", "sparse model of the photographs")
    options.add_shared(parser, "--weights")
    text = "views per photograph, besides itself"
    add_option(parser, "--views", at_least(1), "N", text, default=7)
    add_option(parser, "--keypoints", at_least(1), "N", "maximum keypoints per view", default=2048)
    options.add_quiet(parser)
    options.add_shared(advanced, "--dimension")
    text = "maximum rotation of a view"
    add_option(advanced, "--rotation", positive(most=180.0), "DEG", text, default=180.0)
    text = "keypoints without orientation; give a small --rotation, such as 15, too"
    advanced.add_argument("--upright", action="store_true", help=text)
    options.add_detector(advanced, "SIFT-steady")
    text = "strength of changed appearance: light, shadow, tones; 1 is usual"
    add_option(advanced, "--appearance", positive(most=2.0, zero=True), "X", text, default=0.0)
    text = "larger photographs are reduced to this side"
    add_option(advanced, "--max-side", at_least(1), "PX", text, default=800)
    add_option(advanced, "--seed", int, "N", "random seed", default=0)
    add_option(advanced, "--write-views", Path, "DIR", "write the views as pictures")
    text = "HDF5 features of the pictures that --write-views wrote, instead of --weights"
    add_option(advanced, "--features", Path, "PATH", text)
    text = "name of the descriptor in --features"
    add_option(advanced, "--name", str, "NAME", text, unset="the name of the file")


def check(args: argparse.Namespace) -> None:
    """Check files and combinations of options, before any work."""
    for folder in args.photographs:
        options.check_folder(folder)
    if args.write_views:
        if args.out or args.features or args.colmap:
            raise InputError("--write-views goes without --out, --features and --colmap")
        options.check_output_folder(args.write_views)
    elif args.out is None:
        raise InputError("give --out FILE.npz, or --write-views DIR")
    else:
        options.check_output_file(args.out)
    if args.colmap and len(args.photographs) > 1:
        raise InputError("--colmap needs exactly one folder of photographs")
    if args.features:
        if args.colmap or len(args.photographs) > 1:
            raise InputError("--features needs exactly one folder, written by --write-views")
        if not args.features.is_file():
            raise InputError(f"no such file: {args.features}")
    if args.weights != "rootsift":
        options.check_weights(args.weights)
    elif args.dimension is not None:
        raise InputError("rootsift has 128 numbers: omit --dimension")
    require("cv2", "making views")


def run(args: argparse.Namespace) -> int:
    """Make views, describe them and write the file."""
    check(args)

    from kjax.images.describer import Describer, load
    from kjax.images.exchange.hloc import read_features
    from kjax.images.runner import keep_compiled_programs
    from kjax.images.sift import RootSift
    from kjax.images.views import describe_scene, describe_views, views_of_features, write_views
    from kjax.matcher.view_set import write_view_set

    how = {"detector": args.detector, "upright": args.upright}

    def load_describer() -> Describer | RootSift:
        if args.weights == "rootsift":
            return RootSift(**how)
        return load(args.weights, dimension=args.dimension, **how)

    unreadable: list[str] = []
    if args.write_views:
        written, unreadable = write_views(args.write_views, **_view_options(args))
        print(
            f"{args.write_views}: {1 + args.views} views each of "
            f"{counted(written, 'photograph')}: describe them in an HDF5 file, "
            "then give it as --features"
        )
    else:
        keep_compiled_programs()
        if args.features:
            views = views_of_features(
                args.photographs[0],
                functools.partial(read_features, args.features),
                descriptor=args.name or args.features.stem,
                max_keypoints=args.keypoints,
                progress=not args.quiet,
            )
        elif args.colmap:
            views, unreadable = describe_scene(
                args.colmap,
                args.photographs[0],
                load_describer(),
                views=args.views,
                max_keypoints=args.keypoints,
                max_side=args.max_side,
                progress=not args.quiet,
            )
        else:
            views, unreadable = describe_views(
                describer=load_describer(),
                max_keypoints=args.keypoints,
                **_view_options(args),
            )
        write_view_set(args.out, views)
        print(
            f"{args.out}: {counted(len(views), 'group')} of "
            f"{counted(views.counts.shape[1], 'view')} of "
            f"{counted(len(views.photographs), 'photograph')}, described with "
            f"{views.described_with.name}"
        )
    for name in unreadable:
        print(f"left out, cannot be read: {name}", file=sys.stderr)
    return 1 if unreadable else 0


def _view_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of functions that make random views."""
    from kjax.data.cutting.photographs import list_photos
    from kjax.images.views import VIEWS

    found = [(folder, path) for folder in args.photographs for path in list_photos(folder)]
    return {
        "photographs": [path for _, path in found],
        "names": [f"{top.name}/{path.relative_to(top).as_posix()}" for top, path in found],
        "config": dataclasses.replace(
            VIEWS,
            views=args.views,
            max_side=args.max_side,
            max_rotation_degrees=args.rotation,
            appearance=args.appearance,
        ),
        "seed": args.seed,
        "progress": not args.quiet,
    }
