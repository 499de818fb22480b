"""L2-Net (Tian, Fan and Wu, CVPR 2017), the plain network of 128 dimensions.

The trunk that HardNet took over, with biases. Two kinds of weights are read:

* `L2Net-LIB.mat` and its siblings, as published, for MatConvNet: the struct `net`, whose cell
  array `layers` holds structs with the fields `type` and `weights`; and the mean image `pixMean`.
  Layers of type `conv` hold {kernel [h, w, in, out], bias}, those of type `bnormPair` {scale,
  shift, moments [out, 2]}, where a moment is the mean and the standard deviation; scale and shift
  are not used by L2-Net. The network `netCen` of the central-surround variant is left alone.
* a PyTorch port's state dict (or the same names in `.npz` or `.safetensors`): convolutions are
  features.{0, 3, …, 18}.{weight, bias}, statistics features.{1, 4, …, 19}.running_{mean, var} with
  an ε of 1e-10, and `pixMean` [32, 32], which ports leave out: then none is subtracted.

Inference only: the statistics are folded into the convolutions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import PatchDescriptor
from kjax.baselines.matlab import read_mat
from kjax.baselines.networks import batched, check_arrays, convolution, count, read_arrays
from kjax.errors import InputError
from kjax.model.aggregation import l2_normalize
from kjax.model.patches import normalize_patches

PATCH_SIZE = 32
DIMENSION = 128
INPUT_EPSILON = 1e-12
PORT_EPSILON = 1e-10
"""ε that PyTorch ports took off the variances, to add it again."""
# Output channels, side of the kernel and stride of each convolution.
_LAYERS = ((32, 3, 1), (32, 3, 1), (64, 3, 2), (64, 3, 1), (128, 3, 2), (128, 3, 1), (128, 8, 1))
_MEAN_IMAGE = "pixMean"
_KINDS = ("conv", "bnormPair")


class L2Net(nn.Module):
    """The network with folded BatchNorm; the input is normalised inside."""

    @nn.compact
    def __call__(self, images: Float[Array, "batch 32 32 1"]) -> Float[Array, "batch 128"]:
        """Descriptors of unit norm.

        The original ends in a local response normalisation whose window spans all channels, which
        is the same up to its small additive constant.
        """
        x = normalize_patches(images, epsilon=INPUT_EPSILON)
        for i, (channels, side, stride) in enumerate(_LAYERS[:-1], 1):
            conv = nn.Conv(channels, (side, side), strides=stride, padding=1, name=f"conv{i}")
            x = nn.relu(conv(x))
        channels, side, _ = _LAYERS[-1]
        x = nn.Conv(channels, (side, side), padding="VALID", name=f"conv{len(_LAYERS)}")(x)
        return l2_normalize(x.reshape(x.shape[0], DIMENSION))


def load(path: Path) -> PatchDescriptor:
    """L2-Net with published or ported weights; patches are resized to 32×32 bilinearly."""
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
    """Parameters of `L2Net` from a weights file, and the mean image that was in it."""
    arrays = _read_mat(path) if path.suffix == ".mat" else read_arrays(path)
    expected = _shapes()
    if _MEAN_IMAGE in arrays:
        expected[_MEAN_IMAGE] = (PATCH_SIZE, PATCH_SIZE)
    check_arrays(path, arrays, expected)
    params = {f"conv{i + 1}": _fold(arrays, 3 * i) for i in range(len(_LAYERS))}
    return params, arrays.get(_MEAN_IMAGE)


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    channels_in = 1
    for i, (channels, side, _) in enumerate(_LAYERS):
        shapes[f"features.{3 * i}.weight"] = (channels, channels_in, side, side)
        shapes[f"features.{3 * i}.bias"] = (channels,)
        shapes[f"features.{3 * i + 1}.running_mean"] = (channels,)
        shapes[f"features.{3 * i + 1}.running_var"] = (channels,)
        channels_in = channels
    return shapes


def _fold(arrays: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
    mean, variance = (arrays[f"features.{index + 1}.running_{of}"] for of in ("mean", "var"))
    deviation = np.sqrt(variance.astype(np.float64) + PORT_EPSILON)
    weight = arrays[f"features.{index}.weight"] / deviation[:, None, None, None]
    bias = (arrays[f"features.{index}.bias"] - mean) / deviation
    return convolution(weight, bias)


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a MatConvNet file under the names of the ports."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        content = read_mat(path)
        layers = content["net"]["layers"]
        parts = {
            kind: [layer["weights"] for layer in layers if layer["type"] == kind] for kind in _KINDS
        }
        arrays = _by_port_names(parts["conv"], parts["bnormPair"])
        if _MEAN_IMAGE in content:
            arrays[_MEAN_IMAGE] = np.asarray(content[_MEAN_IMAGE], np.float32)
    except Exception as error:  # whatever other contents make of these lines
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        raise InputError(f"{path}: not L2-Net's MatConvNet file ({reason})") from None
    return arrays


def _by_port_names(convolutions: list[Any], norms: list[Any]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    shapes = _shapes()
    for i, ((kernel, bias), (_, _, moments)) in enumerate(zip(convolutions, norms, strict=True)):
        out, channels_in, height, width = shapes[f"features.{3 * i}.weight"]
        # Axes of length one were lost in reading.
        kernel = np.asarray(kernel).reshape(height, width, channels_in, out)
        arrays[f"features.{3 * i}.weight"] = kernel.transpose(3, 2, 0, 1)
        arrays[f"features.{3 * i}.bias"] = np.asarray(bias).reshape(out)
        moments = np.asarray(moments, np.float64).reshape(out, 2)
        arrays[f"features.{3 * i + 1}.running_mean"] = moments[:, 0]
        arrays[f"features.{3 * i + 1}.running_var"] = moments[:, 1] ** 2 - PORT_EPSILON
    return arrays
