"""A learned matcher as an ONNX graph, written operator by operator.

Tokens of both photographs are the rows of one matrix [2N,width]; only attention separates them.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kjax.data.cutting.keypoints import NO_ANGLE
from kjax.extras import require
from kjax.images.features import LEAST_SCALE
from kjax.matcher.assignment import LEAST_SCORE, NONE
from kjax.matcher.network import TURNS, layer_of
from kjax.matcher.weights import MatcherWeights
from kjax.model.onnx_graph import GraphWriter

_INT32, INT64 = 6, 7
"""Types of onnx.TensorProto."""
_NEVER = -1e30
"""Penalty of padding."""
_EPSILON = 1e-6
"""Epsilon of flax's LayerNorm."""


def matcher_graph(weights: MatcherWeights, keypoints: int | None = None) -> Any:
    """Write the function of `kjax.export.matcher.MatcherArguments` as a `ModelProto`."""
    graph = GraphWriter(require("onnx", "an ONNX graph"))
    write_matcher(graph, weights)
    count: Any = keypoints or "keypoints"
    inputs = {
        "xy": ("float32", [2, count, 2]),
        "scales": ("float32", [2, count]),
        "angles": ("float32", [2, count]),
        "descriptors": ("float32", [2, count, weights.model.dimension]),
        "sizes": ("float32", [2, 2]),
        "counts": ("int32", [2]),
    }
    outputs = {"partners": ("int32", [count]), "scores": ("float32", [count])}
    return graph.finish("matcher", inputs, outputs)


