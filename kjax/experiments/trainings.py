"""What is to be trained: the trainings of a table, each a config, its training sets and a seed."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from kjax.train.config import RunConfig, flat_fields, load_config, override, validate


@dataclasses.dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        experiment: which table it belongs to.
        row: name of the model, or of the value tried.
        settings: what differs from `configs/base.py`, e.g. "model.head=xy".
        train: names of the training sets.
        seed: of everything random.
        group: in ablations, the question asked.
    """

    experiment: str
    row: str
    settings: tuple[str, ...]
    train: tuple[str, ...]
    seed: int
    group: str = ""

    @property
    def name(self) -> str:
        """Unique in a file of records; says all but the settings."""
        parts = (self.experiment, self.group, self.row, "+".join(self.train), str(self.seed))
        return "/".join(part for part in parts if part)

    def config(self) -> RunConfig:
        """The whole config. It names the training sets without their folder."""
        config = load_config("base")
        override(config, [f"--config.{setting}" for setting in self.settings])
        config.seed = self.seed
        config.data.train = self.train
        config.data.test = ()
        return validate(config)

    def difference(self) -> dict[str, Any]:
        """The fields that differ from `configs/base.py`, and their values."""
        base, own = (flat_fields(dataclasses.asdict(one)) for one in (_base(), self.config()))
        # The record has fields of its own for these.
        return {
            name: value
            for name, value in own.items()
            if value != base[name] and name not in ("seed", "data.train", "data.test")
        }


def _base() -> RunConfig:
    return validate(load_config("base"))


HEADS: dict[str, tuple[str, ...]] = {
    "hardnet": ("model.head=hardnet",),
    "sum": ("model.head=sum",),
    "cat": ("model.head=cat",),
    **{
        f"{head} s={s}": (f"model.head={head}", f"model.s={s}")
        for head in ("xy", "polar", "combined", "combined_star")
        for s in (1, 2)
    },
}
"""The models of the paper, and what makes each."""


def head_trainings(
    rows: Iterable[str], train: Sequence[str], seeds: Sequence[int], shared: Sequence[str]
) -> list[Training]:
    """Every model on every training set with every seed, all with the same other settings."""
    return [
        Training("heads", row, (*HEADS[row], *shared), (name,), seed)
        for row in rows
        for name in train
        for seed in seeds
    ]


