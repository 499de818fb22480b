"""The naming contract between kjax variables and PyTorch state dicts.

| state dict                         | shape            | variables                        |
|------------------------------------|------------------|----------------------------------|
| features.{0,3,…,15}.weight         | [out, in, 3, 3]  | params/trunk/conv{1…6}/kernel    |
| features.{1,4,…,16}.running_mean   | [out]            | batch_stats/trunk/norm{1…6}/mean |
| features.{1,4,…,16}.running_var    | [out]            | batch_stats/trunk/norm{1…6}/var  |
| features.19.weight (`hardnet`)     | [128, 128, n, n] | params/head/kernel               |
| features.20.running_mean, …_var    | [128]            | batch_stats/head/norm/mean, var  |
| features_polar.… (`combined_star`) | as features.…    | …/trunk_polar/…                  |
| head.weight (encoded heads)        | [128, K]         | params/head/kernel               |
| head.bias (encoded heads)          | [128]            | params/head/bias                 |
| context.weight (C patches a point) | [128, C·128]     | params/context/kernel            |

Models with other channels or another dimension have the same names with other sizes. `features` is
laid out as in the HardNet release and in kornia, so their checkpoints load unchanged.
`…num_batches_tracked` is ignored when reading and written as 0.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kjax.errors import InputError
from kjax.extras import jax, require
from kjax.model import CHANNELS, DIMENSION, ENCODED_HEADS, TRUNK_STRIDE
from kjax.weights.info import Fields, fields_of

if TYPE_CHECKING:
    import torch

    from kjax.model.architecture import Architecture

FC_INDEX = 19
"""Index of `hardnet`'s fully connected layer in `features`."""
FC, FC_NORM = f"features.{FC_INDEX}", f"features.{FC_INDEX + 1}"
TRUNKS = {"features": "trunk", "features_polar": "trunk_polar"}


def _paths() -> dict[str, tuple[str, ...]]:
    paths = {}
    for prefix, trunk in TRUNKS.items():
        for i in range(len(CHANNELS)):
            paths[f"{prefix}.{3 * i}.weight"] = ("params", trunk, f"conv{i + 1}", "kernel")
            for part in ("mean", "var"):
                name = f"{prefix}.{3 * i + 1}.running_{part}"
                paths[name] = ("batch_stats", trunk, f"norm{i + 1}", part)
    return paths | {
        f"{FC}.weight": ("params", "head", "kernel"),
        f"{FC_NORM}.running_mean": ("batch_stats", "head", "norm", "mean"),
        f"{FC_NORM}.running_var": ("batch_stats", "head", "norm", "var"),
        "head.weight": ("params", "head", "kernel"),
        "head.bias": ("params", "head", "bias"),
        "context.weight": ("params", "context", "kernel"),
    }


PATHS = _paths()
"""Where each array of a state dict lives in the variables."""


