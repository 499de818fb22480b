"""The trainings of each experiment: a configuration, its training sets and a seed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from program import read_records

from kjax.runs.config import RunConfig, flat_fields, load_config, override, validate

Settings = tuple[str, ...]
"""Overrides of `configs/base.py`, e.g. "model.head=xy"."""


@dataclasses.dataclass(frozen=True)
class Training:
    """One training."""

    experiment: str
    """Name of the table and of the file of records."""
    row: str
    """Name of the model, or of the value tried."""
    settings: Settings
    train: tuple[str, ...]
    seed: int
    group: str = ""
    """The setting under study, in ablations."""

    @property
    def name(self) -> str:
        """Unique name in a file of records."""
        parts = (self.experiment, self.group, self.row, "+".join(self.train), str(self.seed))
        return "/".join(part for part in parts if part)

    def config(self) -> RunConfig:
        """The complete configuration; training sets are named without their folder."""
        config = load_config("base")
        override(config, [f"--config.{setting}" for setting in self.settings])
        config.seed = self.seed
        config.data.train = self.train
        config.data.test = ()
        return validate(config)

    def difference(self) -> dict[str, Any]:
        """The fields that differ from `configs/base.py`, except those the record has itself."""
        base, own = (
            flat_fields(dataclasses.asdict(one))
            for one in (validate(load_config("base")), self.config())
        )
        return {
            name: value
            for name, value in own.items()
            if value != base[name] and name not in ("seed", "data.train", "data.test")
        }


def _table(fields: Sequence[str], rows: dict[str, Settings]) -> dict[str, Settings]:
    """Settings of each row: the fields with its values."""
    return {
        name: tuple(f"{field}={value}" for field, value in zip(fields, values, strict=True))
        for name, values in rows.items()
    }


def _values(field: str, *values: str) -> dict[str, Settings]:
    """One row for each value of a field."""
    return _table([field], {value: (value,) for value in values})


HEADS: dict[str, Settings] = {
    **_values("model.head", "hardnet", "sum", "cat"),
    **_table(
        ("model.head", "model.s"),
        {
            f"{head} s={s}": (head, s)
            for head in ("xy", "polar", "combined", "combined_star")
            for s in ("1", "2")
        },
    ),
}
"""The models of the paper."""
MISALIGNED = (
    "augment.misalignment=1.0",
    "augment.area=(0.15,0.5)",
    "augment.aspect_ratio=(0.9,1.1)",
    "augment.max_translation=0.1",
    "augment.max_rotation_degrees=5.0",
)
"""Pairs as in HPatches' matching task: an exact reference patch and a jittered one."""
GEOMETRY = ("area", "aspect_ratio", "max_rotation_degrees", "max_translation")
AUGMENTATIONS = _table(
    [f"augment.{name}" for name in GEOMETRY],
    {
        "medium": ("(0.5,1.0)", "(0.8,1.25)", "15.0", "0.15"),
        "strong": ("(0.3,0.9)", "(0.75,1.33)", "25.0", "0.2"),
        "hard": ("(0.2,0.7)", "(0.7,1.4)", "25.0", "0.25"),
        "harder": ("(0.15,0.6)", "(0.6,1.6)", "40.0", "0.4"),
    },
)
"""Geometric augmentations stronger than the paper's, which is the default."""
PHOTOMETRY = (
    "augment.max_blur=1.2",
    "augment.max_gamma=1.8",
    "augment.saturation=0.15",
    "augment.max_noise=0.15",
    "augment.compression=1.0",
    "augment.photometric_probability=0.5",
)
"""Moderate photometric augmentation; the paper has none."""
ABLATED = HEADS["combined s=2"]
"""The model of ablations: both coordinate systems, and half the time of two trunks."""
ANGLES = (("π/4", math.pi / 4), ("π", math.pi))
RADII = (("√2", math.sqrt(2)), ("no centre weight", 0.001))
_QUESTIONS: dict[str, tuple[str, dict[str, Settings]]] = {
    "kappa_xy": ("1.0", _values("model.kappa_xy", "2.0", "4.0", "8.0")),
    "scale_xy": ("π/2", {name: (f"model.scale_xy={value}",) for name, value in ANGLES}),
    "kappa_rho": ("8.0", _values("model.kappa_rho", "1.0", "3.0")),
    "kappa_theta": ("8.0", _values("model.kappa_theta", "1.0", "3.0")),
    "scale_rho": ("π", {"π/2": (f"model.scale_rho={math.pi / 2}",)}),
    "corner_radius": ("1", {name: (f"model.corner_radius={value}",) for name, value in RADII}),
    "anchor_swap": ("off", {"on": ("loss.anchor_swap=True",)}),
    "batch_norm": ("joint", {"separate": ("train.joint_batch_norm=False",)}),
    "dropout": ("0.3", _values("model.dropout", "0.0", "0.1")),
    "head_bias": ("on", {"off": ("model.head_bias=False",)}),
    "patch_size": ("32", _values("model.patch_size", "64")),
    "precision": ("bfloat16", _values("model.dtype", "float32")),
    "augmentation": ("plain", AUGMENTATIONS),
    "loss": ("triplet", _values("loss.name", "sosnet", "hynet", "softmax")),
}
"""Settings under study: the default, and the values tried besides."""
DEFAULTS = {name: default for name, (default, _) in _QUESTIONS.items()}
QUESTIONS = {name: rows for name, (_, rows) in _QUESTIONS.items()}
DEFAULT = "default"
"""Group of the trainings that have every default."""
BEST_RECIPE = (*AUGMENTATIONS["hard"], *PHOTOMETRY, "model.dropout=0.1")
BEST = (*HEADS["combined_star s=2"], *BEST_RECIPE)
OPEN_CHANGES = ("model.dropout=0.0", "augment.max_noise=0.25")
"""Changes that help on the larger, openly licensed sets."""
TAUGHT = ("distill.teacher=best", "distill.match=descriptors", "distill.weight=1.0")
FIRST_64 = ("loss.nested=(64,)", "loss.nested_weight=0.3")


