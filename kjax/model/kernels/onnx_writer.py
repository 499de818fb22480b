"""Operators of an ONNX graph, collected one by one."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Array, Num

OPSET, IR_VERSION = 12, 7
"""Versions of 2020, the last in which the axes of all reductions are attributes, as OpenCV 4 wants
them: opset 13 made ReduceSum's an input, opset 18 the others'."""
Values = Mapping[str, tuple[Any, Sequence[int | str]]]
"""Types and shapes of inputs or outputs by their names; a size that is open has a name."""


class GraphWriter:
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

    def reshape(self, x: str, *shape: int) -> str:
        """The same numbers in another shape; one size may be −1, for what is left."""
        return self.add("Reshape", x, self.constant(shape, np.int64))

    def split(self, x: str, parts: int, *, axis: int) -> list[str]:
        """Parts of the same size."""
        name = f"Split{len(self._nodes)}"
        names = [f"{name}_{part}" for part in range(parts)]
        self._nodes.append(self._onnx.helper.make_node("Split", [x], names, name=name, axis=axis))
        return names

    def dense(
        self,
        x: str,
        matrix: Num[Array | np.ndarray, "C C2"],
        bias: Num[Array | np.ndarray, " C2"] | None = None,
    ) -> str:
        """Rows [B,C] times a matrix."""
        constants = [matrix] if bias is None else [matrix, bias]
        return self.add("Gemm", x, *map(self.constant, constants))

    def convolve(
        self,
        x: str,
        kernel: Num[Array | np.ndarray, "height width C C2"],
        bias: Num[Array | np.ndarray, " C2"] | None = None,
        *,
        stride: int | tuple[int, int] = 1,
        pads: Sequence[int] = (1, 1, 1, 1),
        **attributes: Any,
    ) -> str:
        """A convolution of maps [B,C,N,N]; pads are above, left, below and right."""
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
        """All of it as onnx's `ModelProto`."""
        helper = self._onnx.helper

        def tell(values: Values) -> list[Any]:
            return [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
                )
                for name, (dtype, shape) in values.items()
            ]

        return helper.make_model(
            helper.make_graph(self._nodes, name, tell(inputs), tell(outputs), self._constants),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="kjax",
        )
