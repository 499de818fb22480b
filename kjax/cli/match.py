"""`kjax match`: two photographs to a picture of their matches."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from kjax.cli.checks import (
    check_count,
    check_output_file,
    check_photograph,
    check_positive,
    check_quantization,
    check_weights,
)
from kjax.errors import unknown_name
from kjax.extras import require
from kjax.pretrained import DEFAULT

if TYPE_CHECKING:
    import numpy as np

HELP = "match two photographs and draw the matches that one geometry explains"
EXAMPLES = """examples:
  kjax match a.jpg b.jpg
  kjax match a.jpg b.jpg --weights out/first --out matches.png
  kjax match a.jpg b.jpg --weights hardnet.pth --geometry fundamental --method ratio --ratio 0.9
  kjax match a.jpg b.jpg --weights weights.npz:polar,s=1 --keypoints 2000

If there are no matches, or none that one geometry explains, it says so, the picture shows the
photographs alone, and the exit code is 1.
"""
GEOMETRIES = {"homography": "homography", "fundamental": "fundamental matrix"}
"""Names for people of what `--geometry` looks for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("first", help="photograph")
    parser.add_argument("second", help="photograph of the same scene")
    parser.add_argument(
        "--weights",
        default=DEFAULT,
        help="shipped name (kjax info lists them), workdir, or file[:head,s=…] (%(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("matches.png"),
        help="picture to write, .png or .jpg (%(default)s)",
    )
    parser.add_argument(
        "--method",
        default="mutual_ratio",
        help="nearest, mutual, ratio or mutual_ratio (default)",
    )
    parser.add_argument("--ratio", type=float, default=0.9, help="largest that is kept (0.9)")
    parser.add_argument(
        "--geometry", default="homography", help="homography (default) or fundamental"
    )
    parser.add_argument("--threshold", type=float, default=3.0, help="pixels of an inlier (3)")
    parser.add_argument("--keypoints", type=int, default=4000, help="at most per photo (4000)")
    parser.add_argument(
        "--dimension", type=int, metavar="D", help="fewer numbers, of weights trained for it"
    )
    parser.add_argument("--quantize", metavar="FORM", help="uint8 or binary (float32)")
    parser.add_argument("--seed", type=int, help="which of a run's several seeds")


def run(args: argparse.Namespace) -> int:
    """Matches, verifies, draws."""
    _check(args)

    from kjax.data.cutting.photographs import read_photograph

    photographs = read_photograph(args.first), read_photograph(args.second)

    from kjax.images.describer import load
    from kjax.images.drawing import save_matches
    from kjax.images.geometry import verify
    from kjax.images.matching import match

    describer = load(args.weights, seed=args.seed, dimension=args.dimension)
    first, second = (
        describer.describe_image(photograph, max_keypoints=args.keypoints)
        for photograph in photographs
    )
    if args.quantize:
        first, second = first.quantized(args.quantize), second.quantized(args.quantize)
    found = match(
        first.descriptors,
        second.descriptors,
        method=args.method,
        ratio=args.ratio,
        distance=first.distance,
    )
    xy_a, xy_b = first.xy[found.indices[:, 0]], second.xy[found.indices[:, 1]]
    verified = verify(xy_a, xy_b, model=args.geometry, threshold=args.threshold)
    kept = verified.inliers
    left, right = (drawable(photograph) for photograph in photographs)
    save_matches(args.out, left, right, xy_a[kept], xy_b[kept])
    print(f"{len(first)} and {len(second)} keypoints, {verdict(kept, args.geometry)}")
    print(f"wrote {args.out}")
    return 0 if kept.any() else 1


def verdict(kept: "np.ndarray", geometry: str) -> str:
    """The line on how many matches there are, and how many of them one geometry explains."""
    count, name = len(kept), GEOMETRIES[geometry]
    if not count:
        return "no matches: none is drawn"
    matches = "1 match" if count == 1 else f"{count} matches"
    if not kept.any():
        return f"{matches}\nno {name} explains them: none is drawn"
    return f"{matches}\n{int(kept.sum())} of them agree with one {name}"


def drawable(photograph: "np.ndarray") -> "np.ndarray":
    """The photograph in 8 bits."""
    from kjax.data.cutting.grey import grey_values, whole_greys

    return photograph if photograph.dtype == "uint8" else whole_greys(grey_values(photograph))


def _check(args: argparse.Namespace) -> None:
    """Refuses, before any work, what cannot be."""
    from kjax.images.methods import MatchingMethod

    for path in (args.first, args.second):
        check_photograph(path)
    if args.method not in get_args(MatchingMethod):
        raise unknown_name("--method", args.method, get_args(MatchingMethod))
    if args.geometry not in GEOMETRIES:
        raise unknown_name("--geometry", args.geometry, GEOMETRIES)
    check_positive("--ratio", args.ratio, most=1.0)
    check_positive("--threshold", args.threshold)
    check_count("--keypoints", args.keypoints)
    check_quantization(args.quantize)
    check_output_file(args.out)
    check_weights(args.weights)

    from kjax.images.drawing import check_picture_name

    check_picture_name(args.out)
    require("cv2", "finding keypoints")