AUGMENTATIONS: dict[str, tuple[str, ...]] = {
    "medium": (
        "augment.area=(0.5,1.0)",
        "augment.aspect_ratio=(0.8,1.25)",
        "augment.max_rotation_degrees=15.0",
        "augment.max_translation=0.15",
    ),
    "strong": (
        "augment.area=(0.3,0.9)",
        "augment.aspect_ratio=(0.75,1.33)",
        "augment.max_rotation_degrees=25.0",
        "augment.max_translation=0.2",
    ),
    "hard": (
        "augment.area=(0.2,0.7)",
        "augment.aspect_ratio=(0.7,1.4)",
        "augment.max_rotation_degrees=25.0",
        "augment.max_translation=0.25",
    ),
    "harder": (
        "augment.area=(0.15,0.6)",
        "augment.aspect_ratio=(0.6,1.6)",
        "augment.max_rotation_degrees=40.0",
        "augment.max_translation=0.4",
    ),
}
"""Stronger than the paper's, which is the default."""
PHOTOMETRY: dict[str, tuple[str, ...]] = {
    "mild": (
        "augment.max_blur=0.7",
        "augment.max_gamma=1.4",
        "augment.saturation=0.08",
        "augment.max_noise=0.08",
        "augment.compression=0.4",
        "augment.photometric_probability=0.5",
    ),
    "moderate": (
        "augment.max_blur=1.2",
        "augment.max_gamma=1.8",
        "augment.saturation=0.15",
        "augment.max_noise=0.15",
        "augment.compression=1.0",
        "augment.photometric_probability=0.5",
    ),
    "heavy": (
        "augment.max_blur=1.8",
        "augment.max_gamma=2.5",
        "augment.saturation=0.3",
        "augment.max_noise=0.25",
        "augment.compression=2.0",
        "augment.photometric_probability=0.6",
    ),
}
"""Changes of grey values, which the paper has none of."""
ABLATED = "combined s=2"
"""The model that open questions are settled on: both coordinate systems, and half the time of two
trunks."""
QUESTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "kappa_xy": {value: (f"model.kappa_xy={value}",) for value in ("2.0", "4.0", "8.0")},
    "scale_xy": {
        "π/4": (f"model.scale_xy={math.pi / 4}",),
        "π": (f"model.scale_xy={math.pi}",),
    },
    "kappa_rho": {value: (f"model.kappa_rho={value}",) for value in ("1.0", "3.0")},
    "kappa_theta": {value: (f"model.kappa_theta={value}",) for value in ("1.0", "3.0")},
    "scale_rho": {"π/2": (f"model.scale_rho={math.pi / 2}",)},
    "corner_radius": {
        "√2": (f"model.corner_radius={math.sqrt(2)}",),
        "no centre weight": ("model.corner_radius=0.001",),
    },
    "anchor_swap": {"on": ("loss.anchor_swap=True",)},
    "batch_norm": {"separate": ("train.joint_batch_norm=False",)},
    "dropout": {value: (f"model.dropout={value}",) for value in ("0.0", "0.1")},
    "head_bias": {"off": ("model.head_bias=False",)},
    "patch_size": {"64": ("model.patch_size=64",)},
    "precision": {"float32": ("model.dtype=float32",)},
    "augmentation": AUGMENTATIONS,
    "loss": {name: (f"loss.name={name}",) for name in ("sosnet", "hynet", "softmax")},
}
"""What the paper leaves open, and ways beyond it: values tried besides the default."""
DEFAULTS = {
    "kappa_xy": "1.0",
    "scale_xy": "π/2",
    "kappa_rho": "8.0",
    "kappa_theta": "8.0",
    "scale_rho": "π",
    "corner_radius": "1",
    "anchor_swap": "off",
    "batch_norm": "joint",
    "dropout": "0.3",
    "head_bias": "on",
    "patch_size": "32",
    "precision": "bfloat16",
    "augmentation": "plain",
    "loss": "triplet",
}
"""What the trainings of the group below have."""
DEFAULT = "default"
"""The group of the trainings with the default of every question."""


def ablation_trainings(
    questions: Iterable[str], train: Sequence[str], seeds: Sequence[int], shared: Sequence[str]
) -> list[Training]:
    """Every value of some questions, one changed at a time, and the default of all."""
    # What is asked about comes last, so that it overrides what is shared.
    base = (*HEADS[ABLATED], *shared)
    tried = [(DEFAULT, DEFAULT, base)]
    for question in questions:
        tried += [(question, value, (*base, *own)) for value, own in QUESTIONS[question].items()]
    return [
        Training("ablation", value, settings, tuple(train), seed, group=question)
        for question, value, settings in tried
        for seed in seeds
    ]


RECIPES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "medium": AUGMENTATIONS["medium"],
    "medium, softmax": (*AUGMENTATIONS["medium"], "loss.name=softmax"),
    "strong": AUGMENTATIONS["strong"],
    "strong, softmax": (*AUGMENTATIONS["strong"], "loss.name=softmax"),
    "strong, rate 3": (*AUGMENTATIONS["strong"], "optimizer.learning_rate=3.0"),
    "strong, winners": (
        *AUGMENTATIONS["strong"],
        "model.scale_xy=0.785398",
        "model.kappa_theta=1.0",
        "train.joint_batch_norm=False",
    ),
    "hard": AUGMENTATIONS["hard"],
    "strong, dropout 0.1": (*AUGMENTATIONS["strong"], "model.dropout=0.1"),
    "medium, sosnet, rate 1": (
        *AUGMENTATIONS["medium"],
        "loss.name=sosnet",
        "optimizer.learning_rate=1.0",
    ),
    "medium, hynet, adam": (
        *AUGMENTATIONS["medium"],
        "loss.name=hynet",
        "optimizer.name=adam",
        "optimizer.learning_rate=0.01",
    ),
    **{
        f"strong, {level} photometry": (*AUGMENTATIONS["strong"], *settings)
        for level, settings in PHOTOMETRY.items()
    },
}
"""Ways of training to choose the shipped models' from; tried on the model that questions are."""
SHIPPED: dict[str, tuple[str, ...]] = {
    **{
        row: (*HEADS[row], *AUGMENTATIONS["strong"])
        for row in ("hardnet", "combined s=1", "combined_star s=2")
    },
    "best": (
        *HEADS["combined_star s=2"],
        *AUGMENTATIONS["hard"],
        *PHOTOMETRY["moderate"],
        "model.dropout=0.1",
    ),
}
"""The models that ship with the package."""


