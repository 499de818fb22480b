"""The trainings of each experiment: a configuration, its training sets and a seed."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from kjax.runs.config import RunConfig, flat_fields, load_config, override, validate

Settings = tuple[str, ...]
"""Overrides of `configs/base.py`, e.g. "model.head=xy"."""


@dataclasses.dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        experiment: name of the table and of the file of records.
        row: name of the model, or of the value tried.
        settings: overrides of `configs/base.py`.
        train: names of the training sets.
        seed: random seed.
        group: the setting under study, in ablations.
    """

    experiment: str
    row: str
    settings: Settings
    train: tuple[str, ...]
    seed: int
    group: str = ""

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
AUGMENTATIONS = _table(
    (
        "augment.area",
        "augment.aspect_ratio",
        "augment.max_rotation_degrees",
        "augment.max_translation",
    ),
    {
        "medium": ("(0.5,1.0)", "(0.8,1.25)", "15.0", "0.15"),
        "strong": ("(0.3,0.9)", "(0.75,1.33)", "25.0", "0.2"),
        "hard": ("(0.2,0.7)", "(0.7,1.4)", "25.0", "0.25"),
        "harder": ("(0.15,0.6)", "(0.6,1.6)", "40.0", "0.4"),
    },
)
"""Geometric augmentations stronger than the paper's, which is the default."""
PHOTOMETRY = _table(
    (
        "augment.max_blur",
        "augment.max_gamma",
        "augment.saturation",
        "augment.max_noise",
        "augment.compression",
        "augment.photometric_probability",
    ),
    {
        "mild": ("0.7", "1.4", "0.08", "0.08", "0.4", "0.5"),
        "moderate": ("1.2", "1.8", "0.15", "0.15", "1.0", "0.5"),
        "heavy": ("1.8", "2.5", "0.3", "0.25", "2.0", "0.6"),
    },
)
"""Photometric augmentations; the paper has none."""
ABLATED = HEADS["combined s=2"]
"""The model of ablations: both coordinate systems, and half the time of two trunks."""
QUESTIONS: dict[str, dict[str, Settings]] = {
    "kappa_xy": _values("model.kappa_xy", "2.0", "4.0", "8.0"),
    "scale_xy": _table(["model.scale_xy"], {"π/4": (str(math.pi / 4),), "π": (str(math.pi),)}),
    "kappa_rho": _values("model.kappa_rho", "1.0", "3.0"),
    "kappa_theta": _values("model.kappa_theta", "1.0", "3.0"),
    "scale_rho": {"π/2": (f"model.scale_rho={math.pi / 2}",)},
    "corner_radius": _table(
        ["model.corner_radius"], {"√2": (str(math.sqrt(2)),), "no centre weight": ("0.001",)}
    ),
    "anchor_swap": {"on": ("loss.anchor_swap=True",)},
    "batch_norm": {"separate": ("train.joint_batch_norm=False",)},
    "dropout": _values("model.dropout", "0.0", "0.1"),
    "head_bias": {"off": ("model.head_bias=False",)},
    "patch_size": _values("model.patch_size", "64"),
    "precision": _values("model.dtype", "float32"),
    "augmentation": AUGMENTATIONS,
    "loss": _values("loss.name", "sosnet", "hynet", "softmax"),
}
"""Settings under study, each with the values tried besides its default."""
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
DEFAULT = "default"
"""Group of the trainings that have every default."""


def _strong(*others: str, augmentation: str = "strong") -> Settings:
    return (*AUGMENTATIONS[augmentation], *others)


