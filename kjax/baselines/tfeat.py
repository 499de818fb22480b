"""TFeat (Balntas et al., BMVC 2016): two convolutions and a fully connected layer, tanh.

Weights are the authors' `tfeat-liberty.params` and its siblings (torch, read without running any
code), or the same names in `.npz` or `.safetensors`:

| name                     | shape           |
|--------------------------|-----------------|
| features.1.weight, .bias | [32, 1, 7, 7]   |
| features.4.weight, .bias | [64, 32, 6, 6]  |
| descr.0.weight, .bias    | [128, 64·8·8]   |
"""

from pathlib import Path
from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import PatchDescriptor
from kjax.baselines.networks import (
    batched,
    check_arrays,
    convolution,
    count,
    instance_normalize,
    layer_shapes,
    read_arrays,
)

PATCH_SIZE = 32
DIMENSION = 128
_SHAPES = {
    "features.1": (32, 1, 7, 7),
    "features.4": (64, 32, 6, 6),
    "descr.0": (DIMENSION, 64 * 8 * 8),
}


class TFeat(nn.Module):
    """The network; its input is normalised inside, so the grey values' range does not matter."""

    @nn.compact
    def __call__(self, images: Float[Array, "batch 32 32 1"]) -> Float[Array, "batch 128"]:
        """Descriptors, not normalised."""
        x = instance_normalize(images)
        x = nn.tanh(nn.Conv(32, (7, 7), padding="VALID", name="conv1")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.tanh(nn.Conv(64, (6, 6), padding="VALID", name="conv2")(x))
        # A fully connected layer is a convolution that covers its input.
        x = nn.tanh(nn.Conv(DIMENSION, (8, 8), padding="VALID", name="head")(x))
        return x.reshape(x.shape[0], DIMENSION)


def load(path: Path) -> PatchDescriptor:
    """TFeat with published weights; patches are resized to 32×32 bilinearly.

    From 65×65 the resize is exact up to the rounding to whole grey values; some builds of OpenCV,
    which the authors used, are off by up to one, and so give slightly different descriptors.
    """
    params = load_params(path)

    def apply(variables: Any, patches: Array) -> Array:
        return TFeat().apply({"params": variables}, patches[..., None])

    describe = batched(apply, params, size=PATCH_SIZE)
    return PatchDescriptor("TFeat", path.name, "L2", DIMENSION, count(params), describe)


def load_params(path: Path) -> dict[str, Any]:
    """Parameters of `TFeat` from a weights file."""
    arrays = read_arrays(path)
    check_arrays(path, arrays, layer_shapes(_SHAPES))
    weights = {
        name: (arrays[f"{layer}.weight"], arrays[f"{layer}.bias"])
        for name, layer in zip(("conv1", "conv2", "head"), _SHAPES, strict=True)
    }
    flat, bias = weights["head"]
    weights["head"] = flat.reshape(DIMENSION, 64, 8, 8), bias
    return {name: convolution(*pair) for name, pair in weights.items()}
