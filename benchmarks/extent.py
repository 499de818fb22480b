"""Which extent of a keypoint's patch suits weights: matching in a stereo pair that ships.

    python benchmarks/extent.py best combined-star --extents 8 10 12

Patches of SIFT keypoints in the left photograph of scikit-image's stereo pair are looked for among
those of the right one, 1,000 at a time, as they are and turned by 5°. The score is HPatches'
average precision. The stored patches have the extent of PhotoTourism's, 12 × KeyPoint.size;
smaller ones are cut out of their middle.

What it should print: more than 90 % for weights that ship.
"""

import argparse
from collections.abc import Sequence

import jax.numpy as jnp

import kjax
from kjax.data.embedded import embedded_test
from kjax.data.phototour import PatchSet
from kjax.errors import InputError, exit_code
from kjax.eval.misalignment import controlled_set, matching_scores
from kjax.interrupts import run_script
from kjax.weights.source import WHOLE_EXTENT

TURNS = (0.0, 5.0)
GROUP = 1000


def scores(describer: kjax.Describer, patch_set: PatchSet, extent: float) -> list[float]:
    """Average precision, one for each of `TURNS`."""
    share = extent / WHOLE_EXTENT
    size = describer.patch_size
    cut = controlled_set(
        patch_set, {"rotation": TURNS}, size=size, points=GROUP, group=GROUP, share=share
    )
    return list(matching_scores(jnp.asarray(describer.describe(cut.patches)), cut).values())


def run(args: argparse.Namespace) -> None:
    """Prints a table."""
    if not all(0 < extent <= WHOLE_EXTENT for extent in args.extents):
        raise InputError(
            f"--extents must lie between 0 and {WHOLE_EXTENT:g}, which the stored patches have"
        )
    describers = {word: kjax.load(word) for word in args.weights}
    patch_set, _ = embedded_test()
    turns = " | ".join(f"turned {turn:g}°" for turn in TURNS)
    print(f"| matching mAP, % | extent | {turns} |\n|---|---:{'|---:' * len(TURNS)}|")
    for word, describer in describers.items():
        for extent in args.extents:
            found = scores(describer, patch_set, extent)
            print(f"| {word} | {extent:g} | {' | '.join(f'{100 * one:.1f}' for one in found)} |")


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", nargs="+", help="as kjax.load takes them")
    parser.add_argument("--extents", nargs="+", type=float, default=[8.0, 10.0, 12.0])
    args = parser.parse_args(argv)
    return exit_code("extent", lambda: run(args))


if __name__ == "__main__":
    run_script(main)
