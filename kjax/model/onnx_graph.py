"""A folded descriptor as an ONNX graph, written operator by operator.

Image layout is NCHW, as all runtimes like it best. Both OpenCV 5 and OpenCV 4 read it, which is why
it looks as it does: operators of opset 12, shapes that need no arithmetic, and all attributes of a
convolution although ONNX can do without most. `kernels/onnx_layers.py` has other layers, for
onnxruntime on CPUs alone.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kjax.extras import require
from kjax.model.descriptor import Descriptor
from kjax.model.dimensions import STRIDES, TRUNK_STRIDE
from kjax.model.kernels import onnx_layers
from kjax.model.kernels.onnx_writer import GraphWriter
from kjax.model.position_encoding import CoordinateSystem, position_matrix


def onnx_model(
    folded: Descriptor,
    weights: Mapping[str, Any],
    *,
    dtype: str,
    batch: int | None = None,
    block: int | None = None,
) -> Any:
    """The graph from `patches` [B,N,N] to `descriptors`, as onnx's `ModelProto`.

    Args:
        folded: a model as `kjax.fold` gives it.
        weights: the same.
        dtype: of the patches.
        batch: B, if the graph shall take no other.
        block: channels that onnxruntime holds together, if the graph is for it alone, on CPUs.
    """
    graph = GraphWriter(require("onnx", "an ONNX graph"))
    dim = _write_network(graph, folded, weights["params"], dtype, block)
    size, count = folded.patch_size, batch or "batch"
    return graph.finish(
        "descriptor",
        {"patches": (dtype, [count, size, size])},
        {"descriptors": ("float32", [count, dim])},
    )


def _write_network(
    graph: GraphWriter,
    model: Descriptor,
    params: Mapping[str, Any],
    dtype: str,
    block: int | None,
) -> int:
    """All operators from "patches" to "descriptors", whose dimension is returned."""
    images = _write_patch_normalization(graph, model.patch_size, dtype)
    write_trunk = _write_trunk
    if block:
        write_trunk = functools.partial(onnx_layers.write_trunk, size=model.patch_size, block=block)
    phi = write_trunk(graph, images, params["trunk"])
    dim = model.dimension
    match model.head:
        case "sum":
            dim = model.channels[-1]
            psi = graph.add("ReduceSum", phi, axes=[2, 3], keepdims=0)
        case "cat":
            psi = graph.add("Flatten", phi)
            dim = model.channels[-1] * (model.patch_size // TRUNK_STRIDE) ** 2
        case "hardnet":
            # The graph's maps are flattened with the channel first, W has it third.
            kernel = np.asarray(params["head"]["kernel"]).transpose(2, 0, 1, 3)
            flat = graph.add("Flatten", phi)
            psi = graph.dense(flat, kernel.reshape(-1, dim), params["head"].get("bias"))
        case "xy" | "polar":
            psi = _write_encoding(graph, [(phi, model.head)], model, params["head"])
        case _:
            star = model.head == "combined_star"
            other = write_trunk(graph, images, params["trunk_polar"]) if star else phi
            psi = _write_encoding(graph, [(phi, "xy"), (other, "polar")], model, params["head"])
    _write_l2_normalization(graph, psi, dim)
    return dim


def _write_patch_normalization(graph: GraphWriter, size: int, dtype: str) -> str:
    """`kjax.model.patches.normalize_patches`, and the axis of channels."""
    floating = "patches" if dtype == "float32" else graph.add("Cast", "patches", to=1)
    # Not Unsqueeze: OpenCV 4 makes of it the shape that it has when the file is read.
    images = graph.reshape(floating, -1, 1, size, size)
    starts, ends, spatial = ([0, 0], [1, 1], [2, 3])
    corner = graph.add(
        "Slice", images, *(graph.constant(value, np.int64) for value in (starts, ends, spatial))
    )
    shifted = graph.add("Sub", images, corner)
    axes = [1, 2, 3]
    centred = graph.add("Sub", shifted, graph.add("ReduceMean", shifted, axes=axes, keepdims=1))
    squares = graph.add("ReduceSumSquare", centred, axes=axes, keepdims=1)
    variance = graph.add("Div", squares, graph.constant(size**2 - 1))
    deviation = graph.add("Add", graph.add("Sqrt", variance), graph.constant(1e-7))
    return graph.add("Div", centred, deviation)


def _write_trunk(graph: GraphWriter, images: str, layers: Mapping[str, Any]) -> str:
    """φ [B,c,n,n]."""
    x = images
    for i, stride in enumerate(STRIDES, start=1):
        layer = layers[f"conv{i}"]
        x = graph.add("Relu", graph.convolve(x, layer["kernel"], layer["bias"], stride=stride))
    return x


def _write_encoding(
    graph: GraphWriter,
    maps: Sequence[tuple[str, CoordinateSystem]],
    model: Descriptor,
    head: Mapping[str, Any],
) -> str:
    """M vec(ΦᵀF) + m′, for the maps of one coordinate system or two."""
    side = model.patch_size // TRUNK_STRIDE
    parts = []
    for phi, system in maps:
        rows = graph.reshape(phi, 0, 0, side**2)
        positions = graph.constant(position_matrix(side, model.position_kernel, system))
        parts.append(graph.add("Flatten", graph.add("MatMul", rows, positions)))
    encoded = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    return graph.dense(encoded, head["kernel"], head.get("bias"))


def _write_l2_normalization(graph: GraphWriter, psi: str, dim: int) -> None:
    """`kjax.model.aggregation.l2_normalize`."""
    squared = graph.add("ReduceSumSquare", psi, axes=[1], keepdims=1)
    norm = graph.add("Sqrt", graph.add("Add", squared, graph.constant(1e-10)))
    is_zero = graph.add("Equal", squared, graph.constant(0))
    normalized = graph.add("Div", psi, norm)
    graph.add("Where", is_zero, graph.constant(dim**-0.5), normalized, output="descriptors")
