"""Configs of training runs: from a file and the command line to typed, validated values.

A config file has a function `get_config()` that returns an `ml_collections.ConfigDict` with the
fields of `RunConfig`. `configs/base.py` lists and explains all of them. A file may also have
`get_config(argument)`, for what follows a colon in `--config=configs/encoded.py:polar,s=1`.
"""

import ast
import dataclasses
import importlib.util
import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ml_collections import ConfigDict

from kjax.errors import InputError, one_line, unknown_name
from kjax.files.typed_values import Schema
from kjax.model import CHANNELS, DIMENSION
from kjax.model.descriptor import Descriptor, build

T = TypeVar("T")
PIPELINES = ("auto", "resident", "tfdata")
PARALLEL = ("pmap", "mesh")
OPTIMIZERS = ("sgd", "adam")
LOSSES = ("triplet", "softmax", "contrastive", "infonce", "sosnet", "hynet")
NEIGHBOUR_RULES = ("paper", "release")
DISTILL_TARGETS = ("descriptors", "distances")
MAX_STEPS = 2**31 - 1
"""Maximum number of steps: the counter on the devices is an int32."""
_PACKAGE = Path(__file__).parents[1]
CONFIG_FOLDERS = (
    Path("configs"),
    next(filter(Path.is_dir, [_PACKAGE / "configs"]), _PACKAGE.parent / "configs"),
)
"""Folders to look up a config's bare name: the current one's, the wheel's or the checkout's."""


