"""What the learned rivals share: batches through a compiled function, and weights by name."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from kjax.baselines.descriptor import check_patches
from kjax.errors import InputError
from kjax.model.describe import describe
from kjax.weights.files import load_state_dict
from kjax.weights.torch_names import plain_array

_LARGEST_BATCH = 1024
MOST_ENTRIES = 10_000


def batched(
    apply: Callable[[Any, Array], Array], variables: Any, *, size: int | None = None
) -> Callable[..., Float32[np.ndarray, "patches dim"]]:
    """A rival's `describe` from a function of variables and [batch, n, n] patches, 0 to 255.

    Products keep all bits of float32 on accelerators, too: a rival's published numbers are at
    stake, not its speed.

    Args:
        apply: gives one descriptor per patch.
        variables: the first argument of `apply`.
        size: side that patches are resized to, as at HardNet's test time; None leaves them.
    """

    @jax.jit
    def compiled(variables: Any, patches: Array) -> Array:
        with jax.default_matmul_precision("highest"):
            return apply(variables, patches)

    def run(patches: np.ndarray, *, progress: bool = False) -> Float32[np.ndarray, "patches dim"]:
        check_patches(patches)
        return describe(
            functools.partial(compiled, variables),
            patches,
            size=patches.shape[1] if size is None else size,
            # A power of two, so that few shapes are ever compiled.
            batch=min(_LARGEST_BATCH, 1 << max(len(patches) - 1, 0).bit_length()),
            progress=progress,
        )

    return run


def count(params: Any) -> int:
    """Numbers in a tree of arrays."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name from `.npz`, `.safetensors` or torch's files, which never run code."""
    try:
        return plain_arrays(load_state_dict(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def plain_arrays(state_dict: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """NumPy arrays by name; a wrapper `{"state_dict": …}` is taken off, nested names are joined."""
    inner = state_dict.get("state_dict", state_dict)
    if not isinstance(inner, Mapping) or not inner:
        raise InputError("this is no state dict: expected a mapping from names to arrays")
    arrays: dict[str, np.ndarray] = {}
    left = list(reversed([(str(name).removeprefix("module."), inner[name]) for name in inner]))
    seen = 0
    while left:
        name, value = left.pop()
        seen += 1
        if seen + len(left) > MOST_ENTRIES:  # as where a mapping is within itself
            raise InputError(f"this is no state dict: it has more than {MOST_ENTRIES:,} entries")
        if isinstance(value, Mapping):
            left += reversed([(f"{name}/{key}", part) for key, part in value.items()])
        else:
            arrays[name] = plain_array(name, value)
    return arrays


def layer_shapes(weights: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of layers with a bias for each output, from those of their weights."""
    shapes = {f"{layer}.weight": shape for layer, shape in weights.items()}
    return shapes | {f"{layer}.bias": shape[:1] for layer, shape in weights.items()}


def check_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuses weights in which an array is missing, of another shape, not finite or no number."""
    problems = []
    if missing := [name for name in shapes if name not in arrays]:
        problems.append(f"missing {', '.join(missing)}")
    for name, shape in shapes.items():
        if name not in arrays:
            continue
        array = arrays[name]
        if array.shape != shape:
            problems.append(f"{name} has shape {list(array.shape)} instead of {list(shape)}")
        elif not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
            problems.append(f"{name} does not hold finite floating-point numbers")
    if problems:
        raise InputError(f"{path}: the weights do not fit: {'; '.join(problems)}")


def convolution(weight: np.ndarray, bias: np.ndarray) -> dict[str, Float32[Array, "..."]]:
    """Linen's parameters of a torch convolution: [out, in, h, w] becomes [h, w, in, out]."""
    kernel = weight.astype(np.float32).transpose(2, 3, 1, 0)
    return {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias.astype(np.float32))}


def instance_normalize(
    images: Float[Array, "batch n n 1"], *, epsilon: float = 1e-5
) -> Float[Array, "batch n n 1"]:
    """(x − mean) / √(var + ε) per patch, with the biased variance, as torch's InstanceNorm.

    One pixel is subtracted first, so that a constant patch becomes exactly zero.
    """
    shifted = images - images[:, :1, :1, :]
    centred = shifted - shifted.mean(axis=(1, 2, 3), keepdims=True)
    variance = jnp.mean(centred * centred, axis=(1, 2, 3), keepdims=True)
    return centred / jnp.sqrt(variance + epsilon)
