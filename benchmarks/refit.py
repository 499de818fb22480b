"""`kjax refit`: better and shorter descriptors out of weights as they are."""

import argparse
from pathlib import Path

from kjax.cli.checks import check_count, check_output_file, check_weights
from kjax.errors import InputError

HELP = "refit the last layer of weights: better descriptors, and shorter ones"
EXAMPLES = """examples:
  kjax refit out/first --to first.safetensors
      with scikit-image's photographs; the first 32 and 64 numbers become descriptors, too
  kjax refit best --keep-distances --train data/liberty --train data/yosemite --to best.safetensors
      whole descriptors are only turned, so that they match as before
  kjax match a.jpg b.jpg --weights first.safetensors --dimension 64

A linear map of the descriptors is learned, from patches cut askew by as much as HPatches' are. The
new descriptors are other numbers: do not compare them with those of the weights as they were, nor
give them to a matcher that was trained for these. For heads that end with their projection: xy,
polar, combined and combined_star.
"""
SUFFIXES = (".safetensors", ".npz")
FEWEST_POINTS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add("source", metavar="WEIGHTS", help="a weights file, FILE:head,s=…, a workdir, or a name")
    add("--to", type=Path, required=True, metavar="FILE", help="the new weights")
    add("--keep-distances", action="store_true", help="only turn descriptors in their space")
    add(
        "--widths",
        type=int,
        nargs="*",
        default=[32, 64],
        metavar="N",
        help="first numbers that shall be descriptors (32 64)",
    )
    add(
        "--train",
        action="append",
        metavar="SET",
        help="patches to learn from; may be repeated (embedded)",
    )
    add("--points", type=int, default=4000, metavar="N", help="of each set (%(default)s)")
    add("--steps", type=int, default=1000, metavar="N", help="of learning (%(default)s)")
    add("--seed", type=int, help="which model of a run with several")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Learns the map, writes the weights, and tells what it gave."""
    _check(args)

    from kjax.data.set_names import EMBEDDED
    from kjax.data.train_sets import read_train_sets
    from kjax.eval.refit_views import describe_misaligned, mean_matching
    from kjax.model.nesting import check_remap, remap
    from kjax.train.refitting import check_widths, learn_map
    from kjax.weights.facts import refitted_metadata
    from kjax.weights.files import save_variables
    from kjax.weights.source import load_source

    source = load_source(args.source, seed=args.seed)
    check_remap(source.variables)
    whole = source.model.dimension
    widths = check_widths(args.widths, whole, least=int(args.keep_distances))
    progress = not args.quiet
    sets = read_train_sets(args.train or [EMBEDDED], progress=progress)
    described = describe_misaligned(source, sets, points=args.points, progress=progress)
    matrix = learn_map(
        described.seen,
        widths,
        turn=args.keep_distances,
        steps=args.steps,
        progress=progress,
    )
    names = [one.name for one in sets]
    metadata = refitted_metadata(source, args.source, nested=widths, sets=names)
    save_variables(args.to, remap(source.variables, matrix), metadata=metadata)
    print("matching of misaligned patches of points that were not learned from, mAP:")
    after = described.held_out @ matrix.astype("f4")
    for width in (*widths, whole):
        shares = [100 * mean_matching(views, width) for views in (described.held_out, after)]
        print(
            f"  {'all' if width == whole else 'first'} {width}: {shares[0]:.1f} → {shares[1]:.1f} %"
        )
    print(f"wrote {args.to}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """What can be told before anything heavy is imported."""
    check_weights(args.source)
    if args.to.suffix not in SUFFIXES:
        raise InputError(f"--to {args.to}: give a file that ends with {' or '.join(SUFFIXES)}")
    check_output_file(args.to, "--to")
    if args.points < FEWEST_POINTS:
        raise InputError(f"--points {args.points}: give {FEWEST_POINTS} or more")
    check_count("--steps", args.steps)
