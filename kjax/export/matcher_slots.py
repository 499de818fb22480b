"""Learned matchers as the ONNX files that COLMAP and OpenCV run in place of LightGlue.

Both programs pass two images with different numbers of keypoints, in any order. The graph sorts
each image's keypoints as kjax does, stacks the images for `write_matcher`, and undoes the order.

COLMAP 4 (`--SiftMatching.lightglue_model_path`) passes the bytes of `colmap_bytes` as vectors of
length 1. The graph converts them as `from_colmap_bytes` does, except for RootSIFT: these are it.

OpenCV 5 (`cv2.LightGlueMatcher`) passes positions as fractions of the width and height that it was
given, without these, and neither scales nor angles. The graph assumes a square image, upright
keypoints and one scale.
"""

import dataclasses
import math
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int64

from kjax.data.cutting.keypoints import SIGMA
from kjax.errors import InputError
from kjax.export.matcher_graph import INT64, write_matcher
from kjax.extras import require
from kjax.images.exchange.colmap_bytes import DIMENSION, colmap_bytes, from_colmap_bytes
from kjax.images.features import NO_SCALE, Features, unit_rows
from kjax.images.sift import ROOT_SIFT
from kjax.matcher.assignment import NONE
from kjax.matcher.weights import MatcherWeights
from kjax.model.onnx_graph import GraphWriter
from kjax.model.quantization import rotation

Program = Literal["colmap", "opencv"]
PARTS = 8
"""Parts of the matrices of all pairs of keypoints: 8,000 keypoints take 1 GB."""
SIDE = 1024
"""Width and height in pixels that are assumed of OpenCV's images."""


def slot_graph(weights: MatcherWeights, program: Program) -> Any:
    """Write the file that a program takes as a `ModelProto`."""
    dimension = weights.model.dimension
    if program == "colmap" and dimension > DIMENSION:
        raise InputError(f"COLMAP has descriptors of {DIMENSION} numbers, not {dimension}")
    graph = GraphWriter(require("onnx", "an ONNX graph"))
    add, constant = graph.add, graph.constant
    zero, one, parts = (constant(number, np.int64) for number in (0, 1, PARTS))
    counts = [add("Gather", add("Shape", f"kpts{side}"), one) for side in (0, 1)]
    # A multiple of `PARTS` with room for both images, whose padding repeats the last keypoint.
    enough = add("Add", add("Max", *counts), constant(PARTS - 1, np.int64))
    rows = add("Range", zero, add("Mul", add("Div", enough, parts), parts), one)
    sides, orders = [], []
    for side, count in enumerate(counts):
        read = _read_colmap if program == "colmap" else _read_opencv
        columns = read(graph, side, weights)
        orders.append(_canonical_order(graph, columns, count))
        padded = add("Gather", orders[side], add("Min", rows, add("Sub", count, one)))
        for name in columns.keys() - {"sizes"}:
            columns[name] = add("Gather", columns[name], padded, axis=1)
        sides.append(columns)
    for name in sorted(sides[0]):
        add("Concat", *(columns[name] for columns in sides), axis=0, output=name)
    add("Concat", *(graph.reshape(count, 1) for count in counts), axis=0, output="counts")
    write_matcher(graph, weights, PARTS)
    _write_matches(graph, program, counts, orders)
    return _finish(graph, program, dimension)


def _read_colmap(graph: GraphWriter, side: int, weights: MatcherWeights) -> dict[str, str]:
    """Write `kjax.export.matcher.MatcherArguments` of one image, [1,N,…], from COLMAP's inputs."""
    add, constant, rows = graph.add, graph.constant, f"desc{side}"
    degrees = add("Mul", f"oris{side}", constant(180 / math.pi))
    turned = add("Add", degrees, constant(360))
    if weights.described_with != ROOT_SIFT:
        across = add("Sub", rows, add("ReduceMean", rows, axes=[2], keepdims=1))
        back = rotation(DIMENSION).T[:, : weights.model.dimension]
        rows = add("MatMul", across, constant(back))
    return {
        "xy": f"kpts{side}",
        "scales": add("Mul", f"scales{side}", constant(1 / SIGMA)),
        "angles": add("Where", add("Less", degrees, constant(0)), turned, degrees),
        "descriptors": rows,
        "sizes": f"image_size{side}",
    }


def _read_opencv(graph: GraphWriter, side: int, _: MatcherWeights) -> dict[str, str]:
    """Write the same from OpenCV's inputs."""
    add, constant = graph.add, graph.constant
    xy = add("Mul", add("Add", f"kpts{side}", constant(1)), constant(SIDE / 2))
    zeros = add("Mul", add("ReduceMax", xy, axes=[2], keepdims=0), constant(0))
    return {
        "xy": xy,
        "scales": add("Add", zeros, constant(NO_SCALE)),
        "angles": zeros,
        "descriptors": f"desc{side}",
        "sizes": constant([[SIDE, SIDE]]),
    }


