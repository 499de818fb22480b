r"""Measure the precision of matches by their ratio, to choose the default ratio of weights.

    python benchmarks/ratio.py best fast kjax-hardnet --photos photos/fountain

Learned descriptors separate right from wrong matches better than SIFT, so the usual 0.9 discards
more right ones. All photos of a scene are described at the same SIFT keypoints, and a mutual match
is right within 3 pixels of the true epipolar line (cameras by COLMAP, which must be installed). The
last column is the largest hundredth with at least the precision of RootSIFT at 0.9: the "ratio" of
a card. Choose on a scene that nothing is tested on.
"""

import argparse
from pathlib import Path

import numpy as np
import program
from peer_table import methods
from peer_table.scenes import PeerScene, pose_scene, scene_model

from kjax.interrupts import run_script

REFERENCE, REFERENCE_RATIO = "rootsift", 0.9
RATIOS = (0.8, 0.85, 0.9, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 1.0)
RIGHT = 3.0
"""Maximum error of a right match in pixels."""


def mutual_matches(name: str, count: int, scene: PeerScene) -> tuple[np.ndarray, np.ndarray]:
    """Return the ratios of all mutual matches of a scene's pairs, and whether they are right."""
    method = methods.parse(name)
    describe, match = methods.describer(method, count, "cpu"), methods.matcher(method, "cpu")
    features = [describe(photo()) for photo in scene.photos]
    ratios, right = [], []
    for pair in scene.pairs:
        a, b = features[pair.first], features[pair.second]
        found = match(a, b)
        errors = pair.truth.judge(a.xy[found.indices[:, 0]], b.xy[found.indices[:, 1]])
        ratios.append(found.ratios)
        right.append(errors.off <= RIGHT)
    return np.concatenate(ratios), np.concatenate(right)


def precision(ratios: np.ndarray, right: np.ndarray, ratio: float) -> float:
    """Return the share of right matches up to a ratio."""
    kept = ratios <= ratio
    return float(right[kept].mean()) if kept.any() else 0.0


def largest_ratio(ratios: np.ndarray, right: np.ndarray, least: float) -> float:
    """Return the largest hundredth whose matches have at least this precision."""
    hundredths = (number / 100 for number in range(1, 101))
    fitting = [one for one in hundredths if precision(ratios, right, one) >= least]
    return max(fitting, default=REFERENCE_RATIO)


def run(args: argparse.Namespace) -> None:
    """Print a table."""
    model = scene_model(args.photos, args.work, threads=args.threads)
    scene = pose_scene(args.photos.name, args.photos, model)
    least, rows = None, []
    for name in (REFERENCE, *args.weights):
        ratios, right = mutual_matches(name, args.keypoints, scene)
        least = precision(ratios, right, REFERENCE_RATIO) if least is None else least
        cells = [
            f"{100 * precision(ratios, right, one):.1f} "
            f"({(ratios <= one).sum() / len(scene.pairs):.0f})"
            for one in RATIOS
        ]
        rows.append([name, *cells, f"{largest_ratio(ratios, right, least):g}"])
    print(program.table(("precision, % (matches per pair)", *map(str, RATIOS), "ratio"), rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("weights", nargs="+", help="as for kjax.load; kjax-hardnet where a rival has the name")
    add("--photos", type=Path, required=True, help="folder of a scene")
    add("--keypoints", type=int, default=4000, help="maximum per photo (default: 4000)")
    add("--work", type=Path, default=Path("out/peers"), help="cache of COLMAP's models")
    add("--threads", type=int, default=2, help="threads of COLMAP (default: 2)")


if __name__ == "__main__":
    run_script(main)
