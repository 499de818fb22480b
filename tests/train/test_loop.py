"""The training loop by itself, without a workdir: as experiments use it."""

import numpy as np
import pytest
from programs import make_program

from kjax.train.loop import Diverged, Schedule, train
from kjax.train.step import TrainState

SCHEDULE = Schedule(total=10, per_dispatch=4, log_every=4, eval_every=0, checkpoint_every=0)


def take_steps(loss):
    """Counts the steps, and learns nothing."""

    def run(state, steps):
        taken.append(steps)
        return state.replace(step=state.step + steps), {"loss": np.float32(loss)}

    taken = []
    return run, taken


def loop(run):
    start = TrainState(np.int32(0), {}, {}, {})
    return train(
        make_program(),
        run,
        schedule=SCHEDULE,
        learning_rate=lambda step: 0.1,
        state=start,
        progress=False,
    )


def test_without_a_workdir_all_steps_are_taken():
    run, taken = take_steps(1.0)
    state, scores = loop(run)
    assert (state.step, scores, taken) == (10, {}, [4, 4, 2])


def test_a_loss_that_is_not_finite_ends_the_training_at_once():
    run, taken = take_steps(np.nan)
    with pytest.raises(Diverged, match=r"not finite at step 4 \(nothing was saved\)"):
        loop(run)
    assert taken == [4]
