"""A learned matcher as an ONNX graph, written operator by operator.

Tokens of both photographs are the rows of one matrix [2N,width]; only attention separates them.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kjax.data.cutting.keypoints import NO_ANGLE
from kjax.extras import require
from kjax.images.features import LEAST_SCALE
from kjax.matcher.assignment import LEAST_SCORE, NONE
from kjax.matcher.network import TURNS, MatcherConfig, layer_of
from kjax.matcher.weights import MatcherWeights
from kjax.model.onnx_graph import GraphWriter

_INT32, _INT64 = 6, 7
"""Types of onnx.TensorProto."""
_NEVER = -1e30
"""Penalty of padding."""
_EPSILON = 1e-6
"""Epsilon of flax's LayerNorm."""


def matcher_graph(weights: MatcherWeights, keypoints: int | None = None) -> Any:
    """Write the function of `kjax.export.matcher.MatcherArguments` as a `ModelProto`."""
    model, params = weights.model, weights.params
    graph = GraphWriter(require("onnx", "an ONNX graph"))
    tokens, context = _write_embedding(graph, model, params["embedding"])
    for number in range(model.layers):
        layer = layer_of(params, number)
        tokens = _write_layer(graph, model, layer, tokens, context)
    _write_partners(graph, model, layer, tokens, context)
    count = keypoints or "keypoints"
    return graph.finish(
        "matcher",
        {
            "xy": ("float32", [2, count, 2]),
            "scales": ("float32", [2, count]),
            "angles": ("float32", [2, count]),
            "descriptors": ("float32", [2, count, model.dimension]),
            "sizes": ("float32", [2, 2]),
            "counts": ("int32", [2]),
        },
        {"partners": ("int32", [count]), "scores": ("float32", [count])},
    )


class _Context(NamedTuple):
    """Values that all layers use."""

    cosines: str
    """[2,heads,N,half]: `kjax.matcher.network.Rotation`."""
    sines: str
    numbers: str
    """[N] from 0 on."""
    penalties: str
    """[2,N]: 0 for keypoints, `_NEVER` for padding. The first entry is never padding."""
    key_column: str
    """[2,heads,N,1]: the same, as an additional entry of each key."""
    query_column: str
    """Ones: the corresponding entry of each query."""


def _write_embedding(
    graph: GraphWriter, model: MatcherConfig, params: Mapping[str, Any]
) -> tuple[str, _Context]:
    """Write the network's units and `kjax.matcher.network.Embedding`."""
    units = graph.add("ReduceMax", "sizes", axes=[1], keepdims=1)
    units = _times(graph, units, 0.5)
    middles = _times(graph, graph.add("Sub", "sizes", graph.constant(1)), 0.5)
    centred = graph.add("Sub", "xy", graph.reshape(middles, 2, 1, 2))
    positions = graph.add("Div", centred, graph.reshape(units, 2, 1, 1))
    scales = graph.add("Max", "scales", graph.constant(LEAST_SCALE))
    log_scales = graph.add("Log", graph.add("Div", scales, units))
    without = graph.add("Equal", "angles", graph.constant(NO_ANGLE))
    upright = graph.add("Where", without, graph.constant(0), "angles")
    log_scales, angles = (
        graph.add("Unsqueeze", column, axes=[2])
        for column in (log_scales, _times(graph, upright, math.pi / 180))
    )
    lengths = graph.add("ReduceL2", "descriptors", axes=[2], keepdims=1)
    lengths = graph.add("Max", lengths, graph.constant(1e-12))
    descriptors = graph.add("Div", "descriptors", lengths)
    turned = (graph.add(function, angles) for function in ("Cos", "Sin"))
    columns = graph.add("Concat", descriptors, log_scales, *turned, axis=2)
    tokens = _dense(graph, graph.reshape(columns, -1, model.dimension + 3), params["input"])
    places = graph.add("Concat", positions, log_scales, angles, axis=2)
    return tokens, _write_context(graph, model, places, params["frequencies"])


