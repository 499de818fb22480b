"""Patch descriptors, and helpers that the learned baselines share."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from kjax.errors import InputError
from kjax.model.describe import describe
from kjax.weights.files import load_state_dict
from kjax.weights.torch_names import plain_array

SIDES = (64, 65)
"""Patch sides of PhotoTourism and HPatches."""
LARGEST_BATCH = 1024
MAX_DEPTH = 3
"""Maximum depth of a state dict: MKD's whitenings are grouped by training set and algorithm."""


class Unavailable(Exception):  # noqa: N818  # news, not a mistake
    """A baseline whose weights or library are missing. The message says why, in one line."""


@dataclasses.dataclass(frozen=True)
class PatchDescriptor:
    """A descriptor of patches.

    Attributes:
        name: name for people, e.g. "RootSIFT".
        source: where it comes from: "OpenCV 5.0.0", or a weights file.
        distance: "L2" or "L1". Bits are zeros and ones, so that L1 is the Hamming distance.
        dimension: descriptor size.
        parameters: number of learned parameters; None if there are none, or if it is unknown.
        describe: from uint8 patches [count, 64, 64] or [count, 65, 65] to float32 descriptors
            [count, dimension]; `progress=True` shows a bar.
    """

    name: str
    source: str
    distance: str
    dimension: int
    parameters: int | None
    describe: Callable[..., Float32[np.ndarray, "patches dim"]]


def check_patches(patches: np.ndarray) -> None:
    """Raise unless patches are uint8 and have a side of `SIDES`."""
    if patches.dtype != np.uint8:
        raise InputError(f"baselines describe uint8 patches, not {patches.dtype}")
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or patches.shape[1] not in SIDES:
        raise InputError(
            f"baselines describe patches of shape [count, 64, 64] or [count, 65, 65], "
            f"not {list(patches.shape)}"
        )


def batched(
    apply: Callable[[Any, Array], Array], variables: Any, *, size: int | None = None
) -> Callable[..., Float32[np.ndarray, "patches dim"]]:
    """Make a `describe` of a function of variables and [batch, n, n] patches, 0 to 255.

    Patches are resized to a side of `size`, if given, as HardNet's authors do. Products keep all
    bits of float32 on accelerators, too, for the sake of published numbers.
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
            batch=min(LARGEST_BATCH, 1 << max(len(patches) - 1, 0).bit_length()),
            progress=progress,
        )

    return run


def count(params: Any) -> int:
    """Number of entries in a tree of arrays."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read arrays from `.npz`, `.safetensors` or torch's files; nested names are joined by /."""

    def flatten(mapping: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
        if depth > MAX_DEPTH:
            raise InputError("not a state dict: it is nested too deeply")
        for name, value in mapping.items():
            if isinstance(value, Mapping):
                yield from flatten(value, f"{prefix}{name}/", depth + 1)
            else:
                yield f"{prefix}{name}", value

    content = load_state_dict(path)
    content = content.get("state_dict", content)
    if not isinstance(content, Mapping) or not content:
        raise InputError("not a state dict: expected a mapping from names to arrays")
    named = ((name.removeprefix("module."), value) for name, value in flatten(content, "", 1))
    return {name: plain_array(name, value) for name, value in named}


def check_arrays(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise if an array is missing, has another shape, or is not of finite floats."""
    problems = []
    if missing := [name for name in shapes if name not in arrays]:
        problems.append(f"missing {', '.join(missing)}")
    for name in shapes.keys() & arrays.keys():
        array, shape = arrays[name], shapes[name]
        if array.shape != shape:
            problems.append(f"{name} has shape {list(array.shape)} instead of {list(shape)}")
        elif not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
            problems.append(f"{name} does not hold finite floating-point numbers")
    if problems:
        raise InputError(f"the weights do not fit: {'; '.join(sorted(problems))}")


def convolution(weight: np.ndarray, bias: np.ndarray) -> dict[str, Float32[Array, "..."]]:
    """Return linen's parameters of a torch convolution: [out, in, h, w] becomes [h, w, in, out]."""
    kernel = weight.astype(np.float32).transpose(2, 3, 1, 0)
    return {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias.astype(np.float32))}


def convolutions(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, Float32[Array, "..."]]]:
    """Return linen's parameters of torch convolutions, from the shapes of their weights by name."""
    biases = {f"{layer}.bias": shape[:1] for layer, shape in shapes.items()}
    check_arrays(arrays, {f"{layer}.weight": shape for layer, shape in shapes.items()} | biases)
    return {name: convolution(arrays[f"{name}.weight"], arrays[f"{name}.bias"]) for name in shapes}
