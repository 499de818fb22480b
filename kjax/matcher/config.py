"""The config of a matcher's training, checked and typed. `configs/matcher.py` has the values."""

import dataclasses

from kjax.data.sampler import check_seed
from kjax.errors import InputError, unknown_name
from kjax.matcher.batches import DrawConfig
from kjax.matcher.network import MatcherConfig
from kjax.runs.config import check_shares
from kjax.train.one_device import AdamWConfig, TrainLengths

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
class MatcherTrainConfig(TrainLengths):
    """Batches, length and intervals of a run, and the implementation of attention."""

    attention: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention not in ATTENTIONS:
            raise unknown_name("train.attention", self.attention, ATTENTIONS)


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
