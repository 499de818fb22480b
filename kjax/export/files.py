"""Files that hold a function: ONNX and StableHLO, with facts about the model inside.

    session = onnxruntime.InferenceSession("descriptor.onnx")
    (descriptors,) = session.run(None, {"patches": patches})  # float32 [B,N,N]

    net = cv2.dnn.readNetFromONNX("descriptor.onnx")
    net.setInput(patches[:, None])  # or cv2.dnn.blobFromImages(list(patches))
    descriptors = net.forward()

    exported = jax.export.deserialize(bytearray(Path("model.stablehlo").read_bytes()))
    descriptors = exported.call(patches)

OpenCV 4 takes the last axis of a three-dimensional array for colours: hence the extra axis. JAX
reads StableHLO files for at least six months of its releases (see `jax.export`).
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jax import export

from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.files.atomic import write_whole
from kjax.files.json import parse_json

STABLEHLO, ONNX = ".stablehlo", ".onnx"
PLATFORMS = ("cpu", "cuda", "tpu")
"""Platforms that StableHLO files run on."""
LIMIT, INT8_LIMIT = 1e-4, 0.1
"""Maximum difference from JAX's own numbers, in float32 and in int8."""


def write_checked(path: Path, write: Callable[[Path], float], limit: float = LIMIT) -> float:
    """Write a file, and keep it if `write` returns a difference from JAX of at most `limit`."""
    differences: list[float] = []

    def write_and_check(partial: Path) -> None:
        differences.append(write(partial))
        if not differences[0] <= limit:  # also if NaN
            found = f"{differences[0]:.1e}, more than {limit:.0e}"
            raise InputError(f"{path} would differ from JAX by {found}: it was not kept")

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, write_and_check)
    return differences[0]


def check_suffix(path: Path) -> None:
    """Raise unless the file is ONNX or StableHLO by its name."""
    if path.suffix not in (STABLEHLO, ONNX):
        raise unknown_name("file type", path.suffix, (STABLEHLO, ONNX))


def write_onnx(path: Path, model: Any, facts: Mapping[str, str]) -> None:
    """Write a `ModelProto` with facts as its metadata."""
    onnx = require("onnx", "an ONNX file")
    onnx.helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def read_onnx(path: Path) -> Any:
    """Open an ONNX file as a session of onnxruntime."""
    onnxruntime = require("onnxruntime", "an ONNX file")
    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime has a dozen types of its own
        raise InputError(f"{path} is not an ONNX file that onnxruntime can run") from None


def write_stablehlo(
    path: Path, function: Any, arguments: list[Any], facts: Mapping[str, str]
) -> None:
    """Write a jitted function of arguments with these shapes and types."""
    require("flatbuffers", "a .stablehlo file")  # jax.export imports it too late for our message
    exported = export.export(function, platforms=PLATFORMS)(*arguments)
    # The format has no other place for facts. JAX shows this name and never parses it.
    named = dataclasses.replace(exported, fun_name=json.dumps(dict(facts), ensure_ascii=False))
    path.write_bytes(named.serialize())


def read_stablehlo(path: Path) -> export.Exported:
    """Read the function in a StableHLO file."""
    require("flatbuffers", "a .stablehlo file")
    content = bytearray(path.read_bytes())
    try:
        return export.deserialize(content)
    except Exception:  # JAX has no error type for damaged files
        raise InputError(f"{path} is not a complete jax.export file") from None


def read_facts(path: str | Path) -> dict[str, str]:
    """Return what is known about an exported file: its facts, format, inputs and outputs."""
    path = Path(path)
    check_suffix(path)
    if path.suffix == STABLEHLO:
        exported = read_stablehlo(path)
        name = exported.fun_name
        try:
            # Files of other programs have the name of a function there.
            facts = parse_json(name) if name.startswith("{") else {"function": name}
        except ValueError:
            raise InputError(f"{path} is not a complete jax.export file") from None
        shapes = [
            ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in avals)
            for avals in (exported.in_avals, exported.out_avals)
        ]
        form = {"format": "StableHLO", "platforms": ", ".join(exported.platforms)}
    else:
        onnx = require("onnx", "an ONNX file")
        try:
            model = onnx.load(path, load_external_data=False)  # which may be any file
            onnx.checker.check_model(model)
        except OSError:
            raise
        except Exception:  # protobuf's errors, and the checker's
            raise InputError(f"{path} is not an ONNX file") from None
        facts = {prop.key: prop.value for prop in model.metadata_props}
        shapes = [
            ", ".join(_signature(onnx, value) for value in values)
            for values in (model.graph.input, model.graph.output)
        ]
        form = {"format": f"ONNX, opset {model.opset_import[0].version}"}
    return facts | form | {"input": shapes[0], "output": shapes[1]}


def _signature(onnx: Any, value: Any) -> str:
    """Name, type and shape of a value, e.g. "patches: float32[batch, 32, 32]"."""
    tensor = value.type.tensor_type
    sizes = (axis.dim_param or str(axis.dim_value) for axis in tensor.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"{value.name}: {dtype}[{', '.join(sizes)}]"
