"""Measure how long a photo takes to describe, the first time in its size and again.

    python benchmarks/photo_sizes.py best photo.jpg       # a photo of at least 1,024 pixels

Resizes the photo to 14 sizes and describes them one after the other, twice, with detection. Start
it with an empty compilation cache (`JAX_COMPILATION_CACHE_DIR`). Expected with `best` on an H200: a
photo takes 0.33 s the first time (the very first 3.9 s, most others 0.05 s) and 0.052 s the second;
with --detector kjax 2.2 s (the very first 31 s, all others 0.01 s) and 0.011 s.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import program

from kjax.extras import require
from kjax.images.describer import load
from kjax.images.extract import open_image
from kjax.interrupts import run_script

LONG_SIDES = np.linspace(640, 1024, 14).round().astype(int)
"""Every second size is a portrait, so that the short sides differ, too."""


def run(args: argparse.Namespace) -> None:
    """Describe all sizes twice, and print the seconds."""
    cv2 = require("cv2", "resizing")
    photo, _ = open_image(args.photo, "rgb")
    photo = np.asarray(photo)
    describer = load(args.weights, detector=args.detector, max_keypoints=args.keypoints)
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
    print(f"{args.weights}, {args.keypoints} keypoints, {args.detector}")
    print(jax.devices()[0].device_kind)
    print(program.table(("pass", "mean s", "most", "least"), rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("weights", help="shipped name, run or weights file")
    add("photo", type=Path, help="photo to resize")
    add("--detector", default="SIFT", help="of keypoints, or a trained one's file")
    add("--keypoints", type=int, default=2048, help="maximum (default: 2048)")


if __name__ == "__main__":
    run_script(main)
