"""Models for use elsewhere: StableHLO, ONNX, or weights for PyTorch.

No file is kept unless what it holds, read back and run, gives the descriptors that JAX gives.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Num

from kjax.errors import InputError, unknown_name
from kjax.export import onnx as export_onnx
from kjax.export import stablehlo as export_stablehlo
from kjax.export.function import DescribingFunction, write_checked
from kjax.model import ENCODED_HEADS
from kjax.model.descriptor import Descriptor, parameter_count
from kjax.model.folding import fold
from kjax.version import __version__
from kjax.weights.files import (
    SUFFIXES,
    TORCH_SUFFIXES,
    load_state_dict,
    load_variables,
    save_variables,
)
from kjax.weights.info import ModelInfo, fields_of
from kjax.weights.torch_names import check_finite

Describe = Callable[[Num[np.ndarray, "B N N"]], Float32[np.ndarray, "B dim"]]

FUNCTIONS = {".stablehlo": export_stablehlo, ".onnx": export_onnx}
"""Formats that hold a function, by suffix; all others hold weights alone."""
INPUT_DTYPES = ("float32", "uint8")
BATCHES = (2, 65)
"""Sizes of the batches that are compared: models treat small and large ones differently."""


def export_model(
    path: str | Path,
    model: Descriptor,
    variables: Mapping[str, Any],
    *,
    input_dtype: str = "float32",
    batch: int | None = None,
    info: ModelInfo | None = None,
) -> float:
    """Writes a model to a file whose suffix tells the format, and checks it.

    `.stablehlo` and `.onnx` hold the function from patches `[B,N,N]` to descriptors, in float32 and
    with BatchNorm folded. `.npz`, `.safetensors` and torch's `.pth`, … hold weights
    under the names of `kjax.weights.torch_names`.

    Args:
        path: a new file, or one to replace.
        model: not folded.
        variables: the same.
        input_dtype: of the patches that the function takes: "float32" (of any range) or "uint8".
        batch: B, if the function shall take no other.
        info: what else is known, stored in formats that have room for it.

    Returns:
        The largest difference to JAX that was seen.

    Raises:
        InputError: it is too large, the weights are not finite, or a package is missing. No file
            is left, and what was at `path` before stays.
    """
    path = Path(path)
    if input_dtype not in INPUT_DTYPES:
        raise unknown_name("input dtype", input_dtype, INPUT_DTYPES)
    if path.suffix not in (*FUNCTIONS, *SUFFIXES):
        raise unknown_name("file type", path.suffix, (*FUNCTIONS, *SUFFIXES))
    if batch is not None and batch < 1:
        raise InputError(f"a batch has at least one patch, not {batch}")
    check_finite(variables)
    # In full precision, whatever the training's: other machines may have no other.
    exact = model.clone(dtype=jnp.dtype("float32"), axis_name=None)
    info = dataclasses.replace(info or ModelInfo(), model=fields_of(model))
    name = {"name": info.name} if info.name else {}
    about = _describe_model(model, variables) | name | info.facts()

    def write(partial: Path) -> float:
        if path.suffix in FUNCTIONS:
            function = DescribingFunction(*fold(exact, variables), input_dtype, batch, about)
            FUNCTIONS[path.suffix].save(partial, function)
        else:
            save_variables(partial, variables, info=info)
        counts = (batch,) if batch else BATCHES
        return _largest_difference(partial, exact, variables, input_dtype, counts)

    return write_checked(path, write)


def _describe_model(model: Descriptor, variables: Mapping[str, Any]) -> dict[str, str]:
    """What an exported file tells about its model."""
    about = {"head": model.head}
    if model.head in ENCODED_HEADS:
        about["s"] = str(model.position_kernel.s)
    about["patch size"] = str(model.patch_size)
    return about | {
        "parameters": f"{parameter_count(variables):,}",
        "written by": f"kjax {__version__}",
    }


def read_about(path: str | Path) -> dict[str, str]:
    """What a `.stablehlo` or `.onnx` file tells about itself, by label."""
    return _format(path).read_about(Path(path))


def load_exported(path: str | Path) -> Describe:
    """The function in a `.stablehlo` or `.onnx` file."""
    return _format(path).load(Path(path))


def _format(path: str | Path) -> Any:
    if (suffix := Path(path).suffix) not in FUNCTIONS:
        raise unknown_name("file type", suffix, FUNCTIONS)
    return FUNCTIONS[suffix]


def _largest_difference(
    path: Path,
    exact: Descriptor,
    variables: Mapping[str, Any],
    dtype: str,
    counts: Sequence[int],
) -> float:
    """The largest difference between a file's and JAX's descriptors of random patches."""
    in_jax, in_file = _in_jax(exact, variables), _load(path, exact)
    rng = np.random.default_rng(0)
    differences = []
    for count in counts:
        patches = rng.integers(0, 256, (count, exact.patch_size, exact.patch_size), np.uint8)
        patches = patches if dtype == "uint8" else patches.astype(np.float32) / 255
        differences.append(np.abs(in_file(patches) - in_jax(patches)).max())
    return float(np.max(differences))  # NumPy's maximum keeps NaN, Python's may not


def _load(path: Path, exact: Descriptor) -> Describe:
    if path.suffix in FUNCTIONS:
        return load_exported(path)
    if path.suffix in TORCH_SUFFIXES:
        return _in_torch(path, exact)
    return _in_jax(exact, load_variables(path, exact))


def _in_jax(exact: Descriptor, variables: Mapping[str, Any]) -> Describe:
    """The model as it was before any export."""

    def describe(patches: Num[np.ndarray, "B N N"]) -> Float32[np.ndarray, "B dim"]:
        with jax.default_matmul_precision("highest"):
            return np.asarray(_apply(exact, variables, patches))

    return describe


@functools.partial(jax.jit, static_argnums=0)
def _apply(
    model: Descriptor, variables: Mapping[str, Any], patches: Num[Array, "B N N"]
) -> Float32[Array, "B dim"]:
    """The model's function, compiled once for all files of one model."""
    return model.apply(variables, patches)


def _in_torch(path: Path, exact: Descriptor) -> Describe:
    """The reference network in PyTorch, with a file's weights."""
    import torch

    from kjax.parity.torch_reference import TorchDescriptor

    constants = dataclasses.asdict(exact.position_kernel)
    fields: Any = {"channels": exact.channels, "dimension": exact.dimension, **constants}
    network = TorchDescriptor(exact.head, patch_size=exact.patch_size, **fields).eval()
    state = dict(load_state_dict(path))
    if exact.head in ENCODED_HEADS and not exact.head_bias:
        state["head.bias"] = torch.zeros(network.head.out_features)  # the reference has no choice
    network.load_state_dict(state)

    def describe(patches: Num[np.ndarray, "B N N"]) -> Float32[np.ndarray, "B dim"]:
        images = torch.from_numpy(patches[:, None]).to(torch.float32)
        with torch.no_grad():
            return network(images).numpy()

    return describe
