import dataclasses
from argparse import Namespace
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

import kjax
from kjax.errors import InputError
from kjax.runs.config import (
    CONFIG_FOLDERS,
    RunConfig,
    load_config,
    optional_fields,
    override,
    read_config,
    validate,
)
from kjax.train.augment import AugmentConfig
from kjax.train.command_line import parse_command_line
from kjax.train.losses import LossConfig

CONFIGS = Path(__file__).parents[2] / "configs"
# The matcher's is of another kind: tests/matcher trains with it.
ALL = sorted({path.stem for path in CONFIGS.glob("*.py")} - {"matcher"})


def parse(*arguments: str) -> ConfigDict:
    command = ["run_train.py", f"--config={CONFIGS / 'base.py'}", "--workdir=w", *arguments]
    return configured(parse_command_line(command))


def configured(args: Namespace) -> ConfigDict:
    return read_config(args.config, args.overrides)


def refusal(*arguments: str) -> str:
    with pytest.raises(InputError) as error:
        parse(*arguments)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_there_are_the_promised_configs():
    assert {"base", "hardnet", "encoded", "quickstart", "smoke"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_each_config_builds_what_it_names(name):
    config = load_config(CONFIGS / f"{name}.py")
    run = validate(config)
    assert run.train.total_steps >= 1
    model = run.model.build(axis_name="devices")
    assert model == kjax.build(axis_name="devices", **config.model.to_dict())
    size = run.model.patch_size
    shapes = jax.eval_shape(run.model.build().init, jax.random.key(0), np.zeros((2, size, size)))
    assert "params" in shapes
    assert run.augment == AugmentConfig(**config.augment)
    assert run.loss == LossConfig(**config.loss)
    assert config.is_locked


@pytest.mark.parametrize("name", ALL)
def test_each_config_tells_its_command(name):
    first, _, rest = (CONFIGS / f"{name}.py").read_text().partition("\n")
    assert first.startswith('"""')
    docstring = rest.partition('"""')[0]
    assert f"run_train.py --config=configs/{name}.py" in docstring
    assert "--workdir=out/" in docstring


def test_base_has_the_papers_values():
    run = validate(load_config("base"))
    assert (run.model.head, run.model.s, run.model.patch_size) == ("combined_star", 2, 32)
    assert (run.train.pairs, run.train.pairs_per_epoch, run.train.epochs) == (512, 2_000_000, 10)
    assert run.train.total_steps == 39_063  # 20 million pairs
    sgd = run.optimizer
    assert (sgd.learning_rate, sgd.momentum, sgd.dampening, sgd.weight_decay) == (
        10,
        0.9,
        0.9,
        1e-4,
    )
    assert run.augment == AugmentConfig()
    assert run.loss == LossConfig()
    assert run.model.build().position_kernel == kjax.PositionKernel(s=2)
    assert run.all_seeds == (0,)


def test_base_comments_every_field():
    lines = (CONFIGS / "base.py").read_text().splitlines()
    for group in dataclasses.fields(RunConfig):
        names = [f"{group.name}"]
        if dataclasses.is_dataclass(group.type):
            names = [f"{group.name}.{field.name}" for field in dataclasses.fields(group.type)]
        for name in names:
            assert sum(line.strip().startswith(f"config.{name} =") for line in lines) == 1, name


def test_hardnet_is_the_release():
    run = validate(load_config("hardnet"))
    assert run.model.head == "hardnet"
    assert run.model.dropout == 0.3
    assert run.loss.anchor_swap
    assert not run.train.joint_batch_norm


def test_config_strings():
    config = load_config(f"{CONFIGS / 'encoded.py'}:polar,s=1,kappa_theta=4")
    assert (config.model.head, config.model.s, config.model.kappa_theta) == ("polar", 1, 4.0)
    for bad, message in {
        "encoded:polar,z=1": "unknown config field 'model.z'",
        "encoded:polar,s=two": "config.model.s must be a whole number, not 'two'",
        "base:polar": "takes no argument",
        "hardnt": "did you mean 'hardnet'",
        "configs/hardnt.py": "did you mean",
    }.items():
        with pytest.raises(InputError, match=message):
            load_config(bad)


def test_names_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("smoke").train.pairs == 8
    (tmp_path / "configs").mkdir()
    own = "from kjax.runs.config import load_config\n\n"
    own += "def get_config():\n    c = load_config('base')\n"
    (tmp_path / "configs" / "own.py").write_text(own + "    c.train.pairs = 32\n    return c\n")
    assert load_config("own").train.pairs == 32
    assert CONFIG_FOLDERS[1] == CONFIGS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("syntax error", "invalid syntax"),
        ("x = 1", "no function get_config"),
        ("def get_config():\n    return 3", "must return an ml_collections.ConfigDict"),
        ("def get_config():\n    raise OSError('a\\nb')", "a b"),
        (
            "from kjax.runs.config import load_config\n"
            "def get_config():\n    c = load_config('base')\n    c.model.haed = 'xy'",
            'Did you mean "head"',
        ),
    ],
)
def test_a_config_file_that_does_not_work_is_one_line(tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_config(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_overrides_of_every_type():
    config = parse(
        "--config.model.head=polar",
        "--config.model.s=1",
        "--config.model.dropout=0",
        "--config.progress=False",
        "--config.seeds=(0,1,2)",
        "--config.data.train=embedded",
        "--config.augment.area=(0.5,1)",
        "--config.loss.margin=0.7",
        "--config.optimizer.weight_decay",
        "1e-3",
    )
    run = validate(config)
    assert (run.model.head, run.model.s, run.model.dropout) == ("polar", 1, 0.0)
    assert run.progress is False
    assert run.all_seeds == (0, 1, 2)
    assert run.data.train == ("embedded",)
    assert run.augment.area == (0.5, 1.0)
    assert run.loss.margin == 0.7
    assert run.optimizer.weight_decay == 1e-3


def test_the_order_of_options_does_not_matter():
    args = parse_command_line(
        ["run_train.py", "--config.seed=3", "--workdir", "out/x", "--config", "smoke"]
    )
    assert configured(args).seed == 3
    assert args.workdir == Path("out/x")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.model.haed=polar", "'model.haed': did you mean 'model.head'?"),
        ("--config.modle.head=polar", "unknown config group 'modle': did you mean 'model'?"),
        ("--config.head=polar", "unknown config field 'head': choose from model.head"),
        ("--config.model=polar", "config.model is a group of fields: head, s"),
        ("--config.data.train[0]=x", "did you mean 'data.train'?"),
        ("--config.model.head=polr", "did you mean 'polar'?"),
        ("--config.model.s=x", "config.model.s must be a whole number, not 'x'"),
        ("--config.model.s=0", "must be at least 1, not 0"),
        ("--config.model.kappa_xy=-1", "kappa_xy must be positive"),
        ("--config.model.dtype=bf16", "dtype must be"),
        ("--config.model.patch_size=30", "multiple of 4"),
        ("--config.model.dropout=1", "dropout must be at least 0 and below 1"),
        ("--config.progress=maybe", "config.progress must be True or False, not 'maybe'"),
        ("--config.seed=-1", "a seed must be from 0"),
        ("--config.seeds=(1,1)", "seeds must differ"),
        ("--config.seeds=('a',)", "config.seeds must be a whole number"),
        ("--config.data.pipeline=tfdta", "did you mean 'tfdata'?"),
        ("--config.data.train=()", "data.train needs a set"),
        ("--config.data.shares=(0.5,0.5)", "one for each of the 1 sets of data.train"),
        ("--config.data.shares=(0.5,)", "positive, and 1 together"),
        ("--config.augment.area=(0.5,2)", "area must be (low, high)"),
        ("--config.augment.area=0.5", "config.augment.area needs 2 values, not (0.5,)"),
        ("--config.loss.name=triplt", "did you mean 'triplet'?"),
        ("--config.loss.margin=-1", "margin must be positive"),
        ("--config.train.steps=10000000000", "train.steps must be at most 2147483647"),
        ("--config.train.epochs=2000000000", "steps are more than the 2147483647 possible"),
        ("--config.loss.margin=wide", "config.loss.margin must be a number, not 'wide'"),
        ("--config.optimizer.name=adm", "did you mean 'adam'?"),
        ("--config.optimizer.learning_rate=0", "learning_rate must be positive"),
        ("--config.optimizer.momentum=1", "momentum must be at least 0 and below 1"),
        ("--config.optimizer.weight_decay=-1", "weight_decay must not be negative"),
        ("--config.train.pairs=1", "train.pairs must be at least 2, not 1"),
        ("--config.train.checkpoint_every=0", "train.checkpoint_every must be at least 1"),
        ("--config.model.head", "Missing value"),
        ("--wrkdir=x", "did you mean '--workdir'?"),
        ("polar", "unexpected argument 'polar'"),
    ],
)
def test_bad_overrides_are_one_line_with_the_nearest_name(argument, message):
    assert message in refusal(argument)