def _write_context(
    graph: GraphWriter, model: MatcherConfig, places: str, frequencies: Any
) -> _Context:
    half = model.size // 2
    turns = np.tile(np.pad(TURNS, (half - len(TURNS), 0)), model.heads)
    matrix = np.concatenate([np.reshape(frequencies, (-1, 3)).T, turns[None]])
    phases = graph.add("MatMul", places, graph.constant(matrix))
    phases = graph.add(
        "Transpose", graph.reshape(phases, 2, -1, model.heads, half), perm=[0, 2, 1, 3]
    )
    zero, one = (graph.constant(number, np.int64) for number in (0, 1))
    count = graph.add("Gather", graph.add("Shape", "scales"), one)
    numbers = graph.add("Range", zero, count, one)
    counts = graph.reshape(graph.add("Max", graph.add("Cast", "counts", to=_INT64), one), 2, 1)
    there = graph.add("Less", numbers, counts)
    penalties = graph.add("Where", there, graph.constant(0), graph.constant(_NEVER))
    cosines, sines = (graph.add(function, phases) for function in ("Cos", "Sin"))
    heads = graph.constant([1, model.heads, 1, 1], np.int64)
    column = graph.add("Expand", graph.reshape(penalties, 2, 1, -1, 1), heads)
    ones = graph.add("Exp", _times(graph, column, 0.0))
    return _Context(cosines, sines, numbers, penalties, column, ones)


def _write_layer(
    graph: GraphWriter,
    model: MatcherConfig,
    layer: Mapping[str, Any],
    tokens: str,
    context: _Context,
) -> str:
    """Write `kjax.matcher.network.Layer`, without its outputs."""

    def heads(parts: int, name: str) -> list[str]:
        rows = _dense(graph, tokens, layer[name])
        apart = graph.reshape(rows, 2, -1, parts * model.heads, model.size)
        return graph.split(graph.add("Transpose", apart, perm=[0, 2, 1, 3]), parts, axis=1)

    def digest(seen: str, name: str) -> str:
        apart = graph.add("Transpose", seen, perm=[0, 2, 1, 3])
        joined = graph.reshape(apart, -1, model.heads * model.size)
        both = graph.add("Concat", tokens, _dense(graph, joined, layer[f"{name}_out"]), axis=1)
        hidden = _dense(graph, both, layer[f"{name}_wide"])
        hidden = _write_gelu(graph, _write_layer_norm(graph, hidden, layer[f"{name}_norm"]))
        return graph.add("Add", tokens, _dense(graph, hidden, layer[f"{name}_narrow"]))

    query, key, value = heads(3, "self_in")
    query, key = (_write_rotated(graph, vectors, context) for vectors in (query, key))
    seen = _write_attention(graph, model, query, key, value, context, every=model.self_every)
    tokens = digest(seen, "self")
    key, value = heads(2, "cross_in")
    swapped = graph.constant([1, 0], np.int64)
    # Swapping the queries, instead of keys, values and penalties, is enough.
    query = graph.add("Gather", key, swapped, axis=0)
    seen = _write_attention(graph, model, query, key, value, context)
    return digest(graph.add("Gather", seen, swapped, axis=0), "cross")


def _write_rotated(graph: GraphWriter, vectors: str, context: _Context) -> str:
    halves = graph.split(vectors, 2, axis=3)
    (x, y), (u, v) = (
        [graph.add("Mul", half, factors) for half in halves]
        for factors in (context.cosines, context.sines)
    )
    return graph.add("Concat", graph.add("Sub", x, v), graph.add("Add", y, u), axis=3)


def _write_attention(
    graph: GraphWriter,
    model: MatcherConfig,
    query: str,
    key: str,
    value: str,
    context: _Context,
    every: int = 1,
) -> str:
    """Write attention of queries [2,heads,N,size] to all keypoints, or to one in `every`."""
    query = _times(graph, query, model.size**-0.5)
    # The product adds the penalties: another pass over all scores would be slow.
    query = graph.add("Concat", query, context.query_column, axis=3)
    key = graph.add("Concat", key, context.key_column, axis=3)
    if every > 1:
        ends = (0, np.iinfo(np.int64).max, 2, every)  # first, last, axis, step
        part = [graph.constant([number], np.int64) for number in ends]
        key, value = (graph.add("Slice", rows, *part) for rows in (key, value))
    scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
    return graph.add("MatMul", graph.add("Softmax", scores, axis=3), value)


