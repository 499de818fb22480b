"""Descriptors as ONNX: for onnxruntime, OpenCV and whatever else reads that format.

    session = onnxruntime.InferenceSession("descriptor.onnx")
    (descriptors,) = session.run(None, {"patches": patches})  # float32 [B,N,N]

    net = cv2.dnn.readNetFromONNX("descriptor.onnx")
    net.setInput(patches[:, None])  # or cv2.dnn.blobFromImages(list(patches))
    descriptors = net.forward()

`kjax.model.onnx_graph` writes the graph. OpenCV 4 takes the last axis of a three-dimensional array
for colours: hence the axis in the example.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float32, Num

from kjax.errors import InputError
from kjax.export.function import DescribingFunction
from kjax.extras import require
from kjax.model.onnx_graph import onnx_model

ONNX_FILES = "an ONNX file"


def save(path: Path, function: DescribingFunction) -> None:
    """Writes the graph from `patches` [B,N,N] to `descriptors`."""
    folded, weights, dtype, batch, about = function
    write(path, onnx_model(folded, weights, dtype=dtype, batch=batch), about)


def write(path: Path, model: Any, about: Mapping[str, str]) -> None:
    """Writes any graph, and what the file shall tell of itself."""
    onnx = require("onnx", ONNX_FILES)
    onnx.helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def load(path: Path) -> Callable[[Num[np.ndarray, "B N N"]], Float32[np.ndarray, "B dim"]]:
    """The function in a file, run by onnxruntime."""
    session = read(path)
    return lambda patches: session.run(["descriptors"], {"patches": patches})[0]


def read(path: Path) -> Any:
    """Any graph in a file, as a session of onnxruntime.

    Raises:
        InputError: it is something else.
    """
    onnxruntime = require("onnxruntime", ONNX_FILES)
    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception:  # a dozen types, all its own
        raise InputError(f"{path} is not an ONNX file that onnxruntime can run") from None


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


def _signature(onnx: ModuleType, value: Any) -> str:
    """Name, type and shape of a value, e.g. "patches: float32[batch, 32, 32]"."""
    tensor = value.type.tensor_type
    sizes = (axis.dim_param or str(axis.dim_value) for axis in tensor.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"{value.name}: {dtype}[{', '.join(sizes)}]"
