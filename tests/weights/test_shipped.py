"""Shipped weights: found by name, verified, rebuilt as they were."""

import hashlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from ledger_files import ROWS, seal, write_ledger
from models import make_model, random_patches
from refusals import assert_refused

import kjax
from kjax.cli import main
from kjax.eval.entries import find_entry
from kjax.weights import shipped
from kjax.weights.files import save_variables
from kjax.weights.ledger import OPEN_LICENCES, PhotoGroup, permitted_use
from kjax.weights.source import load_shipped, load_source, load_sources

CONSTANTS = {
    **{"kappa_xy": 1.5, "kappa_rho": 7.0, "kappa_theta": 6.0, "scale_xy": 1.1, "scale_rho": 3.0},
    **{"scale_theta": 1.0, "corner_radius": 2**0.5},
}
"""None but one is the default of `kjax.build`."""
MODEL = {"s": 1, "patch_size": 8, "dropout": 0.1, "head_bias": True, "dtype": "bfloat16"}
CARD = {
    "summary": "a toy",
    "photographs": [
        {"scene": "beach", "count": 2, "licence": "CC-BY-4.0", "authors": ["Ann"], "source": "x"},
        {"scene": "field", "count": 1, "licence": "CC0-1.0", "authors": ["unknown"], "source": "y"},
    ],
    "data": [{"name": "left", "origin": "test"}, {"name": "right", "origin": "test"}],
    **{"command": "python run_train.py --config=toy", "commit": "0123abc", "seed": 3},
    **{"pairs": 20_000, "hardware": "two cores", "evaluation": "run_eval.py on two cores"},
    "results": {"fpr95/left": 0.0123, "speed": "fast"},
    "extent": 9.0,
    "limits": ["knows no photographs", "is small"],
    "licence": "Apache-2.0",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of shipped weights with a ledger and no weights, and another to be in."""
    place = tmp_path / "pretrained"
    place.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(shipped, "FOLDER", place)
    write_ledger(place, ROWS)
    return place


def put(folder, name="toy", head="xy", **changes):
    """Ships random weights, and returns them."""
    _, variables = make_model(head, patch_size=8)
    save_variables(folder / f"{name}.npz", variables)
    digest = hashlib.sha256((folder / f"{name}.npz").read_bytes()).hexdigest()
    model = {"head": head, **MODEL, **CONSTANTS}
    card = CARD | {"name": name, "model": model, "sha256": digest} | changes
    (folder / f"{name}.json").write_text(json.dumps(card))
    seal()
    return variables


def test_shipped_weights_load_as_they_were(folder, rng):
    variables = put(folder)
    assert kjax.list_weights() == ["toy"]
    source = load_shipped("toy")
    assert source.model == kjax.build("xy", **MODEL, **CONSTANTS)
    jax.tree.map(np.testing.assert_array_equal, source.variables, variables)
    assert (source.extent, source.ratio) == (9.0, 0.9)
    patches = random_patches(rng, 2, 8)
    # As the training's model computes it, but in full precision.
    exact = kjax.build("xy", **MODEL | {"dtype": "float32"}, **CONSTANTS)
    expected = jax.jit(exact.apply)(variables, patches)
    np.testing.assert_allclose(kjax.load("toy").describe(patches), expected, atol=1e-5)
    assert load_sources("kjax-toy")[0].info == shipped.card("toy")


def test_nested_descriptors(folder):
    put(folder, nested=[32, 64])
    assert load_source("toy", dimension=32).model.dimension == 32
    put(folder)
    assert_refused("descriptors of 128 numbers, not 32", load_source, "toy", dimension=32)


@pytest.mark.parametrize(
    ("file", "content", "sealed", "message"),
    [
        ("toy.npz", b"x", True, r"toy\.npz is missing or was altered: reinstall kjax"),
        ("toy.npz", None, False, r"toy\.npz is missing or was altered: reinstall kjax"),
        ("toy.json", b"{}", False, r"toy\.json was altered.*reinstall kjax"),
        ("toy.json", b"{", True, r"toy\.json is damaged.*reinstall kjax"),
        ("toy.json", b"[]", True, r"toy\.json is damaged.*reinstall kjax"),
        ("toy.json", b"{}", True, r"toy\.json is damaged.*reinstall kjax"),
        ("SHA256SUMS", None, False, r"SHA256SUMS is damaged or missing: reinstall kjax"),
        ("SHA256SUMS", b"\xff", False, r"SHA256SUMS is damaged or missing: reinstall kjax"),
    ],
)
def test_altered_files_are_refused(folder, file, content, sealed, message):
    put(folder)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    if sealed:
        seal()
    assert_refused(message, kjax.load, "toy")


@pytest.mark.parametrize(
    "text", ["", "sha256,scene\n", "\0", "sha256,scene,file,source,author,licence\n1"]
)
def test_an_altered_ledger_is_refused(folder, text):
    assert [*shipped.photographs().values()] == ROWS
    (folder / "photographs.csv").write_text(text)
    assert_refused(r"photographs\.csv was altered.*reinstall kjax", shipped.photographs)
    seal()
    assert_refused(r"photographs\.csv is damaged", shipped.photographs)


def test_permitted_use():
    assert not [name for name in OPEN_LICENCES if "SA" in name or "NC" in name or "GPL" in name]
    many = PhotoGroup("sky", 20, "MIT", [f"author {number}" for number in range(20)], "x")
    free = PhotoGroup("field", 1, "CC0-1.0", ["unknown"], "x")
    closed = PhotoGroup("tower", 4, "none-stated", ["Cy"], "x")
    assert permitted_use([many]).endswith("name the 20 authors that the card lists")
    assert permitted_use([free]) == "anything, also commercial"
    expected = "research: 4 of 5 training photographs have no stated licence"
    assert permitted_use([free, closed]) == expected


def test_a_workdir_takes_precedence_and_other_folders_do_not(folder):
    put(folder)
    Path("toy").mkdir()
    assert load_sources("toy")[0].info.name == "toy"
    assert find_entry("toy").name == "kjax-toy"
    Path("toy/config.json").write_text("{}")
    for find in (load_sources, find_entry):
        assert_refused("toy is not a run of this version", find, "toy")


def test_info(folder, capsys):
    put(folder)
    assert main(["info"]) == 0
    use = "anything, also commercial; name Ann (CC-BY-4.0)"
    assert capsys.readouterr().out == f"toy  a toy\nuse  {use}\n"
    expected = {
        **{"name": "toy", "head": "xy", "s": "1", "patch size": "8", "dimension": "128"},
        "parameters": "433,568, 1.7 MB as float32",
        "extent": "patches of 9 × KeyPoint.size",
        "ratio": "matches up to 0.9",
        "licence": "Apache-2.0",
        "use": use,
        "training": "20,000 pairs from 3 photographs, bfloat16, two cores",
        "score": "FPR@95: left 1.23 %; speed fast",
        "seed": "3",
        "load": 'kjax.load("toy"), or --weights toy',
    }
    details = {
        "sets": "left, right",
        "photographs": "beach: 2, Ann, CC-BY-4.0; field: 1, unknown, CC0-1.0",
        "limits": "knows no photographs; is small",
        "sha256 of npz": shipped.card("toy").sha256,
    }
    for option, rest in (((), {"more": "--verbose shows everything"}), (("--verbose",), details)):
        assert main(["info", "toy", *option]) == 0
        lines = capsys.readouterr().out.splitlines()
        shown = {label: text.strip() for label, _, text in (line.partition("  ") for line in lines)}
        assert (expected | rest).items() <= shown.items()
        assert option or len(shown) == len(expected | rest)


def test_unknown_names(folder):
    put(folder)
    assert_refused("did you mean 'toy'", kjax.load, "tyo")
    assert_refused("leave out ':xy,s=1'", kjax.load, "toy:xy,s=1")
    assert_refused("unknown pretrained model 'best': choose from toy", kjax.load, "best")
    assert_refused("only workdirs have seeds", load_source, "toy", seed=1)


def test_baselines_keep_their_names(folder):
    put(folder, "hardnet", head="sum")
    baseline, own = find_entry("hardnet"), find_entry("kjax-hardnet")
    assert not baseline.ours
    assert "kjax-hardnet" in baseline.missing
    assert (own.name, own.train, own.ours) == ("kjax-hardnet", "left+right", True)
    assert own.parameters == 285_984


def test_every_shipped_model_loads():
    for name in shipped.list_weights():
        source = load_shipped(name)
        assert source.info.use
        assert source.path.with_suffix(".md").is_file()
    others = ["best-kjax", "fast-kjax", "sift"]
    assert shipped.list_matchers() == sorted([*shipped.list_weights(), *others])
    assert shipped.matcher_for("fast", "kjax") == "fast-kjax"
    assert shipped.matcher_for("fast", "SIFT") == shipped.matcher_for("fast") == "fast"
    assert shipped.matcher_for("tiny", "kjax") == "tiny"
    for name in shipped.list_matchers():
        assert shipped.matcher_file(name).with_suffix(".md").is_file()
    for path in shipped.FOLDER.glob("*.npz"):
        assert path.stem in shipped.list_weights()
    ledger = shipped.photographs()
    assert len(ledger) > 300
    assert all(name == row.sha256 for name, row in ledger.items())
