"""Inference without BatchNorm: its running statistics are folded into the weights before it."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from kjax.errors import InputError
from kjax.model.descriptor import Descriptor
from kjax.model.kernels.batch_norm import EPSILON


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
    return model.clone(folded=True), {"params": folded}


def _fold_trunk(params: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    return {conv: _absorb(params[conv], stats[conv.replace("conv", "norm")]) for conv in params}


def _absorb(layer: Mapping[str, Any], norm: Mapping[str, Any]) -> dict[str, Any]:
    kernel = jnp.asarray(layer["kernel"])
    scale = 1 / jnp.sqrt(jnp.asarray(norm["var"]) + EPSILON)
    broadcast = (1,) * (kernel.ndim - 1) + (-1,)  # the output channel is the last axis
    return {"kernel": kernel * scale.reshape(broadcast), "bias": -norm["mean"] * scale}
