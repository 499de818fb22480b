"""Descriptors as ONNX or StableHLO functions from patches [B,N,N] or [B,C,N,N] to descriptors."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, Float32, Num

from kjax.errors import InputError, unknown_name
from kjax.export import files
from kjax.model import ENCODED_HEADS
from kjax.model.descriptor import Descriptor, parameter_count
from kjax.model.folding import fold, fold_head
from kjax.model.onnx_graph import onnx_model
from kjax.version import __version__
from kjax.weights.info import ModelInfo
from kjax.weights.torch_names import check_finite

INPUT_DTYPES = ("float32", "uint8")
BATCHES = (2, 65)
"""Batch sizes of the check: models treat small and large batches differently."""


def export_model(
    path: str | Path,
    model: Descriptor,
    variables: Mapping[str, Any],
    *,
    input_dtype: str = "float32",
    batch: int | None = None,
    dtype: str = "float32",
    info: ModelInfo | None = None,
) -> float:
    """Write a model as `.onnx` or `.stablehlo`, with BatchNorm folded, and check it.

    Args:
        path: a new file, or one to replace; it stays as it was if the new one fails the check.
        model: not folded.
        variables: its weights.
        input_dtype: type of the patches: "float32" (any range) or "uint8".
        batch: fixed B (default: any).
        dtype: "float32", or "int8" for `.onnx`: for onnxruntime on CPUs.
        info: what else is known about the model, stored in the file.

    Returns:
        The largest difference from JAX on random patches.
    """
    path = Path(path)
    files.check_suffix(path)
    if input_dtype not in INPUT_DTYPES:
        raise unknown_name("input dtype", input_dtype, INPUT_DTYPES)
    if dtype not in ("float32", "int8") or (dtype == "int8" and path.suffix != files.ONNX):
        raise InputError(f"{path} cannot be of dtype {dtype}: .onnx takes float32 and int8")
    if batch is not None and batch < 1:
        raise InputError(f"a batch has at least one patch, not {batch}")
    check_finite(variables)
    # In full precision, whatever the training's: other devices may support nothing else.
    exact = model.clone(dtype=jnp.dtype("float32"), axis_name=None)
    folded, weights = fold(exact, variables)
    facts = {"head": model.head}
    if model.head in ENCODED_HEADS:
        facts["s"] = str(model.position_kernel.s)
    facts |= {
        "patch size": str(model.patch_size),
        "parameters": f"{parameter_count(variables):,}",
        "written by": f"kjax {__version__}",
    }
    if dtype != "float32":
        facts["dtype"] = dtype
    if model.has_context:
        facts["context"] = ", ".join(f"{width:g}" for width in model.context)
    if info is not None:
        facts |= ({"name": info.name} if info.name else {}) | info.facts()

    def describe_one(patch: Num[Array, "*C N N"]) -> Float32[Array, " dim"]:
        return folded.apply(weights, patch[None])[0]

    def write(partial: Path) -> float:
        if path.suffix == files.ONNX:
            own: tuple[Descriptor, Mapping[str, Any]] = (folded, weights)
            if dtype == "int8":
                own = fold_head(folded.clone(dtype=jnp.dtype(dtype)), weights)
            graph = onnx_model(*own, dtype=input_dtype, batch=batch)
            files.write_onnx(partial, graph, facts)
        else:
            count = batch or export.symbolic_shape("batch")[0]
            shape = jax.ShapeDtypeStruct((count, *model.patch_shape), input_dtype)
            # Mapped over single patches: a model chooses its products by the batch size, which may
            # be symbolic here.
            function = jax.jit(jax.vmap(describe_one))
            with jax.default_matmul_precision("highest"):
                files.write_stablehlo(partial, function, [shape], facts)
        describe, rng, differences = load_exported(partial), np.random.default_rng(0), []
        for count in (batch,) if batch else BATCHES:
            patches = rng.integers(0, 256, (count, *model.patch_shape), np.uint8)
            patches = patches if input_dtype == "uint8" else patches.astype(np.float32) / 255
            with jax.default_matmul_precision("highest"):
                expected = _apply(exact, variables, patches)
            differences.append(np.abs(describe(patches) - np.asarray(expected)).max())
        return float(np.max(differences))  # NumPy's maximum keeps NaN

    limit = files.INT8_LIMIT if dtype == "int8" else files.LIMIT
    return files.write_checked(path, write, limit)


@functools.partial(jax.jit, static_argnums=0)
def _apply(
    model: Descriptor, variables: Mapping[str, Any], patches: Num[Array, "B *C N N"]
) -> Float32[Array, "B dim"]:
    """Apply the model, compiled once for all files of one model."""
    return model.apply(variables, patches)


def load_exported(
    path: str | Path,
) -> Callable[[Num[np.ndarray, "B *C N N"]], Float32[np.ndarray, "B dim"]]:
    """Return the function in a `.stablehlo` or `.onnx` file."""
    path = Path(path)
    files.check_suffix(path)
    if path.suffix == files.ONNX:
        session = files.read_onnx(path)
        return lambda patches: session.run(["descriptors"], {"patches": patches})[0]
    exported = files.read_stablehlo(path)
    return lambda patches: np.asarray(exported.call(patches))
