r"""How many correct matches descriptors make between photographs whose homographies are known.

    python benchmarks/correct_matches.py data/oxford --descriptors out/base mkd
    python benchmarks/correct_matches.py data/oxford/graf data/hpatches-sequences/v_wall \
        --descriptors weights.npz:polar,s=1 --max-keypoints 1000 --out matches.json

A folder is a sequence of six photographs, or holds sequences, in the layout of the Oxford affine
benchmark or of HPatches' full sequences. Every descriptor gets the same keypoints: OpenCV's
strongest SIFT ones, found once per photograph. RootSIFT always takes part, computed by OpenCV in
the photograph, at the keypoints' own octaves, as its users do. Ours, and rivals that describe
patches, get squares of --extent times KeyPoint.size, if that is given.

The first photograph is matched with each of the other five: nearest neighbours of each other,
without a ratio test unless --ratio is given. A match is correct if the true homography takes the
first point to within --threshold pixels of the second. SIFT gives a point with two orientations as
two keypoints: of matches that share a location, in either photograph, only the nearest counts.

What it should print: a trained descriptor with more correct matches than RootSIFT in every
sequence, or nearly every one.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from homography_sequences import HomographySequence, find_sequences
from keypoint_descriptors import KeypointDescriptor, extent_words, load_keypoint_descriptors
from tqdm import tqdm

from kjax.data.cutting.keypoints import detect
from kjax.data.cutting.photographs import read_grey
from kjax.errors import InputError, exit_code
from kjax.files.atomic import write_json
from kjax.images.correct_matches import Count, count_matches, total
from kjax.interrupts import run_script

BASELINE = "rootsift"

Counts = dict[str, list[Count]]
"""For each descriptor, the pairs of one sequence."""


def score_sequence(
    sequence: HomographySequence,
    descriptors: Mapping[str, KeypointDescriptor],
    args: argparse.Namespace,
    tick: Callable[[], object],
) -> Counts:
    """Matches of the first photograph with each other one, for each descriptor.

    Args:
        sequence: the photographs.
        descriptors: by the words that they were asked for with.
        args: of the command line.
        tick: called after each photograph that a descriptor is done with.
    """
    photos = [read_grey(path) for path in sequence.photos]
    keypoints = [detect(photo, max_keypoints=args.max_keypoints) for photo in photos]
    scores: Counts = {}
    for word, descriptor in descriptors.items():
        rows = []
        for photo, points in zip(photos, keypoints, strict=True):
            rows.append(descriptor.describe(photo, points))
            tick()
        scores[word] = count_matches(
            keypoints,
            rows,
            sequence.homographies,
            threshold=args.threshold,
            ratio=args.ratio,
            distance=descriptor.distance,
        )
    return scores


def table(scores: Mapping[str, Counts], names: Mapping[str, str]) -> str:
    """Correct matches and precision, a row for each sequence, in Markdown.

    Args:
        scores: by sequence.
        names: of the descriptors, by word, in the order of the columns.
    """
    sums = {
        sequence: {word: total(counts[word]) for word in names}
        for sequence, counts in scores.items()
    }
    lines = [f"| correct matches (precision) | {' | '.join(names.values())} |"]
    lines.append("|---" + "|---:" * len(names) + "|")
    for sequence, row in sums.items():
        cells = [_cell(row[word], row[BASELINE], word) for word in names]
        lines.append(f"| {sequence} | {' | '.join(cells)} |")
    overall = {word: total([row[word] for row in sums.values()]) for word in names}
    cells = [_cell(overall[word], overall[BASELINE], word) for word in names]
    lines.append(f"| **total** | {' | '.join(cells)} |")
    wins = [
        sum(row[word].correct >= row[BASELINE].correct for row in sums.values()) for word in names
    ]
    cells = [
        "" if word == BASELINE else f"{won} of {len(sums)}"
        for word, won in zip(names, wins, strict=True)
    ]
    lines.append(f"| sequences with at least {names[BASELINE]}'s | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(count: Count, baseline: Count, word: str) -> str:
    mark = " ≥" if word != BASELINE and count.correct >= baseline.correct else ""
    return f"{count.correct:,} ({100 * count.precision:.1f} %){mark}"


def as_json(
    scores: Mapping[str, Counts], names: Mapping[str, str], args: argparse.Namespace
) -> dict[str, object]:
    """All pairs' counts, with the settings that they depend on."""
    settings = ("max_keypoints", "extent", "threshold", "ratio", "seed")
    return {
        "settings": {name: getattr(args, name) for name in settings},
        "descriptors": dict(names),
        "sequences": {
            sequence: {word: [count._asdict() for count in row] for word, row in counts.items()}
            for sequence, counts in scores.items()
        },
    }


def run(args: argparse.Namespace) -> None:
    """Describes, matches, counts, prints."""
    if args.max_keypoints < 1 or not args.threshold > 0:
        raise InputError("--max-keypoints and --threshold must be positive")
    if args.out is not None and not args.out.parent.is_dir():
        raise InputError(f"no such folder: {args.out.parent}")
    sequences = find_sequences(args.folders)
    descriptors = load_keypoint_descriptors(
        dict.fromkeys([BASELINE, *args.descriptors]),
        extent=args.extent,
        seed=args.seed,
        weights=args.weights,
    )
    names = {word: descriptor.name for word, descriptor in descriptors.items()}
    scores = {}
    steps = len(descriptors) * sum(len(sequence.photos) for sequence in sequences)
    with tqdm(total=steps, desc="describing", unit="photo", disable=args.quiet) as bar:
        for sequence in sequences:
            bar.set_postfix_str(sequence.name)
            scores[sequence.name] = score_sequence(sequence, descriptors, args, bar.update)
    ratio = "no ratio test" if args.ratio is None else f"ratio at most {args.ratio}"
    print(
        f"At most {args.max_keypoints:,} SIFT keypoints a photograph, the same for all; "
        f"{extent_words(args.extent)}; mutual nearest neighbours, {ratio}; correct within "
        f"{args.threshold:g} px, each location counted once; summed over five pairs.\n"
    )
    print(table(scores, names))
    if args.out is not None:
        write_json(args.out, as_json(scores, names, args))


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="FOLDER", help="a sequence, or sequences")
    add("--descriptors", nargs="+", required=True, metavar="WORD", help="what to compare")
    add("--max-keypoints", type=int, default=4000, help="at most per photograph (4000)")
    add("--extent", type=float, help="patch's side over KeyPoint.size (each one's own)")
    add("--threshold", type=float, default=3.0, help="pixels that a match may be off (3)")
    add("--ratio", type=float, help="ratio test both ways (default: none)")
    add("--weights", nargs="+", default=[], metavar="RIVAL=FILE", help="files of learned rivals")
    add("--seed", type=int, help="which of a run's several seeds")
    add("--out", type=Path, help="JSON file with every pair's counts")
    add("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)
    return exit_code("correct_matches", lambda: run(args))


if __name__ == "__main__":
    run_script(main)
