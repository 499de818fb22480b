"""TFeat (Balntas et al., BMVC 2016): two convolutions and a fully connected layer, tanh.

Weights are the authors' `tfeat-liberty.params` and its siblings (torch), or the same names in
`.npz` or `.safetensors`:

| name                     | shape           |
|--------------------------|-----------------|
| features.1.weight, .bias | [32, 1, 7, 7]   |
| features.4.weight, .bias | [64, 32, 6, 6]  |
| descr.0.weight, .bias    | [128, 64·8·8]   |
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import PatchDescriptor, batched, convolutions, count, read_arrays

PATCH_SIZE = 32
DIMENSION = 128
SHAPES = {
    "features.1": (32, 1, 7, 7),
    "features.4": (64, 32, 6, 6),
    "descr.0": (DIMENSION, 64, 8, 8),
}


class TFeat(nn.Module):
    """The network; its input is normalised inside, so the grey values' range does not matter."""

    @nn.compact
    def __call__(self, images: Float[Array, "batch 32 32 1"]) -> Float[Array, "batch 128"]:
        """Compute descriptors, not normalised."""
        # torch's InstanceNorm. One pixel is subtracted first, so that a constant patch becomes
        # exactly zero.
        shifted = images - images[:, :1, :1, :]
        centred = shifted - shifted.mean(axis=(1, 2, 3), keepdims=True)
        variance = jnp.mean(centred * centred, axis=(1, 2, 3), keepdims=True)
        x = centred / jnp.sqrt(variance + 1e-5)
        x = nn.tanh(nn.Conv(32, (7, 7), padding="VALID", name="conv1")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.tanh(nn.Conv(64, (6, 6), padding="VALID", name="conv2")(x))
        # A fully connected layer is a convolution that covers its input.
        x = nn.tanh(nn.Conv(DIMENSION, (8, 8), padding="VALID", name="head")(x))
        return x.reshape(x.shape[0], DIMENSION)


def load(path: Path) -> PatchDescriptor:
    """Load TFeat with published weights; patches are resized to 32×32 bilinearly.

    From 65×65 the resize is exact up to rounding to whole grey values. Some builds of OpenCV, which
    the authors used, are off by up to one, and so give slightly different descriptors.
    """
    params = load_params(path)

    def apply(variables: Any, patches: Array) -> Array:
        return TFeat().apply({"params": variables}, patches[..., None])

    describe = batched(apply, params, size=PATCH_SIZE)
    return PatchDescriptor("TFeat", path.name, "L2", DIMENSION, count(params), describe)


def load_params(path: Path) -> dict[str, Any]:
    """Load the parameters of `TFeat`."""
    arrays = read_arrays(path)
    flat = arrays.get("descr.0.weight")
    if flat is not None and flat.shape == (DIMENSION, 64 * 8 * 8):
        arrays["descr.0.weight"] = flat.reshape(DIMENSION, 64, 8, 8)
    layers = convolutions(arrays, SHAPES)
    return dict(zip(("conv1", "conv2", "head"), layers.values(), strict=True))
