"""Refit the last layer of weights: better descriptors, and shorter ones.

    python benchmarks/refit.py out/first --out first.safetensors
        with scikit-image's photos; the first 32 and 64 numbers become descriptors as well
    python benchmarks/refit.py best --keep-distances --train data/liberty data/yosemite --out b.npz
        only rotates whole descriptors, so that they match as before

Learns a linear map of the descriptors from patches with HPatches' misalignment. The new descriptors
are not comparable with those of the original weights, nor usable with a matcher trained for these.
For heads that end with a projection: xy, polar, combined and combined_star.
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import program

from kjax.data.sets import EMBEDDED, read_train_sets
from kjax.errors import InputError
from kjax.eval.misalignment import describe_misaligned, mean_precision
from kjax.interrupts import run_script
from kjax.model.aggregation import l2_normalize
from kjax.model.folding import check_remap, remap
from kjax.train.refitting import learn_map
from kjax.weights.files import save_variables
from kjax.weights.source import load_source, refitted_info

SUFFIXES = (".safetensors", ".npz")


def run(args: argparse.Namespace) -> None:
    """Learn the map, write the weights, and print the gain."""
    if args.out.suffix not in SUFFIXES:
        raise InputError(f"--out {args.out}: unsupported file type: use {' or '.join(SUFFIXES)}")
    source = load_source(args.source, seed=args.seed)
    check_remap(source.variables)
    whole = source.model.dimension
    widths = tuple(sorted({*args.widths}))
    if not all(1 < width < whole for width in widths) or (args.keep_distances and not widths):
        raise InputError(f"--widths must be between 2 and {whole - 1}, not {args.widths}")
    progress = not args.quiet
    sets = read_train_sets(args.train, progress=progress)
    seen, held_out = describe_misaligned(source, sets, points=args.points, progress=progress)
    matrix = learn_map(seen, widths, turn=args.keep_distances, steps=args.steps, progress=progress)
    origin = {"nested": widths, "sets": [one.name for one in sets]}
    info = None if source.inferred else refitted_info(source, args.source, **origin)
    save_variables(args.out, remap(source.variables, matrix), info=info)
    print("Matching mAP on held-out points (misaligned patches):")
    after = held_out @ matrix.astype("f4")
    for width in (*widths, whole):
        shares = [100 * mean_matching(views, width) for views in (held_out, after)]
        size = "all" if width == whole else "first"
        print(f"  {size} {width}: {shares[0]:.1f} → {shares[1]:.1f} %")
    print(f"wrote {args.out}")


def mean_matching(views: np.ndarray, width: int) -> float:
    """Average precision of matching by the first `width` values, mean over targets."""
    rows = l2_normalize(jnp.asarray(views[..., :width].reshape(-1, width)))
    return float(mean_precision(rows, [views.shape[1]], targets=len(views) - 1).mean())


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("source", metavar="WEIGHTS", help="weights file, FILE:head,s=…, workdir or name")
    add("--out", type=Path, required=True, metavar="FILE", help="path of the new weights")
    add("--keep-distances", action="store_true", help="rotate the descriptors only")
    add("--widths", type=int, nargs="*", default=[32, 64], metavar="N", help="(default: 32 64)")
    add("--train", nargs="+", default=[EMBEDDED], metavar="SET", help="(default: embedded)")
    add("--points", type=int, default=4000, metavar="N", help="per set (default: 4000)")
    add("--steps", type=int, default=1000, metavar="N", help="of learning (default: 1000)")
    add("--seed", type=int, help="which seed of a run with several")
    add("--quiet", action="store_true", help="show no progress bar")


if __name__ == "__main__":
    run_script(main)
