"""Models made of trained ones: folded, and with shorter descriptors."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from models import make_model, narrow, random_patches
from refusals import assert_refused, refused_command

import kjax
from kjax.cli import main
from kjax.model.folding import fold_head, remap, shorten
from kjax.runs.config import load_config
from kjax.weights.files import save_variables
from kjax.weights.info import make_metadata, parse_metadata
from kjax.weights.source import load_source

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.py"


@pytest.mark.parametrize(
    ("head", "context"),
    [*((head, (1,)) for head in kjax.HEADS), ("hardnet", (1, 4)), ("combined", (1, 4))],
)
def test_folding_changes_no_descriptor(rng, head, context):
    options = {"patch_size": 16, "context": context, **narrow(head)}
    model, variables = make_model(head, s=2, head_bias=head != "xy", **options)
    patches = random_patches(rng, 4, 16)
    if model.has_context:
        patches = patches.reshape(2, 2, 16, 16)
    expected = model.apply(variables, patches)
    folded = kjax.fold(model, variables)
    one_layer = fold_head(*folded)
    for made, weights in (folded, one_layer):
        assert "batch_stats" not in weights
        np.testing.assert_allclose(made.apply(weights, patches), expected, atol=1e-5)
    if head == "hardnet" and not model.has_context:  # encodings include batch normalisation
        total = folded[0].apply(folded[1], patches, method="local_encodings").sum(axis=1)
        np.testing.assert_allclose(first_entries(total, None), expected, atol=1e-5)
    # Position encodings become part of one layer.
    assert one_layer[0].head == ("hardnet" if head in ("xy", "polar", "combined") else head)


def test_folded_models_are_for_inference_and_their_weights_on_the_device():
    """Else every call of the model would bring weights of NumPy there."""
    model, variables = make_model("combined_star", patch_size=16, **narrow("combined_star"))
    _, same = kjax.fold(model, jax.tree.map(np.asarray, variables))
    model, folded = kjax.fold(model, variables)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(same))
    jax.tree.map(np.testing.assert_array_equal, same, folded)
    assert_refused("train the original", model.apply, folded, np.zeros((2, 16, 16)), train=True)
    assert_refused("already folded", kjax.fold, model, folded)


# Shorter descriptors


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


@pytest.mark.parametrize("context", [(1,), (1, 4)])
def test_first_entries_normalised(rng, context):
    model, variables = make_model("hardnet", patch_size=8, context=context)
    patches = random_patches(rng, 6, 8).reshape(-1, *model.patch_shape)
    shorter, weights = shorten(model, variables, 48)
    whole = jax.jit(model.apply)(variables, patches)
    expected = first_entries(whole, 48)
    np.testing.assert_allclose(jax.jit(shorter.apply)(weights, patches), expected, atol=1e-5)
    if model.has_context:  # whose matrix comes after the last BatchNorm
        matrix = rng.normal(size=(128, 128))
        expected = first_entries(whole @ matrix, None)
        found = jax.jit(model.apply)(remap(variables, matrix), patches)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_run_that_was_trained_for_it(nested_run, rng, capsys):
    patches = random_patches(rng, 4, 16)
    whole, short = kjax.load(nested_run), kjax.load(nested_run, dimension=32)
    assert short.dimension == 32
    assert short.model == "polar s=1 N=16 D=32"
    expected = first_entries(whole.describe(patches), 32)
    np.testing.assert_allclose(short.describe(patches), expected, atol=1e-5)
    assert load_source(nested_run, dimension=128).model.dimension == 128
    message = "descriptors of 32 and 64 and 128 numbers, not 48"
    assert_refused(message, kjax.load, nested_run, dimension=48)
    assert main(["info", nested_run]) == 0
    assert "128, or the first 32 or 64" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["short.pth", "short.safetensors"])
def test_export(nested_run, name):
    assert main(["export", nested_run, "--dimension", "64", "--out", name]) == 0
    source = load_source(nested_run, dimension=64)
    written = load_source(name)
    assert written.model.dimension == 64
    jax.tree.map(np.testing.assert_array_equal, written.variables, source.variables)
    assert written.nested == source.nested == (32,)
    assert parse_metadata(make_metadata(source.info)).nested == (32,)


def test_weights_that_say_nothing_of_it(tmp_path, capsys):
    path = tmp_path / "polar.npz"
    save_variables(path, make_model("polar")[1])
    words = ("export", f"{path}:polar,s=1", "--dimension", "64", "--out", "x.npz")
    told = "has descriptors of 128 numbers, not 64: train with"
    assert told in refused_command(capsys, *words)
