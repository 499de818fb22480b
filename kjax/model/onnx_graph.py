"""A folded descriptor as an ONNX graph, written operator by operator.

Images are NCHW. Both OpenCV 5 and OpenCV 4 read the graph; hence operators of opset 12, shapes that
need no arithmetic, and all attributes of convolutions.

For onnxruntime on CPUs there is a faster trunk. onnxruntime holds channels in blocks (sixteen with
AVX-512) and convolves wide layers at nearly the processor's peak. Two things can be saved: in the
last layer multiplications, by Winograd's filtering as in `kernels/cpu_convolution`; in a light
model's first layers, whose channels fill half a block, the other half, by treating two rows of a
map as one row with twice the channels.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float32, Num

from kjax.extras import require
from kjax.model import DIMENSION, STRIDES, TRUNK_STRIDE
from kjax.model.architecture import SYSTEMS, Architecture
from kjax.model.position_encoding import position_matrix

OPSET, IR_VERSION = 12, 7
"""Versions of 2020, the last in which the axes of all reductions are attributes, as OpenCV 4 needs:
opset 13 made ReduceSum's an input, opset 18 the others'."""
Values = Mapping[str, tuple[Any, Sequence[int | str]]]
"""Types and shapes of inputs or outputs by name; a symbolic size has a name."""
Layer = tuple[Float32[np.ndarray, "3 3 _ _"], Float32[np.ndarray, " _"]]
"""Kernel and bias."""
ROWS = 4
"""Output rows per Winograd block."""
WIDE = 64
"""Minimum number of channels for Winograd's filtering."""
SURELY_NEGATIVE = -1e30
"""Added to values that ReLU must make zero."""
ROW_COMBINATIONS = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
KERNEL_COMBINATIONS = np.divide(
    [(6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24)], 24
)
"""F(4, 3) as in Lavin and Gray (2016), with the points 0, ±1, ±2 and ∞."""


class GraphWriter:
    """Collects the operators of a graph, and generates the names of their outputs."""

    def __init__(self, onnx: ModuleType) -> None:
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a constant and return its name."""
        name = f"constant{len(self._constants)}"
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add an operator and return the name of its output."""
        name = output or f"{operator}{len(self._nodes)}"
        node = self._onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes)
        self._nodes.append(node)
        return name

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; one size may be −1."""
        return self.add("Reshape", x, self.constant(shape, np.int64))

    def split(self, x: str, parts: int, *, axis: int) -> list[str]:
        """Split into equal parts."""
        name = f"Split{len(self._nodes)}"
        names = [f"{name}_{part}" for part in range(parts)]
        self._nodes.append(self._onnx.helper.make_node("Split", [x], names, name=name, axis=axis))
        return names

    def dense(
        self,
        x: str,
        matrix: Num[Any, "C C2"],
        bias: Num[Any, " C2"] | None = None,
    ) -> str:
        """Multiply rows [B,C] by a matrix."""
        constants = [matrix] if bias is None else [matrix, bias]
        return self.add("Gemm", x, *map(self.constant, constants))

    def convolve(
        self,
        x: str,
        kernel: Num[Any, "height width C C2"],
        bias: Num[Any, " C2"] | None = None,
        *,
        stride: int | tuple[int, int] = 1,
        pads: Sequence[int] = (1, 1, 1, 1),
        **attributes: Any,
    ) -> str:
        """Convolve maps [B,C,N,N]; pads are above, left, below and right."""
        constants = [self.constant(np.asarray(kernel).transpose(3, 2, 0, 1))]
        if bias is not None:
            constants.append(self.constant(bias))
        return self.add(
            "Conv",
            x,
            *constants,
            kernel_shape=list(kernel.shape[:2]),
            strides=[stride, stride] if isinstance(stride, int) else list(stride),
            pads=list(pads),
            **attributes,
        )

    def finish(self, name: str, inputs: Values, outputs: Values) -> Any:
        """Return the graph as onnx's `ModelProto`."""
        helper = self._onnx.helper

        def describe(values: Values) -> list[Any]:
            return [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
                )
                for name, (dtype, shape) in values.items()
            ]

        return helper.make_model(
            helper.make_graph(
                self._nodes, name, describe(inputs), describe(outputs), self._constants
            ),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="kjax",
        )


