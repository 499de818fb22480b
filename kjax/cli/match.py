"""`kjax match`: two photographs to a picture or a page of their matches, or a file of them."""

import argparse
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from kjax.cli.checks import (
    check_matcher,
    check_output_file,
    check_photograph,
    check_positive,
    check_quantization,
)
from kjax.cli.feature_options import add_features, check_features
from kjax.counts import plural
from kjax.errors import InputError, unknown_name
from kjax.extras import require

if TYPE_CHECKING:
    import numpy as np

    from kjax.data.cutting.keypoints import Keypoints
    from kjax.data.cutting.photographs import Pixels
    from kjax.images.exchange.matched_pair import MatchedPair
    from kjax.images.features import Features
    from kjax.images.matches import Matches

HELP = "match two photographs and draw the matches that one geometry explains"
EXAMPLES = """examples:
  kjax match a.jpg b.jpg
  kjax match a.jpg b.jpg --weights out/first --out matches.png
  kjax match a.jpg b.jpg --out matches.html           # to look into: zoom, hover, filter by score
  kjax match a.jpg b.jpg --save matches.npz           # or .h5, for hloc
  kjax match a.jpg b.jpg --weights hardnet.pth --geometry fundamental --method ratio --ratio 0.9
  kjax match a.jpg b.jpg --weights weights.npz:polar,s=1 --keypoints 2000
  kjax match a.jpg b.jpg --method learned --matcher out/matcher
  kjax match a.jpg b.jpg --align --geometry fundamental --threshold 1

If there are no matches, or none that one geometry explains, it says so, the picture shows the
photographs alone, and the exit code is 1. A page and a file always hold all matches.
"""
PAGE, HDF5 = ".html", (".h5", ".hdf5")
GEOMETRIES = {"homography": "homography", "fundamental": "fundamental matrix"}
"""Names for people of what `--geometry` looks for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("first", help="photograph")
    parser.add_argument("second", help="photograph of the same scene")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("matches.png"),
        help="picture to write, .png or .jpg, or page, .html (%(default)s)",
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="matches to write: .npz with keypoints and geometry, or .h5 as hloc's",
    )
    parser.add_argument(
        "--method",
        default="mutual_ratio",
        help="nearest, mutual, ratio, mutual_ratio (default) or learned",
    )
    parser.add_argument(
        "--matcher",
        metavar="FILE",
        help="for --method learned: matcher.npz or its workdir; the one that ships for the weights",
    )
    parser.add_argument("--ratio", type=float, help="largest that is kept (what suits the weights)")
    parser.add_argument(
        "--repeated", action="store_true", help="keep several matches of one place, too"
    )
    parser.add_argument(
        "--align",
        action="store_true",
        help="move the second photograph's matched keypoints to where the patches fit best",
    )
    parser.add_argument(
        "--geometry", default="homography", help="homography (default) or fundamental"
    )
    parser.add_argument("--threshold", type=float, default=3.0, help="pixels of an inlier (3)")
    add_features(parser, keypoints=4000, detector="SIFT-steady")
    parser.add_argument("--quantize", metavar="FORM", help="uint8 or binary (float32)")


def run(args: argparse.Namespace) -> int:
    """Matches, verifies, draws."""
    _check(args)

    from kjax.data.cutting.photographs import read_photograph

    photographs = read_photograph(args.first), read_photograph(args.second)
    # OpenCV looks for keypoints while JAX is imported and the weights are loaded.
    pool = ThreadPoolExecutor(len(photographs))
    finding = [pool.submit(_find, photograph, args) for photograph in photographs]

    from kjax.images.compiled_programs import keep_compiled_programs
    from kjax.images.correct_matches import one_per_location
    from kjax.images.describer import load
    from kjax.images.exchange.matched_pair import MatchedPair
    from kjax.images.geometry import verify
    from kjax.images.matching import match

    keep_compiled_programs()
    describer = load(args.weights, seed=args.seed, dimension=args.dimension)
    first, second = (describer.describe_grey(*found.result()) for found in finding)
    if args.quantize:
        first, second = first.quantized(args.quantize), second.quantized(args.quantize)
    found = match(
        first,
        second,
        method=args.method,
        ratio=args.ratio or describer.ratio,
        distance=first.distance,
        matcher=args.matcher,
    )
    if not args.repeated:
        # SIFT gives a place with two orientations as two keypoints.
        found = found.keep(one_per_location(found, first.xy, second.xy))
    if args.align:
        second = _moved(photographs, first, second, found)
    xy_a, xy_b = first.xy[found.indices[:, 0]], second.xy[found.indices[:, 1]]
    verified = verify(xy_a, xy_b, model=args.geometry, threshold=args.threshold)
    pair = MatchedPair(_names(args), first, second, found, verified, args.geometry)
    drawn = drawable(photographs[0]), drawable(photographs[1])
    _write(args, pair, drawn, describer.extent)
    said = verdict(verified.inliers, args.geometry, all_drawn=_is_page(args.out))
    print(f"{len(first)} and {len(second)} keypoints, {said}")
    print(f"wrote {args.out}" + (f" and {args.save}" if args.save else ""))
    return 0 if verified.inliers.any() else 1


def _moved(
    photographs: "tuple[Pixels, Pixels]", first: "Features", second: "Features", found: "Matches"
) -> "Features":
    """The second photograph's features, those that match where the patches fit best."""
    from kjax.images.aligning import align_matches

    xy = second.xy.copy()
    xy[found.indices[:, 1]] = align_matches(*photographs, first, second, found).xy_b
    return dataclasses.replace(second, xy=xy)


