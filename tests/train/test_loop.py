"""The training loop without a workdir, as experiments use it, and its signals."""

import signal

import numpy as np
import pytest

from kjax.train.loop import Diverged, Schedule, _stop_requests, train
from kjax.train.step import TrainState


def run_loop(loss):
    """Train on a fixed loss; return the state, the scores and the lengths of the dispatches."""
    taken = []

    def run(state, steps):
        taken.append(steps)
        return state.replace(step=state.step + steps), {"loss": np.float32(loss)}

    state, scores = train(
        run,
        pairs=8,
        schedule=Schedule(total=10, per_dispatch=4, log_every=4, eval_every=0, checkpoint_every=0),
        learning_rate=lambda step: 0.1,
        state=TrainState(np.int32(0), {}, {}, {}),
        progress=False,
    )
    return state.step, scores, taken


def test_all_steps_are_taken_unless_the_loss_is_not_finite():
    assert run_loop(1.0) == (10, {}, [4, 4, 2])
    with pytest.raises(Diverged, match=r"not finite at step 4 \(nothing was saved\)"):
        run_loop(np.nan)


def test_a_second_interrupt_does_not_wait_and_calls_the_programs_own_handler():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with _stop_requests() as stop_wanted:
            signal.raise_signal(signal.SIGINT)
            assert stop_wanted()
            assert not heard
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)  # only ever a request
            assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
