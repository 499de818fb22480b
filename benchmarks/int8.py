"""Compare descriptors and matches in int8 with those in float32, at the same keypoints.

    python benchmarks/int8.py fast best --photos photos/fountain photos/castle

The first photo of each folder is matched with the others. A mixed pair has one photo described in
float32 and one in int8. `benchmarks/one_core.py` measures the speed.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import program

import kjax
from kjax.data.cutting.keypoints import STEADY, detect_in_grey
from kjax.data.cutting.photographs import list_photos
from kjax.images.extract import open_grey
from kjax.images.features import Features
from kjax.images.geometry import verify
from kjax.interrupts import run_script

NEIGHBOURS = 2000
"""Keypoints of a photo among which nearest neighbours are compared."""
KINDS = {"float32": (0, 0), "int8": (1, 1), "mixed": (0, 1)}
"""Descriptions of the first and the second photo of a pair."""


def describe_all(weights: str, folder: Path, count: int) -> Iterator[list[Features]]:
    """Describe each photo in float32 and in int8."""
    pair = [kjax.load(weights, dtype=dtype) for dtype in ("float32", "int8")]
    for photo in list_photos(folder):
        grey, _ = open_grey(photo, "rgb", pair[0].max_side)
        found = detect_in_grey(grey, max_keypoints=count, detector=STEADY, upright=False)
        yield [describer.describe_grey(grey, found) for describer in pair]


def nearest(rows: np.ndarray) -> np.ndarray:
    """Return the index of each row's nearest other row."""
    likeness = rows @ rows.T
    np.fill_diagonal(likeness, -1)
    return likeness.argmax(axis=1)


def compare(weights: str, folders: Sequence[Path], count: int) -> list[str]:
    """Return the cells of a row."""
    cosines, same, matches, inliers = [], [], dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for folder in folders:
        first: list[Features] = []
        for features in describe_all(weights, folder, count):
            a, b = (one.descriptors for one in features)
            cosines.append((a * b).sum(axis=1))
            same.append(nearest(a[:NEIGHBOURS]) == nearest(b[:NEIGHBOURS]))
            for kind, (one, other) in KINDS.items() if first else ():
                ends = first[one], features[other]
                found = kjax.match(*ends)
                points = (end.xy[rows] for end, rows in zip(ends, found.indices.T, strict=True))
                matches[kind] += len(found)
                inliers[kind] += int(verify(*points).inliers.sum())
            first = first or features
    all_cosines, unchanged = np.concatenate(cosines), np.concatenate(same).mean()
    cells = [f"{all_cosines.mean():.4f}", f"{all_cosines.min():.3f}", program.percent(unchanged)]
    for whole, *others in (matches.values(), inliers.values()):
        cells += [f"{whole:,}", *(f"{100 * (one / whole - 1):+.2f}" for one in others)]
    return [weights, *cells]


def run(args: argparse.Namespace) -> None:
    """Print a table."""
    header = ["", "mean cosine", "least", "nearest unchanged, %"]
    for what in ("matches", "inliers"):
        header += [f"{what}, float32", "int8, %", "mixed, %"]
    rows = [compare(name, args.photos, args.keypoints) for name in args.weights]
    print(program.table(header, rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("weights", nargs="+", help="as for kjax.load")
    add("--photos", type=Path, nargs="+", required=True, help="folders of overlapping photos")
    add("--keypoints", type=int, default=2000, help="maximum per photo (default: 2000)")


if __name__ == "__main__":
    run_script(main)