def from_torch(
    state_dict: Mapping[str, Any], model: "Architecture | None" = None, *, on_host: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the variables of a PyTorch state dict of tensors or NumPy arrays.

    A wrapper `{"state_dict": …}` and a data-parallel checkpoint's prefix `module.` are removed.

    Args:
        state_dict: names as in this module's table.
        model: model that the variables are for. By default, the head follows from the names and
            shapes.
        on_host: return NumPy arrays, without importing JAX.

    Raises:
        InputError: arrays are missing, unexpected, wrong-shaped or not finite; all are named.
    """
    if model is not None and model.folded:
        raise InputError("a folded model has no PyTorch counterpart: convert the original")
    arrays = plain_arrays(state_dict)
    shapes = expected_shapes(**(infer_fields(arrays)[0] if model is None else fields_of(model)))
    check_arrays(arrays, shapes)
    variables: dict[str, dict[str, Any]] = {"params": {}, "batch_stats": {}}
    for name in shapes:
        *parents, leaf = PATHS[name]
        node: dict[str, Any] = variables
        for parent in parents:
            node = node.setdefault(parent, {})
        array = arrays[name].astype(np.promote_types(arrays[name].dtype, np.float32))
        # OIHW → HWIO, [out, in] → [in, out]
        array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
        node[leaf] = np.array(array)
    return variables if on_host else jax.device_put(variables, may_alias=False)


def to_torch(variables: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
    """Return the PyTorch state dict of variables, ready for `load_state_dict(strict=True)`."""
    torch = require("torch", "a PyTorch state dict")
    return {name: torch.from_numpy(np.array(array)) for name, array in to_arrays(variables).items()}


def to_arrays(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the PyTorch state dict of variables as NumPy arrays, without torch."""
    if "batch_stats" not in variables:
        raise InputError("variables without batch_stats (folded?) have no PyTorch counterpart")
    kernel = variables["params"].get("head", {}).get("kernel")
    absent = "head.weight" if kernel is not None and kernel.ndim == 4 else f"{FC}.weight"
    arrays: dict[str, np.ndarray] = {}
    for name, path in PATHS.items():
        value: Any = variables
        for key in path:
            value = value.get(key, {})
        if name == absent or isinstance(value, Mapping):  # not an array of this head
            continue
        array = np.asarray(value)  # HWIO → OIHW, [in, out] → [out, in]
        array = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
        arrays[name] = np.ascontiguousarray(array)
        if name.endswith("running_var"):
            counter = name.replace("running_var", "num_batches_tracked")
            arrays[counter] = np.zeros((), np.int64)
    return arrays


def expected_shapes(
    head: str,
    *,
    s: int = 2,
    patch_size: int = 32,
    head_bias: bool = True,
    channels: Sequence[int] = CHANNELS,
    dimension: int = DIMENSION,
    context: Sequence[int | float] = (1,),
    **position_constants: float,
) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a model's state dict, from the arguments of `kjax.build`."""
    del position_constants  # they leave no trace in the weights
    shapes: dict[str, tuple[int, ...]] = {}
    if len(context) > 1:
        shapes["context.weight"] = (dimension, len(context) * DIMENSION)
        dimension = DIMENSION
    for prefix in list(TRUNKS)[: 2 if head == "combined_star" else 1]:
        inputs = (1, *channels)
        for i, width in enumerate(channels):
            shapes[f"{prefix}.{3 * i}.weight"] = (width, inputs[i], 3, 3)
            for part in ("mean", "var"):
                shapes[f"{prefix}.{3 * i + 1}.running_{part}"] = (width,)
    if head == "hardnet":
        side = patch_size // TRUNK_STRIDE
        shapes[f"{FC}.weight"] = (dimension, channels[-1], side, side)
        shapes |= {f"{FC_NORM}.running_{part}": (dimension,) for part in ("mean", "var")}
    if head in ENCODED_HEADS:
        systems = 2 if head.startswith("combined") else 1
        shapes["head.weight"] = (dimension, systems * channels[-1] * (2 * s + 1) ** 2)
        if head_bias:
            shapes["head.bias"] = (dimension,)
    return shapes


def infer_widths(arrays: Mapping[str, np.ndarray]) -> Fields:
    """Infer channels and dimension from a state dict's arrays.

    Raises:
        InputError: it has context, of which the arrays do not show the widths.
    """
    if "context.weight" in arrays:
        raise InputError(
            "context.weight does not say how wide the patches of a point are: load a file with "
            "kjax's metadata"
        )

    def size(default: int, *names: str) -> int:
        return next((len(arrays[n]) for n in names if n in arrays and arrays[n].ndim), default)

    channels = tuple(
        size(default, f"features.{3 * i + 1}.running_mean", f"features.{3 * i}.weight")
        for i, default in enumerate(CHANNELS)
    )
    names = (f"{FC_NORM}.running_mean", f"{FC}.weight", "head.bias", "head.weight")
    return {"channels": channels, "dimension": size(DIMENSION, *names)}


def infer_fields(arrays: Mapping[str, np.ndarray]) -> list[Fields]:
    """Infer all models that a state dict's names and shapes fit, as arguments of `kjax.build`.

    Encoded heads take patches of any size, so their patch size is left out. Impossible sizes are
    replaced by possible ones, for `check_arrays` to report.
    """
    widths = infer_widths(arrays)

    def last_axis(name: str, default: int) -> int:
        return arrays[name].shape[-1] if name in arrays and arrays[name].ndim else default

    if any(name.startswith((f"{FC}.", f"{FC_NORM}.")) for name in arrays):
        side = max(2, last_axis(f"{FC}.weight", 8))
        return [{"head": "hardnet", "patch_size": TRUNK_STRIDE * side, **widths}]
    two_trunks = any(name.startswith("features_polar.") for name in arrays)
    if not two_trunks and not any(name.startswith("head.") for name in arrays):
        return [{"head": "sum", **widths}, {"head": "cat", **widths}]
    # K = m·c·(2s+1)² determines m and s: the square of an odd number is never twice another.
    per_channel = last_axis("head.weight", 0) // max(1, widths["channels"][-1])
    systems = 2 if two_trunks or per_channel % 2 == 0 else 1
    s = max(1, round(math.sqrt(per_channel / systems)) // 2)
    heads = ["xy", "polar"] if systems == 1 else ["combined_star" if two_trunks else "combined"]
    bias = "head.bias" in arrays or "head.weight" not in arrays
    return [{"head": head, "s": s, "head_bias": bias, **widths} for head in heads]


def plain_arrays(state_dict: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return a state dict as NumPy arrays, without wrappers and BatchNorm's counters."""
    inner = state_dict.get("state_dict", state_dict)
    if not isinstance(inner, Mapping) or not inner:
        raise InputError("not a state dict: expected a mapping from names to arrays")
    return {
        str(name).removeprefix("module."): plain_array(str(name), value)
        for name, value in inner.items()
        if not str(name).endswith("num_batches_tracked")
    }


def plain_array(name: str, value: Any) -> np.ndarray:
    """Convert a tensor or array to a NumPy array in native byte order, without importing torch."""
    try:
        if hasattr(value, "detach"):
            return value.detach().cpu().numpy()
        if hasattr(value, "__array__"):
            array = np.asarray(value)
            return array.astype(array.dtype.newbyteorder("="), copy=False)
    except (TypeError, ValueError, RuntimeError):  # sparse, bfloat16, …
        pass
    kind = getattr(value, "dtype", type(value).__name__)
    raise InputError(f"{name} holds {kind}: save float32 or float16 instead") from None


def check_arrays(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise if array names, shapes or values differ from the expected ones; list every problem."""
    problems = []
    if missing := sorted(shapes.keys() - arrays.keys()):
        problems.append(f"missing {', '.join(missing)}")
    if extra := sorted(arrays.keys() - shapes.keys()):
        problems.append(f"unexpected {', '.join(extra)}")
    for name in sorted(shapes.keys() & arrays.keys()):
        shape = arrays[name].shape
        if shape != shapes[name]:
            problems.append(f"{name} has shape {list(shape)} instead of {list(shapes[name])}")
        elif arrays[name].dtype not in (np.float16, np.float32, np.float64):
            problems.append(f"{name} holds {arrays[name].dtype}, not floating-point numbers")
    if not problems and (broken := [n for n in shapes if not np.isfinite(arrays[n]).all()]):
        problems.append(_not_finite(broken))
    if problems:
        raise InputError("the checkpoint does not fit: " + "; ".join(problems))


def check_finite(variables: Mapping[str, Any]) -> None:
    """Raise if variables hold NaN or infinity.

    Descriptors would not show it: some compiled ReLUs turn NaN into 0.
    """
    arrays = {"/".join(PATHS[n]): a for n, a in to_arrays(variables).items() if n in PATHS}
    broken = [n for n in sorted(arrays) if not np.isfinite(np.asarray(arrays[n], "f4")).all()]
    if broken:
        raise InputError(f"the weights are unusable: {_not_finite(broken)}")


def _not_finite(names: Sequence[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]} is not finite{more}"
