"""Weights files that tell what they are."""

import json
import struct

import jax
import numpy as np
import pytest
from models import make_model

import kjax
from kjax.cli import main
from kjax.errors import InputError
from kjax.export.model import export_model
from kjax.weights.files import load_variables, save_variables
from kjax.weights.source import load_source

safetensors = pytest.importorskip("safetensors")

UNUSUAL = {"kappa_xy": 2.1, "scale_rho": 1 / 3, "corner_radius": 1.5, "head_bias": False}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def texts_of(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata()


def change_texts(path, **changes):
    """Rewrites the header: 8 bytes of length, then JSON."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] |= changes
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])


@pytest.fixture
def polar(tmp_path):
    path = tmp_path / "polar.safetensors"
    model, variables = make_model("polar", patch_size=16, **UNUSUAL)
    export_model(
        path, model, variables, extent=7.5, ratio=0.93, remarks={"trained on": "Straße\nund Weg"}
    )
    return path


def test_a_file_of_kjax_needs_nothing_behind_its_name(polar, capsys):
    source = load_source(str(polar))
    assert source.model == make_model("polar", patch_size=16, **UNUSUAL)[0]
    assert (source.extent, source.ratio) == (7.5, 0.93)
    texts = texts_of(polar)
    told = {
        "head": "polar",
        "s": "1",
        "patch_size": "16",
        "extent": "7.5",
        "kappa_xy": "2.1",
        "ratio": "0.93",
    }
    assert told.items() <= texts.items()
    assert texts["kjax"] == kjax.__version__
    assert main(["info", str(polar)]) == 0
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {label: text.strip() for label, text in shown.items()}
    assert shown["head"] == "polar"
    assert shown["patch size"] == "16"
    assert shown["extent"] == "patches of 7.5 × KeyPoint.size"
    assert shown["ratio"] == "matches up to 0.93"
    assert shown["trained on"] == "Straße und Weg"


def test_shipped_weights_keep_their_name_licence_and_extent(capsys):
    assert main(["export", "best", "--out", "mine.safetensors"]) == 0
    card = kjax.weights.shipped.card("best")
    texts = texts_of("mine.safetensors")
    assert texts["name"] == card.name
    assert texts["use"] == card.use
    assert texts["licence"] == card.licence
    source = load_source("mine.safetensors")
    assert (source.extent, source.ratio) == (card.extent, card.ratio)
    assert source.model == card.build().clone(dtype=np.dtype("float32"), dropout=0.3)
    assert main(["export", "mine.safetensors", "--out", "again.safetensors"]) == 0
    assert texts_of("again.safetensors").items() >= texts.items()
    assert main(["export", "again.safetensors", "--out", "bare.npz"]) == 0
    assert main(["info", "again.safetensors"]) == 0
    assert card.use in capsys.readouterr().out


def test_files_without_metadata_are_read_as_before():
    save_variables("polar.safetensors", make_model("polar")[1])
    assert texts_of("polar.safetensors") is None
    with pytest.raises(InputError, match="fits several heads, xy and polar"):
        assert load_source("polar.safetensors").model
    assert load_source("polar.safetensors:polar,s=1").model.head == "polar"
    save_variables("other.safetensors", make_model("polar")[1], metadata={"head": "of a project"})
    with pytest.raises(InputError, match="fits several heads, xy and polar"):
        assert load_source("other.safetensors").model


def test_weights_that_fit_several_heads_are_not_said_to_be_one():
    save_variables("polar.npz", make_model("polar")[1])
    assert main(["export", "polar.npz", "--out", "polar.safetensors"]) == 0
    assert texts_of("polar.safetensors") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"s": "2"}, r"head\.weight has shape .* \(its metadata says polar s=2 N=16\)$"),
        ({"head": "hardnet"}, r"missing .* \(its metadata says hardnet N=16\)$"),
        ({"head": "combined_star"}, r"missing features_polar"),
        ({"head": "polr"}, "did you mean 'polar'"),
        ({"s": "one"}, "s in the file's metadata is 'one': it is damaged"),
        ({"s": "0"}, "at least 1"),
        ({"patch_size": "18"}, "multiple of 4"),
        ({"kappa_xy": "nan"}, "kappa_xy in the file's metadata is 'nan'"),
        ({"kappa_xy": "-1"}, "kappa_xy must be positive"),
        ({"head_bias": "maybe"}, "head_bias in the file's metadata"),
        ({"head_bias": "True"}, r"missing head\.bias"),
        ({"extent": "-8"}, "must be positive"),
        ({"ratio": "1.1"}, "ratio in the file's metadata is 1.1: it must be above 0"),
    ],
)
def test_metadata_that_contradict_the_weights_or_themselves(changes, message, polar):
    change_texts(polar, **changes)
    with pytest.raises(InputError, match=message) as error:
        load_source(str(polar))
    assert "\n" not in str(error.value)
    assert "polar.safetensors" in str(error.value)


def test_what_is_named_must_agree_with_the_file(polar):
    for named, message in (("xy", "head polar, not xy"), ("polar,s=2", "s 1, not 2")):
        with pytest.raises(InputError, match=message):
            load_source(f"{polar}:{named}")
    source = load_source(f"{polar}:polar,s=1,patch_size=32")
    assert source.model.patch_size == 32
    assert source.model.position_kernel.kappa_xy == 2.1


def test_metadata_leave_the_weights_alone(polar):
    model, variables = make_model("polar", patch_size=16, **UNUSUAL)
    jax.tree.map(np.testing.assert_array_equal, load_variables(polar, model), variables)
