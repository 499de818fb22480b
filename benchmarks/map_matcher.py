"""Give a matcher's layers to other weights, without training.

    python benchmarks/map_matcher.py best --weights fast tiny --photos photos/* --out mapped

Describes the same keypoints of the photos with the matcher's own weights and with others, finds the
linear map that predicts its own descriptors from the others (least squares), and puts it into the
first layer. Writes a file for each, which holds that layer alone if the matcher ships. Prints the
mean cosine on every second photo when fitted to the others.

Uncertain predictions are short, and that suits the matcher: rotations, and maps scaled to unit
length, gave fewer inliers on fountain and sceaux.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import program
from jaxtyping import Float
from tqdm import tqdm

from kjax.data.cutting.keypoints import STEADY, detect_in_grey
from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.images.describer import MAX_SIDE, Describer, load
from kjax.images.extract import open_grey
from kjax.images.sift import RootSift
from kjax.interrupts import run_script
from kjax.matcher.weights import MatcherWeights, find_matcher, read_matcher, save_matcher
from kjax.weights import shipped

Rows = Float[np.ndarray, "N D"]


def describe_all(photo: Path, describers: Sequence[Describer | RootSift], count: int) -> list[Rows]:
    """Describe the same keypoints of a photo with all weights."""
    grey, _ = open_grey(photo, "rgb", MAX_SIDE)
    found = detect_in_grey(grey, max_keypoints=count, detector=STEADY)
    described = [one.describe_at(grey, found) for one in describers]
    common = np.logical_and.reduce([kept for _, kept in described])
    return [rows[common[kept]] for rows, kept in described]


def linear_map(given: Rows, wanted: Rows) -> Float[np.ndarray, "D D"]:
    """Return the matrix that takes rows nearest to others."""
    return np.linalg.lstsq(given.astype(np.float64), wanted, rcond=None)[0]


def with_map(weights: MatcherWeights, matrix: Float[np.ndarray, "D D"]) -> MatcherWeights:
    """Return a matcher that first multiplies descriptors by a matrix."""
    embedding = weights.params["embedding"]
    kernel = np.asarray(embedding["input"]["kernel"], np.float64)
    size = len(matrix)
    kernel = np.concatenate([matrix @ kernel[:size], kernel[size:]]).astype(np.float32)
    own = {**embedding, "input": {**embedding["input"], "kernel": kernel}}
    return dataclasses.replace(weights, params={**weights.params, "embedding": own})


def held_out_cosine(given: Sequence[Rows], wanted: Sequence[Rows]) -> float:
    """Return the mean cosine of mapped rows to wanted ones on every second photo."""
    matrix = linear_map(np.concatenate(given[::2]), np.concatenate(wanted[::2]))
    mapped = np.concatenate(given[1::2]) @ matrix
    cosines = (mapped * np.concatenate(wanted[1::2])).sum(axis=1) / np.linalg.norm(mapped, axis=1)
    return float(cosines.mean())


def run(args: argparse.Namespace) -> None:
    """Describe, fit and write."""
    weights = read_matcher(find_matcher(args.matcher))
    own, *others = (
        RootSift() if name == "rootsift" else load(name, dtype="float32")
        for name in (args.own or weights.described_with.name, *args.weights)
    )
    if own.sha256 != weights.described_with.sha256:
        raise InputError(f"the matcher is for other weights than {own.name}: give --own")
    photos = [photo for folder in args.photos for photo in list_photos(folder)]
    if len(photos) < 2:
        raise InputError("give at least two photos")
    args.out.mkdir(parents=True, exist_ok=True)
    described = [describe_all(one, [own, *others], args.keypoints) for one in tqdm(photos)]
    wanted, *rows = zip(*described, strict=True)
    for name, other, given in zip(args.weights, others, rows, strict=True):
        matrix = linear_map(np.concatenate(given), np.concatenate(wanted))
        mapped = dataclasses.replace(
            with_map(weights, matrix),
            described_with=other.provenance,
            remarks={**weights.remarks, "first layer": f"mapped to {name}, without training"},
            base=args.matcher if args.matcher in shipped.list_matchers() else "",
        )
        save_matcher(args.out / f"{name}.npz", mapped)
        print(f"{name}: mean cosine {held_out_cosine(given, wanted):.3f} on every second photo")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    add = parser.add_argument
    add("matcher", help="shipped name, workdir or file")
    add("--weights", nargs="+", required=True, help="weights that the new matchers are for")
    add("--own", help="weights that the matcher is for (default: as its file says)")
    add("--photos", type=Path, nargs="+", required=True, help="folders of photos")
    add("--keypoints", type=int, default=800, help="maximum per photo (default: 800)")
    add("--out", type=Path, required=True, help="folder of the new matchers")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main)
