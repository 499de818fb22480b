"""Operators of an ONNX graph, collected one by one."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Array, Num


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

    def finish(self, patches: Any, descriptors: Any) -> Any:
        """The graph, for a given input and output."""
        return self._onnx.helper.make_graph(
            self._nodes, "descriptor", [patches], [descriptors], self._constants
        )
