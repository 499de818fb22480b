"""`kjax tune`: weights that know your own photographs."""

import argparse
import shutil
import sys
from pathlib import Path

from kjax.cli.checks import check_count, check_output_folder, check_positive, check_weights
from kjax.errors import InputError
from kjax.interrupts import INTERRUPTED, Stopped
from kjax.weights.shipped import DEFAULT

HELP = "tune weights to your own photographs, and report what it gives"
EXAMPLES = """examples:
  kjax tune photos --out tuned
      COLMAP finds which keypoints are one point, or homographies do where it is not installed or
      finds too few; a fifth of the photographs is held out
  kjax tune photos --colmap sparse/0 --database database.db --out tuned
      from a reconstruction that you have
  kjax tune myset --from fast --out tuned
      from a set of patches, as kjax build-patches writes it
  kjax match a.jpg b.jpg --weights tuned

Ctrl-C saves and stops, and the same command goes on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add = parser.add_argument
    add("photos", type=Path, help="folder of photographs, or a set of patches")
    add(
        "--from",
        dest="start",
        default=DEFAULT,
        metavar="WEIGHTS",
        help="to start from: shipped name, workdir, or file[:head,s=…] (%(default)s)",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="new folder; the same goes on")
    add("--colmap", type=Path, metavar="MODEL", help="folder of a sparse model of the photographs")
    add("--database", type=Path, metavar="FILE", help="what the model was made from")
    add(
        "--general",
        action="append",
        metavar="SET",
        help="patches that keep the weights from forgetting; may be repeated (embedded)",
    )
    add("--share", type=float, default=0.5, help="of general patches in a batch (%(default)s)")
    add(
        "--layers",
        choices=("all", "last"),
        help="what to train (all; on a CPU the last, which is a matter of minutes)",
    )
    add("--steps", type=int, metavar="N", help="of training (3000; of the last layer 1000)")
    add("--pairs", type=int, metavar="N", help="in a batch (4096; of the last layer 1024)")
    add("--learning-rate", type=float, metavar="X", help="at first (0.1; of the last layer 0.003)")
    add("--seed", type=int, default=0, metavar="N", help="of all chance (%(default)s)")
    add("--map", action="store_true", help="let COLMAP map the held-out photographs, too")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Cuts, trains, reports."""
    _check(args)

    from kjax.data.set_names import EMBEDDED
    from kjax.tune.run import tune
    from kjax.tune.settings import Settings

    settings = Settings(
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
        print(tune(settings, args.out, progress=not args.quiet))
    except Stopped as stopped:
        print(f"kjax tune: {stopped}", file=sys.stderr)
        return INTERRUPTED
    print(f'{args.out}: weights.npz for kjax.load("{args.out}"), and report.html')
    return 0


def _check(args: argparse.Namespace) -> None:
    """What can be told before anything heavy is imported."""
    if not args.photos.is_dir():
        raise InputError(f"no such folder: {args.photos}")
    if (args.colmap is None) != (args.database is None):
        raise InputError("--colmap and --database go together")
    for option, path in (("--colmap", args.colmap), ("--database", args.database)):
        if path is not None and not path.exists():
            raise InputError(f"{option} {path}: no such file or folder")
    if args.map and (args.photos / "info.txt").is_file():
        raise InputError("--map needs photographs, not a set")
    if args.map and shutil.which("colmap") is None:
        raise InputError("--map needs colmap on the PATH: install it, or leave out --map")
    for option in ("steps", "pairs"):
        if getattr(args, option) is not None:
            check_count(f"--{option}", getattr(args, option))
    if args.learning_rate is not None:
        check_positive("--learning-rate", args.learning_rate)
    check_weights(args.start)
    check_output_folder(args.out)