def _write_partners(
    graph: GraphWriter,
    model: MatcherConfig,
    layer: Mapping[str, Any],
    tokens: str,
    context: _Context,
) -> None:
    """Write `kjax.matcher.assignment`: "partners" and "scores" from the last layer's outputs."""
    likeness = _times(graph, _dense(graph, tokens, layer["likeness"]), model.width**-0.25)
    logits = graph.reshape(_dense(graph, tokens, layer["matchability"]), 2, -1)
    matchability = graph.add("Neg", graph.add("Softplus", graph.add("Neg", logits)))

    def sides(x: str) -> list[str]:
        return [graph.add("Gather", x, graph.constant(side, np.int64), axis=0) for side in (0, 1)]

    def both(first: str, second: str) -> str:
        """Add numbers of the first photograph's keypoints to those of the second's, [N,N]."""
        return graph.add("Add", graph.reshape(first, -1, 1), second)

    first, second = sides(graph.reshape(likeness, 2, -1, model.width))
    alike = graph.add("MatMul", first, graph.add("Transpose", second, perm=[1, 0]))
    alike = graph.add("Add", alike, both(*sides(context.penalties)))
    weights = [
        graph.add("Sub", own, graph.add("ReduceLogSumExp", alike, axes=[axis], keepdims=0))
        for own, axis in zip(sides(matchability), (1, 0), strict=True)
    ]
    scores = graph.add("Add", _times(graph, alike, 2.0), both(*weights))
    best, back = (graph.add("ArgMax", scores, axis=axis, keepdims=0) for axis in (1, 0))
    highest = graph.add("Exp", graph.add("ReduceMax", scores, axes=[1], keepdims=0))
    conditions = [
        graph.add("Equal", graph.add("Gather", back, best), context.numbers),
        graph.add("GreaterOrEqual", highest, graph.constant(LEAST_SCORE)),
        *(
            graph.add("Less", places, count)
            for places, count in zip(
                (context.numbers, best), sides(graph.add("Cast", "counts", to=_INT64)), strict=True
            )
        ),
    ]
    kept = functools.reduce(lambda one, other: graph.add("And", one, other), conditions)
    none = graph.constant(NONE, np.int32)
    graph.add("Where", kept, graph.add("Cast", best, to=_INT32), none, output="partners")
    graph.add("Where", kept, highest, graph.constant(0), output="scores")


def _dense(graph: GraphWriter, rows: str, layer: Mapping[str, Any]) -> str:
    return graph.dense(rows, layer["kernel"], layer["bias"])


def _times(graph: GraphWriter, x: str, factor: float) -> str:
    return graph.add("Mul", x, graph.constant(factor))


def _write_layer_norm(graph: GraphWriter, rows: str, layer: Mapping[str, Any]) -> str:
    centred = graph.add("Sub", rows, graph.add("ReduceMean", rows, axes=[1], keepdims=1))
    squares = graph.add("Pow", centred, graph.constant(2))
    variance = graph.add("ReduceMean", squares, axes=[1], keepdims=1)
    deviation = graph.add("Sqrt", graph.add("Add", variance, graph.constant(_EPSILON)))
    scaled = graph.add("Mul", graph.add("Div", centred, deviation), graph.constant(layer["scale"]))
    return graph.add("Add", scaled, graph.constant(layer["bias"]))


def _write_gelu(graph: GraphWriter, x: str) -> str:
    """Write flax's GELU by tanh: (1 + tanh(y/2))/2 is the logistic function."""
    root = 2 * math.sqrt(2 / math.pi)
    slopes = _times(graph, graph.add("Mul", x, x), 0.044715 * root)
    slopes = graph.add("Add", slopes, graph.constant(root))
    return graph.add("Mul", x, graph.add("Sigmoid", graph.add("Mul", x, slopes)))