def _canonical_order(graph: GraphWriter, columns: dict[str, str], count: str) -> str:
    """Write `kjax.images.learned.canonical_order`: sort by the last key first."""
    axes = graph.add("Transpose", columns["xy"], perm=[2, 0, 1])
    x, y = (graph.add("Gather", axes, graph.constant(axis, np.int64)) for axis in (0, 1))
    order = ""
    for key in (columns["angles"], columns["scales"], y, x):
        flat = graph.reshape(key, -1)
        ranks = graph.argsort(graph.add("Gather", flat, order) if order else flat, count)
        order = graph.add("Gather", order, ranks) if order else ranks
    return order


def _write_matches(
    graph: GraphWriter, program: Program, counts: list[str], orders: list[str]
) -> None:
    """Write a program's outputs, of keypoints in their own order."""
    add, constant = graph.add, graph.constant
    zero, none = (constant(number, np.int64) for number in (0, NONE))
    partners = add("Cast", "partners", to=INT64)
    theirs = add("Gather", orders[1], add("Max", partners, zero))
    matched = add("Where", add("Less", partners, zero), none, theirs)
    back = graph.argsort(orders[0], counts[0])
    if program == "colmap":
        add("Gather", matched, back, output="matches0")
        add("Gather", "scores", back, output="mscores0")
        return
    matched, scores = add("Gather", matched, back), add("Gather", "scores", back)
    rows = graph.reshape(add("NonZero", add("GreaterOrEqual", matched, zero)), -1)
    pairs = (graph.reshape(each, -1, 1) for each in (rows, add("Gather", matched, rows)))
    add("Concat", *pairs, axis=1, output="matches0")
    add("Gather", scores, rows, output="mscores0")


def _finish(graph: GraphWriter, program: Program, dimension: int) -> Any:
    """Return the graph with the names, shapes and order that a program expects."""
    shapes: dict[str, list[Any]] = {"kpts": [2], "desc": [dimension]}
    if program == "colmap":
        shapes = {"kpts": [2], "desc": [DIMENSION], "image_size": [], "scales": [], "oris": []}
    inputs = {
        f"{name}{side}": ("float32", [1, 2 if name == "image_size" else f"keypoints{side}", *shape])
        for name, shape in shapes.items()
        for side in (0, 1)
    }
    count: Any = "keypoints0" if program == "colmap" else "matches"
    pairs = [count] if program == "colmap" else [count, 2]
    outputs = {"matches0": ("int64", pairs), "mscores0": ("float32", [count])}
    return graph.finish("matcher", inputs, outputs)


def seen_by(program: Program, features: Features, weights: MatcherWeights) -> Features:
    """Return what a program's file knows of features: rounded, or without scales and angles."""
    if program == "colmap":
        stored = colmap_bytes(features)
        if weights.described_with == ROOT_SIFT:
            rows = unit_rows(stored.astype(np.float32))
        else:
            rows = from_colmap_bytes(stored, weights.model.dimension)
        return dataclasses.replace(features, descriptors=rows)
    size = (SIDE, SIDE)
    xy = features.xy * (np.array(size) / features.image_size).astype(np.float32)[None]
    scales, angles = np.full(len(xy), NO_SCALE, np.float32), np.zeros(len(xy), np.float32)
    return dataclasses.replace(features, xy=xy, scales=scales, angles=angles, image_size=size)


def slot_inputs(
    program: Program, first: Features, second: Features
) -> dict[str, Float32[np.ndarray, "1 _ *D"]]:
    """Return what a program passes to its file for two images."""
    inputs: dict[str, Any] = {}
    for side, features in enumerate((first, second)):
        own: dict[str, Any] = {"kpts": features.xy, "desc": features.descriptors}
        if program == "colmap":
            own["desc"] = unit_rows(colmap_bytes(features).astype(np.float32))
            own["image_size"] = np.array(features.image_size)
            own |= {"scales": features.sigmas(), "oris": features.radians()}
        else:
            own["kpts"] = 2 * features.xy / np.array(features.image_size)[None] - 1
        inputs |= {f"{name}{side}": np.asarray(one, np.float32)[None] for name, one in own.items()}
    return inputs


def slot_matches(
    matches: np.ndarray, scores: Float32[np.ndarray, " K"], count: int
) -> tuple[Int64[np.ndarray, " N"], Float32[np.ndarray, " N"]]:
    """Return the partner and score of each of the first image's keypoints from a file's outputs."""
    rows = np.arange(count) if matches.ndim == 1 else matches[:, 0]
    partners, all_scores = np.full(count, NONE), np.zeros(count, np.float32)
    partners[rows], all_scores[rows] = matches if matches.ndim == 1 else matches[:, 1], scores
    return partners, all_scores
