"""Trains and scores cells, one after the other, and records each as soon as it is done.

While one training runs, the next ones compile. A sweep can be stopped at any time: recorded cells
are not computed again, and the one that was interrupted starts anew with the same result.
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

from kjax.experiments.cells import Cell
from kjax.experiments.records import Record, append_record, read_records
from kjax.experiments.scoring import Scorer
from kjax.experiments.training import CompiledTraining, Sets, Trained, prepare
from kjax.interop import save_variables
from kjax.train.loop import Diverged
from kjax.train.parallel import initial_state
from kjax.train.workdir import plain_versions

SOFTWARE = ("kjax", "python", "jax", "flax", "optax", "commit")
COMPILING_AHEAD = 2
"""Trainings that compile while another runs."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """How cells are run.

    Attributes:
        sets: to train on.
        scorer: of what is trained.
        records: file to add to.
        weights: folder for the trained weights; None to keep none.
        seconds: after which no other cell is begun; None for no limit.
        progress: whether to show bars.
    """

    sets: Sets
    scorer: Scorer
    records: Path
    weights: Path | None = None
    seconds: float | None = None
    progress: bool = True

    def run(self, cells: Sequence[Cell]) -> int:
        """Runs those that are not recorded yet. One that fails is told of, and not recorded.

        Returns:
            How many are left.
        """
        begun, failed = time.perf_counter(), 0
        known = {record.name for record in read_records(self.records)}
        missing = [cell for cell in cells if cell.name not in known]
        with tqdm(total=len(missing), desc="cells", unit="cell", disable=not self.progress) as bar:
            for done, (cell, training, compiled_now) in enumerate(self._prepared(missing)):
                if self.seconds is not None and time.perf_counter() - begun > self.seconds:
                    return failed + len(missing) - done
                try:
                    trained = training.train(cell.seed, name=cell.name, progress=self.progress)
                except Diverged as error:
                    failed += 1
                    bar.write(f"{cell.name}: {error}")
                    continue
                record = self._record(cell, training, trained, compiled_now)
                if self.weights is not None:
                    save_variables(weights_path(self.weights, cell), trained.variables)
                append_record(self.records, record)
                bar.write(summary(record))
                bar.update()
        return failed

    def _prepared(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, CompiledTraining, bool]]:
        """Every cell with its compiled training, and whether that was compiled for it."""
        groups = _grouped(cells)
        with ThreadPoolExecutor(COMPILING_AHEAD) as pool:
            waiting: list[Future[CompiledTraining]] = []
            try:
                for number, group in enumerate(groups):
                    while len(waiting) <= COMPILING_AHEAD and number + len(waiting) < len(groups):
                        ahead = groups[number + len(waiting)][0]
                        waiting.append(pool.submit(self._prepare, ahead))
                    training = waiting.pop(0).result()
                    for place, cell in enumerate(group):
                        yield cell, training, place == 0
            finally:
                for future in waiting:
                    future.cancel()

    def _prepare(self, cell: Cell) -> CompiledTraining:
        training = prepare(cell.config(), self.sets)
        state = initial_state(training.programme)
        self.scorer.warm_up(
            training.model, {"params": state.params, "batch_stats": state.batch_stats}
        )
        return training

    def _record(
        self, cell: Cell, training: CompiledTraining, trained: Trained, compiled_now: bool
    ) -> Record:
        return Record(
            name=cell.name,
            experiment=cell.experiment,
            group=cell.group,
            train=list(cell.train),
            seed=cell.seed,
            result=self.scorer.score(
                cell.row, training.model, trained.variables, trained_on=cell.train
            ),
            pairs=training.pairs,
            seconds=round(trained.seconds, 3),
            compile_seconds=round(training.compile_seconds, 1) if compiled_now else 0.0,
            config=cell.difference(),
            hardware=jax.devices()[0].device_kind,
            versions=software(),
        )


def _grouped(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Neighbours that differ in their seed only, together: they share a compiled training."""
    groups: list[list[Cell]] = []
    for cell in cells:
        if groups and dataclasses.replace(groups[-1][0], seed=cell.seed) == cell:
            groups[-1].append(cell)
        else:
            groups.append([cell])
    return groups


def weights_path(folder: Path, cell: Cell) -> Path:
    """Where a cell's weights are kept."""
    # Only characters that every file system and shell takes as they are.
    return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '_', cell.name)}.npz"


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
