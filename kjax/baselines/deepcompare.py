"""DeepCompare (Zagoruyko and Komodakis, CVPR 2015): the branches that describe one patch.

The siamese networks of the paper give a descriptor per patch; its two-channel networks do not. As
in the authors' ℓ2 rows, the decision layers are left out and descriptors are ℓ2-normalised:

| network     | descriptor | branch                                              |
|-------------|------------|-----------------------------------------------------|
| siam        | 256-D      | the whole patch                                     |
| siam2stream | 512-D      | its centre, and the whole patch at half resolution  |

The file determines the network. Supported files are the authors' binary files (`siam_liberty.bin`,
`siam2stream_liberty.bin`, …), their `.t7` files, and arrays named as in their PyTorch code, in
`.npz`, `.safetensors` or torch's files: conv{0, 1, 2}.{weight, bias} for siam, and
{retina, fovea}.conv{0, …, 3}.{weight, bias} for siam2stream.
"""

import struct
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from kjax.baselines.descriptor import PatchDescriptor, batched, convolutions, count, read_arrays
from kjax.baselines.torch7 import TorchObject, read_torch7
from kjax.errors import InputError
from kjax.model.aggregation import l2_normalize

PATCH_SIZE = 64
GREY_SCALE = 256.0
"""Divisor of grey values in the authors' evaluation, after subtracting the patch's mean."""
SIAM_SHAPES = ((96, 1, 7, 7), (192, 96, 5, 5), (256, 192, 3, 3))
STREAM_SHAPES = ((96, 1, 4, 4), (192, 96, 3, 3), (256, 192, 3, 3), (256, 256, 3, 3))
STREAMS = ("retina", "fovea")
LAYERS = {
    "siam": {f"conv{i}": shape for i, shape in enumerate(SIAM_SHAPES)},
    "siam2stream": {
        f"{stream}.conv{i}": shape for stream in STREAMS for i, shape in enumerate(STREAM_SHAPES)
    },
}
"""Shapes of the convolutions' weights, by their names in the authors' PyTorch code."""
NORM_EPSILON = 1e-24


class Branch(nn.Module):
    """Convolutions with ReLU between them: a stride in the first, pooling after the first ones."""

    shapes: tuple[tuple[int, ...], ...]
    stride: int
    pools: int

    @nn.compact
    def __call__(self, images: Float[Array, "batch side side 1"]) -> Float[Array, "batch 256"]:
        """Compute features, not normalised."""
        x = images
        for i, (channels, _, *sides) in enumerate(self.shapes):
            stride = 1 if i else self.stride
            x = nn.Conv(channels, sides, strides=stride, padding="VALID", name=f"conv{i}")(x)
            x = nn.relu(x) if i + 1 < len(self.shapes) else x
            x = nn.max_pool(x, (2, 2), strides=(2, 2)) if i < self.pools else x
        return x.reshape(x.shape[0], -1)


class Siam2Stream(nn.Module):
    """The branch with a central and a surround stream."""

    @nn.compact
    def __call__(self, images: Float[Array, "batch 64 64 1"]) -> Float[Array, "batch 512"]:
        """Compute features, not normalised."""
        retina, fovea = (Branch(STREAM_SHAPES, 2, 1, name=name) for name in STREAMS)
        half = nn.avg_pool(images, (2, 2), strides=(2, 2))
        return jnp.concatenate([retina(images[:, 16:48, 16:48, :]), fovea(half)], axis=-1)


def load(path: Path) -> PatchDescriptor:
    """Load DeepCompare with published weights; patches of 65×65 are resized to 64×64 bilinearly."""
    network, params = load_params(path)
    siam = network == "siam"
    module = Branch(SIAM_SHAPES, 3, 2) if siam else Siam2Stream()

    def apply(variables: Any, patches: Array) -> Array:
        images = patches[..., None]
        # Subtracting the first pixel makes a constant patch exactly zero; it changes nothing else.
        shifted = images - images[:, :1, :1, :]
        centred = shifted - shifted.mean(axis=(1, 2, 3), keepdims=True)
        features = module.apply({"params": variables}, centred / GREY_SCALE)
        return l2_normalize(nn.relu(features) if siam else features, epsilon=NORM_EPSILON)

    describe = batched(apply, params, size=PATCH_SIZE)
    name, dimension = f"DeepCompare {network}", 256 if siam else 512
    return PatchDescriptor(name, path.name, "L2", dimension, count(params), describe)


def load_params(path: Path) -> tuple[str, dict[str, Any]]:
    """Load the name of the network in a weights file, and the parameters of its module."""
    if path.suffix in (".bin", ".t7"):
        network, found = _read_binary(path) if path.suffix == ".bin" else _read_torch7(path)
        arrays: dict[str, np.ndarray] = {}
        for (name, shape), (weight, bias) in zip(LAYERS[network].items(), found, strict=False):
            if weight.size != np.prod(shape):
                raise InputError(f"{name} has {weight.size} weights, not {np.prod(shape)}")
            arrays |= {f"{name}.weight": weight.reshape(shape), f"{name}.bias": bias}
    else:
        arrays = read_arrays(path)
        network = "siam" if "conv0.weight" in arrays else "siam2stream"
    layers = convolutions(arrays, LAYERS[network])
    return network, flax.traverse_util.unflatten_dict(layers, sep=".")


def _read_binary(path: Path) -> tuple[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Read the authors' format: the network's name, then index, sizes and floats per layer."""
    if not path.is_file():
        raise InputError("no such file")
    content = path.read_bytes()
    try:
        (length,) = struct.unpack_from("<i", content)
        network = content[4 : 4 + length].decode("ascii").removesuffix("_desc")
        at = 4 + length
        layers = []
        while at < len(content):
            _, weights, biases = struct.unpack_from("<3i", content, at)
            if min(weights, biases) < 0:
                raise ValueError("a negative size")
            floats = np.frombuffer(content, "<f4", weights + biases, at + 12)
            layers.append((floats[:weights], floats[weights:]))
            at += 12 + floats.nbytes
    except (struct.error, ValueError) as error:
        raise InputError(f"not one of DeepCompare's binary files ({error})") from None
    if network not in LAYERS:
        raise InputError(
            f"{network!r} compares pairs of patches and has no descriptor: give siam or siam2stream"
        )
    return network, layers


def _read_torch7(path: Path) -> tuple[str, list[tuple[np.ndarray, np.ndarray]]]:
    model = read_torch7(path)
    parallel = model.modules()[:1] if isinstance(model, TorchObject) else []
    branches = parallel[0].modules() if parallel and parallel[0].kind == "nn.Parallel" else []
    if not branches:
        raise InputError("not one of DeepCompare's siamese networks")
    network = "siam2stream" if branches[0].kind == "nn.Concat" else "siam"
    return network, branches[0].convolutions()
