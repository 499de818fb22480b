"""Descriptors as ONNX: for onnxruntime, OpenCV and whatever else reads that format.

    session = onnxruntime.InferenceSession("descriptor.onnx")
    (descriptors,) = session.run(None, {"patches": patches})  # float32 [B,N,N]

    net = cv2.dnn.readNetFromONNX("descriptor.onnx")
    net.setInput(patches[:, None])  # or cv2.dnn.blobFromImages(list(patches))
    descriptors = net.forward()

The graph is written operator by operator. Image layout is NCHW, as all runtimes like it best. Both
OpenCV 5 and OpenCV 4 read it, which is why it looks as it does: operators of opset 12, shapes that
need no arithmetic, and all attributes of a convolution although ONNX can do without most. OpenCV 4
takes the last axis of a three-dimensional array for colours: hence the axis in the example.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float32, Num

from kjax.errors import InputError
from kjax.extras import require
from kjax.model.descriptor import Descriptor
from kjax.model.dimensions import STRIDES, TRUNK_STRIDE
from kjax.model.position_encoding import CoordinateSystem, position_matrix

OPSET, IR_VERSION = 12, 7
"""Versions of 2020, the last in which the axes of all reductions are attributes, as OpenCV 4 wants
them: opset 13 made ReduceSum's an input, opset 18 the others'."""
ONNX_FILES = "an ONNX file"


def save(
    path: Path,
    folded: Descriptor,
    weights: Mapping[str, Any],
    *,
    dtype: str,
    batch: int | None = None,
    about: Mapping[str, str],
) -> None:
    """Writes the graph from `patches` [B,N,N] to `descriptors`.

    Args:
        path: where to.
        folded: a model as `kjax.fold` gives it.
        weights: the same.
        dtype: of the patches.
        batch: B, if the graph shall take no other.
        about: what `read_about` shall tell.
    """
    onnx = require("onnx", ONNX_FILES)
    graph = _GraphWriter(onnx)
    dim = _write_network(graph, folded, weights["params"], dtype)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    size, count = folded.patch_size, batch or "batch"
    model = onnx.helper.make_model(
        graph.finish(
            onnx.helper.make_tensor_value_info("patches", element, [count, size, size]),
            onnx.helper.make_tensor_value_info("descriptors", onnx.TensorProto.FLOAT, [count, dim]),
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="kjax",
    )
    onnx.helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def load(path: Path) -> Callable[[Num[np.ndarray, "B N N"]], Float32[np.ndarray, "B dim"]]:
    """The function in a file, run by onnxruntime."""
    onnxruntime = require("onnxruntime", ONNX_FILES)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception:  # a dozen types, all its own
        raise InputError(f"{path} is not an ONNX file that onnxruntime can run") from None
    return lambda patches: session.run(["descriptors"], {"patches": patches})[0]


def read_about(path: Path) -> dict[str, str]:
    """What `save` was told, and what every graph tells."""
    onnx = require("onnx", ONNX_FILES)
    try:
        model = onnx.load(path, load_external_data=False)  # which may be any file
        onnx.checker.check_model(model)
    except OSError:
        raise
    except Exception:  # protobuf's errors, and the checker's
        raise InputError(f"{path} is not an ONNX file") from None
    return {prop.key: prop.value for prop in model.metadata_props} | {
        "format": f"ONNX, opset {model.opset_import[0].version}",
        "input": ", ".join(_signature(onnx, value) for value in model.graph.input),
        "output": ", ".join(_signature(onnx, value) for value in model.graph.output),
    }


class _GraphWriter:
    """Collects operators; names of values are made up as they come."""

    def __init__(self, onnx: ModuleType) -> None:
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """The name of a constant."""
        name = f"constant{len(self._constants)}"
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """The name of what an operator gives."""
        name = output or f"{operator}{len(self._nodes)}"
        node = self._onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes)
        self._nodes.append(node)
        return name

    def finish(self, patches: Any, descriptors: Any) -> Any:
        """The graph, for a given input and output."""
        return self._onnx.helper.make_graph(
            self._nodes, "descriptor", [patches], [descriptors], self._constants
        )


def _write_network(
    graph: _GraphWriter, model: Descriptor, params: Mapping[str, Any], dtype: str
) -> int:
    """All operators from "patches" to "descriptors", whose dimension is returned."""
    images = _write_patch_normalization(graph, model.patch_size, dtype)
    phi = _write_trunk(graph, images, params["trunk"])
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
            psi = _write_dense(
                graph, graph.add("Flatten", phi), kernel.reshape(-1, dim), params["head"]
            )
        case "xy" | "polar":
            psi = _write_encoding(graph, [(phi, model.head)], model, params["head"])
        case _:
            star = model.head == "combined_star"
            other = _write_trunk(graph, images, params["trunk_polar"]) if star else phi
            psi = _write_encoding(graph, [(phi, "xy"), (other, "polar")], model, params["head"])
    _write_l2_normalization(graph, psi, dim)
    return dim


def _write_patch_normalization(graph: _GraphWriter, size: int, dtype: str) -> str:
    """`kjax.model.patches.normalize_patches`, and the axis of channels."""
    floating = "patches" if dtype == "float32" else graph.add("Cast", "patches", to=1)
    # Not Unsqueeze: OpenCV 4 makes of it the shape that it has when the file is read.
    images = graph.add("Reshape", floating, graph.constant([-1, 1, size, size], np.int64))
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


def _write_trunk(graph: _GraphWriter, images: str, layers: Mapping[str, Any]) -> str:
    """φ [B,c,n,n]."""
    x = images
    for i, stride in enumerate(STRIDES, start=1):
        layer = layers[f"conv{i}"]
        kernel = graph.constant(np.asarray(layer["kernel"]).transpose(3, 2, 0, 1))
        bias = graph.constant(layer["bias"])
        x = graph.add(
            "Conv",
            x,
            kernel,
            bias,
            kernel_shape=[3, 3],
            strides=[stride, stride],
            pads=[1, 1, 1, 1],
        )
        x = graph.add("Relu", x)
    return x


def _write_encoding(
    graph: _GraphWriter,
    maps: Sequence[tuple[str, CoordinateSystem]],
    model: Descriptor,
    head: Mapping[str, Any],
) -> str:
    """M vec(ΦᵀF) + m′, for the maps of one coordinate system or two."""
    side = model.patch_size // TRUNK_STRIDE
    parts = []
    for phi, system in maps:
        rows = graph.add("Reshape", phi, graph.constant([0, 0, side**2], np.int64))
        positions = graph.constant(position_matrix(side, model.position_kernel, system))
        parts.append(graph.add("Flatten", graph.add("MatMul", rows, positions)))
    encoded = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    return _write_dense(graph, encoded, head["kernel"], head)


def _write_dense(graph: _GraphWriter, x: str, matrix: Any, layer: Mapping[str, Any]) -> str:
    bias = [graph.constant(layer["bias"])] if "bias" in layer else []
    return graph.add("Gemm", x, graph.constant(matrix), *bias)


def _write_l2_normalization(graph: _GraphWriter, psi: str, dim: int) -> None:
    """`kjax.model.aggregation.l2_normalize`."""
    squared = graph.add("ReduceSumSquare", psi, axes=[1], keepdims=1)
    norm = graph.add("Sqrt", graph.add("Add", squared, graph.constant(1e-10)))
    is_zero = graph.add("Equal", squared, graph.constant(0))
    normalized = graph.add("Div", psi, norm)
    graph.add("Where", is_zero, graph.constant(dim**-0.5), normalized, output="descriptors")


def _signature(onnx: ModuleType, value: Any) -> str:
    """Name, type and shape of a value, e.g. "patches: float32[batch, 32, 32]"."""
    tensor = value.type.tensor_type
    sizes = (axis.dim_param or str(axis.dim_value) for axis in tensor.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"{value.name}: {dtype}[{', '.join(sizes)}]"
