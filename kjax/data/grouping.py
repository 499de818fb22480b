"""Points of one photograph side by side, so that a batch can take several of them at once.

Whoever matches photographs has to tell a point from all others of the same photograph. Points of
other photographs, of which most of a random batch consists, are easier to tell it from.
"""

import dataclasses

import numpy as np

from kjax.data.phototour import PatchSet, read_interest
from kjax.errors import InputError


def by_photograph(patch_set: PatchSet) -> PatchSet:
    """The same patches with the points numbered photograph by photograph, in random order in each.

    A point belongs to the photograph of its first patch.

    Raises:
        InputError: the set does not tell where its patches come from.
    """
    interest = read_interest(patch_set.folder, patch_count=len(patch_set.point_ids))
    if interest is None:
        raise InputError(
            f"{patch_set.folder} lacks interest.txt, which names each patch's photograph: "
            "train with config.train.group=1"
        )
    _, first, point = np.unique(patch_set.point_ids, return_index=True, return_inverse=True)
    photograph = interest[first, 0]
    # Random, as a detector finds neighbours one after the other, and overlapping patches are no
    # negatives. The same for all seeds: what differs between them is which groups come when.
    order = np.lexsort((np.random.default_rng(0).permutation(len(first)), photograph))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return dataclasses.replace(patch_set, point_ids=number[point])
