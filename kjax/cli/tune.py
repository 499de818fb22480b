"""`kjax tune`: fine-tune weights on your own photographs."""

import argparse
import shutil
import sys
from pathlib import Path

from kjax.cli import options
from kjax.cli.options import add_option, at_least, positive
from kjax.errors import InputError
from kjax.interrupts import INTERRUPTED, Stopped
from kjax.weights.shipped import DEFAULT

HELP = "fine-tune weights on your own photographs, and report the gain"
EXAMPLES = """examples:
  kjax tune photos --out tuned
      corresponding keypoints come from COLMAP, or from random homographies if COLMAP is not
      installed or finds too few; a fifth of the photographs is held out
  kjax tune photos --colmap sparse/0 --database database.db --out tuned
      from an existing reconstruction
  kjax tune myset --weights fast --out tuned
      from a patch set of kjax build-patches
  kjax match a.jpg b.jpg --weights tuned

Ctrl-C saves and exits. Run the same command to resume.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    text = "folder of photographs, or a patch set"
    parser.add_argument("photos", type=Path, metavar="DIR", help=text)
    add_option(parser, "--out", Path, "DIR", options.RESUMABLE, required=True)
    text = "initial weights: shipped name, workdir, or FILE[:head,s=…]"
    add_option(parser, "--weights", str, "NAME", text, default=DEFAULT, dest="start")
    add_option(parser, "--colmap", Path, "DIR", "sparse model of the photographs")
    add_option(parser, "--database", Path, "PATH", "COLMAP database of that model")
    unset = "all; on a CPU last, which takes minutes"
    add_option(parser, "--layers", ("all", "last"), "NAME", "layers to train", unset=unset)
    text = "also map the held-out photographs with COLMAP"
    parser.add_argument("--map", action="store_true", help=text)
    options.add_quiet(parser)
    text = "patch set that prevents forgetting; may be repeated"
    add_option(advanced, "--general", str, "SET", text, unset="embedded", action="append")
    text = "fraction of general patches in a batch"
    add_option(advanced, "--share", float, "X", text, default=0.5)
    for name, kind, metavar, text, unset in (
        ("--steps", at_least(1), "N", "number of training steps", "3000; last layer: 1000"),
        ("--pairs", at_least(1), "N", "pairs per batch", "4096; last layer: 1024"),
        ("--learning-rate", positive(), "X", "initial learning rate", "0.1; last layer: 0.003"),
    ):
        add_option(advanced, name, kind, metavar, text, unset=unset)
    add_option(advanced, "--seed", int, "N", "random seed", default=0)


def run(args: argparse.Namespace) -> int:
    """Cut patches, train and report."""
    options.check_folder(args.photos)
    if (args.colmap is None) != (args.database is None):
        raise InputError("--colmap and --database go together: give both")
    for option, path in (("--colmap", args.colmap), ("--database", args.database)):
        if path is not None and not path.exists():
            raise InputError(f"{option} {path}: no such file or folder")
    if args.map and (args.photos / "info.txt").is_file():
        raise InputError("--map needs photographs, not a patch set")
    if args.map and shutil.which("colmap") is None:
        raise InputError("--map needs colmap on the PATH: install it, or omit --map")
    options.check_weights(args.start)
    options.check_output_folder(args.out)

    from kjax.data.sets import EMBEDDED
    from kjax.tune.run import tune
    from kjax.tune.sets import TuneSettings

    settings = TuneSettings(
        photos=args.photos,
        start=args.start,
        colmap=args.colmap,
        database=args.database,
        general=tuple(args.general or [EMBEDDED]),
        share=args.share,
        layers=args.layers,
        steps=args.steps,
        pairs=args.pairs,
        learning_rate=args.learning_rate,
        seed=args.seed,
        compare_maps=args.map,
    )
    try:
        print(tune(settings, args.out, command=args.typed, progress=not args.quiet))
    except Stopped as stopped:
        print(f"kjax tune: {stopped}", file=sys.stderr)
        return INTERRUPTED
    print(f'{args.out}: weights.npz for kjax.load("{args.out}"), and report.html')
    return 0
