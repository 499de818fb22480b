"""Many trainings in one process: what they share is read, placed and compiled once."""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from kjax.architecture import Descriptor
from kjax.config import RunConfig
from kjax.data.resident import ResidentSet, make_resident
from kjax.data.sampler import check_stream
from kjax.errors import InputError
from kjax.train.parallel import Programme, initial_state, make_resident_run, replicated
from kjax.train.run import make_programme, read_train_set

STEPS_PER_DISPATCH = 250


class Diverged(InputError):  # noqa: N818  (it may be expected)
    """A training whose loss is not finite any more: its settings cannot be used."""


class Trained(NamedTuple):
    """What a training leaves."""

    variables: dict[str, Any]
    seconds: float
    """That its steps took."""


class Sets:
    """Training sets on the device, each combination of them once."""

    def __init__(self, folder: Path, progress: bool) -> None:
        """Reads nothing yet.

        Args:
            folder: that holds the sets' folders.
            progress: whether to show a bar while one is read.
        """
        self._folder, self._progress = folder, progress
        self._kept: dict[tuple[str, ...], ResidentSet] = {}
        self._lock = threading.Lock()  # several trainings may be prepared at once

    def place(self, config: RunConfig, programme: Programme) -> ResidentSet:
        """The config's training sets as one."""
        names = config.data.train
        with self._lock:
            if names not in self._kept:
                folders = tuple(str(self._folder / name) for name in names)
                data = dataclasses.replace(config.data, train=folders)
                own = dataclasses.replace(config, data=data, progress=self._progress)
                self._kept[names] = make_resident(read_train_set(own), device=replicated(programme))
            return self._kept[names]


@dataclasses.dataclass(frozen=True)
class Training:
    """A compiled training run that any seed can use.

    Attributes:
        programme: with some seed.
        steps: its length.
        data: on the device.
        run: as `make_resident_run` returns it.
        compile_seconds: that it took.
    """

    programme: Programme
    steps: int
    data: ResidentSet
    run: Callable[..., Any]
    compile_seconds: float

    @property
    def model(self) -> Descriptor:
        """What is trained."""
        return self.programme.model

    def train(self, seed: int, *, name: str, progress: bool = True) -> Trained:
        """The weights after all steps.

        Args:
            seed: of everything random.
            name: for the bar.
            progress: whether to show one.
        """
        state = initial_state(dataclasses.replace(self.programme, seeds=(seed,)))
        jax.block_until_ready(state)
        pairs, begun = self.programme.pairs, time.perf_counter()
        with tqdm(
            total=self.steps * pairs,
            desc=name,
            unit=" pairs",
            unit_scale=True,
            disable=not progress,
        ) as bar:
            for first in range(0, self.steps, STEPS_PER_DISPATCH):
                steps = min(STEPS_PER_DISPATCH, self.steps - first)
                state, metrics = self.run(state, self.data, steps, seed=seed)
                loss = float(np.mean(metrics["loss"]))
                if not np.isfinite(loss):
                    raise Diverged(
                        f"{name}: the loss is not finite after {first + steps} steps: lower "
                        "optimizer.learning_rate"
                    )
                bar.update(steps * pairs)
                bar.set_postfix(loss=f"{loss:.4f}")
        seconds = time.perf_counter() - begun
        variables = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
        return Trained(variables, seconds)


def prepare(config: RunConfig, sets: Sets) -> Training:
    """Compiles a training run; any seed can then use it."""
    programme = make_programme(config)
    data = sets.place(config, programme)
    check_stream(len(data.table.starts), programme.pairs, seed=config.seed)
    begun = time.perf_counter()
    run = make_resident_run(programme)
    # No steps compile as much as many do. (On CPUs, where the host loops, the first step compiles.)
    if jax.default_backend() != "cpu":
        jax.block_until_ready(run(initial_state(programme), data, 0))
    seconds = time.perf_counter() - begun
    return Training(programme, config.train.total_steps, data, run, seconds)
