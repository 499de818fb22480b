"""Many trainings in one process: what they share is read, placed and compiled once."""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from kjax.data.resident import ResidentSet, make_resident
from kjax.data.sampler import check_streams
from kjax.model.descriptor import Descriptor
from kjax.runs.config import DataConfig, RunConfig
from kjax.train.loop import Schedule, train
from kjax.train.parallel import Program, initial_state, make_resident_run, replicated
from kjax.train.run import (
    make_learning_rate,
    make_program,
    read_train_set,
    with_ordered_teacher,
)
from kjax.train.teacher import sample

STEPS_PER_DISPATCH = 250


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
        self._kept: dict[tuple[DataConfig, int], tuple[ResidentSet, np.ndarray]] = {}
        self._lock = threading.Lock()  # several trainings may be prepared at once

    def place(self, config: RunConfig, program: Program) -> tuple[ResidentSet, np.ndarray]:
        """The config's training sets as one, and some of their patches on the host."""
        wanted = config.data, config.train.group
        with self._lock:
            if wanted not in self._kept:
                folders = tuple(str(self._folder / name) for name in config.data.train)
                data = dataclasses.replace(config.data, train=folders)
                own = dataclasses.replace(config, data=data, progress=self._progress)
                patches = read_train_set(own)
                resident = make_resident(patches, device=replicated(program))
                self._kept[wanted] = resident, np.array(sample(patches.patches))
            return self._kept[wanted]


@dataclasses.dataclass(frozen=True)
class CompiledTraining:
    """A compiled training run that any seed can use.

    Attributes:
        config: with some seed.
        program: of the config.
        data: on the device.
        run: as `make_resident_run` returns it.
        compile_seconds: that it took.
    """

    config: RunConfig
    program: Program
    data: ResidentSet
    run: Callable[..., Any]
    compile_seconds: float

    @property
    def model(self) -> Descriptor:
        """What is trained."""
        return self.program.model

    @property
    def pairs(self) -> int:
        """How many a training sees."""
        return self.config.train.total_steps * self.program.pairs

    def train(self, seed: int, *, name: str, progress: bool = True) -> Trained:
        """The weights after all steps.

        Args:
            seed: of everything random.
            name: for the bar.
            progress: whether to show one.

        Raises:
            Diverged: the settings cannot be used.
        """
        program = dataclasses.replace(self.program, seeds=(seed,))
        state = jax.block_until_ready(initial_state(program))
        begun = time.perf_counter()
        state, _ = train(
            program,
            lambda state, steps: self.run(state, self.data, steps, seed=seed),
            schedule=Schedule(
                total=self.config.train.total_steps,
                per_dispatch=STEPS_PER_DISPATCH,
                log_every=STEPS_PER_DISPATCH,
                eval_every=0,
                checkpoint_every=0,
            ),
            learning_rate=make_learning_rate(self.config),
            state=state,
            name=name,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
        variables = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
        return Trained(variables, seconds)


def prepare(config: RunConfig, sets: Sets) -> CompiledTraining:
    """Compiles a training run; any seed can then use it."""
    program = make_program(config)
    data, some_patches = sets.place(config, program)
    program = with_ordered_teacher(program, config, some_patches)
    check_streams(data.tables, program.pairs, program.shares, seed=config.seed, group=program.group)
    begun = time.perf_counter()
    run = make_resident_run(program)
    # No steps compile as much as many do. (On CPUs, where the host loops, the first step compiles.)
    if jax.default_backend() != "cpu":
        jax.block_until_ready(run(initial_state(program), data, 0))
    return CompiledTraining(config, program, data, run, time.perf_counter() - begun)
