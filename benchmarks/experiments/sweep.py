"""Run many trainings in one process, score them, and record each as soon as it is done.

Sets are read and placed on the device once, and trainings that differ in their seed share a
compiled program. While one training runs, the next ones compile. A sweep can be stopped at any
time: recorded trainings are skipped, and an interrupted one starts again with the same result.
"""

import dataclasses
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from program import append_record, read_records, software
from tqdm import tqdm

from experiments.scoring import Scorer, Tests, concise
from experiments.trainings import Training
from kjax.baselines import BASELINES
from kjax.data.pipelines import ResidentSet, make_resident
from kjax.data.sampler import check_streams
from kjax.errors import InputError, check_name
from kjax.eval.entries import find_entry
from kjax.eval.run import score
from kjax.runs.config import DataConfig, RunConfig
from kjax.train.distil import sample
from kjax.train.loop import Diverged, Schedule, train
from kjax.train.parallel import DescriptorProgram, initial_state, make_resident_run, replicated
from kjax.train.run import (
    make_learning_rate,
    make_program,
    read_train_set,
    with_ordered_teacher,
)
from kjax.weights.files import save_variables

STEPS_PER_DISPATCH = 250
COMPILING_AHEAD = 2
"""Number of trainings that compile while another runs."""


class ResidentSets:
    """Training sets on the device, each combination once."""

    def __init__(self, folder: Path, progress: bool) -> None:
        self._folder, self._progress = folder, progress
        self._kept: dict[tuple[DataConfig, int], tuple[ResidentSet, np.ndarray]] = {}
        self._lock = threading.Lock()  # several trainings may be prepared at once

    def place(
        self, config: RunConfig, program: DescriptorProgram
    ) -> tuple[ResidentSet, np.ndarray]:
        """Return the config's training sets as one, and a sample of their patches on the host."""
        key = config.data, config.train.group
        with self._lock:
            if key not in self._kept:
                folders = tuple(str(self._folder / name) for name in config.data.train)
                data = dataclasses.replace(config.data, train=folders)
                own = dataclasses.replace(config, data=data, progress=self._progress)
                patches = read_train_set(own)
                resident = make_resident(patches, device=replicated(program))
                self._kept[key] = resident, np.array(sample(patches.patches))
            return self._kept[key]


