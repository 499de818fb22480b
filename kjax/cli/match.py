"""`kjax match`: two photographs to a picture of their matches."""

import argparse

from kjax.pretrained import DEFAULT

HELP = "match two photographs and draw the matches that one geometry explains"
EXAMPLES = """examples:
  kjax match a.jpg b.jpg
  kjax match a.jpg b.jpg --weights out/first --out matches.png
  kjax match a.jpg b.jpg --weights hardnet.pth --geometry fundamental --method ratio --ratio 0.9
  kjax match a.jpg b.jpg --weights weights.npz:polar,s=1 --keypoints 2000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("first", help="photograph")
    parser.add_argument("second", help="photograph of the same scene")
    parser.add_argument(
        "--weights",
        default=DEFAULT,
        help="shipped name (kjax info lists them), workdir, or file[:head,s=…] (%(default)s)",
    )
    parser.add_argument("--out", default="matches.png", help="picture to write (matches.png)")
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
    parser.add_argument("--seed", type=int, help="which of a run's several seeds")


def run(args: argparse.Namespace) -> int:
    """Matches, verifies, draws."""
    from kjax.images.describer import load
    from kjax.images.drawing import save_matches
    from kjax.images.geometry import verify
    from kjax.images.matching import match
    from kjax.images.reading import read_photograph

    describer = load(args.weights, seed=args.seed)
    photographs = read_photograph(args.first), read_photograph(args.second)
    first, second = (
        describer.describe_image(photograph, max_keypoints=args.keypoints)
        for photograph in photographs
    )
    found = match(first.descriptors, second.descriptors, method=args.method, ratio=args.ratio)
    xy_a, xy_b = first.xy[found.indices[:, 0]], second.xy[found.indices[:, 1]]
    verified = verify(xy_a, xy_b, model=args.geometry, threshold=args.threshold)
    kept = verified.inliers
    save_matches(args.out, *photographs, xy_a[kept], xy_b[kept])
    print(f"{len(first)} and {len(second)} keypoints, {len(found)} matches")
    if verified.model is None:
        print(f"no {args.geometry} explains them: nothing is drawn")
    else:
        print(f"{int(kept.sum())} of them agree with one {args.geometry}")
    print(f"wrote {args.out}")
    return 0
