"""The descriptors in PyTorch, for inference: fast, and without JAX.

    from kjax.parity.torch_twin import load

    model = load("best")                    # or a weights file
    descriptors = model(patches)            # [B,N,N] or [B,1,N,N], bytes or floats, to [B,128]

A model with context takes [B,C,N,N], C concentric patches per point.

It needs torch, NumPy and SciPy only. Weights and formulas are those of
`kjax.parity.torch_reference`, rearranged: BatchNorm is folded into the convolutions before it, and
position encoding and projection, both linear, are one matrix. Maps are channels-last in memory,
which is faster on CPUs and GPUs.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from kjax.errors import InputError, unknown_name
from kjax.model import CHANNELS, DIMENSION, ENCODED_HEADS, HEADS, TRUNK_STRIDE
from kjax.parity.torch_reference import TorchDescriptor
from kjax.weights import shipped
from kjax.weights.files import SUFFIXES, load_state_dict, read_metadata
from kjax.weights.info import Fields, merge_fields, only_fields, parse_fields
from kjax.weights.torch_names import (
    FC_INDEX,
    check_arrays,
    expected_shapes,
    infer_fields,
    infer_widths,
    plain_arrays,
)

DEFAULTS: Fields = {
    **{"s": 2, "patch_size": 32, "head_bias": True},
    **{"channels": CHANNELS, "dimension": DIMENSION, "context": (1,)},
}
"""Defaults of `kjax.build`."""


def load(source: str | Path = shipped.DEFAULT) -> "FoldedDescriptor":
    """Load a model for inference: a name of `kjax.list_weights()`, or a weights file.

    If neither weights nor metadata determine the head, add its fields: "weights.npz:polar,s=1".
    """
    return FoldedDescriptor(load_reference(source))


def load_reference(source: str | Path = shipped.DEFAULT) -> TorchDescriptor:
    """Load a model without folding, to continue its training."""
    name, _, text = str(source).partition(":")
    card = shipped.card(name) if shipped.find(name) else None
    if card and text:
        raise InputError(f"{name} ships with its own model: omit ':{text}'")
    path = shipped.weights_file(card) if card else Path(name)
    if path.suffix not in SUFFIXES:
        unknown = unknown_name("pretrained model", name, shipped.list_weights())
        raise InputError(f"{path} is not a weights file ({', '.join(SUFFIXES)}); {unknown}")
    try:
        arrays = plain_arrays(load_state_dict(path))
        info = card or read_metadata(path)
        known = merge_fields(info.model if info else {}, parse_fields(text) if text else {})
        fields = DEFAULTS | ({} if info else infer_widths(arrays))
        fields |= known or only_fields(infer_fields(arrays), path)
        head, head_bias = fields.pop("head"), fields.pop("head_bias")
        if head not in HEADS:
            raise unknown_name("head", head, HEADS)
        if fields["s"] < 1 or fields["patch_size"] < 8 or fields["patch_size"] % TRUNK_STRIDE:
            raise InputError("s must be at least 1, patch_size a multiple of 4 from 8 on")
        sizes = {name: fields[name] for name in DEFAULTS if name in fields}
        check_arrays(arrays, expected_shapes(head, head_bias=head_bias, **sizes))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    state = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in arrays.items()}
    if head in ENCODED_HEADS and not head_bias:
        # The reference has no choice.
        state["head.bias"] = torch.zeros(len(state["head.weight"]))
    for name in ("dropout", "dtype"):  # change nothing in inference
        fields.pop(name, None)
    reference = TorchDescriptor(head, **fields)
    reference.load_state_dict(state)
    return reference.eval()


class FoldedDescriptor(nn.Module):
    """A trained descriptor, folded for inference."""

    def __init__(self, reference: TorchDescriptor) -> None:
        super().__init__()
        reference = reference.eval()
        self.head_name, self.patch_size = reference.head_name, reference.patch_size
        self.patches_per_point = reference.patches_per_point
        self.context = copy.deepcopy(reference.context) if self.patches_per_point > 1 else None
        self.trunks = nn.ModuleList([_folded_trunk(reference.features)])
        if self.head_name == "combined_star":
            self.trunks.append(_folded_trunk(reference.features_polar))
        self.head = _projection(reference)
        self.trunks.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval().requires_grad_(False)

    def forward(self, patches: Tensor) -> Tensor:
        """Compute ℓ2-normalised descriptors of patches [B,N,N] or [B,C,N,N], uint8 or floating."""
        size, count = self.patch_size, self.patches_per_point
        shapes = [[size, size]] if count == 1 else []
        shapes.append([count, size, size])
        if list(patches.shape[1:]) not in shapes:
            forms = " or ".join(f"[B,{','.join(map(str, shape))}]" for shape in shapes)
            raise InputError(f"patches must have shape {forms}, not {list(patches.shape)}")
        if patches.dtype != torch.uint8 and not patches.dtype.is_floating_point:
            raise InputError(f"patches must be uint8 or floating point, not {patches.dtype}")
        wide = torch.float64 if patches.dtype == torch.float64 else torch.float32
        flat = patches.reshape(-1, size * size).to(wide)
        flat = flat - flat[:, :1]  # makes a constant patch exactly zero
        deviation, mean = torch.std_mean(flat, dim=1, keepdim=True)
        images = ((flat - mean) / (deviation + 1e-7)).view(-1, 1, size, size)
        images = images.to(next(self.trunks.parameters()).dtype)
        maps = [trunk(images) for trunk in self.trunks]
        if self.head is not None:
            psi = self.head(torch.cat([phi.permute(0, 2, 3, 1).flatten(1) for phi in maps], dim=1))
        elif self.head_name == "sum":
            psi = maps[0].sum(dim=(2, 3))
        else:
            psi = maps[0].flatten(1)
        if self.context is not None:
            psi = self.context(_unit(psi).view(len(patches), -1))
        return _unit(psi)


def _unit(psi: Tensor) -> Tensor:
    """Normalise; a zero vector becomes uniform, as in `kjax.model.aggregation.l2_normalize`."""
    squared = (psi * psi).sum(dim=1, keepdim=True)
    uniform = torch.full_like(squared, psi.shape[1] ** -0.5)
    return torch.where(squared == 0, uniform, psi / torch.sqrt(squared + 1e-10))


def _folded_trunk(layers: nn.Sequential) -> nn.Sequential:
    """Fold each BatchNorm into the convolution before it."""
    folded: list[nn.Module] = []
    for i in range(0, 3 * len(CHANNELS), 3):
        convolution: Any = layers[i]
        norm: Any = layers[i + 1]
        folded += [fuse_conv_bn_eval(convolution, norm), nn.ReLU(inplace=True)]
    return nn.Sequential(*folded)


def _projection(reference: TorchDescriptor) -> nn.Linear | None:
    """Return the head as one matrix on flattened maps, channels last; None for sum and cat."""
    name = reference.head_name
    if name == "hardnet":
        convolution: Any = reference.features[FC_INDEX]
        norm: Any = reference.features[FC_INDEX + 1]
        fused = fuse_conv_bn_eval(convolution, norm)
        return _linear(fused.weight.permute(0, 2, 3, 1).flatten(1), fused.bias)
    if name not in ENCODED_HEADS:
        return None
    n = reference.patch_size // TRUNK_STRIDE
    # One map for every position, with a 1 there: their encodings are the rows of F.
    basis = torch.eye(n * n, dtype=torch.float64).view(n * n, 1, n, n)
    alone = {"xy": [reference.encode_xy], "polar": [reference.encode_polar]}
    systems = alone.get(name, [reference.encode_xy, reference.encode_polar])
    blocks = reference.head.weight.double().chunk(len(systems), dim=1)
    matrices = [
        torch.einsum(
            "ock,pk->opc", block.unflatten(1, (reference.channels[-1], -1)), encode(basis)
        ).flatten(1)
        for block, encode in zip(blocks, systems, strict=True)
    ]
    shared = name == "combined"  # both systems then encode the same maps
    weight = torch.stack(matrices).sum(dim=0) if shared else torch.cat(matrices, dim=1)
    return _linear(weight, reference.head.bias)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight = nn.Parameter(weight.detach().to(bias.dtype).contiguous())
    layer.bias = nn.Parameter(bias.detach().clone())
    return layer