def test_several_seeds_need_the_resident_pipeline():
    assert "resident" in refusal("--config.seeds=(0,1)", "--config.data.pipeline=tfdata")


def test_config_and_workdir_are_needed():
    for arguments, message in (
        ([], "--config=FILE"),
        (["--config=base"], "--workdir=FOLDER"),
        (["--config=base", "--workdir="], "--workdir=FOLDER"),
    ):
        with pytest.raises(InputError, match=message):
            parse_command_line(["run_train.py", *arguments])
    with pytest.raises(InputError, match="expected one argument"):
        parse_command_line(["run_train.py", "--config"])


def test_help(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse_command_line(["run_train.py", "--help"])
    assert exit_.value.code == 0
    assert "--config.group.field=value" in capsys.readouterr().out


def test_missing_and_foreign_fields_of_a_file_are_refused():
    config = load_config("base").to_dict()
    config["model"]["haed"] = "xy"
    with pytest.raises(InputError, match=r"'model\.haed': did you mean 'model\.head'"):
        validate(config)
    del config["model"]["haed"], config["train"]["pairs"]
    with pytest.raises(InputError, match=r"lacks train\.pairs: start from"):
        validate(config)
    config["train"] = 3
    with pytest.raises(InputError, match=r"config\.train must be a group of fields, not 3"):
        validate(config)


def test_fields_with_a_default_may_be_absent():
    config = load_config("base").to_dict()
    del config["augment"]["max_blur"], config["loss"]["margin"]
    assert validate(config) == validate(load_config("base"))
    absent = optional_fields()
    assert absent["augment.max_blur"] == 0
    assert absent["loss.margin"] is None
    assert [name for name in absent if name.startswith("train.")] == ["train.group"]
    assert [name for name in absent if name.startswith("model.")] == [
        "model.channels",
        "model.dimension",
    ]


def test_the_last_override_of_a_field_wins_also_if_it_is_a_tuple():
    config = load_config("base")
    override(config, ["--config.augment.area=(0.1,0.2)", "--config.augment.area=(0.3,0.4)"])
    assert config.augment.area == (0.3, 0.4)


def test_override_changes_in_place():
    config = load_config("base")
    override(config, ["--config.train.pairs=64"])
    assert config.train.pairs == 64


def test_a_field_that_may_be_none_can_be_set_to_it():
    assert validate(parse("--config.loss.margin=None")).loss.margin is None
    assert (
        validate(parse("--config.loss.margin=2", "--config.loss.margin=None")).loss.margin is None
    )
    assert validate(parse("--config.loss.margin=None", "--config.loss.margin=2")).loss.margin == 2
    config = load_config("base")
    config.loss.margin = 0.5
    override(config, ["--config.loss.margin=None", "--config.loss.name=hynet"])
    assert validate(config).loss == LossConfig(name="hynet", margin=None)
    assert "must be a number, not 'None'" in refusal("--config.optimizer.momentum=None")


def test_an_unknown_config_brings_no_other_files_to_mind(tmp_path, monkeypatch):
    (tmp_path / "nape.py").write_text("print('not a config')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"unknown config 'nope\.py'") as error:
        load_config("nope.py")
    assert "nape.py" not in str(error.value)
    assert "quickstart.py" in str(error.value)
    (tmp_path / "mine.py").write_text("def get_config():\n    ...\n")
    with pytest.raises(InputError, match=r"did you mean 'mine\.py'"):
        load_config("mien.py")


def test_an_unknown_option_is_named_as_it_was_typed():
    assert "unknown option '--nonsense'" in refusal("--nonsense=1")
    assert "unknown option '-x'" in refusal("-x")
    assert "did you mean '--coordinator'?" in refusal("--coordinatr=here:1")
    assert not validate(parse("--noconfig.progress")).progress
