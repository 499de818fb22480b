"""The training loop: dispatches, logs, evaluates, saves, and stops on request.

Nothing here affects what is learned: a run that is stopped and resumed at any step gives the same
weights as an uninterrupted one.
"""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
"""Advances a state by a number of steps, and returns the metrics' means over them."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Length and cadence of a run in steps, as in a config's `train`.

    A checkpoint is also written at the end and on a stop.
    """

    total: int
    per_dispatch: int
    log_every: int
    eval_every: int
    checkpoint_every: int

    def next_stop(self, step: int) -> int:
        """Return the next step at which something has to happen."""
        stops = [step + self.per_dispatch, self.total]
        for every in (self.log_every, self.eval_every, self.checkpoint_every):
            if every:
                stops.append((step // every + 1) * every)
        return min(stops)

    def due(self, step: int, every: int) -> bool:
        """Return whether something that happens `every` so many steps happens at this one."""
        return step == self.total or bool(every and step % every == 0)


class Diverged(InputError):  # noqa: N818  (it may be expected)
    """Error for a loss that is not finite."""


def train(
    run: Run,
    *,
    pairs: int,
    schedule: Schedule,
    learning_rate: Callable[[int], Any],
    state: TrainState,
    checkpoints: Checkpoints | None = None,
    log: MetricsLog | None = None,
    evaluate: Callable[[TrainState], dict[str, float]] = lambda state: {},
    name: str = "training",
    progress: bool = True,
) -> tuple[TrainState, dict[str, float]]:
    """Train from `state` to the end of the schedule.

    Returns the final state and the last evaluation. Without `checkpoints`, signals are not handled
    either. `pairs` and `name` are for the progress bar, `learning_rate` is for the log.

    Raises:
        Stopped: after SIGINT or SIGTERM; the state has been saved.
        Diverged: the loss is not finite; the last good checkpoint is kept.
        InputError: the disk is full; the last good checkpoint is kept.
    """

    def write(metrics: Mapping[str, Any]) -> None:
        with failing_together():  # only the first process writes, and notices a full disk
            if log is not None:
                log.write(step, metrics)

    def show(scores: Mapping[str, float]) -> None:
        if scores and not bar.disable:
            figures = (f"{name} {100 * value:.2f} %" for name, value in scores.items())
            bar.write(f"step {step}: {', '.join(figures)}")

    step = step_of(state)
    scores: dict[str, float] = {}
    totals: dict[str, Any] = {}  # metrics times steps since the last line, added on the device
    counted = 0
    requests = _stop_requests() if checkpoints else contextlib.nullcontext(lambda: False)
    bar = tqdm(
        total=schedule.total * pairs,
        initial=step * pairs,
        desc=name,
        unit=" pairs",
        unit_scale=True,
        smoothing=0.05,
        disable=not progress or jax.process_index() > 0,
    )
    with requests as stop_wanted, bar:
        if step in (0, schedule.total):  # the start of a curve, or the result of a finished run
            scores = evaluate(state)
            show(scores)
        if step == 0:
            write(scores)
        while step < schedule.total:
            taken = schedule.next_stop(step) - step
            state, metrics = run(state, taken)
            jax.block_until_ready(metrics)
            totals = {key: totals.get(key, 0.0) + value * taken for key, value in metrics.items()}
            counted += taken
            step += taken
            bar.update(taken * pairs)
            stopping = stop_wanted()
            saving = stopping or schedule.due(step, schedule.checkpoint_every)
            if saving or schedule.due(step, schedule.log_every):
                means = {key: np.asarray(total) / counted for key, total in totals.items()}
                totals, counted = {}, 0
                if not np.isfinite(means["loss"]).all():
                    _raise_diverged(step, checkpoints)
                # The rate of the last step taken: the first step is number 0.
                write({**means, "learning_rate": float(learning_rate(step - 1))})
                rate = {"FPR@95": f"{100 * scores['fpr95']:.2f}%"} if "fpr95" in scores else {}
                bar.set_postfix(loss=f"{np.mean(means['loss']):.4f}", **rate)
            evaluating = schedule.due(step, schedule.eval_every)
            if evaluating:
                scores = evaluate(state)
                write(scores)
                show(scores)
            if saving and checkpoints:
                # Only scores of this very step say whether this checkpoint is the best.
                checkpoints.save(step, state, metrics=scores if evaluating else None)
            if stopping and checkpoints and step < schedule.total:
                checkpoints.wait()
                raise Stopped(f"stopped after step {step}: run the same command to resume")
    if checkpoints:
        checkpoints.wait()
    return state, scores


def step_of(state: TrainState) -> int:
    """Return the number of steps a state has taken; several seeds are always at the same step."""
    return int(np.max(jax.device_get(state.step)))


def _raise_diverged(step: int, checkpoints: Checkpoints | None) -> None:
    kept = None
    if checkpoints:
        checkpoints.wait()
        kept = checkpoints.latest_step()
    where = f"the checkpoint of step {kept} is kept" if kept is not None else "nothing was saved"
    raise Diverged(
        f"the loss is not finite at step {step} ({where}): lower config.optimizer.learning_rate, "
        "or check the patches for constant or broken ones"
    )


@contextlib.contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether any process has received SIGINT or SIGTERM.

    A second Ctrl-C interrupts at once, as it would outside this block.
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
