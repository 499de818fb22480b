"""Measure how long a photo takes to describe, the first time in its size and again.

    python benchmarks/photo_sizes.py best photo.jpg       # a photo of at least 1,600 pixels

Resizes the photo to 14 sizes and describes them one after the other, twice, SIFT included. Start it
with an empty compilation cache (`JAX_COMPILATION_CACHE_DIR`). Asked on an H200: a mean of at most
0.5 s the first time and 0.08 s the second.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import program

from kjax.extras import require
from kjax.images.describer import load
from kjax.images.extract import open_image
from kjax.interrupts import run_script

LONG_SIDES = np.linspace(700, 1600, 14).round().astype(int)
"""Every second size is a portrait, so that the short sides differ, too."""


def run(args: argparse.Namespace) -> None:
    """Describe all sizes twice, and print the seconds."""
    cv2 = require("cv2", "resizing")
    photo, _ = open_image(args.photo, "rgb")
    photo = np.asarray(photo)
    describer = load(args.weights, max_keypoints=args.keypoints)
    photos = []
    for number, side in enumerate(LONG_SIDES):
        short = round(side * (0.66 if number % 2 else 0.75))
        size = (short, int(side)) if number % 2 else (int(side), short)
        photos.append(cv2.resize(photo, size, interpolation=cv2.INTER_AREA))
    rows = []
    for name in ("first", "second"):
        seconds = [
            program.timed(lambda one=one: describer.describe_image(one))[0] for one in photos
        ]
        rows.append((name, f"{np.mean(seconds):.3f}", f"{max(seconds):.3f}", f"{min(seconds):.3f}"))
    print(f"{args.weights}, {args.keypoints} keypoints, {jax.devices()[0].device_kind}")
    print(program.table(("pass", "mean s", "most", "least"), rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    parser.add_argument("weights", help="shipped name, run or weights file")
    parser.add_argument("photo", type=Path, help="photo to resize")
    parser.add_argument("--keypoints", type=int, default=2048, help="maximum (default: 2048)")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main)
