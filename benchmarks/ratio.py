r"""Which ratio of a match suits weights: the one at which matches are as often right as SIFT's.

    python benchmarks/ratio.py best fast kjax-hardnet --photos photos/fountain

The ratio test was made for SIFT, and 0.9 is what kjax keeps of RootSIFT's mutual matches. Learned
descriptors put more space between right and wrong, so that the same ratio throws away more that is
right. Here every photograph of a scene is described at the same SIFT keypoints, pairs are matched,
and a match is right if it lies within 3 pixels of the epipolar line of the true cameras, which
COLMAP finds from all photographs (needs the program). The largest hundredth at which at least the
share of RootSIFT's at 0.9 is right goes into a card as "ratio".

What it should print: shares that fall as the ratio grows, and a choice above 0.9 for weights that
ship. Choose on a scene that nothing is tested on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from peer_table import methods
from peer_table.pseudo_truth import scene_model
from peer_table.scenes import Scene, pose_scene

from kjax.errors import exit_code
from kjax.interrupts import run_script

REFERENCE, REFERENCE_RATIO = "rootsift", 0.9
RATIOS = (0.8, 0.85, 0.9, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 1.0)
RIGHT = 3.0
"""Pixels."""


def matches(word: str, count: int, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """The ratios of all mutual matches of a scene's pairs, and whether they are right."""
    parsed = methods.parse(word)
    describe, match = methods.describer(parsed, count, "cpu"), methods.matcher(parsed, "cpu")
    features = [describe(photo()) for photo in scene.photos]
    ratios, right = [], []
    for pair in scene.pairs:
        a, b = features[pair.first], features[pair.second]
        found = match(a, b)
        judged = pair.truth.judge(a.xy[found.indices[:, 0]], b.xy[found.indices[:, 1]])
        ratios.append(found.ratios)
        right.append(judged.off <= RIGHT)
    return np.concatenate(ratios), np.concatenate(right)


def share_right(ratios: np.ndarray, right: np.ndarray, most: float) -> float:
    """Of the matches up to a ratio."""
    kept = ratios <= most
    return float(right[kept].mean()) if kept.any() else 0.0


def suitable_ratio(ratios: np.ndarray, right: np.ndarray, share: float) -> float:
    """The largest hundredth up to which at least a share of the matches is right."""
    fitting = [
        hundredth / 100
        for hundredth in range(1, 101)
        if share_right(ratios, right, hundredth / 100) >= share
    ]
    return max(fitting, default=REFERENCE_RATIO)


def run(args: argparse.Namespace) -> None:
    """Prints a table."""
    model = scene_model(args.photos, args.work, threads=args.threads)
    scene = pose_scene(args.photos.name, args.photos, model)
    words = {REFERENCE: REFERENCE} | {word: f"{word}+{methods.MUTUAL}" for word in args.weights}
    print(f"| share right, % (matches a pair) | {' | '.join(map(str, RATIOS))} | suits |")
    print(f"|---|{'---:|' * (len(RATIOS) + 1)}")
    share = None
    for name, word in words.items():
        ratios, right = matches(word, args.keypoints, scene)
        share = share_right(ratios, right, REFERENCE_RATIO) if share is None else share
        cells = [
            f"{100 * share_right(ratios, right, most):.1f} "
            f"({(ratios <= most).sum() / len(scene.pairs):.0f})"
            for most in RATIOS
        ]
        print(f"| {name} | {' | '.join(cells)} | {suitable_ratio(ratios, right, share):g} |")


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("weights", nargs="+", help="as for kjax.load; kjax-hardnet where a rival has the name")
    add("--photos", type=Path, required=True, help="folder of a scene")
    add("--keypoints", type=int, default=4000, help="of a photograph (%(default)s)")
    add("--work", type=Path, default=Path("out/peers"), help="folder of true cameras (%(default)s)")
    add("--threads", type=int, default=2, help="of COLMAP (%(default)s)")
    args = parser.parse_args(argv)
    return exit_code("ratio", lambda: run(args))


if __name__ == "__main__":
    run_script(main)
