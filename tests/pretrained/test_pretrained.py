"""Weights in the package: shipped, found by name, checked, rebuilt as they were."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from ledger_files import ROWS, write_ledger, write_set
from models import make_model, random_patches
from PIL import Image

import kjax
from kjax.cli import main
from kjax.errors import InputError
from kjax.eval.entries import find_entry
from kjax.weights import shipped
from kjax.weights import shipped as pretrained
from kjax.weights.files import load_variables, save_variables
from kjax.weights.source import load_shipped, load_source, load_sources

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "tools"))
import ship

CONSTANTS = {
    "kappa_xy": 1.5,
    "kappa_rho": 7.0,
    "kappa_theta": 6.0,
    "scale_xy": 1.1,
    "scale_rho": 3.0,
    "scale_theta": 1.0,
    "corner_radius": 2**0.5,
}
"""None but one is the default of `kjax.build`."""
MODEL = {"s": 1, "patch_size": 8, "dropout": 0.1, "head_bias": True, "dtype": "bfloat16"}
CARD = {
    "summary": "a toy",
    "model": {"head": "xy", **MODEL, **CONSTANTS},
    "data": [
        {"name": "left", "origin": "of the | test"},
        {"name": "right", "origin": "of the test"},
    ],
    "command": "python run_train.py --config=toy",
    "commit": "0123abc",
    "seed": 3,
    "pairs": 20_000,
    "hardware": "two cores",
    "results": {"fpr95/left": 0.0123, "hpatches/small/python/matching": 0.5, "speed": "fast"},
    "evaluation": "run_eval.py on two cores",
    "extent": 9.0,
    "limits": ["knows no photographs", "is small"],
    "licence": "Apache-2.0",
}


GIVEN = ["--weights", "cell.npz", "--card", "card.json", "--sets", "left", "right"]


@pytest.fixture
def folder(folder):
    """The same, with two sets in the folder to be in."""
    write_set(Path("left"), "beach/0.jpg", "beach/1.jpg")
    write_set(Path("right"), "field/0.jpg")
    return folder


def files(folder):
    """Names of what is in the folder beside the ledger and the seal."""
    return sorted(path.name for path in folder.iterdir() if path.suffix not in ("", ".csv"))


def put(name="toy", head="xy", **changes):
    """Ships random weights; returns them and the exit code."""
    card = CARD | {"model": CARD["model"] | {"head": head}} | changes
    _, variables = make_model(head, patch_size=card["model"]["patch_size"])
    save_variables("cell.npz", variables)
    Path("card.json").write_text(json.dumps(card))
    return variables, ship.main([name, *GIVEN])


def test_what_ships_is_what_loads(folder, rng):
    variables, code = put()
    assert code == 0
    assert files(folder) == ["toy.json", "toy.md", "toy.npz"]
    assert kjax.weights.shipped.list_weights() == ["toy"]
    card = kjax.weights.shipped.card("toy")
    assert card.parameters == 433_568
    assert card.precision == "float32"
    source = load_shipped("toy")
    assert source.model == kjax.build("xy", **MODEL, **CONSTANTS)
    jax.tree.map(np.testing.assert_array_equal, source.variables, variables)
    patches = random_patches(rng, 2, 8)
    # As the training's model computes it, but in full precision.
    exact = kjax.build("xy", **MODEL | {"dtype": "float32"}, **CONSTANTS)
    expected = jax.jit(exact.apply)(variables, patches)
    np.testing.assert_allclose(kjax.load("toy").describe(patches), expected, atol=1e-5)
    assert load_sources("kjax-toy")[0].card == card


def test_shorter_forms_that_the_card_tells(folder):
    assert put(nested=[32, 64])[1] == 0
    assert load_source("toy", dimension=32).model.dimension == 32
    assert 'kjax.load("toy", dimension=64)' in (folder / "toy.md").read_text()
    put()
    with pytest.raises(InputError, match="no descriptors of 32 numbers, but of 128"):
        load_source("toy", dimension=32)


def test_the_page_says_what_the_card_says(folder):
    put()
    page = (folder / "toy.md").read_text()
    for text in (
        "# toy\n\na toy\n",
        'kjax.load("toy")',
        "| `corner_radius` | `1.4142135623730951` |",
        r"| left | of the \| test |",
        "| beach | 2 | Ann | CC-BY-4.0 | example.org/beach |",
        "Use: anything, also commercial; name Ann (CC-BY-4.0).",
        "20,000 pairs, seed 3, in bfloat16, on two cores; kjax at commit `0123abc`",
        "| FPR@95, left | 1.23 % |",
        "| HPatches mAP, small, python, matching | 50.00 % |",
        "| speed | fast |",
        "- knows no photographs\n- is small\n",
        pretrained.card("toy").sha256,
    ):
        assert text in page, text


@pytest.mark.parametrize("place", [1000, -1])
def test_altered_weights_are_refused(folder, place):
    put()
    content = bytearray((folder / "toy.npz").read_bytes())
    content[place] ^= 1
    (folder / "toy.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"toy\.npz was altered.*reinstall kjax"):
        kjax.load("toy")
    (folder / "toy.npz").unlink()
    with pytest.raises(InputError, match="is missing: reinstall kjax"):
        kjax.load("toy")


def test_altered_cards_are_refused(folder):
    put()
    path = folder / "toy.json"
    for content in (path.read_text().replace("a toy", "a boy"), "{", "[]", "{}"):
        path.write_text(content)
        with pytest.raises(InputError, match=r"toy\.json was altered.*reinstall kjax"):
            kjax.load("toy")
    for content in ("{", "[]", '{"same_as": "lost"}', "{}"):
        path.write_text(content)
        shipped.seal()
        with pytest.raises(InputError, match=r"damaged.*reinstall kjax"):
            kjax.load("toy")
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match=r"missing: reinstall kjax"):
        kjax.load("toy")


def test_an_altered_ledger_is_refused(folder):
    put()
    write_ledger(folder, [one for one in ROWS if one.file != "1.jpg"])
    with pytest.raises(InputError, match=r"toy\.json is damaged \(its photographs"):
        kjax.load("toy")
    (folder / "photographs.csv").write_text("")
    with pytest.raises(InputError, match=r"photographs\.csv was altered.*reinstall kjax"):
        kjax.load("toy")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["left"], "must name the same sets: see right"),
        (["left", "right", "more"], "must name the same sets: see more"),
        (["left", "right", "strange"], "holiday/me.jpg is not in the ledger: add it"),
        (["left", "right", "old"], "cut the set again with kjax build-patches"),
        ([], "give --weights FILE, --card FILE and --sets"),
    ],
)
def test_photographs_must_be_known(folder, capsys, sets, message):
    write_set(Path("more"), "tower/0.jpg")
    write_set(Path("strange"), "holiday/me.jpg")
    (write_set(Path("old"), "field/0.jpg") / "photographs.csv").unlink()
    put()
    before = (folder / "toy.json").read_bytes()
    assert ship.main(["toy", *GIVEN[:4], *(["--sets", *sets] if sets else [])]) == 2
    assert message in capsys.readouterr().err
    assert (folder / "toy.json").read_bytes() == before


def test_a_workdir_wins_and_other_folders_do_not(folder):
    put()
    Path("toy").mkdir()
    assert load_sources("toy")[0].card is not None
    assert find_entry("toy").name == "kjax-toy"
    Path("toy/config.json").write_text("{}")
    for find in (load_sources, find_entry):
        with pytest.raises(InputError, match="toy is not of a run of this version"):
            find("toy")


def test_a_second_name(folder, capsys):
    put()
    assert ship.main(["best", "--same-as", "toy"]) == 0
    assert pretrained.list_weights() == ["best", "toy"]
    assert not (folder / "best.npz").exists()
    assert "[`toy`](toy.md)" in (folder / "best.md").read_text()
    assert pretrained.card("best") == pretrained.card("toy")
    assert kjax.load().patch_size == 8, "best is the default"
    capsys.readouterr()
    assert main(["info"]) == 0
    allowed = "for anything, also commercial; name Ann (CC-BY-4.0)"
    assert capsys.readouterr().out == (
        f"best  the same as toy; {allowed}\ntoy   a toy; {allowed}\n"
    )
    assert ship.main(["toy", "--same-as", "best"]) == 2
    assert "toy" in pretrained.list_weights()


def test_info(folder, capsys):
    assert main(["info"]) == 0
    assert "no weights ship" in capsys.readouterr().out
    put()
    capsys.readouterr()
    assert main(["info", "toy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {label: text.strip() for label, _, text in (line.partition("  ") for line in lines)}
    expected = {
        "name": "toy",
        "head": "xy",
        "patch size": "8",
        "parameters": "433,568",
        "weights": "float32",
        "trained on": "left, right",
        "precision": "bfloat16",
        "pairs": "20,000",
        "FPR@95, left": "1.23 %",
        "use": "anything, also commercial; name Ann (CC-BY-4.0)",
        "photographs": "beach: 2, Ann, CC-BY-4.0; field: 1, unknown, CC0-1.0",
        "limits": "knows no photographs; is small",
        "licence": "Apache-2.0",
        "sha256 of npz": pretrained.card("toy").sha256,
    }
    assert expected.items() <= told.items()


def test_commands_take_names(folder, capsys):
    variables, _ = put()
    assert main(["export", "toy", "--out", "copy.npz"]) == 0
    jax.tree.map(np.testing.assert_array_equal, load_variables("copy.npz"), variables)
    for name in ("a.png", "b.png"):
        Image.new("L", (40, 30)).save(name)
    capsys.readouterr()
    for arguments, message in (
        (["match", "a.png", "b.png"], "unknown pretrained model 'best': choose from toy"),
        (["describe", ".", "--out", "o", "--weights", "tyo"], "did you mean 'toy'?"),
        (["info", "toy:xy,s=1"], "leave out ':xy,s=1'"),
        (["export", "toy", "--out", "a.npz", "--seed", "1"], "only workdirs have seeds"),
        ("--weights xy=toy --patch-size 8",),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_nothing_ships(folder):
    with pytest.raises(InputError, match="no weights ship with this version"):
        kjax.load()


def test_candidates(folder, rng):
    """A rival keeps its name; a set that the weights were trained on is known."""
    put("hardnet", head="sum")
    rival = find_entry("hardnet")
    assert not rival.ours
    assert "kjax's own are kjax-hardnet" in rival.missing
    own = find_entry("kjax-hardnet")
    assert (own.name, own.train, own.ours) == ("kjax-hardnet", "left+right", True)
    assert own.parameters == 285_984
    with pytest.raises(InputError, match="did you mean 'kjax-hardnet'"):
        find_entry("kjax-hardnt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"licence": ""}, "licence of the card is empty"),
        ({"seed": "0"}, "seed of the card must be a whole number"),
        ({"results": {"fpr95/left": 1.23}}, "must be a share from 0 to 1, or text"),
        ({"data": [{"name": "left"}]}, "needs name, origin"),
        ({"licens": "CC0"}, "did you mean 'licence'?"),
        ({"model": {**CARD["model"], "head": "hardnet"}}, "does not fit"),
        ({"model": {**MODEL, "head": "xy"}}, "kappa_xy"),
    ],
)
def test_bad_cards_are_refused(folder, capsys, changes, message):
    save_variables("cell.npz", make_model("xy", patch_size=8)[1])
    Path("card.json").write_text(json.dumps(CARD | changes))
    assert ship.main(["toy", *GIVEN]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not files(folder)


def test_what_else_is_refused(folder, capsys, monkeypatch):
    for name in ("Toy", "toy.npz", "kjax-toy", "../toy"):
        assert put(name)[1] == 2
        assert "will not do" in capsys.readouterr().err
    assert ship.main(["toy", "--weights", "cell.npz"]) == 2
    assert "give --weights FILE, --card FILE and --sets" in capsys.readouterr().err
    broken = jax.tree.map(lambda leaf: leaf * np.nan, make_model("xy", patch_size=8)[1])
    save_variables("cell.npz", broken)
    assert ship.main(["toy", *GIVEN]) == 2
    assert "not finite" in capsys.readouterr().err
    big = {"model": CARD["model"] | {"head": "hardnet", "patch_size": 36}}
    save_variables("cell.npz", make_model("hardnet", patch_size=36)[1])
    Path("card.json").write_text(json.dumps(CARD | big))
    assert ship.main(["toy", *GIVEN]) == 2
    assert "would ship as 6.5 MB: at most 6 MB" in capsys.readouterr().err
    assert not files(folder)


def test_every_shipped_model_loads():
    """Those that the package really holds."""
    for name in pretrained.list_weights():
        source = load_shipped(name)
        assert source.path.stat().st_size <= ship.LARGEST
        assert shipped.FOLDER.joinpath(f"{name}.md").is_file()
    for path in shipped.FOLDER.glob("*.npz"):
        assert path.stem in pretrained.list_weights()
