import dataclasses
import math
import operator
import re
from pathlib import Path

import pytest
from programs import refusal

import kjax
from kjax.cli import parse as parse_words
from kjax.errors import InputError
from kjax.runs import config as configs
from kjax.runs.config import (
    AugmentConfig,
    LossConfig,
    RunConfig,
    load_config,
    read_config,
    validate,
)

CONFIGS = Path(__file__).parents[2] / "configs"
# Those of the matcher and the detector are of other types: their own tests train with them.
OTHERS = {"matcher", "detector"}
ALL = sorted({path.stem for path in CONFIGS.glob("*.py")} - OTHERS | {"base", "quickstart"})
OWN = "from kjax.runs.config import load_config\n\ndef get_config():\n    c = load_config('base')\n"


def parse(*arguments: str) -> RunConfig:
    args = parse_words(["train", f"--config={CONFIGS / 'base.py'}", "--workdir=w", *arguments])
    return read_config(args.config, args.overrides)


def assert_refused(message: str, function, *arguments) -> None:
    assert message in refusal(function, *arguments)


@pytest.mark.parametrize("name", ALL)
def test_each_config_is_valid_and_its_docstring_shows_the_command(name):
    config = load_config(CONFIGS / f"{name}.py")
    run = validate(config)
    assert run.train.total_steps >= 1
    own = config.model.to_dict()
    assert run.model.build(axis_name="devices") == kjax.build(axis_name="devices", **own)
    assert run.augment == AugmentConfig(**config.augment)
    assert run.loss == LossConfig(**config.loss)
    assert config.is_locked
    first, _, rest = (CONFIGS / f"{name}.py").read_text().partition("\n")
    assert first.startswith('"""')
    docstring = rest.partition('"""')[0]
    assert re.search(rf"kjax train --config {name}\S* --out out/", docstring)


def test_base_has_the_papers_values_and_hardnet_those_of_the_release():
    run = read_config("base")
    assert (run.model.head, run.model.s, run.model.patch_size) == ("combined_star", 2, 32)
    assert (run.train.pairs, run.train.pairs_per_epoch, run.train.epochs) == (512, 2_000_000, 10)
    assert run.train.total_steps == 39_063  # 20 million pairs
    sgd = run.optimizer
    values = (sgd.learning_rate, sgd.momentum, sgd.dampening, sgd.weight_decay)
    assert values == (10, 0.9, 0.9, 1e-4)
    assert (run.augment, run.loss, run.all_seeds) == (AugmentConfig(), LossConfig(), (0,))
    assert run.model.build().position_kernel == kjax.PositionKernel(s=2)
    run = read_config("hardnet")
    assert (run.model.head, run.model.dropout) == ("hardnet", 0.3)
    assert run.loss.anchor_swap
    assert not run.train.joint_batch_norm


def test_base_lists_every_field_once():
    lines = (CONFIGS / "base.py").read_text().splitlines()
    for group in dataclasses.fields(RunConfig):
        names = [group.name]
        if dataclasses.is_dataclass(group.type):
            names = [f"{group.name}.{field.name}" for field in dataclasses.fields(group.type)]
        for name in names:
            assert sum(line.strip().startswith(f"config.{name} =") for line in lines) == 1, name


def test_arguments_of_config_files():
    run = read_config(f"{CONFIGS / 'encoded.py'}:polar,s=1,kappa_theta=4")
    assert (run.model.head, run.model.s, run.model.kappa_theta) == ("polar", 1, 4.0)


def test_bad_specs():
    for spec, message in (
        ("encoded:polar,z=1", "unknown config field 'model.z'"),
        ("encoded:polar,s=two", "config.model.s must be a whole number, not 'two'"),
        ("base:polar", "takes no argument"),
        ("hardnt", "did you mean 'hardnet'"),
        ("configs/hardnt.py", "did you mean"),
    ):
        assert_refused(message, read_config, spec)


def test_names_are_found_from_any_folder_and_only_config_files_are_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("smoke").train.pairs == 8
    (tmp_path / "nape.py").write_text("print('not a config')")
    with pytest.raises(InputError, match=r"unknown config 'nope\.py'.*quickstart") as error:
        load_config("nope.py")
    assert "nape.py" not in str(error.value)
    (tmp_path / "mine.py").write_text("def get_config():\n    ...\n")
    assert_refused("did you mean 'mine.py'", load_config, "mien.py")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "own.py").write_text(f"{OWN}    c.train.pairs = 32\n    return c\n")
    assert load_config("own").train.pairs == 32
    assert_refused("choose from base, detector, encoded", load_config, "x")
    assert_refused("smoke, own", load_config, "x")
    assert configs.CONFIG_FOLDERS[1] == CONFIGS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("syntax error", "invalid syntax"),
        ("x = 1", "no function get_config"),
        ("def get_config():\n    return 3", "must return an ml_collections.ConfigDict"),
        ("def get_config():\n    raise OSError('a\\nb')", "a b"),
        (f"{OWN}    c.model.haed = 'xy'", 'Did you mean "head"'),
    ],
)
def test_a_broken_config_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert_refused(message, load_config, path)
    assert_refused(str(path), load_config, path)


def test_overrides_of_every_type():
    for words, expected in (
        ("model.head=polar", "polar"),
        ("model.s=1", 1),
        ("model.dropout=0", 0.0),
        ("progress=False", False),
        ("seeds=(0,1,2)", (0, 1, 2)),
        ("data.train=embedded", ("embedded",)),
        ("augment.area=(0.1,0.2) --config.augment.area=(0.5,1)", (0.5, 1.0)),  # the last one wins
        ("augment.max_translation=inf", math.inf),
        ("loss.margin=0.7 --config.loss.margin=None", None),
        ("loss.margin=None --config.loss.margin=2", 2.0),
        ("optimizer.weight_decay 1e-3", 1e-3),
    ):
        found = operator.attrgetter(re.split("[ =]", words)[0])(parse(*f"--config.{words}".split()))
        assert (found, type(found)) == (expected, type(expected))


