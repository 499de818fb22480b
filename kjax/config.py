"""Configs of training runs: from a file and the command line to checked, typed values.

A config file has `get_config()`, or `get_config(argument)` for what follows a colon in
`--config=configs/encoded.py:polar,s=1`, and returns an `ml_collections.ConfigDict` with the fields
of `RunConfig`. `configs/base.py` lists all of them with what they mean.
"""

import argparse
import dataclasses
import difflib
import importlib.util
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from kjax.architecture import Descriptor, build
from kjax.augment import AugmentConfig
from kjax.data.test_sets import EMBEDDED
from kjax.errors import InputError, unknown_name
from kjax.losses import LossConfig

PIPELINES = ("auto", "resident", "tfdata")
OPTIMIZERS = ("sgd", "adam")
_LEAST = {"pairs": 2, "steps": 0, "eval_every": 0}
"""Lowest values of those fields of `TrainConfig` for which it is not 1."""
MOST_STEPS = 2**31 - 1
"""Steps, and everything that is counted in them, fit the counter on the devices."""
CONFIG_FOLDERS = (Path("configs"), Path(__file__).parents[1] / "configs")
"""Where a config that is given by its bare name is looked for."""


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

    def __post_init__(self) -> None:
        self.build()

    def build(self, *, axis_name: str | None = None) -> Descriptor:
        """The linen module."""
        try:
            return build(axis_name=axis_name, **dataclasses.asdict(self))
        except ValueError as error:  # PositionKernel is mathematics and knows no InputError
            raise InputError(str(error)) from error


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which sets, as folders or `EMBEDDED`, and how their pairs reach the devices."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    pipeline: str

    def __post_init__(self) -> None:
        if not self.train or "" in (*self.train, *self.test):
            raise InputError(f"data.train needs a set: a folder, or {EMBEDDED!r}")
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

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            lowest = _LEAST.get(name, 1)
            if not isinstance(value, bool) and value < lowest:
                raise InputError(f"train.{name} must be at least {lowest}, not {value}")
            if value > MOST_STEPS:
                raise InputError(f"train.{name} must be at most {MOST_STEPS}, not {value}")
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

    def __post_init__(self) -> None:
        for seed in (self.seed, *self.seeds):
            if not 0 <= seed < 2**32:
                raise InputError(f"a seed must be from 0 to 4294967295 (2³²−1), not {seed}")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must differ from each other: {self.seeds}")
        if len(self.seeds) > 1 and self.data.pipeline == "tfdata":
            raise InputError("several seeds side by side need data.pipeline=resident")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """`seeds`, or the one `seed`."""
        return self.seeds or (self.seed,)


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
        raise InputError(f"cannot load {path} ({_one_line(error)}): mend the file") from error
    if not isinstance(config, ConfigDict):
        raise InputError(f"get_config of {path} must return an ml_collections.ConfigDict")
    return config.lock()


def override(config: ConfigDict, arguments: Sequence[str]) -> None:
    """Changes fields in place, as the command line does.

    Args:
        config: what to change.
        arguments: as on the command line, e.g. `--config.model.s=1`.

    Raises:
        InputError: there is no such field, or the value does not fit it.
    """
    values = flags.FlagValues()
    _check_names(arguments)
    given, cleared = _without_cleared(arguments)
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=["", *given])
        rest = values(["", *given])[1:]
    except flags.Error as error:
        raise _refused(error) from error
    if rest:
        raise InputError(f"unexpected argument {rest[0]!r}: options have the form --name=value")
    with config.ignore_type():
        config.update_from_flattened_dict(dict.fromkeys(cleared))


