"""Inference with fewer operations: what does not depend on the patch is folded into the weights."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from kjax.errors import InputError
from kjax.model.aggregation import dense_matrix
from kjax.model.descriptor import SYSTEMS, Descriptor
from kjax.model.dimensions import ENCODED_HEADS, TRUNK_STRIDE
from kjax.model.kernels.batch_norm import EPSILON
from kjax.model.position_encoding import position_matrix


def fold(
    model: Descriptor, variables: Mapping[str, Any]
) -> tuple[Descriptor, dict[str, dict[str, Any]]]:
    """A model and variables that give the same descriptors with fewer operations.

    Every convolution, and `hardnet`'s fully connected layer, absorbs the BatchNorm that follows it:
    kernel/√(var+ε), and −mean/√(var+ε) as bias. The result is for inference only.

    Examples:
        >>> fast, folded = kjax.fold(model, variables)
        >>> descriptors = jax.jit(fast.apply)(folded, patches)
    """
    if model.folded:
        raise InputError("this model is folded already")
    params, stats = variables["params"], variables["batch_stats"]
    folded = {
        name: _fold_trunk(params[name], stats[name]) for name in params if name.startswith("trunk")
    }
    if "head" in stats:
        folded["head"] = _absorb(params["head"], stats["head"]["norm"])
    elif "head" in params:
        folded["head"] = dict(params["head"])
    return model.clone(folded=True), {"params": jax.device_put(folded)}


def fold_head(
    folded: Descriptor, weights: Mapping[str, Any]
) -> tuple[Descriptor, Mapping[str, Any]]:
    """What `fold` gives, with position encoding as part of the weights, where that saves work.

    M vec(ΦᵀF) is one fully connected layer on vec(Φ), as `hardnet` has it: with one trunk its
    product takes less time than encoding first, with two as much. It only takes patches of the
    model's own size.
    """
    if folded.head not in ENCODED_HEADS or folded.head == "combined_star":
        return folded, weights
    params = dict(weights["params"])
    kernel, side = np.asarray(params["head"]["kernel"]), folded.patch_size // TRUNK_STRIDE
    systems = SYSTEMS[folded.head]
    layers = [
        dense_matrix(
            position_matrix(side, folded.position_kernel, system), part, multiply=np.matmul
        )
        for system, part in zip(systems, np.split(kernel, len(systems)), strict=True)
    ]
    shape = (side, side, folded.channels[-1], folded.dimension)
    params["head"] = {
        "kernel": sum(layers[1:], start=layers[0]).reshape(shape).astype(kernel.dtype),
        "bias": params["head"].get("bias", np.zeros(folded.dimension, kernel.dtype)),
    }
    return folded.clone(head="hardnet"), {"params": jax.device_put(params)}


def _fold_trunk(params: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    return {conv: _absorb(params[conv], stats[conv.replace("conv", "norm")]) for conv in params}


def _absorb(layer: Mapping[str, Any], norm: Mapping[str, Any]) -> dict[str, Any]:
    kernel, var = layer["kernel"], norm["var"]
    # NumPy's arrays stay there: JAX would compile a program for every few numbers.
    scale = 1 / var.__array_namespace__().sqrt(var + EPSILON)
    broadcast = (1,) * (kernel.ndim - 1) + (-1,)  # the output channel is the last axis
    return {"kernel": kernel * scale.reshape(broadcast), "bias": -norm["mean"] * scale}