@dataclasses.dataclass(frozen=True)
class CompiledTraining:
    """A compiled training that any seed can use."""

    config: RunConfig
    program: DescriptorProgram
    data: ResidentSet
    run: Callable[..., Any]
    compile_seconds: float

    def train(self, seed: int, *, name: str, progress: bool) -> tuple[dict[str, Any], float]:
        """Train with a seed; return the variables and the seconds of the steps."""
        program = dataclasses.replace(self.program, seeds=(seed,))
        state = jax.block_until_ready(initial_state(program))
        every = {"per_dispatch": STEPS_PER_DISPATCH, "log_every": STEPS_PER_DISPATCH}
        every |= {"eval_every": 0, "checkpoint_every": 0}
        schedule = Schedule(total=self.config.train.total_steps, **every)
        begun = time.perf_counter()
        state, _ = train(
            lambda state, steps: self.run(state, self.data, steps, seed=seed),
            pairs=program.pairs,
            schedule=schedule,
            learning_rate=make_learning_rate(self.config),
            state=state,
            name=name,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
        return jax.device_get({"params": state.params, "batch_stats": state.batch_stats}), seconds


def prepare(config: RunConfig, sets: ResidentSets) -> CompiledTraining:
    """Compile a training."""
    program = make_program(config)
    data, some_patches = sets.place(config, program)
    program = with_ordered_teacher(program, config, some_patches)
    check_streams(data.tables, program.pairs, program.shares, seed=config.seed, group=program.group)
    begun = time.perf_counter()
    run = make_resident_run(program)
    # Zero steps compile the same program. On CPUs the host loops, and the first step compiles.
    if jax.default_backend() != "cpu":
        jax.block_until_ready(run(initial_state(program), data, 0))
    return CompiledTraining(config, program, data, run, time.perf_counter() - begun)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Settings of a sweep; `records` is a file, `weights` a folder, or None to discard weights."""

    sets: ResidentSets
    scorer: Scorer
    records: Path
    weights: Path | None = None
    progress: bool = True

    def run(self, trainings: Sequence[Training]) -> int:
        """Run the trainings that are not recorded; return the number that failed."""
        failed = 0
        known = {record["name"] for record in read_records(self.records)}
        missing = [training for training in trainings if training.name not in known]
        with tqdm(total=len(missing), desc="trainings", disable=not self.progress) as bar:
            for training, compiled, first in self._prepared(missing):
                try:
                    variables, seconds = compiled.train(
                        training.seed, name=training.name, progress=self.progress
                    )
                except Diverged as error:
                    failed += 1
                    bar.write(f"{training.name}: {error}")
                    continue
                if self.weights is not None:
                    save_variables(weights_path(self.weights, training), variables)
                result = self.scorer.score(
                    training.row, compiled.program.model, variables, trained_on=training.train
                )
                record = make_record(
                    training.name,
                    training.experiment,
                    result,
                    group=training.group,
                    train=list(training.train),
                    seed=training.seed,
                    pairs=compiled.config.train.total_steps * compiled.program.pairs,
                    seconds=round(seconds, 3),
                    compile_seconds=round(compiled.compile_seconds, 1) if first else 0.0,
                    config=training.difference(),
                )
                append_record(self.records, record)
                bar.write(f"{training.name}: {seconds:.1f} s")
                bar.update()
        return failed

    def _prepared(
        self, trainings: Sequence[Training]
    ) -> Iterator[tuple[Training, CompiledTraining, bool]]:
        """Yield each training, compiled, and whether it was the first to use the program."""
        same = itertools.groupby(trainings, key=lambda one: dataclasses.replace(one, seed=0))
        groups = [list(group) for _, group in same]
        with ThreadPoolExecutor(COMPILING_AHEAD) as pool:
            waiting: list[Future[CompiledTraining]] = []
            try:
                for number, group in enumerate(groups):
                    while len(waiting) <= COMPILING_AHEAD and number + len(waiting) < len(groups):
                        ahead = groups[number + len(waiting)][0]
                        waiting.append(pool.submit(self._prepare, ahead))
                    compiled = waiting.pop(0).result()
                    for place, training in enumerate(group):
                        yield training, compiled, place == 0
            finally:
                for future in waiting:
                    future.cancel()

    def _prepare(self, training: Training) -> CompiledTraining:
        compiled = prepare(training.config(), self.sets)
        state = initial_state(compiled.program)
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        self.scorer.warm_up(compiled.program.model, variables)
        return compiled


def score_rivals(
    names: Sequence[str] | None, tests: Tests, records: Path, *, weights: dict[str, str]
) -> list[str]:
    """Score descriptors of others (default: all) that are not recorded yet.

    Returns why some could not be scored, e.g. without their file in `weights`.
    """
    for name in names or ():
        check_name("rival", name, BASELINES)
    if not tests.sets and tests.benchmark is None:
        raise InputError("nothing to score on: give --test or --hpatches")
    known = {record["name"] for record in read_records(records)}
    missing = []
    for name in tqdm(names or list(BASELINES), desc="rivals", unit="rival"):
        if f"rivals/{name}" in known:
            continue
        entry = find_entry(name, weights=weights)
        if entry.missing is not None:
            missing.append(f"{name}: {entry.missing}")
            continue
        result, _ = score(entry, tests.sets, tests.benchmark, progress=False)
        append_record(records, make_record(f"rivals/{name}", "rivals", concise(result)))
    return missing


def make_record(name: str, experiment: str, result: Any, **training: Any) -> dict[str, Any]:
    """Return a record; descriptors of others have no training."""
    blank = {"group": "", "train": [], "seed": None, "pairs": 0, "seconds": 0.0}
    blank |= {"compile_seconds": 0.0, "config": {}}
    about = {"hardware": jax.devices()[0].device_kind, "versions": software()}
    own = {"name": name, "experiment": experiment, **blank, **training}
    return {**own, "result": dataclasses.asdict(result), **about}


def weights_path(folder: Path, training: Training) -> Path:
    """Return the file for a training's weights, named by characters that every system takes."""
    return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '_', training.name)}.npz"
