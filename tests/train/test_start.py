"""Runs that start from weights: with exactly these, on a schedule of their own, resumed exactly."""

import json
import shutil

import jax
import numpy as np
import pytest
from models import make_model
from test_run import assert_same_weights, make_config, run_until_stopped

import kjax
from kjax.errors import InputError
from kjax.runs.config import ModelConfig, validate
from kjax.train import run as run_module
from kjax.train.parallel import initial_state
from kjax.train.start import load_start
from kjax.weights.source import facts, load_source, load_sources, run_info


@pytest.fixture(scope="module")
def first(set_folder, tmp_path_factory):
    """A run to start from."""
    workdir = tmp_path_factory.mktemp("runs") / "first"
    run_module.run(make_config(set_folder, steps=2, checkpoint_every=2), workdir)
    return workdir


def later_config(set_folder, first, **train):
    config = make_config(set_folder, **train)
    config.init = str(first)
    return config


def model_config(**changes) -> ModelConfig:
    fields = kjax.weights.shipped.card("best").model | changes
    return ModelConfig(**fields)


def test_every_seed_starts_from_the_weights(set_folder, first):
    config = later_config(set_folder, first)
    config.seeds = (3, 5)
    given = load_sources(str(first))[0].variables
    state = jax.device_get(initial_state(run_module.make_program(validate(config))))
    for seed in range(2):
        jax.tree.map(
            lambda own, start, seed=seed: np.testing.assert_array_equal(own[seed], start),
            {"params": state.params, "batch_stats": state.batch_stats},
            given,
        )
    assert not state.step.any()
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state[1].buffer))


def test_stopped_and_resumed_equals_uninterrupted_even_without_the_start(
    set_folder, first, tmp_path
):
    start = shutil.copytree(first, tmp_path / "start")
    config = later_config(set_folder, start)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run_module.run(config, whole)
    run_until_stopped(config, halves, after=3)
    shutil.rmtree(start)
    run_module.run(config, halves)
    assert_same_weights(whole, halves)
    assert json.loads((halves / "config.json").read_text())["init"] == str(start)


def test_what_a_run_tells_of_its_start(set_folder, first, tmp_path):
    config = later_config(set_folder, first, steps=1)
    run_module.run(config, tmp_path)
    told = facts([load_source(str(tmp_path))])
    assert told["started from"] == str(first)
    config.init = ""
    with pytest.raises(InputError, match="init was"):
        run_module.run(config, tmp_path)


def test_the_sets_of_the_start_count_as_trained_on(tmp_path):
    card = kjax.weights.shipped.card("best")
    config = {
        "data": {"train": ["sets/mine"]},
        "init": "kjax-best",
        "augment": {"area": (0.5, 1.0)},
        "loss": {},
    }
    assert run_info(config).train_sets == (*card.train_sets, "mine")


def test_bare_weights_start_any_model_that_they_fit(tmp_path):
    path = tmp_path / "weights.npz"
    kjax.save_variables(path, make_model("polar", s=1)[1])
    for head in ("xy", "polar"):
        config = model_config(head=head, s=1, patch_size=64, kappa_xy=3.0)
        assert load_start(str(path), config) is not None
    with pytest.raises(InputError, match=r'with s 1: set --config.model.s="1"$'):
        load_start(str(path), model_config(head="polar"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "polar"}, r'with head combined_star: set --config.model.head="combined_star"$'),
        ({"s": 1}, "with s 2: set"),
        ({"patch_size": 64}, "with patch_size 32: set"),
        ({"kappa_rho": 3.0}, "with kappa_rho 8.0: set"),
        ({"head_bias": False}, "with head_bias True: set"),
        ({"channels": (8, 8, 16, 16, 32, 32), "dimension": 64}, r"channels \(32.*, dimension 128:"),
    ],
)
def test_weights_of_another_model_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        load_start("best", model_config(**changes))


def test_precision_and_dropout_may_differ():
    assert load_start("best", model_config(dtype="float32", dropout=0.0)) is not None
    assert load_start("", model_config()) is None
    with pytest.raises(InputError, match="did you mean 'best'"):
        load_start("bset", model_config())