RECIPES: dict[str, Settings] = {
    "plain": (),
    "medium": _strong(augmentation="medium"),
    "medium, softmax": _strong("loss.name=softmax", augmentation="medium"),
    "strong": _strong(),
    "strong, softmax": _strong("loss.name=softmax"),
    "strong, rate 3": _strong("optimizer.learning_rate=3.0"),
    "strong, winners": _strong(
        "model.scale_xy=0.785398", "model.kappa_theta=1.0", "train.joint_batch_norm=False"
    ),
    "hard": _strong(augmentation="hard"),
    "strong, dropout 0.1": _strong("model.dropout=0.1"),
    "medium, sosnet, rate 1": _strong(
        "loss.name=sosnet", "optimizer.learning_rate=1.0", augmentation="medium"
    ),
    "medium, hynet, adam": _strong(
        "loss.name=hynet",
        "optimizer.name=adam",
        "optimizer.learning_rate=0.01",
        augmentation="medium",
    ),
    **{f"strong, {level} photometry": _strong(*own) for level, own in PHOTOMETRY.items()},
}
"""Recipes to choose from for the shipped weights."""
BEST_RECIPE = (*AUGMENTATIONS["hard"], *PHOTOMETRY["moderate"], "model.dropout=0.1")
BEST = (*HEADS["combined_star s=2"], *BEST_RECIPE)
HALF, QUARTER = (16, 16, 32, 32, 64, 64), (8, 8, 16, 16, 32, 32)
"""Channels of narrower trunks, as fractions of the paper's."""
OPEN_CHANGES = ("model.dropout=0.0", "augment.max_noise=0.25")
"""Changes that help on the larger, openly licensed sets."""
ALONE = ("distill.teacher=",)
TAUGHT = ("distill.match=descriptors", "distill.weight=1.0")
NESTED = ("loss.nested=(32,64)",)
FIRST_64 = ("loss.nested=(64,)", "loss.nested_weight=0.3")


def _light(channels: tuple[int, ...], *others: str) -> Settings:
    """`best`'s recipe with one trunk of these channels."""
    return (*ABLATED, *BEST_RECIPE, f"model.channels={channels}", *others)


def _further(settings: Settings, pairs: int, steps: int, *others: str) -> Settings:
    """Further training on misaligned pairs in large batches, from the weights `--config.init`."""
    length = (f"train.pairs={pairs}", f"train.steps={steps}", "optimizer.learning_rate=3.0")
    return (*settings, *ALONE, *MISALIGNED, *length, *others)


