"""A folded descriptor as an ONNX graph, written operator by operator.

Images are NCHW. Both OpenCV 5 and OpenCV 4 read the graph; hence operators of opset 12, shapes that
need no arithmetic, and all attributes of convolutions.

For onnxruntime on CPUs there is a faster trunk. onnxruntime holds channels in blocks (sixteen with
AVX-512) and convolves wide layers at nearly the processor's peak. Two things can be saved: in the
last layer multiplications, by Winograd's filtering as in `kernels/cpu_convolution`; in a light
model's first layers, whose channels fill half a block, the other half, by treating two rows of a
map as one row with twice the channels.

In int8, patches, maps and weights are bytes; heads with position encoding stay in float32. Nothing
is calibrated: BatchNorm has given every channel variance 1 on the training photos. Sums of products
are exact, so all processors give the same descriptors up to the rounding of the patches. Layers of
few channels compute several neighbouring columns as channels of one, which fills the registers.
"""

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float32, Int8, Num

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
STEP, PATCH_STEP = np.float32(9 / 255), np.float32(8.5 / 255)
"""Units of bytes: maps are clipped beyond 9 standard deviations, patches beyond ±4.25."""
GREY = 128
"""Byte of a patch's mean; maps have no negative values."""
LARGEST = 64
"""Maximum weight in int8. Processors without 8-bit dot products add two products in 16 bits, where
2·255·64 fits."""
FIRST_COLUMNS, FILLED = 8, 64
"""Columns that the first 8-bit layer computes at once, and the channels that other layers fill."""
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

    def argsort(self, x: str, count: str) -> str:
        """Return the indices that sort all `count` numbers of a vector; ties keep their order."""
        name, every = f"TopK{len(self._nodes)}", self.reshape(count, 1)
        outputs, how = [f"{name}_sorted", name], {"axis": 0, "largest": 0}
        self._nodes.append(self._onnx.helper.make_node("TopK", [x, every], outputs, name, **how))
        return name

    def top(self, x: str, count: int, *, output: str) -> str:
        """Write the highest numbers of a vector to an output, and return their indices."""
        name, many = f"TopK{len(self._nodes)}", self.constant([count], np.int64)
        self._nodes.append(self._onnx.helper.make_node("TopK", [x, many], [output, name], name))
        return name

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
        steps: Float32[np.ndarray, " C2"] | None = None,
        zero: int = 0,
        **attributes: Any,
    ) -> str:
        """Convolve maps [B,C,N,N]; pads are above, left, below and right.

        With `steps`, the units of weights, all are bytes, and ReLU is included; `zero`: see `unit`.
        """
        attributes |= {"kernel_shape": list(kernel.shape[:2]), "pads": list(pads)}
        attributes["strides"] = [stride, stride] if isinstance(stride, int) else list(stride)
        weights = np.asarray(kernel).transpose(3, 2, 0, 1)
        if steps is not None:
            unit = PATCH_STEP if zero else STEP
            own = [(weights, np.int8), (steps, "f4"), (0 * steps, np.int8)]
            constants = [*self.unit(zero), *(self.constant(*one) for one in own), *self.unit()]
            whole = np.clip(np.rint(np.asarray(bias) / (unit * steps)), -(2**30), 2**30)
            constants.append(self.constant(whole, np.int32))
            return self.add("QLinearConv", x, *constants, **attributes)
        constants = [self.constant(weights)]
        if bias is not None:
            constants.append(self.constant(bias))
        return self.add("Conv", x, *constants, **attributes)

    def unit(self, zero: int = 0) -> tuple[str, str]:
        """Return scale and zero point of bytes; only those of patches have one."""
        return self.constant(PATCH_STEP if zero else STEP), self.constant(zero, np.uint8)

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

    Model and weights are from `kjax.fold`; a model of dtype int8 gets 8-bit operators. `batch`
    fixes B. With `block`, channels per block of onnxruntime, the graph only runs there, on CPUs.
    """
    graph = GraphWriter(require("onnx", "an ONNX graph"))
    params, size = weights["params"], folded.patch_size
    side, dim = size // TRUNK_STRIDE, DIMENSION if folded.has_context else folded.dimension
    int8 = np.dtype(folded.dtype) == np.int8

    def trunk(name: str) -> str:
        convolutions = [params[name][f"conv{i}"] for i in range(1, len(STRIDES) + 1)]
        layers = [(np.asarray(each["kernel"]), np.asarray(each["bias"])) for each in convolutions]
        phi = write_trunk(graph, images, layers, size=size, block=block, int8=int8)
        in_bytes = int8 and folded.head == "hardnet"
        return graph.add("DequantizeLinear", phi, *graph.unit()) if int8 and not in_bytes else phi

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
            kernel, flat = np.asarray(params["head"]["kernel"]), graph.add("Flatten", phi)
            whole, steps = to_int8(kernel) if int8 else (kernel, 1)
            matrix, bias = whole.transpose(2, 0, 1, 3).reshape(-1, dim), params["head"].get("bias")
            if int8:
                sums = graph.add("MatMulInteger", flat, graph.constant(matrix, np.int8))
                scaled = graph.add("Cast", sums, to=1), graph.constant(STEP * steps)
                psi = graph.add("Mul", *scaled)
                psi = psi if bias is None else graph.add("Add", psi, graph.constant(bias))
            else:
                psi = graph.dense(flat, matrix, bias)
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


def to_int8(
    kernel: Float32[np.ndarray, "height width C C2"],
) -> tuple[Int8[np.ndarray, "height width C C2"], Float32[np.ndarray, " C2"]]:
    """Round weights to multiples of a step per output channel, and return both.

    Activations are positive and similar to their neighbours, so the sum of rounding errors matters.
    As in SQuant (Guo et al., 2022), the weights nearest to half a step are rounded the other way
    until the errors of each 2D kernel, then of each output channel, sum to at most half a step.
    """
    steps = (np.abs(kernel).max(axis=(0, 1, 2)) / LARGEST).astype(np.float32)
    steps = np.where(steps > 0, steps, np.float32(1))
    exact = kernel.astype(np.float64) / steps
    whole = np.rint(exact)
    for shape in ((-1, kernel[0, 0].size), (-1, len(steps))):
        errors = np.ascontiguousarray((whole - exact).reshape(shape).T)
        excess = np.nan_to_num(np.rint(errors.sum(axis=1)))
        while len(rows := np.flatnonzero(excess)):
            sign = np.sign(excess[rows])
            errors[rows, np.argmax(sign[:, None] * errors[rows], axis=1)] -= sign
            excess[rows] -= sign
        whole = np.rint(exact + errors.T.reshape(kernel.shape))
    return np.clip(whole, -LARGEST, LARGEST).astype(np.int8), steps


def write_trunk(
    graph: GraphWriter,
    images: str,
    layers: Sequence[Layer],
    *,
    size: int,
    block: int | None,
    int8: bool = False,
) -> str:
    """Write φ [B,c,n,n] of images [B,1,N,N]; with `block`, for onnxruntime on CPUs.

    With `int8`, φ is bytes in units of `STEP`.
    """
    if int8:
        return _write_in_bytes(graph, images, layers, size)
    x, done, side = images, 0, size // TRUNK_STRIDE
    if block and all(2 * len(bias) == block for _, bias in layers[:2]):
        x, done = _write_in_pairs(graph, images, layers[:3], size), 3
    for (kernel, bias), stride in zip(layers[done:-1], STRIDES[done:-1], strict=True):
        x = graph.add("Relu", graph.convolve(x, kernel, bias, stride=stride))
    kernel, bias = layers[-1]
    if block and kernel.shape[2] >= WIDE and side % ROWS == 0:
        return _write_by_rows(graph, x, kernel, bias, side)
    return graph.add("Relu", graph.convolve(x, kernel, bias))


def _write_in_bytes(graph: GraphWriter, images: str, layers: Sequence[Layer], size: int) -> str:
    """Write the trunk in 8 bits.

    The channels of a pixel follow each other in memory here. So several columns of a map can be
    read as one column with more channels, and a layer computes them at once, without a copy.
    """
    x, side = graph.add("QuantizeLinear", images, *graph.unit(GREY)), size
    for number, ((kernel, bias), stride) in enumerate(zip(layers, STRIDES, strict=True)):
        (weights, steps), side = to_int8(kernel), side // stride
        first, channels = number == 0, len(bias)
        columns = math.gcd(side, FIRST_COLUMNS if first else max(FILLED // channels, 1))
        weights, across = _for_columns(weights, columns, stride), stride * columns
        if first:  # Its input has whole groups of columns as channels, too.
            grouped = graph.reshape(x, -1, size, size // columns, columns)
            x = graph.add("Transpose", grouped, perm=[0, 3, 1, 2])
            padding = [(0, 0), (columns - 1, columns - 1), (0, 0), (0, 0)]
            weights, across = np.pad(weights, padding).reshape(3, 3, columns, -1), 1
        x = graph.convolve(
            x,
            weights,
            np.tile(bias, columns),
            stride=(stride, across),
            pads=(1, 1, 1, 2 - stride),
            steps=np.tile(steps, columns),
            zero=GREY if first else 0,
        )
        if columns > 1:
            together = graph.add("Transpose", x, perm=[0, 2, 3, 1])
            apart = graph.reshape(together, -1, side, side, channels)
            x = graph.add("Transpose", apart, perm=[0, 3, 1, 2])
    return x


def _for_columns(
    kernel: Int8[np.ndarray, "3 3 C C2"], columns: int, stride: int
) -> Int8[np.ndarray, "3 _ C _"]:
    """Return a kernel whose output channels are those of neighbouring columns."""
    width, (inputs, outputs) = stride * (columns - 1) + 3, kernel.shape[2:]
    wide = np.zeros((3, width, inputs, columns, outputs), np.int8)
    for column in range(columns):
        wide[:, stride * column : stride * column + 3, :, column] = kernel
    return wide.reshape(3, width, inputs, -1)


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
    kernel1 = np.concatenate([two_rows(kernel1), at_marks.reshape(4, 3, 1, -1)], axis=2)

    def layer(x: str, kernel: np.ndarray, bias: np.ndarray, **options: Any) -> str:
        return graph.add("Relu", graph.convolve(x, kernel, bias, **options))

    x = layer(marked, kernel1, np.tile(bias1, 2), stride=(2, 1), pads=(2, 1, 2, 1))
    x = layer(x, of_pairs(two_rows(kernel2)), np.tile(bias2, 2), pads=(0, 1, 0, 1))
    third = of_pairs(from_row(kernel3, 1))
    return layer(x, third, bias3, stride=(1, 2), pads=(1, 1, 0, 1))
