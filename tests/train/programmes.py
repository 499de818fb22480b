"""Small training programmes on a synthetic set: the real code, a few seconds each."""

from pathlib import Path

import jax
import numpy as np

import kjax
from kjax.augment import AugmentConfig
from kjax.data.phototour import PatchSet
from kjax.optim import linear_decay, torch_sgd
from kjax.train.parallel import Programme
from kjax.train.step import StepConfig


def synthetic_set(points: int = 40, per_point: int = 3) -> PatchSet:
    """Patches that differ from point to point, and a little within each."""
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(0, 200, (points, 1, 8, 8)), np.ones((1, 1, 8, 8), int))
    patches = coarse + rng.integers(0, 56, (points, per_point, 64, 64))
    ids = np.repeat(np.arange(points), per_point)
    return PatchSet("synthetic", patches.reshape(-1, 64, 64).astype(np.uint8), ids, Path())


def make_programme(
    *,
    devices: int | None = 1,
    dtype: str = "float32",
    dropout: float = 0.0,
    learning_rate: float = 0.1,
    steps: int = 20,
    **options,
) -> Programme:
    """A run of `hardnet` on 16×16 patches, with augmentation; kept quick to compile."""
    defaults = {
        "model": kjax.build("hardnet", patch_size=16, dtype=dtype, dropout=dropout),
        "optimizer": torch_sgd(linear_decay(learning_rate, steps)),
        "pairs": 8,
        "step": StepConfig(joint_batch_norm=True),
        "augment": AugmentConfig(),
        "devices": None if devices is None else tuple(jax.devices()[:devices]),
    }
    return Programme(**{**defaults, **options})
