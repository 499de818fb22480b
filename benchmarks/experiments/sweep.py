"""Runs and scores trainings, one after the other, and records each as soon as it is done.

While one runs, the next ones compile. A sweep can be stopped at any time: what is recorded is not
computed again, and the training that was interrupted starts anew with the same result.
"""

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from experiments.compiled_training import CompiledTraining, Sets, Trained, prepare
from experiments.records import Record, append_record, read_records
from experiments.scoring import Scorer
from experiments.trainings import Training
from kjax.runs.workdir import plain_versions
from kjax.train.loop import Diverged
from kjax.train.parallel import initial_state
from kjax.weights.files import save_variables

SOFTWARE = ("kjax", "python", "jax", "flax", "optax", "commit")
COMPILING_AHEAD = 2
"""Trainings that compile while another runs."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """How trainings are run.

    Attributes:
        sets: to train on.
        scorer: of what is trained.
        records: file to add to.
        weights: folder for the trained weights; None to keep none.
        seconds: after which no other training is begun; None for no limit.
        progress: whether to show bars.
    """

    sets: Sets
    scorer: Scorer
    records: Path
    weights: Path | None = None
    seconds: float | None = None
    progress: bool = True

    def run(self, trainings: Sequence[Training]) -> int:
        """Runs those that are not recorded yet. One that fails is told of, and not recorded.

        Returns:
            How many are left.
        """
        begun, failed = time.perf_counter(), 0
        known = {record.name for record in read_records(self.records)}
        missing = [training for training in trainings if training.name not in known]
        with tqdm(
            total=len(missing), desc="trainings", unit="training", disable=not self.progress
        ) as bar:
            for done, (training, compiled, compiled_now) in enumerate(self._prepared(missing)):
                if self.seconds is not None and time.perf_counter() - begun > self.seconds:
                    return failed + len(missing) - done
                try:
                    trained = compiled.train(
                        training.seed, name=training.name, progress=self.progress
                    )
                except Diverged as error:
                    failed += 1
                    bar.write(f"{training.name}: {error}")
                    continue
                record = self._record(training, compiled, trained, compiled_now)
                if self.weights is not None:
                    save_variables(weights_path(self.weights, training), trained.variables)
                append_record(self.records, record)
                bar.write(summary(record))
                bar.update()
        return failed

    def _prepared(
        self, trainings: Sequence[Training]
    ) -> Iterator[tuple[Training, CompiledTraining, bool]]:
        """Every training, compiled, and whether that was compiled for it."""
        groups = _grouped(trainings)
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
        self.scorer.warm_up(
            compiled.model, {"params": state.params, "batch_stats": state.batch_stats}
        )
        return compiled

    def _record(
        self, training: Training, compiled: CompiledTraining, trained: Trained, compiled_now: bool
    ) -> Record:
        return Record(
            name=training.name,
            experiment=training.experiment,
            group=training.group,
            train=list(training.train),
            seed=training.seed,
            result=self.scorer.score(
                training.row, compiled.model, trained.variables, trained_on=training.train
            ),
            pairs=compiled.pairs,
            seconds=round(trained.seconds, 3),
            compile_seconds=round(compiled.compile_seconds, 1) if compiled_now else 0.0,
            config=training.difference(),
            hardware=jax.devices()[0].device_kind,
            versions=software(),
        )


def _grouped(trainings: Sequence[Training]) -> list[list[Training]]:
    """Neighbours that differ in their seed only, together: they share what is compiled."""
    groups: list[list[Training]] = []
    for training in trainings:
        if groups and dataclasses.replace(groups[-1][0], seed=training.seed) == training:
            groups[-1].append(training)
        else:
            groups.append([training])
    return groups


def weights_path(folder: Path, training: Training) -> Path:
    """Where a training's weights are kept."""
    # Only characters that every file system and shell takes as they are.
    return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '_', training.name)}.npz"


def summary(record: Record) -> str:
    """A line for the terminal."""
    result = record.result
    parts = [f"{record.name}: {record.seconds:.1f} s"]
    if result.phototour:
        mean = np.mean([one.fpr95 for one in result.phototour])
        parts.append(f"mean FPR@95 {100 * mean:.2f} %")
    parts += [
        f"matching on {one.test} {100 * np.mean(list(one.by_level.values())):.1f} %"
        for one in result.misaligned
        if one.validation
    ]
    parts += [
        f"matching on HPatches, {one.split}, {100 * one.matching_map:.1f} %"
        for one in result.hpatches
        if one.protocol == "python"
    ]
    return ", ".join(parts)


def software() -> dict[str, str]:
    """What a result may depend on: versions and commit."""
    found = plain_versions()
    return {name: found[name] for name in SOFTWARE if name in found}
