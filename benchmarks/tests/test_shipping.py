"""The ledger's commands, and weights and matchers on their way into the package."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import cv2
import jax
import ledger as ledger_tool
import map_matcher
import numpy as np
import pytest
import ship
import ship_detector
import ship_matcher
from ledger import check_card, ledger_lines, make_ledger, scenes_digest, summarize
from ledger_files import ROWS, hashed, row, write_ledger, write_set
from models import make_model
from PIL import Image

from kjax.data.phototour import SetPhotograph
from kjax.errors import InputError
from kjax.keypoints.network import DetectorConfig
from kjax.keypoints.network import init_params as detector_params
from kjax.keypoints.weights import DetectorWeights, read_detector, save_detector
from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.view_set import ViewSet, write_view_set
from kjax.matcher.weights import MatcherWeights, read_matcher, save_matcher
from kjax.weights import shipped
from kjax.weights.files import save_variables
from kjax.weights.info import Provenance
from kjax.weights.source import load_source

CARD = {
    "summary": "a toy",
    "command": "python run_train.py --config=toy",
    "commit": "0123abc",
    "seed": 3,
    "pairs": 20_000,
    "hardware": "two cores",
    "results": {"precision": 0.5},
    "evaluation": "on two cores",
    "limits": ["is small"],
    "licence": "Apache-2.0",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty package folder with a ledger, and another as working directory."""
    place = tmp_path / "trained"
    (place / shipped.MATCHERS).mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(shipped, "FOLDER", place)
    write_ledger(place, ROWS)
    return place


def test_shipped_ledger_and_cards_agree():
    ledger = shipped.photographs()
    assert list(ledger.values()) == ledger_lines(make_ledger(ledger.values()))
    for path in [*shipped.FOLDER.glob("*.json"), *shipped.FOLDER.glob("*/*.json")]:
        check_card(json.loads(path.read_bytes()), ledger)


def test_photos_of_a_set(folder, capsys):
    write_set(Path("sea"), "beach/0.jpg", "beach/2.jpg")
    write_set(Path("land"), "field/0.jpg")
    assert ledger_tool.main(["check", "sea", "land", "--only-open"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| beach | 2 | CC-BY-4.0 | Ann; Bob |",
        "| field | 1 | CC0-1.0 | unknown |",
        "use: anything, also commercial; name Ann (CC-BY-4.0), Bob (CC-BY-4.0)",
    ]
    assert ledger_tool.main(["check"]) == 0
    assert "| tower | 1 | none-stated | Cy |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("photo", "options", "code", "message"),
    [
        ("holiday/me.jpg", [], 1, f"not in the ledger: holiday/me.jpg ({hashed('holiday/me.jpg')}"),
        ("holiday/me.jpg", ["--only-open"], 2, "holiday/me.jpg is not in the ledger"),
        ("tower/0.jpg", ["--only-open"], 2, "tower/0.jpg"),
    ],
)
def test_unknown_photos_and_licences(folder, capsys, photo, options, code, message):
    write_set(Path("sea"), "beach/0.jpg", photo)
    assert ledger_tool.main(["check", "sea", *options]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert "use:" not in printed.out


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ROWS[0]._replace(file="9.jpg"), r"beach/9\.jpg is in the ledger as beach/0\.jpg"),
        (ROWS[0]._replace(sha256="0" * 64), r"beach/0\.jpg is in the ledger with another content"),
        (row("sky", "0.jpg", "", "MIT"), r"0\.jpg has no author"),
        (row("sky", "0.jpg", "unknown", "MIT"), "MIT requires the author's name"),
        (row("sky", "0.jpg", "Di", "CC-BY-NC-4.0"), "unknown licence 'CC-BY-NC-4.0'"),
        (row("sky", "0.jpg", "Di", "MIT")._replace(sha256="0"), "'0' is not a SHA-256"),
    ],
)
def test_bad_rows_are_refused(bad, message):
    with pytest.raises(InputError, match=message):
        make_ledger([*ROWS, bad])


@pytest.mark.parametrize("change", [{"count": 4}, {"count": 0}, {"authors": ["Di"]}])
def test_a_card_must_agree_with_the_ledger(change):
    ledger = make_ledger(ROWS)
    (group,) = summarize(ROWS[:2])
    card = {"name": "toy", "photographs": [vars(group)]}
    card["ledger_sha256"] = scenes_digest([group], ledger)
    check_card(card, ledger)
    freed = make_ledger([*ROWS[:2], ROWS[2]._replace(licence="CC0-1.0"), *ROWS[3:]])
    with pytest.raises(InputError, match="differ from the ledger"):
        check_card(card, freed)
    card["photographs"] = [vars(group) | change]
    with pytest.raises(InputError, match="no such photos of beach"):
        check_card(card, ledger)