def _check_matches_name(path: Path) -> None:
    """Refuses names of files that matches are not written to."""
    suffix = path.suffix.lower()
    if suffix in HDF5:
        require("h5py", f"--save {path}")
    elif suffix != ".npz":
        raise InputError(f"--save {path}: let it end with .npz, or with .h5 for hloc")


def _check_align(args: argparse.Namespace) -> None:
    """Refuses what leaves a keypoint no place of its own, or its place no file."""
    if args.align and args.repeated:
        raise InputError("--align gives a keypoint one place: leave out --repeated")
    if args.align and args.save and args.save.suffix.lower() in HDF5:
        raise InputError(f"--save {args.save} has no keypoints that --align could move: save .npz")


def _names(args: argparse.Namespace) -> tuple[str, str]:
    """As `kjax describe` names the two photographs."""
    from kjax.cli.photographs import named_photographs

    names = list(named_photographs([args.first, args.second]))
    return names[0], names[-1]


def _is_page(path: Path) -> bool:
    return path.suffix.lower() == PAGE


def _write(
    args: argparse.Namespace,
    pair: "MatchedPair",
    photos: "tuple[np.ndarray, np.ndarray]",
    extent: float,
) -> None:
    """The picture or the page, and the file."""
    from kjax.images.drawing import save_matches
    from kjax.images.exchange.matched_pair import write_pair
    from kjax.images.match_page import Side, save_match_page

    matches, kept = pair.matches, pair.verified.inliers
    if _is_page(args.out):
        left = Side(pair.names[0], photos[0], pair.first)
        right = Side(pair.names[1], photos[1], pair.second)
        save_match_page(args.out, left, right, matches, kept, extent=extent)
    else:
        rows = matches.keep(kept).indices
        save_matches(args.out, *photos, pair.first.xy[rows[:, 0]], pair.second.xy[rows[:, 1]])
    if args.save:
        write_pair(args.save, pair)


def verdict(kept: "np.ndarray", geometry: str, *, all_drawn: bool = False) -> str:
    """The line on how many matches there are, and how many of them one geometry explains."""
    count, name = len(kept), GEOMETRIES[geometry]
    drawn = "" if all_drawn else ": none is drawn"
    if not count:
        return f"no matches{drawn}"
    matches = f"{count} {plural('match', count)}"
    if not kept.any():
        return f"{matches}\nno {name} explains them{drawn}"
    return f"{matches}\n{int(kept.sum())} of them agree with one {name}"


def drawable(photograph: "np.ndarray") -> "np.ndarray":
    """The photograph in 8 bits."""
    from kjax.data.cutting.grey import grey_values, whole_greys

    return photograph if photograph.dtype == "uint8" else whole_greys(grey_values(photograph))


def _find(photograph: "Pixels", args: argparse.Namespace) -> "tuple[np.ndarray, Keypoints]":
    """A photograph in grey, and its keypoints."""
    from kjax.data.cutting.grey import grey_values
    from kjax.data.cutting.keypoints import detect_in_grey

    grey = grey_values(photograph)
    return grey, detect_in_grey(grey, max_keypoints=args.keypoints, detector=args.detector)


def _check(args: argparse.Namespace) -> None:
    """Refuses, before any work, what cannot be."""
    from kjax.images.features import MatchingMethod

    for path in (args.first, args.second):
        check_photograph(path)
    if args.method not in get_args(MatchingMethod):
        raise unknown_name("--method", args.method, get_args(MatchingMethod))
    if args.geometry not in GEOMETRIES:
        raise unknown_name("--geometry", args.geometry, GEOMETRIES)
    learned = args.method == "learned"
    if learned and args.matcher is None:
        args.matcher = args.weights
    check_matcher(args.matcher, needed=learned, option="--method learned")
    if args.ratio is not None:
        check_positive("--ratio", args.ratio, most=1.0)
    check_positive("--threshold", args.threshold)
    check_features(args)
    check_quantization(args.quantize)
    _check_align(args)
    check_output_file(args.out)

    from kjax.images.drawing import check_picture_name

    check_picture_name(args.out, other=(PAGE,))
    if args.save:
        check_output_file(args.save, "--save")
        _check_matches_name(args.save)