def _light(channels: tuple[int, ...], *others: str) -> Settings:
    """`best`'s recipe with one trunk of these channels."""
    return (*ABLATED, *BEST_RECIPE, f"model.channels={channels}", *others)


def _further(settings: Settings, pairs: int, steps: int, *others: str) -> Settings:
    """Further training on misaligned pairs in large batches, from the weights `--config.init`."""
    length = (f"train.pairs={pairs}", f"train.steps={steps}", "optimizer.learning_rate=3.0")
    return (*settings, "distill.teacher=", *MISALIGNED, *length, *others)


FIRST_PARTS: dict[str, Settings] = {
    "best": (*BEST, *OPEN_CHANGES),
    "fast": _light((8, 8, 16, 32, 64, 112), *OPEN_CHANGES, *FIRST_64, "train.steps=78126"),
    "tiny": _light((8, 8, 16, 16, 32, 32), *TAUGHT, *OPEN_CHANGES, *FIRST_64),
    **{
        f"{row}, as best": (*HEADS[row], *BEST_RECIPE, *OPEN_CHANGES)
        for row in ("hardnet", "combined s=1")
    },
}
"""Trainings from scratch, from which the shipped weights are trained further."""
FINAL: dict[str, Settings] = {
    **{
        row: (*HEADS[row], *AUGMENTATIONS["strong"])
        for row in ("hardnet", "combined s=1", "combined_star s=2")
    },
    **FIRST_PARTS,
    **{
        f"{row}, further": _further(own, 4096, 8000 if row in ("fast", "tiny") else 4000)
        for row, own in FIRST_PARTS.items()
    },
    **{
        f"{row}, N = 64": (*own, "model.patch_size=64")
        for row, own in FIRST_PARTS.items()
        if "best" in row
    },
    **{
        f"fast, further, {pairs} pairs": _further(
            FIRST_PARTS["fast"], pairs, steps, "loss.nested_weight=1.0"
        )
        for pairs, steps in ((8192, 6000), (24576, 4000))
    },
}
"""Models trained on all sets together."""
EXPERIMENTS = {"heads": HEADS, "ablation": QUESTIONS, "final": FINAL}
"""Rows of each experiment; of the ablation, its settings under study."""
TRIALS = Path(__file__).parents[2] / "results"
"""Records of trials that decided how the shipped weights are trained, with their settings."""


def rows_of(experiment: str) -> Mapping[str, Any]:
    """Return the rows of an experiment; those of a trial are in its records."""
    if experiment in EXPERIMENTS:
        return EXPERIMENTS[experiment]
    return {
        record["result"]["name"]: tuple(
            f"{name}={value}" for name, value in record["config"].items()
        )
        for record in read_records(TRIALS / f"{experiment}.jsonl")
    }


def make_trainings(
    experiment: str,
    rows: Mapping[str, Any],
    train: Sequence[str],
    seeds: Sequence[int],
    shared: Sequence[str],
) -> list[Training]:
    """Return the trainings of an experiment.

    Heads are trained on every set alone ("castle+herzjesu" counts as one), all others on all sets
    together. An ablation has rows by question, which override the `shared` settings, and a training
    with every default.
    """
    tried = [("", row, (*own, *shared)) for row, own in rows.items()]
    if experiment == "ablation":
        base = (*ABLATED, *shared)
        tried = [(DEFAULT, DEFAULT, base)]
        for question, values in rows.items():
            tried += [(question, row, (*base, *own)) for row, own in values.items()]
    sets = [tuple(name.split("+")) for name in train] if experiment == "heads" else [tuple(train)]
    return [
        Training(experiment, row, settings, together, seed, group=group)
        for group, row, settings in tried
        for together in sets
        for seed in seeds
    ]
