"""DeepDesc (Simo-Serra et al., ICCV 2015), the network CNN3 as its authors released it.

Three convolutions with tanh, each followed by ℓ2 pooling and the first two by a subtractive
normalisation: 128 dimensions, compared by ℓ2 distance without normalising. Weights are the authors'
Torch7 files, or arrays in `.npz`, `.safetensors` or torch's files. By their README, `split1` was
trained on Liberty and Yosemite, `split2` on Liberty and Notre Dame, `split3` on Yosemite and Notre
Dame, and `split4` on parts of all three.

| name                    | shape                                        |
|-------------------------|----------------------------------------------|
| conv1.weight, .bias     | [32, 1, 7, 7]                                |
| conv2.weight, .bias     | [64, 32, 6, 6]                               |
| conv3.weight, .bias     | [128, 64, 5, 5]                              |
| mean, std               | [64, 64], of the training patches, 0 to 255  |
| kernel1, kernel2        | [5, 5], of the normalisations, any scale     |
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import (
    PatchDescriptor,
    batched,
    check_arrays,
    convolutions,
    count,
    read_arrays,
)
from kjax.baselines.torch7 import TorchObject, read_torch7
from kjax.errors import InputError

PATCH_SIZE = 64
DIMENSION = 128
LAYERS = {"conv1": (32, 1, 7, 7), "conv2": (64, 32, 6, 6), "conv3": (128, 64, 5, 5)}
KERNELS = ("kernel1", "kernel2")


class DeepDesc(nn.Module):
    """The network, for patches normalised by the training set's mean and deviation."""

    @nn.compact
    def __call__(
        self,
        images: Float[Array, "batch 64 64 1"],
        kernels: tuple[Float[Array, "h w"], Float[Array, "h2 w2"]],
    ) -> Float[Array, "batch 128"]:
        """Compute descriptors, not normalised."""
        x = nn.tanh(nn.Conv(32, (7, 7), padding="VALID", name="conv1")(images))
        x = _subtract_local_mean(_l2_pool(x, 2), kernels[0])
        x = nn.tanh(nn.Conv(64, (6, 6), padding="VALID", name="conv2")(x))
        x = _subtract_local_mean(_l2_pool(x, 3), kernels[1])
        x = nn.tanh(nn.Conv(128, (5, 5), padding="VALID", name="conv3")(x))
        return _l2_pool(x, 4).reshape(x.shape[0], DIMENSION)


def _l2_pool(x: Float[Array, "batch h w c"], side: int) -> Float[Array, "batch h2 w2 c"]:
    """Compute √Σx² over squares that do not overlap."""
    return jnp.sqrt(side * side * nn.avg_pool(x * x, (side, side), strides=(side, side)))


def _subtract_local_mean(
    x: Float[Array, "batch h w c"], kernel: Float[Array, "a b"]
) -> Float[Array, "batch h w c"]:
    """Subtract the weighted mean over a neighbourhood and all channels, as Torch7 does.

    At the border the mean is over the neighbours that exist.
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


def load(path: Path) -> PatchDescriptor:
    """Load DeepDesc with published weights; patches of 65×65 are resized to 64×64 bilinearly."""
    variables = load_variables(path)

    def apply(variables: Any, patches: Array) -> Array:
        images = (patches - variables["mean"][None]) / variables["std"][None]
        kernels = variables["kernel1"], variables["kernel2"]
        return DeepDesc().apply({"params": variables["params"]}, images[..., None], kernels)

    describe = batched(apply, variables, size=PATCH_SIZE)
    parameters = count(variables["params"])
    return PatchDescriptor("DDesc", path.name, "L2", DIMENSION, parameters, describe)


def load_variables(path: Path) -> dict[str, Any]:
    """Load the parameters of `DeepDesc`, the mean, the deviation and the kernels."""
    arrays = _read_torch7(path) if path.suffix == ".t7" else read_arrays(path)
    params = convolutions(arrays, LAYERS)
    others = dict.fromkeys(("mean", "std"), (PATCH_SIZE, PATCH_SIZE))
    check_arrays(arrays, others | dict.fromkeys(KERNELS, (5, 5)))
    if not all((arrays[name] > 0).all() for name in ("std", *KERNELS)):
        raise InputError("the deviations or the kernels are not all positive")
    return {"params": params} | {
        name: jnp.asarray(arrays[name], jnp.float32) for name in (*others, *KERNELS)
    }


def _read_torch7(path: Path) -> dict[str, np.ndarray]:
    content = read_torch7(path)
    network = content.get("desc") if isinstance(content, dict) else None
    if not isinstance(network, TorchObject):
        raise InputError("not DeepDesc's file: it has no network called desc")
    arrays: dict[str, np.ndarray] = {}
    for layer, (weight, bias) in zip(LAYERS, network.convolutions(), strict=False):
        arrays |= {f"{layer}.weight": weight, f"{layer}.bias": bias}
    normalizations = (
        module for module in network.flat_modules() if "SubtractiveNormalization" in module.kind
    )
    for name, module in zip(KERNELS, normalizations, strict=False):
        arrays[name] = module.tensor("kernel")
    images = {name: content.get(name) for name in ("mean", "std")}
    return arrays | {k: one.squeeze() for k, one in images.items() if isinstance(one, np.ndarray)}
