"""What is to be trained: the trainings of a table, each a config, its training sets and a seed."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from kjax.runs.config import RunConfig, flat_fields, load_config, override, validate
from kjax.tune.training import MISALIGNED


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


Settings = tuple[str, ...]


def _table(fields: Sequence[str], rows: dict[str, Settings]) -> dict[str, Settings]:
    """The settings of each row: the fields with its values."""
    return {
        name: tuple(f"{field}={value}" for field, value in zip(fields, values, strict=True))
        for name, values in rows.items()
    }


def _values(field: str, *values: str) -> dict[str, Settings]:
    """Each value as a row of its own."""
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
"""The models of the paper, and what makes each."""


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
"""Stronger than the paper's, which is the default."""
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
"""Changes of grey values, which the paper has none of."""
ABLATED = "combined s=2"
"""The model that open questions are settled on: both coordinate systems, and half the time of two
trunks."""
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


RECIPES: dict[str, Settings] = {
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
BEST_RECIPE = (*AUGMENTATIONS["hard"], *PHOTOMETRY["moderate"], "model.dropout=0.1")
BEST = (*HEADS["combined_star s=2"], *BEST_RECIPE)
HALF, QUARTER = (16, 16, 32, 32, 64, 64), (8, 8, 16, 16, 32, 32)
"""Of the paper's channels."""


def _light(channels: tuple[int, ...], *others: str) -> tuple[str, ...]:
    """`best`'s recipe with one trunk of so many channels."""
    return (*HEADS[ABLATED], *BEST_RECIPE, f"model.channels={channels}", *others)


def _taught(match: str, weight: float) -> tuple[str, str]:
    return f"distill.match={match}", f"distill.weight={weight}"


OPEN_CHANGES = ("model.dropout=0.0", "augment.max_noise=0.25")
"""What was found on open photographs, whose variety needs no dropout."""
ALONE = ("distill.teacher=",)
NESTED = ("loss.nested=(32,64)",)
ONCE = _taught("descriptors", 1.0)
NESTED_WEIGHT = "loss.nested_weight=0.3"
TAUGHT = (*ONCE, NESTED_WEIGHT, "model.dropout=0.0", "distill.teacher=best")
FIRST_64 = ("loss.nested=(64,)", NESTED_WEIGHT)
TWICE_AS_LONG = "train.steps=78126"
"""As the paper's 39,063."""
SHIPPED: dict[str, Settings] = {
    **{
        row: (*HEADS[row], *AUGMENTATIONS["strong"])
        for row in ("hardnet", "combined s=1", "combined_star s=2")
    },
    "best-research": BEST,
    "fast-research": _light((8, 8, 16, 32, 64, 96), *TAUGHT, *NESTED),
    "tiny-research": _light((8, 8, 16, 16, 32, 48), *TAUGHT, *NESTED),
    "best": (*BEST, *OPEN_CHANGES),
    "fast": _light((8, 8, 16, 32, 64, 112), *OPEN_CHANGES, *FIRST_64, TWICE_AS_LONG),
    "tiny": _light((8, 8, 16, 16, 32, 32), *TAUGHT, *OPEN_CHANGES, *FIRST_64),
}
"""The models that ship with the package; of `best`, `fast` and `tiny` the first part, from which
they are trained on below."""


def _trained_on(settings: Settings, pairs: int, steps: int) -> Settings:
    """Trained weights trained on, askew, in large batches and without a teacher.

    `--config.init` says from which weights.
    """
    return (*settings, *ALONE, *MISALIGNED, *_length(pairs, steps))


def _length(pairs: int, steps: int) -> Settings:
    """Of a training that goes on from trained weights."""
    return f"train.pairs={pairs}", f"train.steps={steps}", "optimizer.learning_rate=3.0"


AS_BEST: dict[str, Settings] = {
    f"{row}, as best": (*HEADS[row], *BEST_RECIPE, *OPEN_CHANGES)
    for row in ("hardnet", "combined s=1")
}
LARGER_PATCHES: dict[str, Settings] = {
    f"{row}, N = 64": (*settings, "model.patch_size=64")
    for row, settings in {"best": SHIPPED["best"], **AS_BEST}.items()
}
FINAL: dict[str, Settings] = {
    **SHIPPED,
    **AS_BEST,
    "best, askew": _trained_on(SHIPPED["best"], 4096, 4000),
    "fast, askew": _trained_on(SHIPPED["fast"], 4096, 8000),
    "tiny, askew": _trained_on(SHIPPED["tiny"], 4096, 8000),
    **{f"{row}, askew": _trained_on(settings, 4096, 4000) for row, settings in AS_BEST.items()},
    **LARGER_PATCHES,
    "best, large batches alone": (*SHIPPED["best"], *_length(4096, 4000)),
    "best, further, 12288 pairs": (
        *_trained_on(SHIPPED["best"], 12288, 4000),
        "loss.nested=(64,)",
        "loss.nested_weight=1.0",
    ),
    "fast, further, 64 numbers": (
        *_trained_on(SHIPPED["fast"], 12288, 4000),
        "model.dimension=64",
        "loss.nested=()",
    ),
    **{
        f"fast, further, {pairs} pairs{words}": (
            *_trained_on(SHIPPED["fast"], pairs, steps),
            f"loss.nested_weight={weight}",
        )
        for pairs, steps, words, weight in (
            (8192, 6000, "", 1.0),
            (12288, 8000, ", first 64 × 3", 3.0),
            (24576, 4000, "", 1.0),
        )
    },
}
"""And the paper's others, trained as `best`, its `combined_star` with s=2, is; and what ships,
trained on."""
LIGHT: dict[str, tuple[str, ...]] = {
    "teacher": (*BEST, *ALONE),
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


def _open(*others: str, augmentation: str = "hard", photometry: str = "moderate") -> Settings:
    """`best`'s recipe for the model that questions are settled on, with something changed."""
    recipe = (*AUGMENTATIONS[augmentation], *PHOTOMETRY[photometry], "model.dropout=0.1")
    return (*HEADS[ABLATED], *recipe, *others)


def _batch(pairs: int, group: int = 1) -> Settings:
    """Batches of so many pairs, in groups of one photograph, and as many pairs in all."""
    steps = OPEN_STEPS * 512 // pairs
    return f"train.pairs={pairs}", f"train.group={group}", f"train.steps={steps}"


def _continued(*others: str) -> Settings:
    """`best` itself trained on, with something changed; `--config.init` says from which weights."""
    own = (*_batch(512), "optimizer.learning_rate=3.0", *others)
    return (*SHIPPED["best"], *own)


OPEN_STEPS = 6000
INFONCE = ("loss.name=infonce",)
OPEN: dict[str, Settings] = {
    "as best": _open(*_batch(512)),
    "no dropout": _open(*_batch(512), "model.dropout=0.0"),
    "no dropout, noise 0.25": _open(*_batch(512), *OPEN_CHANGES),
    "noise 0.4": _open(*_batch(512), "augment.max_noise=0.4"),
    "strong": _open(*_batch(512), augmentation="strong"),
    "harder": _open(*_batch(512), augmentation="harder"),
    **{f"groups of {group}": _open(*_batch(512, group)) for group in (8, 32, 128)},
    **{f"{pairs} pairs": _open(*_batch(pairs)) for pairs in (1024, 2048)},
    "2048 pairs, groups of 64": _open(*_batch(2048, 64)),
    "2048 pairs, rate 20": _open(*_batch(2048), "optimizer.learning_rate=20.0"),
    "softmax": _open(*_batch(512), "loss.name=softmax"),
    "sosnet, rate 3": _open(*_batch(512), "loss.name=sosnet", "optimizer.learning_rate=3.0"),
    "infonce": _open(*_batch(512), "model.dropout=0.0", *INFONCE),
    "2048 pairs, infonce": _open(*_batch(2048), "model.dropout=0.0", *INFONCE),
    "continued": _continued(),
    "continued, infonce": _continued(*INFONCE),
    "continued, infonce, colder": _continued(*INFONCE, "loss.temperature=0.05"),
    "continued, softmax": _continued("loss.name=softmax"),
    "continued, sosnet": _continued("loss.name=sosnet"),
    "continued, harder": _continued(*AUGMENTATIONS["harder"]),
    "continued, both rows": _continued("loss.anchor_swap=True"),
    "continued, 2048 pairs": _continued(*_batch(2048)),
    "continued, 2048 pairs, infonce": _continued(*_batch(2048), *INFONCE),
    "continued, 2048 pairs, groups of 64": _continued(*_batch(2048, 64)),
    "continued, no decay": _continued("optimizer.weight_decay=0.0"),
    "continued, askew": _continued(*MISALIGNED),
    **{
        f"continued, askew, {pairs} pairs, {steps} steps": _continued(
            *MISALIGNED, f"train.pairs={pairs}", f"train.steps={steps}"
        )
        for pairs, steps in ((2048, 4000), (4096, 4000), (8192, 3000))
    },
}
"""Ways of training on photographs that anyone may use, of as many pairs each if not said."""


EXPERIMENTS = {
    "heads": HEADS,
    "ablation": QUESTIONS,
    "recipes": RECIPES,
    "light": LIGHT,
    "open": OPEN,
    "final": FINAL,
}
"""What can be trained: the names of each experiment's rows or questions."""


def make_trainings(
    experiment: str,
    names: Iterable[str],
    train: Sequence[str],
    seeds: Sequence[int],
    shared: Sequence[str],
) -> list[Training]:
    """The trainings of an experiment.

    Args:
        experiment: of `EXPERIMENTS`. Heads are trained on every set alone, all else on all sets
            together; an ablation also has the default of all questions.
        names: of its rows, or questions.
        train: names of the training sets.
        seeds: of each.
        shared: settings that all of them have.
    """
    # What is asked about comes last, so that it overrides what is shared.
    base = (*HEADS[ABLATED], *shared)
    tried: list[tuple[str, str, Settings]]
    match experiment:
        case "ablation":
            tried = [(DEFAULT, DEFAULT, base)]
            for name in names:
                tried += [(name, row, (*base, *own)) for row, own in QUESTIONS[name].items()]
        case "recipes":
            tried = [("", row, (*base, *RECIPES[row])) for row in names]
        case "light" | "open":
            rows = LIGHT if experiment == "light" else OPEN
            tried = [("", row, (*shared, *rows[row])) for row in names]
        case "heads":
            tried = [("", row, (*HEADS[row], *shared)) for row in names]
        case _:
            tried = [("", row, (*FINAL[row], *shared)) for row in names]
    sets = [(name,) for name in train] if experiment == "heads" else [tuple(train)]
    return [
        Training(experiment, row, settings, together, seed, group=group)
        for group, row, settings in tried
        for together in sets
        for seed in seeds
    ]
