"""Small training programs on a synthetic set: the real code, a few seconds each."""

import functools
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from refusals import assert_refused

import kjax
from kjax.data.phototour import PatchSet
from kjax.runs.config import AugmentConfig, RunConfig, load_config, override, validate
from kjax.train.optim import linear_decay, torch_sgd
from kjax.train.parallel import DescriptorProgram, initial_state, replicated
from kjax.train.step import StepConfig, TrainState

ROOT = Path(__file__).parents[2]
NARROW = {"patch_size": 8, "channels": (4, 4, 4, 4, 8, 8)}
PAPERS_RATE = {"dtype": "float64", "dropout": 0.3, "learning_rate": 10.0, "step": StepConfig()}
"""Options of a program that amplifies every difference, in double precision."""
SMALL_MODEL = ("model.patch_size=8", "model.channels=(4,4,4,4,8,8)", "model.dimension=16")


def make_config(set_folder: Path | str, *settings: str) -> RunConfig:
    """A run of six steps of a narrow model, with every part of the loop at work."""
    config = load_config(ROOT / "configs" / "smoke.py")
    sets = (f"data.train={set_folder}", f"data.test={set_folder}")
    cadence = ("steps=6", "log_every=2", "eval_every=3", "checkpoint_every=2")
    every = (*SMALL_MODEL, *sets, *(f"train.{one}" for one in cadence), *settings)
    override(config, [f"--config.{setting}" for setting in every])
    return validate(config)


def environment(*, devices: int) -> dict[str, str]:
    """Environment of other processes: the same XLA flags, and this number of devices."""
    flags = re.sub(r"(device_count)=\d+", rf"\1={devices}", os.environ["XLA_FLAGS"])
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}


@functools.cache
def synthetic_set(points: int = 40, per_point: int = 3) -> PatchSet:
    """Patches that differ from point to point, and a little within each."""
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(0, 200, (points, 1, 8, 8)), np.ones((1, 1, 8, 8), int))
    patches = coarse + rng.integers(0, 56, (points, per_point, 64, 64))
    ids = np.repeat(np.arange(points), per_point)
    return PatchSet("synthetic", patches.reshape(-1, 64, 64).astype(np.uint8), ids, Path())


_sgd = functools.cache(torch_sgd)  # so that programs with the same arguments are equal


def make_program(
    *,
    devices: int | None = 1,
    dtype: str = "float32",
    dropout: float = 0.0,
    learning_rate: float = 0.1,
    steps: int = 20,
    **options,
) -> DescriptorProgram:
    """A program of a narrow `hardnet` on 8×8 patches, with augmentation."""
    defaults = {
        "model": kjax.build("hardnet", dtype=dtype, dropout=dropout, dimension=16, **NARROW),
        "optimizer": _sgd(linear_decay(learning_rate, steps)),
        "pairs": 8,
        "step": StepConfig(joint_batch_norm=True),
        "augment": AugmentConfig(),
        "devices": None if devices is None else tuple(jax.devices()[:devices]),
    }
    return DescriptorProgram(**{**defaults, **options})


_starts: dict[tuple, TrainState] = {}


def start(program: DescriptorProgram) -> TrainState:
    """`initial_state`, computed once for all programs with the same start: it takes seconds."""
    alike = (program.model, program.seeds, jax.config.jax_enable_x64)
    if alike not in _starts:
        _starts[alike] = jax.device_get(initial_state(program))
    return jax.device_put(_starts[alike], replicated(program))


refusal = functools.partial(assert_refused, "")
"""Return the message, in one line, with which a call is refused."""


def contents(folder: Path) -> dict[str, bytes]:
    """Return what a folder's files hold, by their path within it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@contextmanager
def filling_disk() -> Iterator[Callable[[int], None]]:
    """Yield a function after whose call no file can grow beyond so many bytes.

    Python ignores the signal that comes with it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda room: resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