def check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless a field has one of its possible values."""
    if value not in choices:
        raise unknown_name(field, value, choices)


def check_limits(group: str, config: Any, limits: Mapping[str, tuple[float | int, ...]]) -> None:
    """Raise if a field lies outside its limits (inclusive; a limit of ∞ excludes it)."""
    for name, (low, high) in limits.items():
        value = getattr(config, name)
        if not low <= value <= high or value == math.inf == high:
            wanted = f"between {low} and {high}" if high < math.inf else f"at least {low}"
            raise InputError(f"{group}.{name} must be {wanted}, not {value}")


def check_positive(group: str, config: Any, *names: str) -> None:
    """Raise unless all of these fields are positive and finite."""
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise InputError(f"{group}.{name} must be positive, not {getattr(config, name)}")


def check_shares(shares: tuple[float, ...], train: tuple[str, ...]) -> None:
    """Raise unless there are no shares, or one per training set that sum to 1."""
    whole = len(shares) == len(train) and math.isclose(sum(shares), 1)
    if shares and not (whole and min(shares) > 0):
        raise InputError(
            f"data.shares must be one positive number for each of the {len(train)} sets of "
            f"data.train and sum to 1, not {shares}"
        )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Arguments of `kjax.build`."""

    head: str
    s: int
    patch_size: int
    dropout: float
    head_bias: bool
    dtype: str
    kappa_xy: float
    kappa_rho: float
    kappa_theta: float
    scale_xy: float
    scale_rho: float
    scale_theta: float
    corner_radius: float
    channels: tuple[int, ...] = CHANNELS
    dimension: int = DIMENSION
    context: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        self.build()

    def build(self, *, axis_name: str | None = None) -> Descriptor:
        """Return the linen module."""
        try:
            return build(axis_name=axis_name, **dataclasses.asdict(self))
        except ValueError as error:  # PositionKernel is plain mathematics
            raise InputError(str(error)) from error


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Datasets, and the input pipeline."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    pipeline: str
    only_open: bool = False
    shares: tuple[float, ...] = ()
    photos: str = ""
    places: str = ""
    extent: float = 8.0

    def __post_init__(self) -> None:
        check_positive("data", self, "extent")
        if self.photos and (self.train or self.pipeline == "tfdata"):
            raise InputError(
                "data.photos lie on the device and replace data.train: set data.train=() and "
                "data.pipeline=auto"
            )
        if not (self.train or self.photos) or "" in (*self.train, *self.test):
            raise InputError("data.train needs a dataset: a folder, or 'embedded'")
        check_shares(self.shares, self.train)
        check_choice("pipeline", self.pipeline, PIPELINES)


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """Augmentation. The defaults are those of the HardNet release and of the paper."""

    flip_probability: float = 0.5
    transpose_probability: float = 0.5
    max_rotation_degrees: float = 5.0
    area: tuple[float, float] = (0.9, 1.0)
    aspect_ratio: tuple[float, float] = (0.9, 1.1)
    max_translation: float = math.inf
    misalignment: float = 0.0
    max_blur: float = 0.0
    max_gamma: float = 1.0
    saturation: float = 0.0
    max_noise: float = 0.0
    compression: float = 0.0
    photometric_probability: float = 1.0
    appearance: float = 0.0
    appearance_probability: float = 0.5
    appearance_without: tuple[str, ...] = ()
    rotation_noise: float = 5.0
    scale_noise: float = 0.08
    shift_noise: float = 0.02
    max_stretch: float = 1.3
    upright_share: float = 0.5

    def __post_init__(self) -> None:
        limits = {
            "flip_probability": (0, 1),
            "transpose_probability": (0, 1),
            "max_rotation_degrees": (0, 180),
            "misalignment": (0, 3),
            "max_blur": (0, 4),
            "max_gamma": (1, 10),
            "saturation": (0, 0.45),
            "max_noise": (0, 1),
            "compression": (0, 10),
            "photometric_probability": (0, 1),
            "appearance": (0, 2),
            "appearance_probability": (0, 1),
            "rotation_noise": (0, 180),
            "scale_noise": (0, 1),
            "shift_noise": (0, 1),
            "max_stretch": (1, 10),
            "upright_share": (0, 1),
        }
        check_limits("augment", self, limits)
        for name, lowest, highest in (("area", 0.01, 1.0), ("aspect_ratio", 0.1, 10.0)):
            low, high = getattr(self, name)
            if not lowest <= low <= high <= highest:
                raise InputError(
                    f"augment.{name} must be (low, high) with {lowest} ≤ low ≤ high ≤ {highest}, "
                    f"not {(low, high)}"
                )
        if not self.max_translation >= 0:
            raise InputError(
                f"augment.max_translation must be at least 0, not {self.max_translation}"
            )

    @property
    def changes_grey_values(self) -> bool:
        """Whether any photometric effect is on."""
        strengths = (self.max_blur, self.max_gamma - 1, self.saturation, self.max_noise)
        return self.photometric_probability > 0 and any((*strengths, self.compression))


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """A loss of `kjax.train.losses` and its constants; those of other losses are ignored."""

    name: str = "triplet"
    margin: float | None = None
    anchor_swap: bool = False
    temperature: float = 0.1
    neighbours: int = 8
    neighbour_rule: str = "paper"
    alpha: float = 2.0
    norm_weight: float = 0.1
    nested: tuple[int, ...] = ()
    nested_weight: float = 1.0

    def __post_init__(self) -> None:
        check_choice("loss", self.name, LOSSES)
        check_choice("neighbour rule", self.neighbour_rule, NEIGHBOUR_RULES)
        check_positive("loss", self, "temperature")
        if self.margin is not None:
            check_positive("loss", self, "margin")
        at_least_0 = dict.fromkeys(("alpha", "norm_weight", "nested_weight"), (0, math.inf))
        check_limits("loss", self, at_least_0 | {"neighbours": (1, math.inf)})
        if any(width < 1 for width in self.nested):
            raise InputError(f"loss.nested must be positive widths, not {self.nested}")


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """The teacher of a model, if it has one."""

    teacher: str = ""
    weight: float = 1.0
    match: str = "descriptors"

    def __post_init__(self) -> None:
        check_choice("distill.match", self.match, DISTILL_TARGETS)
        check_positive("distill", self, "weight")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Arguments of the optimiser; `adam` reads only `learning_rate` and `weight_decay`."""

    name: str
    learning_rate: float
    momentum: float
    dampening: float
    weight_decay: float
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_choice("optimizer", self.name, OPTIMIZERS)
        check_positive("optimizer", self, "learning_rate")
        limits = {"weight_decay": (0, math.inf), "warmup_steps": (0, MAX_STEPS)}
        check_limits("optimizer", self, limits)
        for name in ("momentum", "dampening"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"optimizer.{name} must be at least 0 and below 1, not {getattr(self, name)}"
                )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Batch size, length of the run, and how often it logs, evaluates and saves."""

    pairs: int
    pairs_per_epoch: int
    epochs: int
    steps: int
    joint_batch_norm: bool
    steps_per_dispatch: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    keep_checkpoints: int
    group: int = 1
    parallel: str = "pmap"

    def __post_init__(self) -> None:
        check_choice("train.parallel", self.parallel, PARALLEL)
        least = dict.fromkeys((f.name for f in dataclasses.fields(self) if f.type is not str), 1)
        least |= {"pairs": 2, "steps": 0, "eval_every": 0, "joint_batch_norm": 0}
        check_limits("train", self, {name: (low, MAX_STEPS) for name, low in least.items()})
        if self.pairs % self.group:
            raise InputError(
                f"train.pairs must be a multiple of train.group, {self.group}, not {self.pairs}"
            )
        if self.total_steps > MAX_STEPS:
            raise InputError(f"{self.total_steps} steps are too many: the maximum is {MAX_STEPS}")

    @property
    def total_steps(self) -> int:
        """`steps`, or the number of steps in all epochs."""
        return self.steps or math.ceil(self.epochs * self.pairs_per_epoch / self.pairs)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole config, validated."""

    seed: int
    seeds: tuple[int, ...]
    model: ModelConfig
    data: DataConfig
    augment: AugmentConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    progress: bool
    tensorboard: bool
    distill: DistillConfig = DistillConfig()
    init: str = ""

    def __post_init__(self) -> None:
        for seed in (self.seed, *self.seeds):
            if not 0 <= seed < 2**32:
                raise InputError(f"a seed must be from 0 to 4294967295 (2³²−1), not {seed}")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must differ from each other: {self.seeds}")
        if any(width >= self.model.dimension for width in self.loss.nested):
            raise InputError(
                f"loss.nested must be less than model.dimension, {self.model.dimension}, "
                f"not {self.loss.nested}"
            )
        if len(self.model.context) > 1 and (self.data.test or not self.data.photos):
            raise InputError(
                "model.context needs the surroundings of patches: train on data.photos, with "
                "data.test=()"
            )
        if len(self.seeds) > 1 and self.data.pipeline == "tfdata":
            raise InputError("several seeds side by side need data.pipeline=resident")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """`seeds`, or the one `seed`."""
        return self.seeds or (self.seed,)


def read_config(spec: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the validated config of a file; see `load_config` and `validate`."""
    return validate(load_config(spec, overrides))