def onnx_model(
    folded: Architecture,
    weights: Mapping[str, Any],
    *,
    dtype: str,
    batch: int | None = None,
    block: int | None = None,
) -> Any:
    """Write the graph from `patches` [B,N,N] or [B,C,N,N] to `descriptors`, as a `ModelProto`.

    Model and weights are from `kjax.fold`; `batch` fixes B. With `block`, channels per block of
    onnxruntime, the graph only runs there, on CPUs.
    """
    graph = GraphWriter(require("onnx", "an ONNX graph"))
    params, size = weights["params"], folded.patch_size
    side, dim = size // TRUNK_STRIDE, DIMENSION if folded.has_context else folded.dimension

    def trunk(name: str) -> str:
        convolutions = [params[name][f"conv{i}"] for i in range(1, len(STRIDES) + 1)]
        layers = [(np.asarray(each["kernel"]), np.asarray(each["bias"])) for each in convolutions]
        return write_trunk(graph, images, layers, size=size, block=block)

    def normalize(psi: str, dim: int, output: str | None = None) -> str:
        # `kjax.model.aggregation.l2_normalize`
        squared = graph.add("ReduceSumSquare", psi, axes=[1], keepdims=1)
        norm = graph.add("Sqrt", graph.add("Add", squared, graph.constant(1e-10)))
        is_zero = graph.add("Equal", squared, graph.constant(0))
        unit = graph.add("Div", psi, norm)
        return graph.add("Where", is_zero, graph.constant(dim**-0.5), unit, output=output)

    # `kjax.model.patches.normalize_patches`, with a channel axis. Not Unsqueeze: OpenCV 4 would fix
    # its shape when it reads the file.
    floating = "patches" if dtype == "float32" else graph.add("Cast", "patches", to=1)
    images = graph.reshape(floating, -1, 1, size, size)
    ranges = (graph.constant(value, np.int64) for value in ([0, 0], [1, 1], [2, 3]))
    shifted = graph.add("Sub", images, graph.add("Slice", images, *ranges))
    axes = [1, 2, 3]
    centred = graph.add("Sub", shifted, graph.add("ReduceMean", shifted, axes=axes, keepdims=1))
    squares = graph.add("ReduceSumSquare", centred, axes=axes, keepdims=1)
    variance = graph.add("Div", squares, graph.constant(size**2 - 1))
    deviation = graph.add("Add", graph.add("Sqrt", variance), graph.constant(1e-7))
    images = graph.add("Div", centred, deviation)
    phi = trunk("trunk")
    match folded.head:
        case "sum":
            dim = folded.channels[-1]
            psi = graph.add("ReduceSum", phi, axes=[2, 3], keepdims=0)
        case "cat":
            dim = folded.channels[-1] * side**2
            psi = graph.add("Flatten", phi)
        case "hardnet":
            # The graph's maps are flattened with the channel first, W has it third.
            kernel = np.asarray(params["head"]["kernel"]).transpose(2, 0, 1, 3)
            flat = graph.add("Flatten", phi)
            psi = graph.dense(flat, kernel.reshape(-1, dim), params["head"].get("bias"))
        case _:
            star = folded.head == "combined_star"
            maps = [phi, trunk("trunk_polar")] if star else [phi, phi]
            parts = []
            for x, system in zip(maps, SYSTEMS[folded.head], strict=False):
                positions = graph.constant(position_matrix(side, folded.position_kernel, system))
                encoded = graph.add("MatMul", graph.reshape(x, 0, 0, side**2), positions)
                parts.append(graph.add("Flatten", encoded))
            joined = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
            psi = graph.dense(joined, params["head"]["kernel"], params["head"].get("bias"))
    if folded.has_context:
        units = graph.reshape(normalize(psi, dim), -1, len(folded.context) * dim)
        psi, dim = graph.dense(units, params["context"]["kernel"]), folded.dimension
    normalize(psi, dim, output="descriptors")
    count = batch or "batch"
    return graph.finish(
        "descriptor",
        {"patches": (dtype, [count, *folded.patch_shape])},
        {"descriptors": ("float32", [count, dim])},
    )


def write_trunk(
    graph: GraphWriter, images: str, layers: Sequence[Layer], *, size: int, block: int | None
) -> str:
    """Write φ [B,c,n,n] of images [B,1,N,N]; with `block`, for onnxruntime on CPUs."""
    x, done, side = images, 0, size // TRUNK_STRIDE
    if block and all(2 * len(bias) == block for _, bias in layers[:2]):
        x, done = _write_in_pairs(graph, images, layers[:3], size), 3
    for (kernel, bias), stride in zip(layers[done:-1], STRIDES[done:-1], strict=True):
        x = graph.add("Relu", graph.convolve(x, kernel, bias, stride=stride))
    kernel, bias = layers[-1]
    if block and kernel.shape[2] >= WIDE and side % ROWS == 0:
        return _write_by_rows(graph, x, kernel, bias, side)
    return graph.add("Relu", graph.convolve(x, kernel, bias))