def test_photos_are_reduced_added_and_sealed(folder, capsys):
    Path("originals").mkdir()
    colours = np.random.default_rng(0).integers(0, 256, (20, 1600, 3), dtype=np.uint8)
    Image.fromarray(colours).save("originals/a b.png")
    in_colour = ["--colour", "--side", "1024"]
    for options, expected in ([], ("L", 1536, 19)), (in_colour, ("RGB", 1024, 13)):
        out = "colour" if options else "photos"
        assert ledger_tool.main(["reduce", "originals", "--out", out, *options]) == 0
        with Image.open(f"{out}/a-b.jpg") as reduced:
            assert (reduced.mode, *reduced.size) == expected
            assert {part[1:3] for part in reduced.layer} == {(1, 1)}  # colours in full resolution
    fields = ("--scene", "sky", "--source", "example.org", "--author", "Di", "--licence", "MIT")
    assert ledger_tool.main(["add", "photos", *fields]) == 0
    assert [one.file for one in shipped.photographs().values() if one.scene == "sky"] == ["a-b.jpg"]
    path = folder / "photographs.csv"
    before = path.read_bytes()
    assert ledger_tool.main(["add", "photos", *fields]) == 2
    assert "add it once" in capsys.readouterr().err
    assert path.read_bytes() == before
    path.write_text(path.read_text().replace("none-stated", "CC0-1.0"))
    with pytest.raises(InputError, match="was altered"):
        shipped.photographs()
    assert ledger_tool.main(["seal"]) == 0
    assert len(shipped.photographs()) == 6


def test_photos_of_a_place_are_aligned(folder):
    blurred = cv2.GaussianBlur(np.random.default_rng(0).normal(size=(240, 320, 3)), (0, 0), 2)
    scene = np.clip(128 + 200 * blurred, 0, 255).astype(np.uint8)
    turn = cv2.getRotationMatrix2D((164, 117), 1.0, 1.0)
    turn[:, 2] += 4, -3
    for name, photo in ("a", scene), ("b", cv2.warpAffine(scene, turn, (320, 240))):
        Path("place").mkdir(exist_ok=True)
        cv2.imwrite(f"place/{name}.png", np.vstack([np.zeros((8, 320, 3), np.uint8), photo]))
    assert ledger_tool.main(["reduce", "place", "--out", "aligned", "--cut", "8", "--align"]) == 0
    a, b = (cv2.imread(f"aligned/{name}.jpg").astype(float)[30:-30, 30:-30] for name in "ab")
    assert np.abs(a - b).mean() < 6


def write_weights(**changes):
    model, variables = make_model("xy", patch_size=8)
    save_variables("weights.npz", variables)
    settings = {"head": "xy", "s": model.position_kernel.s, "patch_size": 8, "dtype": "bfloat16"}
    facts = {"model": settings, "data": [{"name": "sea", "origin": "test"}], "extent": 9}
    Path("card.json").write_text(json.dumps(CARD | facts | changes))
    return variables


SHIP = ["toy", "--weights", "weights.npz", "--card", "card.json", "--sets", "sea"]


def test_shipped_weights_load(folder):
    write_set(Path("sea"), "beach/0.jpg", "beach/2.jpg")
    variables = write_weights(nested=[32, 64])
    assert ship.main(SHIP) == 0
    jax.tree.map(np.testing.assert_array_equal, load_source("toy").variables, variables)
    page = (folder / "toy.md").read_text()
    assert 'kjax.load("toy", dimension=64)' in page
    assert shipped.card("toy").sha256 in page
    check_card(json.loads((folder / "toy.json").read_bytes()), shipped.photographs())


@pytest.mark.parametrize(
    ("changes", "photo", "message"),
    [
        ({"summary": ""}, "beach/0.jpg", "summary of the card"),
        ({"speed": "fast"}, "beach/0.jpg", "unknown fields of the card: speed"),
        ({"results": {"fpr95": 1.2}}, "beach/0.jpg", "a share from 0 to 1"),
        ({"data": [{"name": "land", "origin": "x"}]}, "beach/0.jpg", "must name the same sets"),
        ({}, "beach/9.jpg", "beach/9.jpg is not in the ledger"),
    ],
)
def test_bad_cards_write_nothing(folder, capsys, changes, photo, message):
    write_set(Path("sea"), photo)
    write_weights(**changes)
    assert ship.main(SHIP) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "toy.npz").exists()


def toy_matcher(sha256="abc"):
    model = MatcherConfig(layers=1, width=32, heads=2, dimension=8)
    params = jax.device_get(init_params(model, jax.random.key(0)))
    return MatcherWeights(model, Provenance("toy", sha256, 8), {}, params)


def write_matcher(sha256, names):
    weights = toy_matcher(sha256)
    save_matcher(Path("matcher.npz"), weights)
    shape = (len(names), 2, 3)
    zeros = {
        "xy": np.zeros((*shape, 2), "f4"),
        "scales": np.ones(shape, "f4"),
        "angles": np.zeros(shape, "f4"),
        "descriptors": np.zeros((*shape, 8), "f2"),
        "counts": np.zeros(shape[:2], "i4"),
        "sizes": np.ones((*shape[:2], 2), "i4"),
        "places": np.zeros((*shape, 3), "f4"),
        "cameras": np.zeros((*shape[:2], 3, 4), "f4"),
        "turns": np.zeros(shape[:2], "f4"),
    }
    listed = tuple(SetPhotograph(i, name, hashed(name)) for i, name in enumerate(names))
    origin = weights.described_with
    write_view_set(Path("views.npz"), ViewSet(photographs=listed, described_with=origin, **zeros))
    Path("card.json").write_text(json.dumps(CARD))