FIRST_PARTS: dict[str, Settings] = {
    "best": (*BEST, *OPEN_CHANGES),
    "fast": _light((8, 8, 16, 32, 64, 112), *OPEN_CHANGES, *FIRST_64, "train.steps=78126"),
    "tiny": _light(QUARTER, *TAUGHT, "distill.teacher=best", *OPEN_CHANGES, *FIRST_64),
    **{
        f"{row}, as best": (*HEADS[row], *BEST_RECIPE, *OPEN_CHANGES)
        for row in ("hardnet", "combined s=1")
    },
}
"""Trainings from scratch, from which the shipped weights are trained further."""
FINAL: dict[str, Settings] = {
    **{row: (*HEADS[row], *_strong()) for row in ("hardnet", "combined s=1", "combined_star s=2")},
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
    "best, further, 12288 pairs": _further(
        FIRST_PARTS["best"], 12288, 4000, "loss.nested=(64,)", "loss.nested_weight=1.0"
    ),
    **{
        f"fast, further, {pairs} pairs": _further(
            FIRST_PARTS["fast"], pairs, steps, "loss.nested_weight=1.0"
        )
        for pairs, steps in ((8192, 6000), (24576, 4000))
    },
}
"""Models trained on all sets together."""
LIGHT: dict[str, Settings] = {
    "teacher": (*BEST, *ALONE),
    "all channels": _light((32, 32, 64, 64, 128, 128), *ALONE),
    "half": _light(HALF, *ALONE),
    **{
        f"half, {match} × {weight:g}": _light(
            HALF, f"distill.match={match}", f"distill.weight={weight}"
        )
        for match, weights in {
            "descriptors": (0.5, 1.0, 2.0, 4.0),
            "distances": (1.0, 10.0),
        }.items()
        for weight in weights
    },
    "half, nested": _light(HALF, *ALONE, *NESTED),
    **{
        f"half, taught, nested × {weight:g}": _light(
            HALF, *TAUGHT, *NESTED, f"loss.nested_weight={weight}"
        )
        for weight in (0.1, 0.3, 1.0)
    },
    "half, taught, no dropout": _light(HALF, *TAUGHT, "model.dropout=0.0"),
    "quarter": _light(QUARTER, *ALONE),
    **{
        f"{'-'.join(map(str, channels))}, taught": _light(channels, *TAUGHT)
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
"""Narrow models, alone and with the teacher that `--config.distill.teacher` names."""


def _batch(pairs: int, group: int = 1) -> Settings:
    """Batches of `pairs`, in groups from one photo; the number of pairs seen stays the same."""
    return f"train.pairs={pairs}", f"train.group={group}", f"train.steps={6000 * 512 // pairs}"


def _open(*others: str, pairs: int = 512, group: int = 1, augmentation: str = "hard") -> Settings:
    """`best`'s recipe for the model of ablations, with some change."""
    recipe = (*AUGMENTATIONS[augmentation], *PHOTOMETRY["moderate"], "model.dropout=0.1")
    return (*ABLATED, *recipe, *_batch(pairs, group), *others)


def _continued(*others: str, pairs: int = 512, group: int = 1) -> Settings:
    """`best` trained further with some change, from the weights `--config.init`."""
    return (*FIRST_PARTS["best"], *_batch(pairs, group), "optimizer.learning_rate=3.0", *others)


INFONCE = "loss.name=infonce"
OPEN: dict[str, Settings] = {
    "as best": _open(),
    "no dropout": _open("model.dropout=0.0"),
    "no dropout, noise 0.25": _open(*OPEN_CHANGES),
    "noise 0.4": _open("augment.max_noise=0.4"),
    "strong": _open(augmentation="strong"),
    "harder": _open(augmentation="harder"),
    **{f"groups of {group}": _open(group=group) for group in (8, 32, 128)},
    **{f"{pairs} pairs": _open(pairs=pairs) for pairs in (1024, 2048)},
    "2048 pairs, groups of 64": _open(pairs=2048, group=64),
    "2048 pairs, rate 20": _open("optimizer.learning_rate=20.0", pairs=2048),
    "softmax": _open("loss.name=softmax"),
    "sosnet, rate 3": _open("loss.name=sosnet", "optimizer.learning_rate=3.0"),
    "infonce": _open("model.dropout=0.0", INFONCE),
    "2048 pairs, infonce": _open("model.dropout=0.0", INFONCE, pairs=2048),
    "continued": _continued(),
    "continued, infonce": _continued(INFONCE),
    "continued, infonce, colder": _continued(INFONCE, "loss.temperature=0.05"),
    "continued, softmax": _continued("loss.name=softmax"),
    "continued, sosnet": _continued("loss.name=sosnet"),
    "continued, 2048 pairs": _continued(pairs=2048),
    "continued, 2048 pairs, infonce": _continued(INFONCE, pairs=2048),
    "continued, misaligned": _continued(*MISALIGNED),
}
"""Trainings on openly licensed photographs, of the same number of pairs each."""

EXPERIMENTS = {
    "heads": HEADS,
    "ablation": QUESTIONS,
    "recipes": RECIPES,
    "light": LIGHT,
    "open": OPEN,
    "final": FINAL,
}
"""Rows of each experiment; of the ablation, its settings under study."""


def make_trainings(
    experiment: str,
    names: Iterable[str],
    train: Sequence[str],
    seeds: Sequence[int],
    shared: Sequence[str],
) -> list[Training]:
    """Return the trainings of an experiment.

    Args:
        experiment: one of `EXPERIMENTS`. Heads are trained on every set alone, all others on all
            sets together; an ablation also has a training with every default.
        names: its rows, or settings under study.
        train: names of the training sets.
        seeds: random seeds.
        shared: overrides of all trainings; ablations, recipes and light models override them.
    """
    tried: list[tuple[str, str, Settings]]
    if experiment == "ablation":
        base = (*ABLATED, *shared)
        tried = [(DEFAULT, DEFAULT, base)]
        for name in names:
            tried += [(name, row, (*base, *own)) for row, own in QUESTIONS[name].items()]
    elif experiment == "recipes":
        tried = [("", row, (*ABLATED, *shared, *RECIPES[row])) for row in names]
    elif experiment in ("light", "open"):
        tried = [("", row, (*shared, *EXPERIMENTS[experiment][row])) for row in names]
    else:
        tried = [("", row, (*EXPERIMENTS[experiment][row], *shared)) for row in names]
    sets = [(name,) for name in train] if experiment == "heads" else [tuple(train)]
    return [
        Training(experiment, row, settings, together, seed, group=group)
        for group, row, settings in tried
        for together in sets
        for seed in seeds
    ]
