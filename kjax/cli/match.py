"""`kjax match`: match two photographs; draw the matches or save them."""

import argparse
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjax.cli import options
from kjax.cli.options import HDF5, add_option, path_ending, positive
from kjax.errors import InputError, plural
from kjax.extras import require

if TYPE_CHECKING:
    import numpy as np

HELP = "match two photographs and draw the matches that agree with one geometry"
EXAMPLES = """examples:
  kjax match a.jpg b.jpg
  kjax match a.jpg b.jpg --weights out/first --out matches.png
  kjax match a.jpg b.jpg --out matches.html           # interactive: zoom, hover, filter by score
  kjax match a.jpg b.jpg --save matches.npz           # or .h5, for hloc
  kjax match a.jpg b.jpg --method learned             # with the matcher of the weights
  kjax match a.jpg b.jpg --weights hardnet.pth --geometry fundamental --method ratio --ratio 0.9
  kjax match a.jpg b.jpg --align --geometry fundamental --threshold 1

The exit code is 1 if there are no matches, or none that agree with one geometry. The picture then
shows the photographs alone. An .html page and a saved file always hold all matches.
"""
PAGE = ".html"
METHODS = ("nearest", "mutual", "ratio", "mutual_ratio", "learned")
GEOMETRIES = {"homography": "homography", "fundamental": "fundamental matrix"}
"""Choices of --geometry, with their names in messages."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    parser.add_argument("first", metavar="IMAGE", help="photograph")
    parser.add_argument("second", metavar="IMAGE", help="photograph of the same scene")
    kind = path_ending(".png", ".jpg", ".jpeg", PAGE)
    text = "picture (.png, .jpg) or page (.html) to write"
    add_option(parser, "--out", kind, "PATH", text, default=Path("matches.png"))
    text = "also save the matches: .npz with keypoints and geometry, or .h5 for hloc"
    add_option(parser, "--save", path_ending(".npz", *HDF5), "PATH", text)
    options.add_features(parser, advanced, keypoints=4000, detector="SIFT-steady")
    add_option(parser, "--method", METHODS, "NAME", "matching method", default="mutual_ratio")
    text = "model to verify the matches with"
    add_option(parser, "--geometry", tuple(GEOMETRIES), "NAME", text, default="homography")
    add_option(parser, "--threshold", positive(), "PX", "maximum error of an inlier", default=3.0)
    options.add_shared(advanced, "--ratio")
    text = "for --method learned: matcher.npz or its workdir"
    add_option(advanced, "--matcher", str, "PATH", text, unset="the weights' own")
    text = "keep duplicate matches at the same location"
    advanced.add_argument("--repeated", action="store_true", help=text)
    text = "refine matched keypoints of the second image by aligning their patches"
    advanced.add_argument("--align", action="store_true", help=text)
    options.add_shared(advanced, "--quantize")


def check(args: argparse.Namespace) -> None:
    """Check files and combinations of options, before any work."""
    for path in (Path(args.first), Path(args.second)):
        if path.is_dir():
            raise InputError(f"{path} is a folder: give a photograph")
        if not path.exists():
            raise InputError(f"no such file: {path}")
    if args.method == "learned":
        args.matcher = args.matcher or args.weights
        options.check_matcher(args.matcher)
    elif args.matcher is not None:
        raise InputError(f"--matcher {args.matcher} needs --method learned")
    options.check_features(args)
    options.check_output_file(args.out)
    if args.align and args.repeated:
        raise InputError("--align moves each keypoint once: omit --repeated")
    if args.save:
        options.check_output_file(args.save)
        if args.save.suffix.lower() in HDF5:
            require("h5py", f"--save {args.save}")
            if args.align:
                raise InputError(f"--save {args.save} has no keypoints for --align: save .npz")


def run(args: argparse.Namespace) -> int:
    """Match, verify, draw and save."""
    check(args)

    from kjax.data.cutting.keypoints import detect_in_grey
    from kjax.data.cutting.photographs import grey_values, read_reduced

    def detect(path: str) -> Any:
        photograph, size = read_reduced(path, args.max_side)
        grey = grey_values(photograph)
        found = detect_in_grey(grey, max_keypoints=args.keypoints, detector=args.detector)
        return photograph, size, grey, found

    # OpenCV detects keypoints while JAX is imported and the weights are loaded. One photograph at a
    # time, and before any description: both need up to a gigabyte.
    detecting = ThreadPoolExecutor(1).map(detect, (args.first, args.second))

    from kjax.images.align import align_matches
    from kjax.images.describer import load
    from kjax.images.draw import MAX_LINES, save_match_page, save_matches
    from kjax.images.exchange.outputs import write_pair
    from kjax.images.geometry import one_per_location, verify
    from kjax.images.match import match
    from kjax.images.runner import keep_compiled_programs

    keep_compiled_programs()
    describer = load(args.weights, seed=args.seed, dimension=args.dimension)
    photographs, sizes, greys, found = zip(*detecting, strict=True)
    first, second = map(describer.describe_grey, greys, found)
    if args.quantize:
        first, second = first.quantized(args.quantize), second.quantized(args.quantize)
    matches = match(
        first,
        second,
        method=args.method,
        ratio=args.ratio or describer.ratio,
        distance=first.distance,
        matcher=args.matcher,
    )
    if not args.repeated:
        # SIFT returns a location with two orientations as two keypoints.
        matches = matches.keep(one_per_location(matches, first.xy, second.xy))
    if args.align:
        xy = second.xy.copy()
        xy[matches.indices[:, 1]] = align_matches(*photographs, first, second, matches).xy_b
        second = dataclasses.replace(second, xy=xy)
    reduced = first, second
    first, second = first.resized(sizes[0]), second.resized(sizes[1])
    xy_a, xy_b = first.xy[matches.indices[:, 0]], second.xy[matches.indices[:, 1]]
    verified = verify(xy_a, xy_b, model=args.geometry, threshold=args.threshold)
    inliers = verified.inliers
    found_names = list(options.named_photographs([args.first, args.second]))
    names = found_names[0], found_names[-1]
    is_page = args.out.suffix.lower() == PAGE
    if is_page:
        save_match_page(
            args.out, names, photographs, reduced, matches, inliers, extent=describer.extent
        )
    else:
        shown = matches.keep(inliers).indices.T
        drawn = (one.xy[rows] for one, rows in zip(reduced, shown, strict=True))
        save_matches(args.out, *photographs, *drawn)
    if args.save:
        write_pair(args.save, names, first, second, matches, verified, args.geometry)
    result = verdict(inliers, args.geometry, all_drawn=is_page)
    print(f"{len(first)} and {len(second)} keypoints, {result}")
    count = int(inliers.sum())
    part = "" if is_page or count <= MAX_LINES else f" ({MAX_LINES} of {count:,} matches drawn)"
    print(f"wrote {args.out}{part}" + (f" and {args.save}" if args.save else ""))
    return 0 if inliers.any() else 1


def verdict(inliers: "np.ndarray", geometry: str, *, all_drawn: bool = False) -> str:
    """Return a sentence with the number of matches and of inliers."""
    count, name = len(inliers), GEOMETRIES[geometry]
    drawn = "" if all_drawn else ": none is drawn"
    if not count:
        return f"no matches{drawn}"
    matches = f"{count} {plural('match', count)}"
    if not inliers.any():
        return f"{matches}\nno {name} explains them{drawn}"
    return f"{matches}\n{int(inliers.sum())} of them agree with one {name}"