def test_bad_overrides_are_one_line_with_the_nearest_name():
    for argument, message in (
        ("--config.model.haed=polar", "'model.haed': did you mean 'model.head'?"),
        ("--config.modle.head=polar", "'modle.head': did you mean 'model.head'?"),
        ("--config.head=polar", "unknown config field 'head': choose from model.head"),
        ("--config.model=polar", "config.model is a group of fields: model."),
        ("--config.data.train[0]=x", "did you mean 'data.train'?"),
        ("--config.model.head=polr", "did you mean 'polar'?"),
        ("--config.model.s=x", "config.model.s must be a whole number, not 'x'"),
        ("--config.optimizer.momentum=None", "must be a number, not None"),
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
        ("--config.data.train=()", "data.train needs a dataset"),
        ("--config.data.shares=(0.5,0.5)", "for each of the 1 sets of data.train"),
        ("--config.data.shares=(0.5,)", "sum to 1"),
        ("--config.augment.area=(0.5,2)", "area must be (low, high)"),
        ("--config.augment.area=0.5", "config.augment.area needs 2 values, not (0.5,)"),
        ("--config.loss.name=triplt", "did you mean 'triplet'?"),
        ("--config.loss.margin=-1", "margin must be positive"),
        ("--config.loss.nested=(128,)", "loss.nested must be less than model.dimension, 128"),
        ("--config.train.steps=10000000000", "train.steps must be between 0 and 2147483647"),
        ("--config.train.epochs=2000000000", "the maximum is 2147483647"),
        ("--config.train.group=3", "train.pairs must be a multiple of train.group, 3"),
        ("--config.loss.margin=wide", "config.loss.margin must be a number, not 'wide'"),
        ("--config.optimizer.name=adm", "did you mean 'adam'?"),
        ("--config.optimizer.learning_rate=0", "learning_rate must be positive"),
        ("--config.optimizer.momentum=1", "momentum must be at least 0 and below 1"),
        ("--config.optimizer.weight_decay=-1", "weight_decay must be at least 0"),
        ("--config.train.pairs=1", "train.pairs must be between 2 and"),
        ("--config.train.checkpoint_every=0", "train.checkpoint_every must be between 1 and"),
        ("--config.model.head", "--config.model.head needs a value"),
        ("polar", "unexpected argument 'polar'"),
        ("--config.seeds=(0,1) --config.data.pipeline=tfdata", "need data.pipeline=resident"),
        ("--config.augment.flip_probability=1.5", "flip_probability must be between 0 and 1"),
        ("--config.augment.transpose_probability=-0.1", "must be between 0 and 1, not -0.1"),
        ("--config.augment.max_rotation_degrees=-5", "must be between 0 and 180"),
        ("--config.augment.aspect_ratio=(0.0,1.0)", "aspect_ratio must be"),
        ("--config.augment.max_translation=-1", "max_translation must be at least 0"),
        ("--config.augment.misalignment=4", "misalignment must be between 0 and 3"),
        ("--config.augment.max_blur=4.5", "max_blur must be between 0 and 4"),
        ("--config.augment.max_gamma=0.9", "max_gamma must be between 1 and 10"),
        ("--config.augment.saturation=0.5", "saturation must be between 0 and 0.45"),
        ("--config.augment.max_noise=nan", "max_noise must be between 0 and 1"),
        ("--config.augment.compression=-1", "compression must be between 0 and 10"),
        ("--config.loss.neighbour_rule=papers", "did you mean 'paper'?"),
        ("--config.loss.neighbours=0", "neighbours must be at least 1, not 0"),
        ("--config.loss.alpha=-1", "alpha must be at least 0, not -1.0"),
        ("--config.loss.norm_weight=inf", "norm_weight must be at least 0, not inf"),
        ("--config.distill.weight=0", "weight must be positive"),
        ("--config.distill.match=norms", "unknown distill.match"),
    ):
        assert_refused(message, parse, *argument.split())


def test_command_line(capsys):
    for folder in (["--workdir", "out/x"], ["--out=out/x"]):
        args = parse_words(["train", "--config.seed=3", *folder, "--config", "smoke"])
        assert read_config(args.config, args.overrides).seed == 3
        assert args.out == Path("out/x")
    for arguments, message in (
        ([], "arguments are required: --config, --out"),
        (["--config=base"], "arguments are required: --out"),
        (["--config"], "expected one argument"),
        (["--config=base", "--out=x", "--wrkdir=x"], "did you mean '--workdir'?"),
        (["--config=base", "--out=x", "--nonsense=1"], "unknown option '--nonsense'"),
        (["--config=base", "--out=x", "--coordinatr=here:1"], "did you mean '--coordinator'?"),
    ):
        with pytest.raises(SystemExit):
            parse_words(["train", *arguments])
        assert message in capsys.readouterr().err


def test_missing_and_unknown_fields_of_a_file():
    config = load_config("base").to_dict()
    config["model"]["haed"] = "xy"
    assert_refused("'model.haed': did you mean 'model.head'", validate, config)
    del config["model"]["haed"], config["train"]["pairs"]
    assert_refused("the config lacks train.pairs", validate, config)
    config["train"] = 3
    assert_refused("config.train must be a group of fields, not 3", validate, config)
    # Fields with a default may be absent.
    config = load_config("base").to_dict()
    del config["augment"]["max_blur"], config["loss"]["margin"], config["train"]["group"]
    assert validate(config) == read_config("base")