def _without_cleared(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments without `--config.field=None`, which absl cannot read, and the fields so named.

    Only fields that may be None; whatever was said of one before does not count any more.
    """
    given: list[str] = []
    cleared: list[str] = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        field = name.lstrip("-").removeprefix("config.")
        if field in _FIELDS and isinstance(_hint(field), types.UnionType):
            given = [other for other in given if other.partition("=")[0] != name]
            cleared = [other for other in cleared if other != field]
            if value == "None":
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


# From the command line


def parse_flags(argv: Sequence[str]) -> tuple[ConfigDict, Path]:
    """Config and workdir of a command line such as run_train.py's.

    Args:
        argv: with the programme's name first: `--config=FILE[:ARGUMENT] --workdir=FOLDER`, and any
            number of `--config.group.field=value`, which win over the file.

    Returns:
        The config, validated and locked, and the workdir.

    Raises:
        InputError: anything is wrong with it. Programmes print its line and exit with code 2.
        SystemExit: with code 0 after `--help`.
    """
    parser = _Parser(
        prog=Path(argv[0]).name,
        allow_abbrev=False,
        usage="%(prog)s --config=FILE[:ARGUMENT] --workdir=FOLDER [--config.group.field=value …]",
        epilog="configs/base.py says what each field means",
    )
    parser.add_argument("--config", help="config file, or the name of one in configs")
    parser.add_argument("--workdir", type=Path, help="folder of the run; the same resumes it")
    known, rest = parser.parse_known_args(argv[1:])
    if known.config is None:
        raise InputError("which config? Give --config=FILE, e.g. --config=configs/quickstart.py")
    if known.workdir is None:
        raise InputError("where to? Give --workdir=FOLDER, e.g. --workdir=out/first")
    config = load_config(known.config)
    validate(config)
    override(config, rest)
    validate(config)
    return config, known.workdir


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _check_names(arguments: Sequence[str]) -> None:
    """Refuses overrides of fields that there are not, and options that are none of ours."""
    for argument in arguments:
        if not argument.startswith("-") or _is_number(argument):
            continue  # a value that follows its option
        name = argument.lstrip("-").partition("=")[0]
        field = name.removeprefix("no").removeprefix("config.")
        if not name.startswith(("config.", "noconfig.")):
            raise unknown_name("option", f"--{name}", ("--config", "--workdir", "--help"))
        if field in _GROUPS:
            raise InputError(f"config.{field} is a group of fields: {', '.join(_GROUPS[field])}")
        if field not in _FIELDS:
            raise _unknown_field(field)


def _unknown_field(field: str) -> InputError:
    """With the nearest name in the same group, or the same name in another."""
    group, _, name = field.rpartition(".")
    if group not in _GROUPS:
        return unknown_name("config group", group, [known for known in _GROUPS if known])
    siblings = [f"{group}.{sibling}".lstrip(".") for sibling in _GROUPS[group]]
    elsewhere = [known for known in _FIELDS if known.rpartition(".")[2] == name]
    if elsewhere and not difflib.get_close_matches(field, siblings, n=1):
        return unknown_name("config field", field, elsewhere)
    return unknown_name("config field", field, siblings)


def _refused(error: flags.Error) -> InputError:
    """In the words of `validate`, where the error says which value of which field it is about."""
    about = re.match(r"flag --config\.([\w.]+)=(.*?): ", str(error))
    if about and about[1] in _FIELDS:
        return _wrong_kind(about[1], _hint(about[1]), about[2])
    return InputError(_one_line(error))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# To typed values


def validate(config: ConfigDict | Mapping[str, Any]) -> RunConfig:
    """Checks every field's name, type and value.

    Args:
        config: a ConfigDict, or plain nested dictionaries.

    Raises:
        InputError: the first field that is wrong, and the nearest valid name.
    """
    plain = config.to_dict() if isinstance(config, ConfigDict) else config
    return _build(RunConfig, plain, "")


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
    groups = {name: hint for name, hint in _hints(RunConfig).items() if name in _GROUPS}
    return flat_fields({name: _defaults(kind) for name, kind in groups.items()})


def _defaults(kind: Any) -> dict[str, Any]:
    return {
        field.name: field.default
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING
    }


def _build(kind: Any, values: Any, path: str) -> Any:
    """An instance of a dataclass from a dictionary, group by group."""
    if not isinstance(values, Mapping):
        raise InputError(f"config.{path[:-1]} must be a group of fields, not {values!r}")
    hints = _hints(kind)
    for name in values:
        if name not in hints:
            raise _unknown_field(f"{path}{name}")
    absent = hints.keys() - values.keys() - _defaults(kind).keys()
    if missing := [f"{path}{name}" for name in hints if name in absent]:
        raise InputError(f"the config lacks {', '.join(missing)}: start from load_config('base')")
    return kind(
        **{
            name: _build(hint, values[name], f"{path}{name}.")
            if dataclasses.is_dataclass(hint)
            else _typed(values[name], hint, f"{path}{name}")
            for name, hint in hints.items()
            if name in values
        }
    )


def _typed(value: Any, hint: Any, path: str) -> Any:
    """The value as what the dataclass declares; whole numbers pass for floating ones."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = _without_none(hint)
    if typing.get_origin(hint) is tuple and isinstance(value, tuple | list):
        element, *others = typing.get_args(hint)
        if others != [...] and len(value) != 1 + len(others):
            raise InputError(f"config.{path} needs {1 + len(others)} values, not {value!r}")
        return tuple(_typed(part, element, path) for part in value)
    accepted = (int, float) if hint is float else typing.get_origin(hint) or hint
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise _wrong_kind(path, hint, value)
    try:
        return hint(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise _wrong_kind(path, hint, value) from None


_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


def _wrong_kind(path: str, hint: Any, value: Any) -> InputError:
    kind = _KINDS.get(_without_none(hint), "a tuple")
    return InputError(f"config.{path} must be {kind}, not {value!r}")


def _without_none(hint: Any) -> Any:
    """X for `X | None`, and for X."""
    if isinstance(hint, types.UnionType):
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return hint


def _hint(field: str) -> Any:
    hint: Any = RunConfig
    for name in field.split("."):
        hint = _hints(hint)[name]
    return hint


def _hints(kind: Any) -> dict[str, Any]:
    declared = typing.get_type_hints(kind)
    return {field.name: declared[field.name] for field in dataclasses.fields(kind)}


_GROUPS = {"": tuple(_hints(RunConfig))} | {
    name: tuple(_hints(hint))
    for name, hint in _hints(RunConfig).items()
    if dataclasses.is_dataclass(hint)
}
"""Names of the fields of each group; the fields of no group are under the empty name."""
_FIELDS = tuple(
    f"{group}.{name}".lstrip(".")
    for group, names in _GROUPS.items()
    for name in names
    if group or name not in _GROUPS
)
