"""Training on one device by AdamW, with a warm-up and a cosine decay: matchers and detectors."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import optax

from kjax.errors import InputError, unknown_name
from kjax.files.atomic import write_json
from kjax.runs.checkpoint import Checkpoints
from kjax.runs.workdir import CHECKPOINTS_FOLDER, RESULTS_FILE, claim_workdir, workdir_errors
from kjax.train.loop import Run, Schedule, step_of, train
from kjax.train.metrics_log import MetricsLog
from kjax.train.step import TrainState

DTYPES = ("float32", "bfloat16")
FINAL_SHARE = 0.01
"""Final learning rate over the peak."""


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    """AdamW with a linear warm-up and a cosine decay."""

    learning_rate: float
    warmup_steps: int
    weight_decay: float
    clip_norm: float

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"optimizer.{name} must be positive, not {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"optimizer.{name} must not be negative: {getattr(self, name)}")

    def schedule(self, steps: int) -> optax.Schedule:
        """Return the learning rate: a linear warm-up, then a cosine decay."""
        return optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=self.learning_rate,
            warmup_steps=min(self.warmup_steps, steps - 1),
            decay_steps=steps,
            end_value=FINAL_SHARE * self.learning_rate,
        )

    def optimizer(self, steps: int) -> optax.GradientTransformation:
        """Return the optimizer of a run of this length."""
        return optax.chain(
            optax.clip_by_global_norm(self.clip_norm),
            optax.adamw(self.schedule(steps), weight_decay=self.weight_decay),
        )


@dataclasses.dataclass(frozen=True)
class TrainLengths:
    """Batches, length and intervals of a run."""

    pairs: int
    steps: int
    dtype: str
    steps_per_dispatch: int
    log_every: int
    eval_every: int
    eval_batches: int
    checkpoint_every: int
    keep_checkpoints: int

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            lowest = 0 if name == "eval_every" else 1
            if not isinstance(value, str) and value < lowest:
                raise InputError(f"train.{name} must be at least {lowest}, not {value}")
        if self.dtype not in DTYPES:
            raise unknown_name("train.dtype", self.dtype, DTYPES)

    def schedule(self) -> Schedule:
        """Return the intervals for the training loop."""
        return Schedule(
            total=self.steps,
            per_dispatch=self.steps_per_dispatch,
            log_every=self.log_every,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
        )


def run(
    config: Any,
    workdir: Path,
    *,
    start: Callable[[], TrainState],
    advance: Run,
    evaluate: Callable[[TrainState], dict[str, float]],
    save: Callable[[TrainState], None],
    notes: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Train as a matcher's or detector's config says, or resume the run in the workdir.

    Writes checkpoints, metrics and `results.json`; `save` writes the weights. Returns the final
    evaluation, of whose `error` the best checkpoint has the lowest.
    """
    with claim_workdir(workdir, config, notes=notes):
        checkpoints = Checkpoints(
            workdir / CHECKPOINTS_FOLDER, keep=config.train.keep_checkpoints, best_metric="error"
        )
        # Placed like a restored state, or resuming would compile again.
        state = jax.device_put(start(), jax.devices()[0])
        restored = checkpoints.restore_latest(state)
        state = state if restored is None else restored
        log = MetricsLog(workdir, config.tensorboard, resume_step=step_of(state))
        try:
            state, scores = train(
                advance,
                pairs=config.train.pairs,
                schedule=config.train.schedule(),
                learning_rate=config.optimizer.schedule(config.train.steps),
                state=state,
                checkpoints=checkpoints,
                log=log,
                evaluate=evaluate,
                progress=config.progress,
            )
        finally:
            log.close()
            checkpoints.close()
        with workdir_errors(workdir):
            write_json(workdir / RESULTS_FILE, scores)
            save(state)
    return scores
