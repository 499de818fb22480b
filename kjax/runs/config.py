"""Configs of training runs: from a file and the command line to checked, typed values.

A config file has `get_config()`, or `get_config(argument)` for what follows a colon in
`--config=configs/encoded.py:polar,s=1`, and returns an `ml_collections.ConfigDict` with the fields
of `RunConfig`. `configs/base.py` lists all of them with what they mean.
"""

import dataclasses
import importlib.util
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from kjax.data.sampler import check_seed
from kjax.data.sets import EMBEDDED
from kjax.errors import InputError, one_line, unknown_name
from kjax.files.typed_values import Schema
from kjax.model.descriptor import Descriptor, build
from kjax.model.dimensions import CHANNELS, DIMENSION
from kjax.train.augment import AugmentConfig
from kjax.train.distillation import DistillConfig
from kjax.train.losses import LossConfig

PIPELINES = ("auto", "resident", "tfdata")
OPTIMIZERS = ("sgd", "adam")
_LEAST = {"pairs": 2, "steps": 0, "eval_every": 0}
"""Lowest values of those fields of `TrainConfig` for which it is not 1."""
MOST_STEPS = 2**31 - 1
"""The most steps, and counts of them, that the counter on the devices can hold."""
CONFIG_FOLDERS = (Path("configs"), Path(__file__).parents[2] / "configs")
"""Folders in which a config that is given by its bare name is looked for."""


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

    def __post_init__(self) -> None:
        self.build()

    def build(self, *, axis_name: str | None = None) -> Descriptor:
        """The linen module."""
        try:
            return build(axis_name=axis_name, **dataclasses.asdict(self))
        except ValueError as error:  # PositionKernel is mathematics and knows no InputError
            raise InputError(str(error)) from error


