"""Shorter descriptors out of nested ones: the first entries, normalised, are descriptors too."""

from collections.abc import Mapping
from typing import Any

import jax

from kjax.model.descriptor import Descriptor


def shorten(
    model: Descriptor, variables: Mapping[str, Any], dimension: int
) -> tuple[Descriptor, dict[str, Any]]:
    """The model of the first entries alone, with its variables: a smaller projection.

    Whether those entries are any good is up to the training: see `nested` of
    `kjax.train.losses.LossConfig`.

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
