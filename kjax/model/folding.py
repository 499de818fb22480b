"""Models made of trained ones: BatchNorm folded, shorter descriptors, mapped descriptors."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from kjax.errors import InputError
from kjax.extras import jax
from kjax.model import ENCODED_HEADS, EPSILON, TRUNK_STRIDE
from kjax.model.architecture import SYSTEMS, Architecture
from kjax.model.position_encoding import dense_matrix, position_matrix

Model = TypeVar("Model", bound=Architecture)


def fold(
    model: Model, variables: Mapping[str, Any], *, on_host: bool = False
) -> tuple[Model, dict[str, dict[str, Any]]]:
    """Return a model and variables that give the same descriptors with fewer operations.

    Every convolution, and `hardnet`'s fully connected layer, absorbs the BatchNorm that follows it:
    kernel/√(var+ε), and −mean/√(var+ε) as bias. The result is for inference only. With
    `on_host` NumPy arrays stay NumPy's.

    Examples:
        >>> fast, folded = kjax.fold(model, variables)
        >>> descriptors = jax.jit(fast.apply)(folded, patches)
    """
    if model.folded:
        raise InputError("this model is already folded")
    params, stats = variables["params"], variables["batch_stats"]

    def absorb(layer: Mapping[str, Any], norm: Mapping[str, Any]) -> dict[str, Any]:
        kernel, var = layer["kernel"], norm["var"]
        scale = 1 / var.__array_namespace__().sqrt(var + EPSILON)
        broadcast = (1,) * (kernel.ndim - 1) + (-1,)  # the output channel is the last axis
        return {"kernel": kernel * scale.reshape(broadcast), "bias": -norm["mean"] * scale}

    folded = {
        name: {
            conv: absorb(layer, stats[name][conv.replace("conv", "norm")])
            for conv, layer in params[name].items()
        }
        for name in params
        if name.startswith("trunk")
    }
    if "head" in stats:
        folded["head"] = absorb(params["head"], stats["head"]["norm"])
    elif "head" in params:
        folded["head"] = dict(params["head"])
    if "context" in params:
        folded["context"] = dict(params["context"])
    return model.clone(folded=True), {"params": folded if on_host else jax.device_put(folded)}


def fold_head(folded: Model, weights: Mapping[str, Any]) -> tuple[Model, Mapping[str, Any]]:
    """Fold the position encoding into the weights too, where that saves work.

    M vec(ΦᵀF) is one fully connected layer on vec(Φ), as in `hardnet`. With one trunk this product
    is faster than encoding first, with two it is not. The result only takes patches of the model's
    own size.
    """
    if folded.head not in ENCODED_HEADS or folded.head == "combined_star":
        return folded, weights
    params = dict(weights["params"])
    xp = params["head"]["kernel"].__array_namespace__()
    kernel, side = np.asarray(params["head"]["kernel"]), folded.patch_size // TRUNK_STRIDE
    systems = SYSTEMS[folded.head]
    layers = [
        dense_matrix(position_matrix(side, folded.position_kernel, system), part)
        for system, part in zip(systems, np.split(kernel, len(systems)), strict=True)
    ]
    size = kernel.shape[1]
    whole = sum(layers[1:], start=layers[0]).reshape(side, side, -1, size)
    params["head"] = {
        "kernel": xp.asarray(whole.astype(kernel.dtype)),
        "bias": params["head"].get("bias", xp.zeros(size, kernel.dtype)),
    }
    return folded.clone(head="hardnet"), {"params": params}


def shorten(
    model: Model, variables: Mapping[str, Any], dimension: int
) -> tuple[Model, dict[str, Any]]:
    """Return the model of the first `dimension` entries alone: a smaller projection.

    Only nested descriptors (see `nested` of `kjax.runs.config.LossConfig`) stay good this way. The
    model must not be folded, and its head must project.
    """
    name = _last_layer(variables)
    # Kernel, bias and BatchNorm's statistics all have the descriptor's entries as last axis.
    shorter = {
        kind: {
            layer: map_leaves(lambda leaf: leaf[..., :dimension], arrays)
            if layer == name
            else arrays
            for layer, arrays in group.items()
        }
        for kind, group in variables.items()
    }
    return model.clone(dimension=dimension), shorter


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """Change the arrays of variables, as `jax.tree.map` does."""
    if isinstance(tree, Mapping):
        return {name: map_leaves(change, inner) for name, inner in tree.items()}
    return change(tree)


def remap(
    variables: Mapping[str, Any], matrix: Float[np.ndarray, "dim dim"]
) -> dict[str, dict[str, Any]]:
    """Multiply the descriptors, before they are normalised, by a matrix of new entries in columns.

    The head must end with its projection: an encoded one, or a folded `hardnet`.
    """
    check_remap(variables)
    name = _last_layer(variables)
    last = variables["params"][name]
    mapped = {part: np.asarray(weights, np.float64) @ matrix for part, weights in last.items()}
    kept = {part: weights.astype(last[part].dtype) for part, weights in mapped.items()}
    return {**variables, "params": {**variables["params"], name: kept}}


def check_remap(variables: Mapping[str, Any]) -> None:
    """Raise if these descriptors cannot be remapped."""
    name = _last_layer(variables)
    if name not in variables["params"] or name in variables.get("batch_stats", {}):
        raise InputError(
            "only heads that end with their projection can be refitted: xy, polar, combined and "
            "combined_star; hardnet's is followed by BatchNorm, sum and cat have none"
        )


def _last_layer(variables: Mapping[str, Any]) -> str:
    """Return the name of the layer that makes the descriptor's entries, if there is one."""
    return "context" if "context" in variables["params"] else "head"
