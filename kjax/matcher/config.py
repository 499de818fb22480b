"""The config of a matcher's training, checked and typed. `configs/matcher.py` has the values."""

import dataclasses
import math

from kjax.data.sampler import check_seed
from kjax.errors import InputError, unknown_name
from kjax.matcher.batches import DrawConfig
from kjax.matcher.network import MatcherConfig
from kjax.runs.config import check_shares
from kjax.train.loop import Schedule

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("auto", "xla", "cudnn")


@dataclasses.dataclass(frozen=True)
class ViewsConfig:
    """Files of views; every Nth group is held out for validation.

    `shares` are fractions of pairs, one per file; without them, every group is drawn as often.
    """

    train: tuple[str, ...]
    shares: tuple[float, ...]
    validation_every: int
    only_open: bool

    def __post_init__(self) -> None:
        if not self.train or "" in self.train:
            raise InputError("data.train needs a file of views: make one with kjax build-views")
        check_shares(self.shares, self.train)
        if self.validation_every < 2:
            raise InputError(
                f"data.validation_every must be at least 2, not {self.validation_every}"
            )


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


@dataclasses.dataclass(frozen=True)
class MatcherTrainConfig:
    """Batches, length and intervals of a run."""

    pairs: int
    steps: int
    dtype: str
    attention: str
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
        if self.attention not in ATTENTIONS:
            raise unknown_name("train.attention", self.attention, ATTENTIONS)

    def schedule(self) -> Schedule:
        """Return the intervals for the training loop."""
        return Schedule(
            total=self.steps,
            per_dispatch=self.steps_per_dispatch,
            log_every=self.log_every,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
        )


@dataclasses.dataclass(frozen=True)
class MatcherRunConfig:
    """A whole config."""

    seed: int
    init: str
    progress: bool
    tensorboard: bool
    model: MatcherConfig
    data: ViewsConfig
    draw: DrawConfig
    optimizer: AdamWConfig
    train: MatcherTrainConfig

    def __post_init__(self) -> None:
        check_seed(self.seed)
