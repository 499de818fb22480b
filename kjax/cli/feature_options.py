"""What commands that describe photographs take alike: weights, keypoints, and checks of both."""

import argparse

from kjax.cli.checks import check_count, check_weights
from kjax.extras import require
from kjax.weights.shipped import DEFAULT


def add_weights(parser: argparse.ArgumentParser) -> None:
    """The weights, and how many numbers of their descriptors are used."""
    parser.add_argument(
        "--weights",
        default=DEFAULT,
        help="shipped name (kjax info lists them), workdir, or file[:head,s=…] (%(default)s)",
    )
    parser.add_argument(
        "--dimension", type=int, metavar="D", help="fewer numbers, of weights trained for it"
    )


def add_features(parser: argparse.ArgumentParser, *, keypoints: int, detector: str) -> None:
    """The weights and the keypoints, of which these are the defaults."""
    add_weights(parser)
    parser.add_argument("--seed", type=int, help="which of a run's several seeds")
    parser.add_argument(
        "--keypoints", type=int, default=keypoints, help="at most per photo (%(default)s)"
    )
    parser.add_argument(
        "--detector",
        default=detector,
        metavar="NAME",
        help="SIFT-steady, SIFT-largest, SIFT (its strongest), ORB, BRISK, AKAZE or KAZE "
        "(%(default)s)",
    )


def check_features(args: argparse.Namespace) -> None:
    """Refuses what `add_features` lets through."""
    from kjax.data.cutting.detectors import check_detector

    check_count("--keypoints", args.keypoints)
    check_detector(args.detector)
    check_weights(args.weights)
    require("cv2", "finding keypoints")