def check_shares(shares: tuple[float, ...], train: tuple[str, ...]) -> None:
    """Refuses shares that are not those of the sets to train on; none are fine."""
    if shares and (
        len(shares) != len(train) or min(shares) <= 0 or not math.isclose(sum(shares), 1)
    ):
        raise InputError(
            f"data.shares must be one for each of the {len(train)} sets of data.train, "
            f"positive, and 1 together, not {shares}"
        )


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The sets, as folders or `EMBEDDED`, and how their pairs reach the devices."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    pipeline: str
    only_open: bool = False
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.train or "" in (*self.train, *self.test):
            raise InputError(f"data.train needs a set: a folder, or {EMBEDDED!r}")
        check_shares(self.shares, self.train)
        if self.pipeline not in PIPELINES:
            raise unknown_name("pipeline", self.pipeline, PIPELINES)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Arguments of the optimiser; `adam` reads only `learning_rate` and `weight_decay`."""

    name: str
    learning_rate: float
    momentum: float
    dampening: float
    weight_decay: float

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise unknown_name("optimizer", self.name, OPTIMIZERS)
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"optimizer.learning_rate must be positive, not {self.learning_rate}")
        for name in ("momentum", "dampening"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"optimizer.{name} must be at least 0 and below 1, not {getattr(self, name)}"
                )
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"optimizer.weight_decay must not be negative: {self.weight_decay}")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Batches, length and cadence of a run."""

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

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            lowest = _LEAST.get(name, 1)
            if not isinstance(value, bool) and value < lowest:
                raise InputError(f"train.{name} must be at least {lowest}, not {value}")
            if value > MOST_STEPS:
                raise InputError(f"train.{name} must be at most {MOST_STEPS}, not {value}")
        if self.pairs % self.group:
            raise InputError(
                f"train.pairs must be a multiple of train.group, {self.group}, not {self.pairs}"
            )
        if self.total_steps > MOST_STEPS:
            raise InputError(f"{self.total_steps} steps are more than the {MOST_STEPS} possible")

    @property
    def total_steps(self) -> int:
        """`steps`, or as many as see `epochs` times `pairs_per_epoch` pairs."""
        return self.steps or math.ceil(self.epochs * self.pairs_per_epoch / self.pairs)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole config, checked."""

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
    distill: DistillConfig = DistillConfig()  # noqa: RUF009  (it is frozen)
    init: str = ""

    def __post_init__(self) -> None:
        for seed in (self.seed, *self.seeds):
            check_seed(seed)
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must differ from each other: {self.seeds}")
        if any(width >= self.model.dimension for width in self.loss.nested):
            raise InputError(
                f"loss.nested must be fewer entries than the {self.model.dimension} of "
                f"model.dimension, not {self.loss.nested}"
            )
        if len(self.seeds) > 1 and self.data.pipeline == "tfdata":
            raise InputError("several seeds side by side need data.pipeline=resident")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """`seeds`, or the one `seed`."""
        return self.seeds or (self.seed,)


_SCHEMA = Schema(
    RunConfig,
    "config",
    wrong="config.{path} {must}, not {value}",
    remedy=": start from load_config('base')",
)


# From a file


def load_config(spec: str | Path) -> ConfigDict:
    """The config of a file, locked: its fields can be changed but none added.

    Args:
        spec: a path, or the bare name of a file in `configs`, and perhaps `:argument`.

    Raises:
        InputError: there is no such file, or it does not make a config.
    """
    name, has_argument, argument = str(spec).partition(":")
    path = _find_config(name)
    try:
        get_config = _load_function(path)
        arguments = [argument] if has_argument else []
        if has_argument and not inspect.signature(get_config).parameters:
            raise InputError(f"{path} takes no argument: leave out ':{argument}'")
        config = get_config(*arguments)
    except InputError:
        raise
    except Exception as error:  # whatever the file's own code raises
        raise InputError(f"cannot load {path} ({one_line(error)}): mend the file") from error
    if not isinstance(config, ConfigDict):
        raise InputError(f"get_config of {path} must return an ml_collections.ConfigDict")
    return config.lock()


def read_config(
    spec: str | Path, overrides: Sequence[str] = (), *, schema: Schema[Any] = _SCHEMA
) -> ConfigDict:
    """The config of a file with some fields changed, validated and locked.

    Args:
        spec: the file, as for `load_config`.
        overrides: as on the command line, e.g. `--config.model.s=1`; they win over the file, and
            the last of one field over those before it.
        schema: what it is a config of: of a descriptor's training, by default.

    Raises:
        InputError: anything is wrong with it.
    """
    config = load_config(spec)
    schema.read(config.to_dict())
    override(config, overrides, schema=schema)
    schema.read(config.to_dict())
    return config


def override(
    config: ConfigDict, arguments: Sequence[str], *, schema: Schema[Any] = _SCHEMA
) -> None:
    """Changes fields in place, as the command line does.

    Args:
        config: what to change.
        arguments: as on the command line, e.g. `--config.model.s=1`.
        schema: what it is a config of.

    Raises:
        InputError: there is no such field, or the value does not fit it.
    """
    values = flags.FlagValues()
    _check_names(arguments, schema)
    given, cleared = _without_cleared(_last_of_each(arguments), schema)
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=["", *given])
        rest = values(["", *given])[1:]
    except flags.Error as error:
        raise _refused(error, schema) from error
    if rest:
        raise InputError(f"unexpected argument {rest[0]!r}: options have the form --name=value")
    with config.ignore_type():
        config.update_from_flattened_dict(dict.fromkeys(cleared))


def _last_of_each(arguments: Sequence[str]) -> list[str]:
    """Of several values for one field the last: those of a tuple would be joined by absl."""
    last = {argument.partition("=")[0]: place for place, argument in enumerate(arguments)}
    return [
        argument
        for place, argument in enumerate(arguments)
        if "=" not in argument or last[argument.partition("=")[0]] == place
    ]


def _without_cleared(arguments: Sequence[str], schema: Schema[Any]) -> tuple[list[str], list[str]]:
    """Arguments without `--config.field=None`, which absl cannot read, and the fields so named.

    Only fields that may be None.
    """
    given: list[str] = []
    cleared: list[str] = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        field = name.lstrip("-").removeprefix("config.")
        if value == "None" and isinstance(schema.types.get(field), types.UnionType):
            cleared.append(field)
            continue
        given.append(argument)
    return given, cleared


def _find_config(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    bare = path.suffix == "" and path.name == name
    for folder in CONFIG_FOLDERS if bare else ():
        if (found := folder / f"{name}.py").is_file():
            return found
    # A mistyped file name is more likely than a mistyped folder: offer what lies beside it.
    for folder in (*CONFIG_FOLDERS,) if bare else (path.parent, *CONFIG_FOLDERS):
        if known := [path for path in sorted(folder.glob("*.py")) if _makes_config(path)]:
            raise unknown_name("config", name, [p.stem if bare else str(p) for p in known])
    raise InputError(f"no config file {name}")


def _makes_config(path: Path) -> bool:
    """Whether a Python file is a config, as far as can be told without running it."""
    try:
        return b"def get_config(" in path.read_bytes()
    except OSError:
        return False


def _load_function(path: Path) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"kjax_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError(f"{path} has no function get_config")
    return module.get_config


def _check_names(arguments: Sequence[str], schema: Schema[Any]) -> None:
    """Refuses overrides of fields that do not exist."""
    for argument in arguments:
        if not argument.startswith("-") or _is_number(argument):
            continue  # a value that follows its option
        name = argument.lstrip("-").partition("=")[0]
        field = name.removeprefix("no").removeprefix("config.")
        if field in schema.groups:
            inner = ", ".join(schema.groups[field])
            raise InputError(f"config.{field} is a group of fields: {inner}")
        if field not in schema.types:
            raise schema.unknown(field)


def _refused(error: flags.Error, schema: Schema[Any]) -> InputError:
    """The error in the words of `validate`, if it says which value of which field it is about."""
    about = re.match(r"flag --config\.([\w.]+)=(.*?): ", str(error))
    if about and about[1] in schema.types:
        return schema.wrong_type(about[1], about[2])
    return InputError(one_line(error))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# To typed values


def validate(config: ConfigDict | Mapping[str, Any]) -> RunConfig:
    """Checks every field's name, type and value.

    Args:
        config: a ConfigDict, or plain nested dictionaries.

    Raises:
        InputError: the first field that is wrong, and the nearest valid name.
    """
    return _SCHEMA.read(config.to_dict() if isinstance(config, ConfigDict) else config)


def flat_fields(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields of nested groups by their dotted path."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            fields |= flat_fields(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


def optional_fields() -> dict[str, Any]:
    """Fields that a config may lack, by their dotted path, and what they are then.

    So runs from before a field was thought of can still be read and gone on with.
    """
    return _SCHEMA.optional()
