"""Descriptors of misaligned patches: to learn a map of them from, and to tell what it gave."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from kjax.data.phototour import PatchSet
from kjax.eval.entries import model_member
from kjax.eval.misalignment import mean_precision, noisy_set
from kjax.model.aggregation import l2_normalize
from kjax.train.refitting import Views
from kjax.weights.source import LoadedModel

HELD_OUT = 8
"""One of so many points is not learned from."""


class Described(NamedTuple):
    """Descriptors of a reference of each point and of misaligned others."""

    seen: Views
    held_out: Views


def describe_misaligned(
    source: LoadedModel, sets: Sequence[PatchSet], *, points: int, progress: bool
) -> Described:
    """Describes patches that are cut askew by as much as HPatches' are.

    Args:
        source: the weights.
        sets: to learn from.
        points: of each set, at most.
        progress: show bars.
    """
    member = model_member(source.model, source.variables, keep=False)
    views = []
    for one in sets:
        askew = noisy_set(one, size=source.model.patch_size, points=points, group=points)
        rows = member.describe(askew.patches, progress=progress)
        views.append(rows.reshape(1 + len(askew.names), *askew.groups, -1))
    described = np.concatenate(views, axis=1)
    held_out = np.arange(described.shape[1]) % HELD_OUT == 0
    return Described(described[:, ~held_out], described[:, held_out])


def mean_matching(views: Views, width: int) -> float:
    """Average precision of matching the first entries of all points, mean over their targets."""
    rows = l2_normalize(jnp.asarray(views[..., :width].reshape(-1, width)))
    count, targets = views.shape[1], len(views) - 1
    return float(mean_precision(rows, [count], targets=targets).mean())
