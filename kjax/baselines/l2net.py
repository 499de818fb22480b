"""L2-Net (Tian, Fan and Wu, CVPR 2017), the plain network of 128 dimensions; and HardNet.

L2-Net's trunk, which HardNet took over, has biases. Two kinds of weights are read:

* `L2Net-LIB.mat` and its siblings, as published for MatConvNet: the struct `net`, whose cell array
  `layers` holds structs with the fields `type` and `weights`; and the mean image `pixMean`. Layers
  of type `conv` hold {kernel [h, w, in, out], bias}, those of type `bnormPair` {scale, shift,
  moments [out, 2]}, where a moment is the mean and the standard deviation; L2-Net does not use
  scale and shift. The central-surround network `netCen` is ignored.
* a PyTorch port's state dict (or the same names in `.npz` or `.safetensors`): convolutions are
  features.{0, 3, …, 18}.{weight, bias}, statistics features.{1, 4, …, 19}.running_{mean, var} with
  an ε of 1e-10, and `pixMean` [32, 32], which ports leave out: then none is subtracted.

The statistics are folded into the convolutions: this is for inference only.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.io
from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import (
    PatchDescriptor,
    batched,
    check_arrays,
    convolution,
    count,
    read_arrays,
)
from kjax.errors import InputError, one_line
from kjax.model.aggregation import l2_normalize
from kjax.model.descriptor import build
from kjax.model.folding import fold
from kjax.model.patches import normalize_patches
from kjax.weights.files import load_state_dict
from kjax.weights.torch_names import from_torch

PATCH_SIZE = 32
DIMENSION = 128
INPUT_EPSILON = 1e-12
PORT_EPSILON = 1e-10
"""ε that PyTorch ports subtracted from the variances, to add it again."""
LAYERS = ((32, 3, 1), (32, 3, 1), (64, 3, 2), (64, 3, 1), (128, 3, 2), (128, 3, 1), (128, 8, 1))
"""Output channels, kernel side and stride of each convolution."""
MEAN_IMAGE = "pixMean"


class L2Net(nn.Module):
    """The network with folded BatchNorm; the input is normalised inside."""

    @nn.compact
    def __call__(self, images: Float[Array, "batch 32 32 1"]) -> Float[Array, "batch 128"]:
        """Compute descriptors of unit norm.

        The original ends in a local response normalisation over all channels, which is the same up
        to its small additive constant.
        """
        x = normalize_patches(images, epsilon=INPUT_EPSILON)
        for i, (channels, side, stride) in enumerate(LAYERS[:-1], 1):
            conv = nn.Conv(channels, (side, side), strides=stride, padding=1, name=f"conv{i}")
            x = nn.relu(conv(x))
        channels, side, _ = LAYERS[-1]
        x = nn.Conv(channels, (side, side), padding="VALID", name=f"conv{len(LAYERS)}")(x)
        return l2_normalize(x.reshape(x.shape[0], DIMENSION))


def load(path: Path) -> PatchDescriptor:
    """Load L2-Net with published or ported weights; patches are resized to 32×32 bilinearly."""
    params, mean_image = load_params(path)
    source = path.name
    if mean_image is None:
        source += " (holds no mean image: none subtracted)"
        mean_image = np.zeros((PATCH_SIZE, PATCH_SIZE), np.float32)

    def apply(variables: Any, patches: Array) -> Array:
        centred = patches - variables["mean"][None]
        return L2Net().apply({"params": variables["params"]}, centred[..., None])

    variables = {"params": params, "mean": jnp.asarray(mean_image, jnp.float32)}
    describe = batched(apply, variables, size=PATCH_SIZE)
    return PatchDescriptor("L2-Net", source, "L2", DIMENSION, count(params), describe)


def load_params(path: Path) -> tuple[dict[str, Any], np.ndarray | None]:
    """Load the parameters of `L2Net`, and the mean image if the file holds one."""
    shapes = array_shapes()
    arrays = _read_matconvnet(path, shapes) if path.suffix == ".mat" else read_arrays(path)
    if MEAN_IMAGE in arrays:
        shapes[MEAN_IMAGE] = (PATCH_SIZE, PATCH_SIZE)
    check_arrays(arrays, shapes)
    params = {}
    for i in range(len(LAYERS)):
        norm = f"features.{3 * i + 1}.running_"
        deviation = np.sqrt(arrays[f"{norm}var"].astype(np.float64) + PORT_EPSILON)
        weight = arrays[f"features.{3 * i}.weight"] / deviation[:, None, None, None]
        bias = (arrays[f"features.{3 * i}.bias"] - arrays[f"{norm}mean"]) / deviation
        params[f"conv{i + 1}"] = convolution(weight, bias)
    return params, arrays.get(MEAN_IMAGE)


def load_hardnet(path: Path) -> PatchDescriptor:
    """Load HardNet with released weights; patches are resized as its authors do."""
    model = build("hardnet", patch_size=PATCH_SIZE)
    variables = from_torch(load_state_dict(path), model)
    folded_model, folded = fold(model, variables)
    describe = batched(folded_model.apply, folded, size=PATCH_SIZE)
    parameters = count(variables["params"])
    return PatchDescriptor("HardNet", path.name, "L2", DIMENSION, parameters, describe)


def array_shapes() -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a port's arrays."""
    shapes: dict[str, tuple[int, ...]] = {}
    channels_in = 1
    for i, (channels, side, _) in enumerate(LAYERS):
        shapes[f"features.{3 * i}.weight"] = (channels, channels_in, side, side)
        shapes[f"features.{3 * i}.bias"] = (channels,)
        shapes[f"features.{3 * i + 1}.running_mean"] = (channels,)
        shapes[f"features.{3 * i + 1}.running_var"] = (channels,)
        channels_in = channels
    return shapes


def _read_matconvnet(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Read a MatConvNet file's arrays under the names of the ports."""
    if not path.is_file():
        raise InputError("no such file")
    arrays: dict[str, np.ndarray] = {}
    try:
        content = scipy.io.loadmat(path, simplify_cells=True)
        convolutions, norms = (
            [layer["weights"] for layer in content["net"]["layers"] if layer["type"] == kind]
            for kind in ("conv", "bnormPair")
        )
        for i, ((kernel, bias), (_, _, moments)) in enumerate(
            zip(convolutions, norms, strict=True)
        ):
            out, channels_in, height, width = shapes[f"features.{3 * i}.weight"]
            # Axes of length one were lost in reading.
            kernel = np.asarray(kernel).reshape(height, width, channels_in, out)
            arrays[f"features.{3 * i}.weight"] = kernel.transpose(3, 2, 0, 1)
            arrays[f"features.{3 * i}.bias"] = np.asarray(bias).reshape(out)
            moments = np.asarray(moments, np.float64).reshape(out, 2)
            arrays[f"features.{3 * i + 1}.running_mean"] = moments[:, 0]
            arrays[f"features.{3 * i + 1}.running_var"] = moments[:, 1] ** 2 - PORT_EPSILON
        if MEAN_IMAGE in content:
            arrays[MEAN_IMAGE] = np.asarray(content[MEAN_IMAGE], np.float32)
    except Exception as error:  # whatever other contents lead to
        raise InputError(f"not L2-Net's MatConvNet file ({one_line(error)})") from None
    return arrays