def _write_by_rows(
    graph: GraphWriter,
    x: str,
    kernel: Float32[np.ndarray, "3 3 C C2"],
    bias: Float32[np.ndarray, " C2"],
    side: int,
) -> str:
    """Write a layer of stride 1 by Winograd's filtering: four rows from six 1×3 convolutions.

    Rows and products are combined by depthwise convolutions: onnxruntime runs these on blocks of
    channels too, and fuses the additions.
    """
    channels, products = kernel.shape[2], list[str]()
    for rows, taps in zip(ROW_COMBINATIONS, KERNEL_COMBINATIONS, strict=True):
        weights = np.tile(np.reshape(rows, (-1, 1, 1, 1)), (1, 1, 1, channels))
        combined = graph.convolve(x, weights, stride=(ROWS, 1), pads=(1, 0, 1, 0), group=channels)
        own = np.tensordot(taps, kernel, 1)[None]
        # The second is part of every row of the output, once.
        shift = bias if len(products) == 1 else None
        products.append(graph.convolve(combined, own, shift, pads=(0, 1, 0, 1)))

    def scaled(factor: int, y: str) -> str:
        weights = np.full((1, 1, 1, len(bias)), factor)
        return graph.convolve(y, weights, pads=(0, 0, 0, 0), group=len(bias))

    m0, m1, m2, m3, m4, m5 = products
    even1, odd1 = graph.add("Add", m1, m2), graph.add("Add", scaled(-1, m2), m1)
    even2, odd2 = graph.add("Add", m3, m4), graph.add("Add", scaled(-1, m4), m3)
    outputs = (
        graph.add("Add", m0, graph.add("Add", even1, even2)),
        graph.add("Add", scaled(2, odd2), odd1),
        graph.add("Add", scaled(4, even2), even1),
        graph.add("Add", m5, graph.add("Add", scaled(8, odd2), odd1)),
    )
    rectified = [
        graph.reshape(graph.add("Relu", y), -1, len(bias), side // ROWS, 1, side) for y in outputs
    ]
    return graph.reshape(graph.add("Concat", *rectified, axis=3), -1, len(bias), side, side)


def _write_in_pairs(graph: GraphWriter, images: str, layers: Sequence[Layer], size: int) -> str:
    """Write the first three layers on pairs of rows, with the channels of both.

    After the first layer a pair is rows 2j−1 and 2j, as the second makes rows 2j and 2j+1 of two
    such pairs. Rows outside the map must be zero: a second channel of the images marks where ReLU
    must make them so.
    """

    def from_row(kernel: np.ndarray, start: int) -> np.ndarray:
        """Extend a kernel to four rows, of which it sees the first or the last three."""
        return np.pad(kernel, ((start, 1 - start), (0, 0), (0, 0), (0, 0)))

    def two_rows(kernel: np.ndarray) -> np.ndarray:
        """Return a kernel from four rows to two."""
        return np.concatenate([from_row(kernel, 0), from_row(kernel, 1)], axis=3)

    def of_pairs(kernel: np.ndarray) -> np.ndarray:
        """Return the same kernel of four rows for two pairs of rows."""
        apart = kernel.reshape(2, 2, *kernel.shape[1:]).swapaxes(1, 2)
        return apart.reshape(2, 3, -1, kernel.shape[3])

    (kernel1, bias1), (kernel2, bias2), (kernel3, bias3) = layers
    marks = np.zeros((1, 2, size, size))
    marks[:, 1, [1, -2]] = 1
    image_alone = graph.constant(np.reshape([1, 0], (1, 2, 1, 1)))
    marked = graph.add("Add", graph.add("Mul", images, image_alone), graph.constant(marks))
    # Of pixels 2j−2 to 2j+1 the last is marked for j = 0 alone, the first for j = N/2 alone.
    at_marks = np.zeros((4, 3, 1, 2, len(bias1)))
    at_marks[3, 1, 0, 0] = at_marks[0, 1, 0, 1] = SURELY_NEGATIVE
    first = np.concatenate([two_rows(kernel1), at_marks.reshape(4, 3, 1, -1)], axis=2)
    x = graph.convolve(marked, first, np.tile(bias1, 2), stride=(2, 1), pads=(2, 1, 2, 1))
    second = of_pairs(two_rows(kernel2))
    x = graph.convolve(graph.add("Relu", x), second, np.tile(bias2, 2), pads=(0, 1, 0, 1))
    third = of_pairs(from_row(kernel3, 1))
    x = graph.convolve(graph.add("Relu", x), third, bias3, stride=(1, 2), pads=(1, 1, 0, 1))
    return graph.add("Relu", x)
