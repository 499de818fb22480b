"""A learned detector as an ONNX file, for photographs of one size.

    session = onnxruntime.InferenceSession("detector.onnx")
    xy, sizes, scores, directions = session.run(None, {"grey": grey})  # float32 [H,W], 0 to 1

Keypoints are sorted by score, best first. If there are fewer than the file's number, the last
scores are −∞. Positions and diameters are in pixels, the centre of the first one is (0, 0), and
the angle is atan2(y, x) of a direction, clockwise on screen.
"""

from pathlib import Path
from typing import Any

import numpy as np

from kjax.errors import InputError
from kjax.export import files
from kjax.extras import require
from kjax.keypoints.detect import Prepared, detect
from kjax.keypoints.network import arrange
from kjax.keypoints.selection import APART, BINOMIAL, NEIGHBOURS, Grid, allowed
from kjax.keypoints.weights import DetectorWeights
from kjax.model.onnx_graph import GraphWriter

SURE = 0.9
"""Share of the keypoints that both must find: the last ones depend on the last digits."""


def export_detector(
    path: Path, weights: DetectorWeights, size: tuple[int, int], keypoints: int
) -> float:
    """Write a detector for photographs of this width and height.

    Return the largest difference from kjax's own positions, in pixels; a file that differs is not
    kept.
    """
    if path.suffix != files.ONNX:
        raise InputError(f"{path}: detectors are exported to {files.ONNX}")
    width, height = size
    if min(size) < weights.model.multiple:
        raise InputError(f"--size {width} {height}: at least {weights.model.multiple} pixels each")

    def write_and_compare(partial: Path) -> float:
        facts = {"detector of": f"{keypoints} keypoints", **weights.remarks}
        files.write_onnx(partial, detector_graph(weights, size, keypoints), facts)
        grey = np.random.default_rng(0).random((height, width), np.float32)
        found = files.read_onnx(partial).run(None, {"grey": grey})
        photo = Prepared(grey, np.float32(0), np.float32(1), None, np.array(size, np.int32))
        expected, there = detect(weights.model, keypoints, weights.params, photo)
        ends = [
            np.column_stack([np.asarray(one[0]), np.asarray(one[1])[:, None]])
            for one in (expected, found)
        ]
        sure = ends[0][: max(int(SURE * there.sum()), 1)]
        return float(np.abs(sure[:, None] - ends[1][None]).max(axis=2).min(axis=1).max())

    return files.write_checked(path, write_and_compare, limit=1e-2)