HALF, QUARTER = (16, 16, 32, 32, 64, 64), (8, 8, 16, 16, 32, 32)
"""Of the paper's channels."""


def _light(channels: tuple[int, ...], *others: str) -> tuple[str, ...]:
    """`best`'s recipe with one trunk of so many channels."""
    return (
        *HEADS[ABLATED],
        *AUGMENTATIONS["hard"],
        *PHOTOMETRY["moderate"],
        "model.dropout=0.1",
        f"model.channels={channels}",
        *others,
    )


def _taught(match: str, weight: float) -> tuple[str, str]:
    return f"distill.match={match}", f"distill.weight={weight}"


ALONE = ("distill.teacher=",)
NESTED = ("loss.nested=(32,64)",)
ONCE = _taught("descriptors", 1.0)
LIGHT: dict[str, tuple[str, ...]] = {
    "teacher": (*SHIPPED["best"], *ALONE),
    "all channels": _light((32, 32, 64, 64, 128, 128), *ALONE),
    "half": _light(HALF, *ALONE),
    **{
        f"half, {match} × {weight:g}": _light(HALF, *_taught(match, weight))
        for match, weight in (
            ("descriptors", 0.5),
            ("descriptors", 1.0),
            ("descriptors", 2.0),
            ("descriptors", 4.0),
            ("distances", 1.0),
            ("distances", 10.0),
        )
    },
    "half, nested": _light(HALF, *ALONE, *NESTED),
    **{
        f"half, taught, nested × {weight:g}": _light(
            HALF, *ONCE, *NESTED, f"loss.nested_weight={weight}"
        )
        for weight in (0.1, 0.3, 1.0)
    },
    "half, taught, no dropout": _light(HALF, *ONCE, "model.dropout=0.0"),
    "quarter": _light(QUARTER, *ALONE),
    **{
        f"{'-'.join(map(str, channels))}, taught": _light(channels, *ONCE)
        for channels in (
            (8, 8, 32, 32, 64, 64),
            (8, 8, 32, 32, 64, 128),
            (8, 8, 16, 32, 64, 128),
            (8, 8, 16, 32, 64, 64),
            (8, 8, 16, 16, 64, 64),
            (8, 8, 16, 16, 32, 96),
            (8, 8, 16, 16, 32, 64),
            QUARTER,
        )
    },
}
"""Light models, alone and taught by the first row's; which teacher, the command line says."""


def light_trainings(
    rows: Iterable[str], train: Sequence[str], seeds: Sequence[int], shared: Sequence[str]
) -> list[Training]:
    """Light models, on all sets together."""
    return _on_all_sets("light", {row: (*shared, *LIGHT[row]) for row in rows}, train, seeds)


def recipe_trainings(
    rows: Iterable[str], train: Sequence[str], seeds: Sequence[int], shared: Sequence[str]
) -> list[Training]:
    """Ways of training, on all sets together."""
    settings = {row: (*HEADS[ABLATED], *shared, *RECIPES[row]) for row in rows}
    return _on_all_sets("recipes", settings, train, seeds)


def final_trainings(
    rows: Iterable[str], train: Sequence[str], seeds: Sequence[int], shared: Sequence[str]
) -> list[Training]:
    """Models to ship, trained on all sets together."""
    settings = {row: (*SHIPPED[row], *shared) for row in rows}
    return _on_all_sets("final", settings, train, seeds)


def _on_all_sets(
    experiment: str,
    settings: dict[str, tuple[str, ...]],
    train: Sequence[str],
    seeds: Sequence[int],
) -> list[Training]:
    return [
        Training(experiment, row, own, tuple(train), seed)
        for row, own in settings.items()
        for seed in seeds
    ]
