"""Shorter descriptors out of nested ones: the first entries, normalised, are descriptors too.

`kjax.train.refitting` makes it so of weights that were not trained for it.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kjax.errors import InputError
from kjax.model.descriptor import Descriptor


def shorten(
    model: Descriptor, variables: Mapping[str, Any], dimension: int
) -> tuple[Descriptor, dict[str, Any]]:
    """The model of the first entries alone, with its variables: a smaller projection.

    Whether those entries are any good is up to the training: see `nested` of
    `kjax.runs.config.LossConfig`.

    Args:
        model: of a head that projects, not folded.
        variables: its weights.
        dimension: how many entries to keep.
    """

    def first_entries(group: Mapping[str, Any]) -> dict[str, Any]:
        # Kernel, bias and BatchNorm's statistics all have the descriptor's entries as last axis.
        head = jax.tree.map(lambda leaf: leaf[..., :dimension], group.get("head", {}))
        return {**group, "head": head} if head else dict(group)

    shorter = {name: first_entries(group) for name, group in variables.items()}
    return model.clone(dimension=dimension), shorter


def remap(
    variables: Mapping[str, Any], matrix: Float[np.ndarray, "dim dim"]
) -> dict[str, dict[str, Any]]:
    """The weights of the same model whose descriptors are mapped before they are normalised.

    Args:
        variables: of a head that ends with its projection, as the encoded ones do and, folded,
            the fully connected one does.
        matrix: its columns are the new entries. If it is orthogonal, all distances stay.

    Raises:
        InputError: something stands between the projection and the descriptor, or there is none.
    """
    check_remap(variables)
    head = variables["params"]["head"]
    mapped = {name: np.asarray(weights, np.float64) @ matrix for name, weights in head.items()}
    kept = {name: jnp.asarray(weights, head[name].dtype) for name, weights in mapped.items()}
    return {**variables, "params": {**variables["params"], "head": kept}}


def check_remap(variables: Mapping[str, Any]) -> None:
    """Refuses weights whose descriptors cannot be mapped so.

    Raises:
        InputError: something stands between the projection and the descriptor, or there is none.
    """
    if "head" not in variables["params"] or "head" in variables.get("batch_stats", {}):
        raise InputError(
            "only heads that end with their projection can be refitted: xy, polar, combined and "
            "combined_star; hardnet's has BatchNorm behind it, sum and cat have none"
        )
