"""Compare matchers exported for COLMAP and OpenCV with kjax's own.

    python benchmarks/slots.py best --photos photos/fountain data/oxford/*

The first photo of each folder is matched with the others. COLMAP's file runs in onnxruntime on
what COLMAP would pass to it, OpenCV's in OpenCV 5 itself, and kjax's own file in onnxruntime. Files
always run all layers; `kjax.match` stops early. Times are relative to kjax's own file.
"""

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import program
from jaxtyping import Int
from peer_table import methods

import kjax
from kjax.data.cutting.photographs import list_photos, read_grey
from kjax.export.files import read_onnx
from kjax.export.matcher import export_matcher, load_exported_matcher, stack_photographs
from kjax.export.matcher_slots import slot_inputs, slot_matches
from kjax.images.features import Features
from kjax.images.geometry import verify
from kjax.images.learned import canonical_order, load_matcher
from kjax.interrupts import run_script
from kjax.matcher.weights import find_matcher, read_matcher

Pairs = Int[np.ndarray, "K 2"]


def with_partners(partners: Int[np.ndarray, " N"]) -> Pairs:
    """Return the pairs of keypoints that have a partner."""
    rows = np.flatnonzero(partners >= 0)
    return np.stack([rows, partners[rows]], axis=1)


def make_matchers(name: str, folder: Path) -> dict[str, Callable[[Features, Features], Pairs]]:
    """Export a matcher for each program and return functions that match by all of them."""
    weights, matcher = read_matcher(find_matcher(name)), load_matcher(name)
    own, colmap, opencv = (folder / f"{kind}.onnx" for kind in ("own", "colmap", "opencv"))
    export_matcher(own, weights)
    export_matcher(colmap, weights, program="colmap")
    export_matcher(opencv, weights, program="opencv")
    match_stacked, session = load_exported_matcher(own), read_onnx(colmap)
    theirs = cv2.LightGlueMatcher.create(str(opencv))

    def match_own(first: Features, second: Features) -> Pairs:
        room = max(len(first), len(second))
        return with_partners(match_stacked(stack_photographs(first, second, room))[0])

    def match_colmap(first: Features, second: Features) -> Pairs:
        outputs = session.run(None, slot_inputs("colmap", first, second))
        return with_partners(slot_matches(*outputs, len(first))[0])

    def match_opencv(first: Features, second: Features) -> Pairs:
        theirs.setPairInfo(first.xy, second.xy, first.image_size, second.image_size)
        found = theirs.match(first.descriptors, second.descriptors)
        return np.array([(one.queryIdx, one.trainIdx) for one in found]).reshape(-1, 2)

    return {
        "kjax's file": match_own,
        "kjax.match, all layers": lambda *pair: matcher.match(*pair, early=False).indices,
        "kjax.match": lambda *pair: matcher.match(*pair).indices,
        "for COLMAP": match_colmap,
        "for OpenCV": match_opencv,
    }


def pairs_of(args: argparse.Namespace) -> Iterator[tuple[Features, Features]]:
    """Describe photos, and yield the first of each folder with each of the others."""
    if args.weights == "sift":
        read, keypoints = read_grey, methods.parse("rootsift:largest")
        extract = methods.describer(keypoints, args.keypoints, "cpu")
    else:
        read, extract = Path, kjax.load(args.weights, max_keypoints=args.keypoints).describe_image
    for folder in args.photos:
        photos = []
        for path in list_photos(folder):
            found = extract(read(path))
            names, order = ("xy", "descriptors", "scales", "angles"), canonical_order(found)
            columns = {name: getattr(found, name)[order] for name in names}
            photos.append(dataclasses.replace(found, scores=None, **columns))
        yield from ((photos[0], other) for other in photos[1:])


def run(args: argparse.Namespace) -> None:
    """Match all pairs and print a row for each matcher; the first is the reference."""
    with tempfile.TemporaryDirectory() as folder:
        matchers = make_matchers(args.weights, Path(folder))
    sums = {name: np.zeros(4) for name in matchers}
    for pair in pairs_of(args):
        reference: set[tuple[int, int]] | None = None
        for name, match in matchers.items():
            start = time.perf_counter()
            found = match(*pair)
            seconds = time.perf_counter() - start
            pairs = set(map(tuple, found.tolist()))
            reference = pairs if reference is None else reference
            points = (one.xy[rows] for one, rows in zip(pair, found.T, strict=True))
            sums[name] += len(found), len(pairs & reference), verify(*points).inliers.sum(), seconds
    whole, *_ = sums.values()
    header = ["", "matches", "shared with kjax's file, %", "inliers", "time"]
    rows = []
    for name, own in sums.items():
        shared, relative = program.percent(own[1] / whole[0]), f"{own[3] / whole[3]:.2f}"
        rows.append([name, f"{own[0]:,.0f}", shared, f"{own[2]:,.0f}", relative])
    print(program.table(header, rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("weights", help="name of shipped weights, or sift")
    add("--photos", type=Path, nargs="+", required=True, help="folders of overlapping photos")
    add("--keypoints", type=int, default=2048, help="maximum per photo (default: 2048)")


if __name__ == "__main__":
    run_script(main)
