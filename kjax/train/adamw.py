"""AdamW on clipped gradients, with a warm-up and a cosine decay, for matchers and detectors."""

import dataclasses
import math

import optax

from kjax.errors import InputError, unknown_name
from kjax.train.loop import Schedule

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
