"""Shorter descriptors: the first entries of the longer ones, normalised, wherever they go."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from models import make_model, random_patches

import kjax
from kjax.cli import main
from kjax.errors import InputError
from kjax.model.nesting import shorten
from kjax.runs.config import load_config
from kjax.weights.files import save_variables
from kjax.weights.info import make_metadata, parse_metadata
from kjax.weights.source import load_source

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.py"


def first_entries(descriptors, dimension):
    shorter = np.asarray(descriptors)[:, :dimension]
    return shorter / np.linalg.norm(shorter, axis=1, keepdims=True)


@pytest.fixture
def nested_run(tmp_path, monkeypatch):
    """A finished run whose first 32 and 64 entries were trained; it is in the current folder."""
    monkeypatch.chdir(tmp_path)
    config = load_config(SMOKE).to_dict()
    config["model"] |= {"head": "polar", "s": 1, "patch_size": 16, "dtype": "float32"}
    config["loss"] |= {"nested": [64, 32]}
    Path("run").mkdir()
    Path("run/config.json").write_text(json.dumps(config))
    save_variables("run/weights.npz", make_model("polar", patch_size=16)[1])
    return "run"


def test_first_entries_normalised(rng):
    model, variables = make_model("hardnet", patch_size=8)
    patches = random_patches(rng, 3, 8)
    shorter, weights = shorten(model, variables, 48)
    expected = first_entries(jax.jit(model.apply)(variables, patches), 48)
    np.testing.assert_allclose(jax.jit(shorter.apply)(weights, patches), expected, atol=1e-5)


def test_a_run_that_was_trained_for_it(nested_run, rng, capsys):
    patches = random_patches(rng, 4, 16)
    whole, short = kjax.load(nested_run), kjax.load(nested_run, dimension=32)
    assert short.dimension == 32
    assert short.model == "polar s=1 N=16 D=32"
    expected = first_entries(whole.describe(patches), 32)
    np.testing.assert_allclose(short.describe(patches), expected, atol=1e-5)
    assert load_source(nested_run, dimension=128).model.dimension == 128
    with pytest.raises(InputError, match="descriptors of 32 and 64 and 128 numbers, not 48"):
        kjax.load(nested_run, dimension=48)
    assert main(["info", nested_run]) == 0
    assert "the first 32 or 64 numbers" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["short.pth", "short.safetensors"])
def test_export(nested_run, name):
    # What is written is compared with JAX before it is kept.
    assert main(["export", nested_run, "--dimension", "64", "--out", name]) == 0
    source = load_source(nested_run, dimension=64)
    written = load_source(name if name.endswith("s") else f"{name}:polar,s=1,patch_size=16")
    assert written.model.dimension == 64
    jax.tree.map(np.testing.assert_array_equal, written.variables, source.variables)
    assert source.nested == (32,)
    assert written.nested == ((32,) if name.endswith("s") else ())
    assert parse_metadata(make_metadata(source.info)).nested == (32,)


def test_weights_that_say_nothing_of_it(tmp_path, capsys):
    path = tmp_path / "polar.npz"
    save_variables(path, make_model("polar")[1])
    assert main(["export", f"{path}:polar,s=1", "--dimension", "64", "--out", "x.npz"]) == 2
    told = "has descriptors of 128 numbers, not 64: train with"
    assert told in capsys.readouterr().err
