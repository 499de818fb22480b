"""A small set of random patches, and its stream of pairs, for the tests of both input paths."""

from pathlib import Path

import numpy as np

from kjax.data.phototour import PatchSet
from kjax.data.sampler import make_point_table, sample_pairs_on_host

PAIRS, SEED = 8, 11


def random_set() -> PatchSet:
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (90, 64, 64), dtype=np.uint8)
    return PatchSet("random", patches, rng.integers(0, 30, 90), Path())


def gathered_by_numpy(patch_set: PatchSet, steps: int) -> np.ndarray:
    """The pairs of the first steps, [steps, PAIRS, 2, 64, 64]."""
    table = make_point_table(patch_set.point_ids)
    numbers = sample_pairs_on_host(table, SEED, np.arange(steps), pairs=PAIRS)
    return np.asarray(patch_set.patches[numbers])
