"""TFeat (Balntas et al., BMVC 2016): two convolutions and a fully connected layer, tanh.

HardTFeat is TFeat trained by HardNet's authors with their loss (NIPS 2017). It normalises its input
and output as HardNet does. Weights are `tfeat-liberty.params` and its siblings, `HardTFeat.pth`, or
the same names in `.npz` or `.safetensors`, each with its weight and bias:

| TFeat      | HardTFeat    | shape                           |
|------------|--------------|---------------------------------|
| features.1 | features.0   | [32, 1, 7, 7]                   |
| features.4 | features.3   | [64, 32, 6, 6]                  |
| descr.0    | classifier.1 | [128, 64·8·8], [128, 64, 8, 8]  |
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import PatchDescriptor, batched, convolutions, count, read_arrays
from kjax.model.aggregation import l2_normalize
from kjax.model.patches import normalize_patches

PATCH_SIZE = 32
DIMENSION = 128
SHAPES = {
    "features.1": (32, 1, 7, 7),
    "features.4": (64, 32, 6, 6),
    "descr.0": (DIMENSION, 64, 8, 8),
}
HARD_SHAPES = dict(zip(("features.0", "features.3", "classifier.1"), SHAPES.values(), strict=True))


class TFeat(nn.Module):
    """The network; its input is normalised inside, so the grey values' range does not matter."""

    hard: bool = False

    @nn.compact
    def __call__(self, images: Float[Array, "batch 32 32 1"]) -> Float[Array, "batch 128"]:
        """Compute descriptors; only HardTFeat's are normalised."""
        if self.hard:
            x = normalize_patches(images)
        else:  # torch's InstanceNorm; without one pixel, a constant patch becomes exactly zero
            x = images - images[:, :1, :1, :]
            axes = (1, 2, 3)
            x = nn.standardize(x, axes, variance=x.var(axes, keepdims=True), epsilon=1e-5)
        x = nn.tanh(nn.Conv(32, (7, 7), padding="VALID", name="conv1")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.tanh(nn.Conv(64, (6, 6), padding="VALID", name="conv2")(x))
        # A fully connected layer is a convolution that covers its input.
        x = nn.tanh(nn.Conv(DIMENSION, (8, 8), padding="VALID", name="head")(x))
        x = x.reshape(x.shape[0], DIMENSION)
        return l2_normalize(x) if self.hard else x


def load(path: Path, *, hard: bool = False) -> PatchDescriptor:
    """Load TFeat or HardTFeat with published weights; patches are resized to 32×32 bilinearly.

    From 65×65 the resize is exact up to rounding to whole grey values. Some builds of OpenCV, which
    the authors used, are off by up to one, and so give slightly different descriptors.
    """
    params = load_params(path, HARD_SHAPES if hard else SHAPES)

    def apply(variables: Any, patches: Array) -> Array:
        return TFeat(hard).apply({"params": variables}, patches[..., None])

    describe = batched(apply, params, size=PATCH_SIZE)
    name = "HardTFeat" if hard else "TFeat"
    return PatchDescriptor(name, path.name, "L2", DIMENSION, count(params), describe)


def load_params(path: Path, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, Any]:
    """Load the parameters of `TFeat`."""
    arrays = read_arrays(path)
    flat = arrays.get("descr.0.weight")
    if flat is not None and flat.shape == (DIMENSION, 64 * 8 * 8):
        arrays["descr.0.weight"] = flat.reshape(DIMENSION, 64, 8, 8)
    layers = convolutions(arrays, shapes)
    return dict(zip(("conv1", "conv2", "head"), layers.values(), strict=True))
