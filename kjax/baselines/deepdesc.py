"""DeepDesc (Simo-Serra et al., ICCV 2015), the network CNN3 as its authors released it.

Three convolutions with tanh, each followed by ℓ2 pooling and the first two by a subtractive
normalisation: 128 dimensions, compared by ℓ2 distance without normalising. Weights are the
authors' `CNN3_p8_n8_split*.t7` (Torch7, read without running any code), or arrays in `.npz`,
`.safetensors` or torch's files:

| name                                  | shape                                        |
|---------------------------------------|----------------------------------------------|
| conv1.weight, conv1.bias              | [32, 1, 7, 7]                                |
| conv2.weight, conv2.bias              | [64, 32, 6, 6]                               |
| conv3.weight, conv3.bias              | [128, 64, 5, 5]                              |
| mean, std                             | [64, 64], of the training patches, 0 to 255  |
| kernel1, kernel2 (may be left out)    | of the normalisations, any scale             |
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import PatchDescriptor
from kjax.baselines.networks import (
    batched,
    check_arrays,
    convolution,
    count,
    layer_shapes,
    read_arrays,
)
from kjax.baselines.torch7 import (
    TorchObject,
    convolutions_of,
    flatten_modules,
    read_torch7,
    tensor_field,
)
from kjax.errors import InputError

PATCH_SIZE = 64
DIMENSION = 128
_LAYERS = {"conv1": (32, 1, 7, 7), "conv2": (64, 32, 6, 6), "conv3": (128, 64, 5, 5)}
_KERNELS = ("kernel1", "kernel2")


class DeepDesc(nn.Module):
    """The network, for patches that are normalised by the training set's mean and deviation."""

    @nn.compact
    def __call__(
        self,
        images: Float[Array, "batch 64 64 1"],
        kernels: tuple[Float[Array, "h w"], Float[Array, "h2 w2"]],
    ) -> Float[Array, "batch 128"]:
        """Descriptors, not normalised."""
        x = nn.tanh(nn.Conv(32, (7, 7), padding="VALID", name="conv1")(images))
        x = _subtract_local_mean(_l2_pool(x, 2), kernels[0])
        x = nn.tanh(nn.Conv(64, (6, 6), padding="VALID", name="conv2")(x))
        x = _subtract_local_mean(_l2_pool(x, 3), kernels[1])
        x = nn.tanh(nn.Conv(128, (5, 5), padding="VALID", name="conv3")(x))
        return _l2_pool(x, 4).reshape(x.shape[0], DIMENSION)


def _l2_pool(x: Float[Array, "batch h w c"], side: int) -> Float[Array, "batch h2 w2 c"]:
    """√Σx² over squares that do not overlap."""
    return jnp.sqrt(side * side * nn.avg_pool(x * x, (side, side), strides=(side, side)))


def _subtract_local_mean(
    x: Float[Array, "batch h w c"], kernel: Float[Array, "a b"]
) -> Float[Array, "batch h w c"]:
    """Takes off the weighted mean over a neighbourhood and all channels, as in Torch7.

    At the border the mean is over those neighbours that exist.
    """
    across = x.mean(axis=-1, keepdims=True)
    total, weight = (
        jax.lax.conv_general_dilated(
            values,
            kernel[:, :, None, None],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        for values in (across, jnp.ones_like(across[:1]))
    )
    return x - total / weight


def _gaussian_kernel(side: int = 5) -> Float[np.ndarray, "{side} {side}"]:
    """Torch7's `image.gaussian`: a standard deviation of a quarter of the side."""
    offsets = np.arange(side) - (side - 1) / 2
    bell = np.exp(-((offsets / (0.25 * side)) ** 2) / 2)
    return np.outer(bell, bell)


def load(path: Path) -> PatchDescriptor:
    """DeepDesc with published weights; patches of 65×65 are resized to 64×64 bilinearly."""
    variables = load_variables(path)

    def apply(variables: Any, patches: Array) -> Array:
        images = (patches - variables["mean"][None]) / variables["std"][None]
        kernels = variables["kernel1"], variables["kernel2"]
        return DeepDesc().apply({"params": variables["params"]}, images[..., None], kernels)

    describe = batched(apply, variables, size=PATCH_SIZE)
    parameters = count(variables["params"])
    return PatchDescriptor("DDesc", path.name, "L2", DIMENSION, parameters, describe)


def load_variables(path: Path) -> dict[str, Any]:
    """Parameters of `DeepDesc`, mean, deviation and kernels from a weights file."""
    arrays = _read_torch7(path) if path.suffix == ".t7" else read_arrays(path)
    images = dict.fromkeys(("mean", "std"), (PATCH_SIZE, PATCH_SIZE))
    check_arrays(path, arrays, layer_shapes(_LAYERS) | images)
    if not (arrays["std"] > 0).all():
        raise InputError(f"{path}: the deviations are not all positive")
    params = {
        layer: convolution(arrays[f"{layer}.weight"], arrays[f"{layer}.bias"]) for layer in _LAYERS
    }
    others = {name: jnp.asarray(arrays[name], jnp.float32) for name in ("mean", "std")}
    for name in _KERNELS:
        others[name] = jnp.asarray(_two_axes(arrays.get(name), path), jnp.float32)
    return {"params": params, **others}


def _two_axes(kernel: np.ndarray | None, path: Path) -> np.ndarray:
    if kernel is None:
        return _gaussian_kernel()
    if kernel.ndim not in (1, 2) or any(side % 2 == 0 for side in kernel.shape):
        raise InputError(f"{path}: a kernel of shape {list(kernel.shape)} has no middle")
    if max(kernel.shape) > PATCH_SIZE:
        raise InputError(f"{path}: a kernel of shape {list(kernel.shape)} is larger than a patch")
    if kernel.dtype.kind not in "fiu" or not np.isfinite(kernel).all() or not kernel.sum():
        raise InputError(f"{path}: a kernel is no weighting of neighbours")
    # One axis stands for the same kernel along both.
    kernel = np.outer(kernel, kernel) if kernel.ndim == 1 else kernel
    return kernel / kernel.sum()


def _read_torch7(path: Path) -> dict[str, np.ndarray]:
    content = read_torch7(path)
    network = content.get("desc") if isinstance(content, dict) else None
    if not isinstance(network, TorchObject):
        raise InputError(f"{path}: not DeepDesc's file: it has no network called desc")
    arrays: dict[str, np.ndarray] = {}
    found = convolutions_of(network, path)
    for (layer, shape), (weight, bias) in zip(_LAYERS.items(), found, strict=False):
        arrays[f"{layer}.weight"] = (
            weight.reshape(shape) if weight.size == np.prod(shape) else weight
        )
        arrays[f"{layer}.bias"] = bias
    kernels = (
        tensor_field(module, "kernel", path)
        for module in flatten_modules(network, path)
        if "SubtractiveNormalization" in module.kind
    )
    for name, kernel in zip(_KERNELS, kernels, strict=False):
        arrays[name] = kernel.astype(np.float32)
    for name in ("mean", "std"):
        value = content.get(name)
        if isinstance(value, float | np.ndarray):  # one that is missing is told later
            arrays[name] = _image(value)
    return arrays


def _image(value: Any) -> np.ndarray:
    """A number for all pixels, or one for each."""
    array = np.asarray(value, np.float32)
    if array.size == 1:
        return np.full((PATCH_SIZE, PATCH_SIZE), array.item(), np.float32)
    return array.reshape(PATCH_SIZE, PATCH_SIZE) if array.size == PATCH_SIZE**2 else array