def load_config(spec: str | Path, overrides: Sequence[str] = ()) -> ConfigDict:
    """Return the config of a file, locked: fields can be changed but not added.

    Args:
        spec: a path, or the bare name of a file in `configs`, and optionally `:argument`.
        overrides: as for `override`.

    Raises:
        InputError: there is no such file, or it does not return a config.
    """
    name, colon, argument = str(spec).partition(":")
    path = _find_config(name)
    try:
        module_spec = importlib.util.spec_from_file_location(f"kjax_config_{path.stem}", path)
        if module_spec is None or module_spec.loader is None:
            raise InputError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise InputError(f"{path} has no function get_config")
        if colon and not inspect.signature(module.get_config).parameters:
            raise InputError(f"{path} takes no argument: leave out ':{argument}'")
        config = module.get_config(argument) if colon else module.get_config()
    except InputError:
        raise
    except Exception as error:  # whatever the file's own code raises
        raise InputError(f"cannot load {path}: {one_line(error)}") from error
    if not isinstance(config, ConfigDict):
        raise InputError(f"get_config of {path} must return an ml_collections.ConfigDict")
    override(config, overrides)
    return config.lock()


def _find_config(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    known = {one.stem: one for folder in reversed(CONFIG_FOLDERS) for one in _configs_in(folder)}
    if name in known:
        return known[name]
    beside = map(str, _configs_in(path.parent)) if path.suffix else ()
    raise unknown_name("config", name, [*beside, *known])


def _configs_in(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*.py") if path.is_file())
    return [path for path in files if b"def get_config(" in path.read_bytes()]


def override(config: ConfigDict, arguments: Sequence[str]) -> None:
    """Change fields in place, as the command line does. `validate` checks the values later.

    Arguments look like `--config.model.s=1`, or have a space for the `=`.

    Raises:
        InputError: there is no such field.
    """
    fields = flat_fields(config.to_dict())
    remaining = list(arguments)
    while remaining:
        option, equals, text = remaining.pop(0).partition("=")
        path = option.removeprefix("--config.")
        if path == option:
            raise InputError(
                f"unexpected argument {option!r}: overrides have the form --config.field=value"
            )
        if inner := [name for name in fields if name.startswith(f"{path}.")]:
            raise InputError(f"config.{path} is a group of fields: {', '.join(inner)}")
        if path not in fields:
            group, _, name = path.rpartition(".")
            elsewhere = [known for known in fields if known.rpartition(".")[2] == name]
            siblings = [known for known in fields if known.rpartition(".")[0] == group]
            raise unknown_name("config field", path, elsewhere or siblings or fields)
        if not equals:
            if not remaining or remaining[0].startswith("--"):
                raise InputError(f"{option} needs a value: {option}=VALUE")
            text = remaining.pop(0)
        with config.ignore_type():
            config.update_from_flattened_dict({path: _parse_value(text, fields[path])})


def _parse_value(text: str, old: Any) -> Any:
    """Return a value of the old one's type; text that has none stays text, for `validate`."""
    if isinstance(old, str) or text == "None":
        return text if isinstance(old, str) else None
    if isinstance(old, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        value = float(text) if isinstance(old, float) else ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = text
    if isinstance(old, tuple):
        return tuple(value) if isinstance(value, tuple | list) else (value,)
    return value


def validate(config: ConfigDict | Mapping[str, Any]) -> RunConfig:
    """Return the typed config after checking every field's name, type and value.

    Raises:
        InputError: the first field that is wrong, and the nearest valid name.
    """
    return validate_as(RunConfig, config)


def validate_as(kind: type[T], config: ConfigDict | Mapping[str, Any]) -> T:
    """Validate like `validate`, for a config of another type."""
    values = config.to_dict() if isinstance(config, ConfigDict) else config
    return Schema(kind, "config", wrong="config.{path} {must}, not {value}").read(values)


def flat_fields(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of nested groups by their dotted path."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            fields |= flat_fields(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields
