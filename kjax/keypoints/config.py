"""The config of a detector's training, checked and typed. `configs/detector.py` has the values."""

import dataclasses

from kjax.data.sampler import check_seed
from kjax.errors import InputError
from kjax.keypoints.network import DetectorConfig
from kjax.keypoints.views import PairConfig
from kjax.train.one_device import AdamWConfig, TrainLengths


@dataclasses.dataclass(frozen=True)
class PhotosConfig:
    """Folders of photographs to learn from and to validate on; see `RunConfig.data`."""

    photos: str
    places: str
    validation: str
    only_open: bool

    def __post_init__(self) -> None:
        if not (self.photos and self.validation):
            raise InputError("data.photos and data.validation need folders of photographs")


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """What makes a keypoint good, and the weights of the losses.

    Attributes:
        keypoints: number in a view.
        sigma: distance, in pixels, at which the reward has fallen to exp(−1/2).
        reach: σ grows by so many pixels per pixel of the keypoint's diameter.
        octaves: difference of scales, in octaves, at which the reward is zero.
        descriptor: shipped weights whose descriptors have to match; "": none.
        location: weight of the distance between matching keypoints.
        size: weight of the difference between the sizes of matching keypoints, in octaves.
        direction: weight of the difference between the directions of matching keypoints.
    """

    keypoints: int
    sigma: float
    reach: float
    octaves: float
    descriptor: str
    location: float
    size: float
    direction: float

    def __post_init__(self) -> None:
        if self.keypoints < 8:
            raise InputError(f"reward.keypoints must be at least 8, not {self.keypoints}")
        for name in ("sigma", "octaves"):
            if not getattr(self, name) > 0:
                raise InputError(f"reward.{name} must be positive, not {getattr(self, name)}")
        for name in ("reach", "location", "size", "direction"):
            if not getattr(self, name) >= 0:
                raise InputError(f"reward.{name} must not be negative: {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class DetectorRunConfig:
    """A whole config."""

    seed: int
    init: str
    progress: bool
    tensorboard: bool
    model: DetectorConfig
    data: PhotosConfig
    draw: PairConfig
    reward: RewardConfig
    optimizer: AdamWConfig
    train: TrainLengths

    def __post_init__(self) -> None:
        check_seed(self.seed)
