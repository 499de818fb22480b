"""Measure how matching depends on the extent of a keypoint's patch, to choose it for weights.

    python benchmarks/extent.py best hardnet --extents 8 10 12

Patches of SIFT keypoints in the left photo of scikit-image's stereo pair are matched with those of
the right one, 1,000 at a time, unrotated and rotated by 5°. The score is HPatches' average
precision. Stored patches have the extent of PhotoTourism's, 12 × KeyPoint.size; smaller ones are
cropped from their centre. Expected: more than 90 % for shipped weights.
"""

import argparse

import jax.numpy as jnp
import program
from experiments.scoring import controlled_set

import kjax
from kjax.data.embedded import embedded_test
from kjax.errors import InputError
from kjax.eval.misalignment import matching_scores
from kjax.interrupts import run_script
from kjax.weights.source import WHOLE_EXTENT

TURNS = (0.0, 5.0)
GROUP = 1000


def run(args: argparse.Namespace) -> None:
    """Print a table."""
    if not all(0 < extent <= WHOLE_EXTENT for extent in args.extents):
        raise InputError(f"--extents must be between 0 and {WHOLE_EXTENT:g}")
    patch_set = embedded_test()
    rows = []
    for name in args.weights:
        describer = kjax.load(name)
        for extent in args.extents:
            cut = controlled_set(
                patch_set,
                {"rotation": TURNS},
                size=describer.patch_size,
                points=GROUP,
                group=GROUP,
                share=extent / WHOLE_EXTENT,
            )
            scores = matching_scores(jnp.asarray(describer.describe(cut.patches)), cut)
            rows.append([name, f"{extent:g}", *map(program.percent, scores.values())])
    print(program.table(("mAP, %", "extent", *(f"rotated {turn:g}°" for turn in TURNS)), rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("weights", nargs="+", help="names or files, as for kjax.load")
    add("--extents", nargs="+", type=float, default=[8.0, 10.0, 12.0])


if __name__ == "__main__":
    run_script(main)
