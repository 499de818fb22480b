"""The training loop: dispatches, logs, evaluates, saves, and stops when asked to.

Nothing here changes what is learned: a run that is stopped and resumed at any step gives the same
weights as one that is not.
"""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from tqdm import tqdm

from kjax.errors import InputError
from kjax.interrupts import Stopped
from kjax.runs.checkpoint import Checkpoints
from kjax.runs.processes import any_process, failing_together
from kjax.train.metrics_log import MetricsLog
from kjax.train.step import TrainState

Run = Callable[[TrainState, int], tuple[TrainState, dict[str, Any]]]
"""Takes a state so many steps on, and returns the metrics' means over them."""


@runtime_checkable
class Trained(Protocol):
    """What is trained: a descriptor's `kjax.train.parallel.Program`, or a matcher's."""

    @property
    def pairs(self) -> int:
        """In a batch."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When things happen, in steps. A checkpoint is also written at the end and when stopped.

    Attributes:
        total: length of the run.
        per_dispatch: most steps between two looks at the clock and at signals.
        log_every: how often metrics are written.
        eval_every: how often the test sets are evaluated; 0 for only at the end.
        checkpoint_every: how often the state is saved.
    """

    total: int
    per_dispatch: int
    log_every: int
    eval_every: int
    checkpoint_every: int

    def next_stop(self, step: int) -> int:
        """The step up to which nothing has to happen, beyond `step`."""
        stops = [step + self.per_dispatch, self.total]
        for every in (self.log_every, self.eval_every, self.checkpoint_every):
            if every:
                stops.append((step // every + 1) * every)
        return min(stops)

    def due(self, step: int, every: int) -> bool:
        """Whether something that happens `every` so many steps happens at this one."""
        return step == self.total or bool(every and step % every == 0)


class Diverged(InputError):  # noqa: N818  (it may be expected)
    """A loss that is not finite any more: the settings cannot be used."""


def train(
    program: Trained,
    run: Run,
    *,
    schedule: Schedule,
    learning_rate: Callable[[int], Any],
    state: TrainState,
    checkpoints: Checkpoints | None = None,
    log: MetricsLog | None = None,
    evaluate: Callable[[TrainState], dict[str, float]] = lambda state: {},
    name: str = "training",
    progress: bool = True,
) -> tuple[TrainState, dict[str, float]]:
    """Trains from `state` to the end of the schedule.

    Args:
        program: what is trained.
        run: takes the steps.
        schedule: when things happen.
        learning_rate: by step, for the log.
        state: to begin with.
        checkpoints: where states are saved; without it nothing is, and a signal ends the process
            as it does anywhere else.
        log: of metrics, if there is one.
        evaluate: scores a state.
        name: for the bar.
        progress: whether to show one.

    Returns:
        The final state and the last evaluation.

    Raises:
        Stopped: after SIGINT or SIGTERM; the state has been saved.
        Diverged: the loss is not finite any more; the last good checkpoint is kept.
        InputError: the disk is full; the last good checkpoint is kept.
    """
    step, means = step_of(state), _Means()
    scores: dict[str, float] = {}
    requests = _stop_requests() if checkpoints else contextlib.nullcontext(lambda: False)
    bar = _progress_bar(program, schedule, step, name, progress)
    with requests as stop_wanted, bar:
        if step in (0, schedule.total):  # a curve wants a beginning, and a finished run its result
            scores = evaluate(state)
            _tell(step, scores, bar)
        if step == 0:
            _write(log, step, scores)
        while step < schedule.total:
            taken = schedule.next_stop(step) - step
            state, metrics = run(state, taken)
            jax.block_until_ready(metrics)
            means.add(metrics, taken)
            step += taken
            bar.update(taken * program.pairs)
            stopping = stop_wanted()
            saving = stopping or schedule.due(step, schedule.checkpoint_every)
            if saving or schedule.due(step, schedule.log_every):
                # The rate of the last step taken: the first step is number 0.
                row = {**means.take(), "learning_rate": float(learning_rate(step - 1))}
                _check_finite(row, step, checkpoints)
                _write(log, step, row)
                bar.set_postfix(loss=f"{np.mean(row['loss']):.4f}", **_short(scores))
            evaluating = schedule.due(step, schedule.eval_every)
            if evaluating:
                scores = evaluate(state)
                _write(log, step, scores)
                _tell(step, scores, bar)
            if saving and checkpoints:
                # Scores of an earlier step say nothing about which checkpoint is the best.
                checkpoints.save(step, state, metrics=scores if evaluating else None)
            if stopping and checkpoints and step < schedule.total:
                checkpoints.wait()
                raise Stopped(f"stopped after step {step}: the same command goes on from there")
    if checkpoints:
        checkpoints.wait()
    return state, scores


def _write(log: MetricsLog | None, step: int, metrics: Mapping[str, Any]) -> None:
    if log is None:
        return
    with failing_together():  # only the first process writes, and meets a full disk
        log.write(step, metrics)


def step_of(state: TrainState) -> int:
    """How many steps a state has behind it; several seeds march in step."""
    return int(np.max(jax.device_get(state.step)))


class _Means:
    """Means of metrics over the steps since they were last asked for. Adds up on the device."""

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self._steps = 0

    def add(self, metrics: Mapping[str, Any], steps: int) -> None:
        for name, value in metrics.items():
            self._totals[name] = self._totals.get(name, 0.0) + value * steps
        self._steps += steps

    def take(self) -> dict[str, Any]:
        """The means, one number or one per seed, and starts anew."""
        means = {name: np.asarray(total) / self._steps for name, total in self._totals.items()}
        self._totals, self._steps = {}, 0
        return means


def _check_finite(row: Mapping[str, Any], step: int, checkpoints: Checkpoints | None) -> None:
    if np.isfinite(row["loss"]).all():
        return
    kept = None
    if checkpoints:
        checkpoints.wait()
        kept = checkpoints.latest_step()
    where = f"the checkpoint of step {kept} is kept" if kept is not None else "nothing was saved"
    raise Diverged(
        f"the loss is not finite at step {step} ({where}): lower config.optimizer.learning_rate, "
        "or check the patches for constant or broken ones"
    )


def _short(scores: Mapping[str, float]) -> dict[str, str]:
    return {"FPR@95": f"{100 * scores['fpr95']:.2f}%"} if "fpr95" in scores else {}


def _tell(step: int, scores: Mapping[str, float], bar: Any) -> None:
    """Prints one evaluation above the progress bar, if there is one."""
    if scores and not bar.disable:
        figures = (f"{name} {100 * value:.2f} %" for name, value in scores.items())
        bar.write(f"step {step}: {', '.join(figures)}")
        bar.set_postfix(_short(scores))


def _progress_bar(program: Trained, schedule: Schedule, step: int, name: str, wanted: bool) -> Any:
    return tqdm(
        total=schedule.total * program.pairs,
        initial=step * program.pairs,
        desc=name,
        unit=" pairs",
        unit_scale=True,
        smoothing=0.05,
        disable=not wanted or jax.process_index() > 0,
    )


@contextlib.contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether SIGINT or SIGTERM has come, to any of the processes.

    A second Ctrl-C does what the first would have done outside: it interrupts at once.
    """
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        outside = before[signal.SIGINT]
        if received and number == signal.SIGINT and callable(outside):
            outside(number, frame)
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # Python leaves signals to the main thread
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: any_process(bool(received))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