def write_matcher(graph: GraphWriter, weights: MatcherWeights, parts: int = 1) -> None:
    """Write the operators from `matcher_graph`'s inputs to its outputs, which have these names.

    Matrices of all pairs of keypoints are computed in `parts`, one after the other, which divide
    the number of keypoints.
    """
    model, embedding = weights.model, weights.params["embedding"]
    add, constant, reshape = graph.add, graph.constant, graph.reshape

    def dense(rows: str, layer: Mapping[str, Any]) -> str:
        return graph.dense(rows, layer["kernel"], layer["bias"])

    def times(x: str, factor: float) -> str:
        return add("Mul", x, constant(factor))

    # The network's units and `kjax.matcher.network.Embedding`.
    units = times(add("ReduceMax", "sizes", axes=[1], keepdims=1), 0.5)
    middles = times(add("Sub", "sizes", constant(1)), 0.5)
    centred = add("Sub", "xy", reshape(middles, 2, 1, 2))
    positions = add("Div", centred, reshape(units, 2, 1, 1))
    scales = add("Max", "scales", constant(LEAST_SCALE))
    log_scales = add("Log", add("Div", scales, units))
    without = add("Equal", "angles", constant(NO_ANGLE))
    radians = times(add("Where", without, constant(0), "angles"), math.pi / 180)
    log_scales, angles = (add("Unsqueeze", one, axes=[2]) for one in (log_scales, radians))
    lengths = add("ReduceL2", "descriptors", axes=[2], keepdims=1)
    descriptors = add("Div", "descriptors", add("Max", lengths, constant(1e-12)))
    turned = (add(function, angles) for function in ("Cos", "Sin"))
    columns = add("Concat", descriptors, log_scales, *turned, axis=2)
    tokens = dense(reshape(columns, -1, model.dimension + 3), embedding["input"])
    places = add("Concat", positions, log_scales, angles, axis=2)

    # Phases [2,heads,N,half]: `kjax.matcher.network.Rotation`.
    half = model.size // 2
    turns = np.tile(np.pad(TURNS, (half - len(TURNS), 0)), model.heads)
    matrix = np.concatenate([np.reshape(embedding["frequencies"], (-1, 3)).T, turns[None]])
    phases = reshape(add("MatMul", places, constant(matrix)), 2, -1, model.heads, half)
    phases = add("Transpose", phases, perm=[0, 2, 1, 3])
    zero, one = (constant(number, np.int64) for number in (0, 1))
    numbers = add("Range", zero, add("Gather", add("Shape", "scales"), one), one)
    counts = reshape(add("Max", add("Cast", "counts", to=INT64), one), 2, 1)
    # [2,N]: 0 for keypoints, `_NEVER` for padding. The first entry is never padding.
    penalties = add("Where", add("Less", numbers, counts), constant(0), constant(_NEVER))
    cosines, sines = (add(function, phases) for function in ("Cos", "Sin"))
    # The same as an additional entry of each key; that of each query is 1. The product adds the
    # penalties: another pass over all scores would be slow.
    expanded = constant([1, model.heads, 1, 1], np.int64)
    key_column = add("Expand", reshape(penalties, 2, 1, -1, 1), expanded)
    query_column = add("Exp", times(key_column, 0.0))

    def rotate(vectors: str) -> str:
        halves = graph.split(vectors, 2, axis=3)
        (x, y), (u, v) = ([add("Mul", each, by) for each in halves] for by in (cosines, sines))
        return add("Concat", add("Sub", x, v), add("Add", y, u), axis=3)

    def by_parts(rows: str, axis: int, function: Callable[[str], list[str]]) -> list[str]:
        """Write a function of rows part by part, and join each of its results."""
        pieces = graph.split(rows, parts, axis=axis) if parts > 1 else [rows]
        found = zip(*map(function, pieces), strict=True)
        return [each[0] if parts == 1 else add("Concat", *each, axis=axis) for each in found]

    def attend(query: str, key: str, value: str, every: int = 1) -> str:
        """Write attention of queries [2,heads,N,size] to all keypoints, or to one in `every`."""
        query = add("Concat", times(query, model.size**-0.5), query_column, axis=3)
        key = add("Concat", key, key_column, axis=3)
        if every > 1:
            ends = (0, np.iinfo(np.int64).max, 2, every)  # first, last, axis, step
            part = [constant([number], np.int64) for number in ends]
            key, value = (add("Slice", rows, *part) for rows in (key, value))
        turned = add("Transpose", key, perm=[0, 1, 3, 2])

        def attend_part(query: str) -> list[str]:
            scores = add("Softmax", add("MatMul", query, turned), axis=3)
            return [add("MatMul", scores, value)]

        return by_parts(query, 2, attend_part)[0]

    def write_layer(tokens: str, layer: Mapping[str, Any]) -> str:
        """Write `kjax.matcher.network.Layer`, without its outputs."""

        def heads(parts: int, name: str) -> list[str]:
            apart = reshape(dense(tokens, layer[name]), 2, -1, parts * model.heads, model.size)
            return graph.split(add("Transpose", apart, perm=[0, 2, 1, 3]), parts, axis=1)

        def digest(seen: str, name: str) -> str:
            apart = add("Transpose", seen, perm=[0, 2, 1, 3])
            joined = dense(reshape(apart, -1, model.heads * model.size), layer[f"{name}_out"])
            rows = dense(add("Concat", tokens, joined, axis=1), layer[f"{name}_wide"])
            norm = layer[f"{name}_norm"]
            centred = add("Sub", rows, add("ReduceMean", rows, axes=[1], keepdims=1))
            squares = add("Pow", centred, constant(2))
            variance = add("ReduceMean", squares, axes=[1], keepdims=1)
            deviation = add("Sqrt", add("Add", variance, constant(_EPSILON)))
            scaled = add("Mul", add("Div", centred, deviation), constant(norm["scale"]))
            x = add("Add", scaled, constant(norm["bias"]))
            # flax's GELU by tanh: (1 + tanh(y/2))/2 is the logistic function.
            root = 2 * math.sqrt(2 / math.pi)
            slopes = times(add("Mul", x, x), 0.044715 * root)
            slopes = add("Add", slopes, constant(root))
            hidden = add("Mul", x, add("Sigmoid", add("Mul", x, slopes)))
            return add("Add", tokens, dense(hidden, layer[f"{name}_narrow"]))

        query, key, value = heads(3, "self_in")
        query, key = rotate(query), rotate(key)
        tokens = digest(attend(query, key, value, every=model.self_every), "self")
        key, value = heads(2, "cross_in")
        swapped = constant([1, 0], np.int64)
        # Swapping the queries, instead of keys, values and penalties, is enough.
        seen = attend(add("Gather", key, swapped, axis=0), key, value)
        return digest(add("Gather", seen, swapped, axis=0), "cross")

    for number in range(model.layers):
        layer = layer_of(weights.params, number)
        tokens = write_layer(tokens, layer)

    # `kjax.matcher.assignment`: "partners" and "scores" from the last layer's outputs.
    likeness = times(dense(tokens, layer["likeness"]), model.width**-0.25)
    logits = reshape(dense(tokens, layer["matchability"]), 2, -1)
    matchability = add("Neg", add("Softplus", add("Neg", logits)))

    likeness = reshape(likeness, 2, -1, model.width)

    def sides(x: str) -> list[str]:
        return [add("Gather", x, constant(side, np.int64), axis=0) for side in (0, 1)]

    def with_logs(rows: str, logs: str) -> tuple[str, str]:
        """Return both sides' vectors, whose products include the logs [2,N] of both keypoints."""
        logs = add("Unsqueeze", logs, axes=[2])
        ones = add("Exp", times(logs, 0.0))
        first, _ = sides(add("Concat", rows, logs, ones, axis=2))
        _, second = sides(add("Concat", rows, ones, logs, axis=2))
        return first, second

    def reduce(rows: str, others: str, function: Callable[[str], list[str]]) -> list[str]:
        """Reduce each row of the products with all other vectors."""
        turned = add("Transpose", others, perm=[1, 0])
        return by_parts(rows, 0, lambda part: function(add("MatMul", part, turned)))

    def highest_of(products: str) -> str:
        return add("ReduceMax", products, axes=[1], keepdims=0)

    def best_of(products: str) -> str:
        return add("ArgMax", products, axis=1, keepdims=0)

    def log_sum_of(products: str) -> list[str]:
        # OpenCV's ReduceLogSumExp overflows.
        shares = highest_of(add("LogSoftmax", products, axis=1))
        return [add("Sub", highest_of(products), shares)]

    alike = with_logs(likeness, penalties)
    sums = (reduce(*order, log_sum_of)[0] for order in (alike, alike[::-1]))
    over = add("Concat", *(add("Unsqueeze", each, axes=[0]) for each in sums), axis=0)
    logs = add("Add", times(penalties, 2.0), add("Sub", matchability, over))
    # Both factors of products that are twice the similarity.
    first, second = with_logs(times(likeness, math.sqrt(2)), logs)
    best, log_highest = reduce(first, second, lambda each: [best_of(each), highest_of(each)])
    (back,) = reduce(second, first, lambda each: [best_of(each)])
    highest = add("Exp", log_highest)
    conditions = [
        add("Equal", add("Gather", back, best), numbers),
        add("GreaterOrEqual", highest, constant(LEAST_SCORE)),
        *map(
            functools.partial(add, "Less"),
            (numbers, best),
            sides(add("Cast", "counts", to=INT64)),
        ),
    ]
    kept = functools.reduce(functools.partial(add, "And"), conditions)
    none = constant(NONE, np.int32)
    add("Where", kept, add("Cast", best, to=_INT32), none, output="partners")
    add("Where", kept, highest, constant(0), output="scores")