@pytest.mark.parametrize(
    ("sha256", "photo", "message"),
    [
        ("abc", "beach/0.jpg", None),
        ("other", "beach/0.jpg", "for other weights than the shipped toy"),
        ("abc", "beach/9.jpg", "beach/9.jpg is not in the ledger"),
    ],
)
def test_matchers_ship(folder, capsys, monkeypatch, sha256, photo, message):
    monkeypatch.setattr(shipped, "card", lambda name: SimpleNamespace(sha256="abc"))
    write_matcher(sha256, [photo, "field/0.jpg"])
    given = ["toy", "--matcher", "matcher.npz", "--views", "views.npz", "--card", "card.json"]
    assert ship_matcher.main(given) == (2 if message else 0)
    if message:
        assert message in capsys.readouterr().err
        assert shipped.list_matchers() == []
    else:
        assert shipped.list_matchers() == ["toy"]
        assert read_matcher(shipped.matcher_file("toy")).described_with.sha256 == "abc"
        assert "beach" in (folder / shipped.MATCHERS / "toy.md").read_text()


def test_a_mapped_matcher_ships_with_the_photos_of_its_base(folder, monkeypatch):
    monkeypatch.setattr(shipped, "card", lambda name: SimpleNamespace(sha256="abc"))
    write_matcher("abc", ["beach/0.jpg"])
    given = ["--matcher", "matcher.npz", "--card", "card.json"]
    assert ship_matcher.main(["toy", *given, "--views", "views.npz"]) == 0
    save_matcher(Path("matcher.npz"), dataclasses.replace(toy_matcher(), base="toy"))
    assert ship_matcher.main(["other", *given]) == 0
    cards = [shipped.matcher_card(name) for name in ("toy", "other")]
    assert cards[0].photographs == cards[1].photographs != ()
    read_matcher(shipped.matcher_file("other"))


def test_a_map_gives_other_weights_the_same_tokens(rng):
    wanted, turn = rng.normal(size=(50, 8)), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    given = wanted @ turn.T
    np.testing.assert_allclose(map_matcher.linear_map(given, wanted), turn, atol=1e-12)
    weights = toy_matcher()
    mapped = map_matcher.with_map(weights, turn)
    own, other = (one.params["embedding"]["input"]["kernel"] for one in (weights, mapped))
    np.testing.assert_allclose(given @ other[:8], wanted @ own[:8], atol=1e-5)
    np.testing.assert_array_equal(own[8:], other[8:])


def head_only(kernel, sha256):
    """The parts of a loaded model that `turned` uses."""
    return SimpleNamespace(variables={"params": {"head": {"kernel": kernel}}}, sha256=sha256)


def test_rotated_descriptors_give_the_same_tokens(rng, monkeypatch):
    monkeypatch.setattr(ship_matcher, "weights_sha256", lambda one: one.sha256)
    weights = toy_matcher()
    kernel, turn = rng.normal(size=(20, 8)), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    before, after = head_only(kernel, "abc"), head_only(kernel @ turn, "def")
    moved = ship_matcher.turned(weights, before, after, "new")
    assert moved.described_with == Provenance("new", "def", 8)
    inputs = rng.normal(size=(5, 8 + 3))
    theirs = np.concatenate([inputs[:, :8] @ turn, inputs[:, 8:]], axis=1)
    own, other = (one.params["embedding"]["input"]["kernel"] for one in (weights, moved))
    # Sums of eleven products, whose factors float32 rounds.
    np.testing.assert_allclose(theirs @ other, inputs @ own, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="not rotated"):
        ship_matcher.turned(weights, before, head_only(kernel @ np.diag(np.arange(8.0)), ""), "")
    with pytest.raises(InputError, match="other weights"):
        ship_matcher.turned(weights, head_only(kernel, "xyz"), after, "")


@pytest.mark.parametrize(("name", "message"), [("beach/0.jpg", None), ("me.jpg", "not in the led")])
def test_detectors_ship(folder, capsys, name, message):
    Path("photos").mkdir()
    Path("photos/a.jpg").write_bytes(name.encode())  # whose hash is the ledger's
    model = DetectorConfig(widths=(4,), octaves=1)
    params = detector_params(model, jax.random.key(0))
    save_detector(Path("own.npz"), DetectorWeights(model, {}, params))
    Path("card.json").write_text(json.dumps(CARD))
    given = ["--detector", "own.npz", "--photos", "photos", "--card", "card.json"]
    assert ship_detector.main(["toy", *given]) == (2 if message else 0)
    if message:
        assert message in capsys.readouterr().err
        assert shipped.list_detectors() == []
    else:
        assert read_detector(shipped.detector_file("toy")).model == model
        assert "beach" in (folder / shipped.DETECTORS / "toy.md").read_text()