def detector_graph(weights: DetectorWeights, size: tuple[int, int], keypoints: int) -> Any:
    """Write the detector as a `ModelProto`."""
    config, (width, height) = weights.model, size
    graph = GraphWriter(require("onnx", "an ONNX graph"))
    octaves = [graph.reshape("grey", 1, 1, height, width)]
    sides = [(height, width)]
    blur = np.outer(BINOMIAL, BINOMIAL)[:, :, None, None].astype(np.float32)
    while len(octaves) < config.octaves and min(sides[-1]) >= 2 * config.multiple:
        padded = pad(graph, octaves[-1], (2, 2, 2, 2), "edge")
        octaves.append(graph.convolve(padded, blur, stride=2, pads=(0,) * 4))
        sides.append((-(-sides[-1][0] // 2), -(-sides[-1][1] // 2)))
    whole = [tuple(side + -side % config.multiple for side in own) for own in sides]
    for level, (own, full) in enumerate(zip(sides, whole, strict=True)):
        missing = (0, 0, full[0] - own[0], full[1] - own[1])
        octaves[level] = pad(graph, octaves[level], missing, "edge")
    corners, canvas_sides = arrange(whole, config.multiple)
    shown = np.zeros(canvas_sides, bool)
    canvas = ""
    for octave, (top, left), full in zip(octaves, corners, whole, strict=True):
        shown[top : top + full[0], left : left + full[1]] = True
        right, bottom = canvas_sides[1] - left - full[1], canvas_sides[0] - top - full[0]
        placed = pad(graph, octave, (top, left, bottom, right), "constant")
        canvas = graph.add("Add", canvas, placed) if canvas else placed
    scores, every_frame = write_network(graph, weights, canvas, shown)
    maps, frames = [], []
    for (top, left), full in zip(corners, whole, strict=True):
        maps.append(cut(graph, scores, top, left, *full))
        halves = top // 2, left // 2, full[0] // 2, full[1] // 2
        frames.append(cut(graph, every_frame, *halves))
    marks = write_maxima(graph, maps, whole)
    flat_scores, flat_marks = rows(graph, maps, 1), rows(graph, marks, 1)
    flat_frames = rows(graph, frames, 3)
    grid = Grid.of([np.empty((1, *full)) for full in whole])
    where = allowed(grid, np.ones((1, height, width), bool), size)[0]
    found = graph.add("And", flat_marks, graph.constant(where, bool))
    lowest = graph.constant(-np.inf)
    wanted = graph.add("Where", found, flat_scores, lowest)
    count = min(keypoints, len(where) // 4)
    index = graph.top(wanted, count, output="scores")
    write_located(graph, grid, flat_scores, flat_frames, index, config.smallest)
    return graph.finish(
        "detector",
        {"grey": ("float32", [height, width])},
        {
            "xy": ("float32", [count, 2]),
            "sizes": ("float32", [count]),
            "scores": ("float32", [count]),
            "directions": ("float32", [count, 2]),
        },
    )


def write_network(
    graph: GraphWriter, weights: DetectorWeights, canvas: str, shown: np.ndarray
) -> tuple[str, str]:
    """Write `DetectorNetwork`: maps [1, 1, h, w] and [1, 3, h / 2, w / 2]."""
    config, numbers = weights.model, iter(range(len(weights.params)))
    whole, *masks = (
        graph.constant(shown[None, None, :: 2**level, :: 2**level])
        for level in range(len(config.widths) + 1)
    )

    def convolve(x: str) -> str:
        layer = weights.params[f"Conv_{next(numbers)}"]
        around = (len(layer["kernel"]) // 2,) * 4
        return graph.convolve(
            x, np.asarray(layer["kernel"]), np.asarray(layer["bias"]), pads=around
        )

    def write_layer(x: str, mask: str) -> str:
        return graph.add("Mul", graph.add("Relu", convolve(x)), mask)

    half = graph.constant(0.5)
    centred = graph.add("Mul", graph.add("Sub", canvas, half), graph.constant(4))
    x = graph.add("Mul", graph.add("SpaceToDepth", centred, blocksize=2), masks[0])
    levels: list[str] = []
    for mask in masks:
        if levels:
            x = graph.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = write_layer(write_layer(x, mask), mask)
        levels.append(x)
    for finer, mask in zip(levels[-2::-1], masks[-2::-1], strict=True):
        wider = graph.add("Mul", twice(graph, convolve(x)), mask)
        x = write_layer(graph.add("Add", finer, wider), mask)
    x = write_layer(x, masks[0])
    frames = convolve(x)
    sizes, directions = (
        take(graph, frames, axis=1, start=start, end=end) for start, end in ((0, 1), (1, 3))
    )
    fine = graph.add("DepthToSpace", convolve(x), blocksize=2)
    fine = graph.add("Add", fine, convolve(graph.add("Mul", centred, whole)))
    fine = write_layer(graph.add("Mul", graph.add("Relu", fine), whole), whole)
    return convolve(fine), graph.add("Concat", graph.add("Tanh", sizes), directions, axis=1)


def write_maxima(graph: GraphWriter, maps: list[str], sides: list[tuple[int, ...]]) -> list[str]:
    """Write `kjax.keypoints.selection.maxima`, one map of marks per octave."""
    *finer, highest = maps
    for best, (height, width) in zip(finer[::-1], sides[-2::-1], strict=True):
        coarser = cut(graph, twice(graph, highest), 0, 0, height, width)
        highest = graph.add("Max", best, coarser)
    window = 2 * APART + 1
    highest = graph.add("MaxPool", highest, kernel_shape=[window, window], pads=[APART] * 4)
    marks = []
    for octave, (own, (height, width)) in enumerate(zip(maps, sides, strict=True)):
        if octave:
            highest = graph.add("MaxPool", highest, kernel_shape=[2, 2], strides=[2, 2])
            missing = (height - sides[octave - 1][0] // 2, width - sides[octave - 1][1] // 2)
            highest = pad(graph, highest, (0, 0, *missing), "edge")
        marks.append(graph.add("GreaterOrEqual", own, highest))
    return marks


def write_located(
    graph: GraphWriter, grid: Grid, scores: str, frames: str, index: str, smallest: float
) -> None:
    """Write `kjax.keypoints.selection.locate`, and the outputs but the scores."""
    add = graph.add

    def whole(value: Any) -> str:
        return graph.constant(value, np.int64)

    def floating(x: str) -> str:
        return add("Cast", x, to=1)

    rows, beyond = graph.reshape(index, -1, 1), whole(grid.starts[None, 1:])
    later = add("Cast", add("GreaterOrEqual", rows, beyond), to=7)
    octave = add("ReduceSum", later, axes=[1], keepdims=0)
    start, width = (add("Gather", whole(column), octave) for column in (grid.starts, grid.widths))
    pixel = add("Sub", index, start)
    row, column = add("Div", pixel, width), add("Mod", pixel, width)
    down = add("Mul", graph.reshape(width, -1, 1), whole(NEIGHBOURS[None, :, 0]))
    steps = add("Add", down, whole(NEIGHBOURS[None, :, 1]))
    around = add("Softmax", add("Gather", scores, add("Add", rows, steps)), axis=1)
    offset = add("MatMul", around, graph.constant(NEIGHBOURS[:, ::-1]))
    at = add("Concat", *(graph.reshape(floating(one), -1, 1) for one in (column, row)), axis=1)
    zoom = add("Pow", graph.constant(2), floating(octave))
    add("Mul", add("Add", at, offset), graph.reshape(zoom, -1, 1), output="xy")
    half, quarter, width = graph.constant(0.5), graph.constant(0.25), add("Div", width, whole(2))
    places = [add("Sub", add("Mul", floating(one), half), quarter) for one in (row, column)]
    top, left = (add("Floor", one) for one in places)
    down, across = (
        graph.reshape(add("Sub", one, first), -1, 1)
        for one, first in zip(places, (top, left), strict=True)
    )
    top, left = (add("Cast", one, to=7) for one in (top, left))
    corner = add("Add", add("Div", start, whole(4)), add("Add", add("Mul", top, width), left))

    def between(first: str, second: str, share: str) -> str:
        return add("Add", first, add("Mul", add("Sub", second, first), share))

    above, below = (
        between(
            add("Gather", frames, own), add("Gather", frames, add("Add", own, whole(1))), across
        )
        for own in (corner, add("Add", corner, width))
    )
    frame = between(above, below, down)
    larger = graph.reshape(take(graph, frame, axis=1, end=1), -1)
    diameter = add("Pow", graph.constant(2), add("Add", floating(octave), larger))
    add("Mul", diameter, graph.constant(smallest), output="sizes")
    ends = (graph.constant([n], np.int64) for n in (1, 3, 1, 1))
    add("Slice", frame, *ends, output="directions")


# Parts of maps [1, channels, height, width]


def take(
    graph: GraphWriter, x: str, *, axis: int, start: int = 0, end: int = 2**31, step: int = 1
) -> str:
    """Slice along an axis."""
    return graph.add("Slice", x, *(graph.constant([n], np.int64) for n in (start, end, axis, step)))


def cut(graph: GraphWriter, x: str, top: int, left: int, height: int, width: int) -> str:
    """Cut out a rectangle."""
    x = take(graph, x, axis=2, start=top, end=top + height)
    return take(graph, x, axis=3, start=left, end=left + width)


def pad(graph: GraphWriter, x: str, sides: tuple[int, ...], mode: str) -> str:
    """Pad above, left, below and right."""
    if not any(sides):
        return x
    top, left, bottom, right = sides
    pads = graph.constant([0, 0, top, left, 0, 0, bottom, right], np.int64)
    return graph.add("Pad", x, pads, mode=mode)


def twice(graph: GraphWriter, x: str) -> str:
    """Repeat every pixel in both directions."""
    return graph.add("DepthToSpace", graph.add("Concat", x, x, x, x, axis=1), blocksize=2)


def rows(graph: GraphWriter, maps: list[str], columns: int) -> str:
    """Flatten maps pixel by pixel, scale by scale: a vector, or rows of several columns."""
    flat = [graph.add("Transpose", one, perm=[0, 2, 3, 1]) for one in maps]
    shape = (-1,) if columns == 1 else (-1, columns)
    parts = [graph.reshape(one, *shape) for one in flat]
    return graph.add("Concat", *parts, axis=0)
