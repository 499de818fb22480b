r"""Count correct matches of descriptors between photos with known homographies.

    python benchmarks/correct_matches.py data/oxford --descriptors out/base mkd
    python benchmarks/correct_matches.py data/oxford/graf data/hpatches-sequences/v_wall \
        --descriptors weights.npz:polar,s=1 --max-keypoints 1000

A folder is a sequence of six photos, or holds sequences, in the layout of the Oxford affine
benchmark or of HPatches' full sequences. All descriptors get the same keypoints: OpenCV's strongest
SIFT ones. RootSIFT always takes part, computed by OpenCV in the photo.

The first photo is matched with each of the other five by mutual nearest neighbours, without a ratio
test. A match is correct if the homography maps the first point to within 3 pixels of the second. Of
matches that share a location in either photo, the nearest counts: SIFT returns a point with two
orientations twice.

Expected: a trained descriptor has more correct matches than RootSIFT in nearly every sequence.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import program
from homography_sequences import HomographySequence, find_sequences
from keypoint_descriptors import KeypointDescriptor, load_keypoint_descriptors
from tqdm import tqdm

from kjax.data.cutting.keypoints import detect
from kjax.data.cutting.photographs import read_grey
from kjax.images.geometry import Count, count_matches, total
from kjax.interrupts import run_script

BASELINE = "rootsift"
THRESHOLD = 3.0
"""Maximum error of a correct match in pixels."""

Counts = dict[str, list[Count]]
"""Counts of the pairs of one sequence, by descriptor."""


def score_sequence(
    sequence: HomographySequence,
    descriptors: Mapping[str, KeypointDescriptor],
    args: argparse.Namespace,
    tick: Callable[[], object],
) -> Counts:
    """Match the first photo with each other one; `tick` is called after each described photo."""
    photos = [read_grey(path) for path in sequence.photos]
    keypoints = [detect(photo, max_keypoints=args.max_keypoints) for photo in photos]
    scores: Counts = {}
    for name, descriptor in descriptors.items():
        rows = []
        for photo, points in zip(photos, keypoints, strict=True):
            rows.append(descriptor.describe(photo, points))
            tick()
        rules: Any = {"threshold": THRESHOLD, "distance": descriptor.distance}
        scores[name] = count_matches(keypoints, rows, sequence.homographies, **rules)
    return scores


def table(scores: Mapping[str, Counts], labels: Mapping[str, str]) -> str:
    """Return correct matches and precision by sequence; `labels` of descriptors, by name."""
    sums = {
        sequence: {name: total(counts[name]) for name in labels}
        for sequence, counts in scores.items()
    }
    sums["**total**"] = {name: total(row[name] for row in sums.values()) for name in labels}
    rows = []
    for sequence, row in sums.items():
        cells = [f"{one.correct:,} ({100 * one.precision:.1f} %)" for one in row.values()]
        for place, (name, one) in enumerate(row.items()):
            if name != BASELINE and one.correct >= row[BASELINE].correct:
                cells[place] += " ≥"
        rows.append([sequence, *cells])
    _, _, *others = zip(*rows[:-1], strict=True)
    wins = (f"{sum(cell.endswith('≥') for cell in one)} of {len(scores)}" for one in others)
    rows.append([f"sequences with at least {labels[BASELINE]}'s", "", *wins])
    return program.table(("correct matches (precision)", *labels.values()), rows)


def run(args: argparse.Namespace) -> None:
    """Describe, match, count and print."""
    sequences = find_sequences(args.folders)
    names = dict.fromkeys([BASELINE, *args.descriptors])
    descriptors = load_keypoint_descriptors(names, extent=args.extent)
    labels = {name: descriptor.name for name, descriptor in descriptors.items()}
    scores = {}
    steps = len(descriptors) * sum(len(sequence.photos) for sequence in sequences)
    with tqdm(total=steps, desc="describing", unit="photo", disable=args.quiet) as bar:
        for sequence in sequences:
            bar.set_postfix_str(sequence.name)
            scores[sequence.name] = score_sequence(sequence, descriptors, args, bar.update)
    extent = "each descriptor's own extent" if args.extent is None else f"extent {args.extent:g}"
    print(
        f"At most {args.max_keypoints:,} SIFT keypoints per photo, the same for all; {extent}; "
        f"mutual nearest neighbours, no ratio test; correct within {THRESHOLD:g} px, each location "
        "counted once; sums over five pairs.\n"
    )
    print(table(scores, labels))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("folders", nargs="+", type=Path, metavar="FOLDER", help="sequence, or folder of sequences")
    add("--descriptors", nargs="+", required=True, metavar="NAME", help="descriptors to compare")
    add("--max-keypoints", type=int, default=4000, help="per photo (default: 4000)")
    add("--extent", type=float, help="patch side over KeyPoint.size (default: each one's own)")
    add("--quiet", action="store_true", help="show no progress bar")


if __name__ == "__main__":
    run_script(main)
