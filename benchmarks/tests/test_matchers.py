"""Matchers in the package: shipped, found by name, checked."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from ledger_files import hashed

import kjax
from kjax.cli import main
from kjax.data.phototour import SetPhotograph
from kjax.errors import InputError
from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.view_set import ViewSet, write_view_set
from kjax.matcher.weights import MatcherWeights, save_matcher
from kjax.weights import shipped
from kjax.weights.info import Provenance

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "tools"))
import ship_matcher

CARD = {
    "summary": "a toy",
    "command": "python -m kjax.matcher --config=toy",
    "commit": "0123abc",
    "seed": 3,
    "pairs": 20_000,
    "hardware": "two cores",
    "results": {"precision": 0.5},
    "evaluation": "on two cores",
    "limits": ["is small"],
    "licence": "Apache-2.0",
}
GIVEN = ["toy", "--matcher", "matcher.npz", "--views", "views.npz", "--card", "card.json"]


@pytest.fixture(autouse=True)
def _known_weights(monkeypatch):
    """The descriptors' card is of no interest here but for its hash."""

    class Known:
        sha256 = "abc"

    monkeypatch.setattr(shipped, "card", lambda name: Known)
    monkeypatch.setattr(ship_matcher, "weights_sha256", lambda source: source.info.sha256)


def write_files(weights_sha256, names):
    model = MatcherConfig(layers=1, width=32, heads=2, dimension=8)
    origin = Provenance("toy", weights_sha256, 8)
    params = init_params(model, jax.random.key(0))
    save_matcher(Path("matcher.npz"), MatcherWeights(model, origin, {}, params))
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
    write_view_set(Path("views.npz"), ViewSet(photographs=listed, described_with=origin, **zeros))
    Path("card.json").write_text(json.dumps(CARD))


def head_only(kernel, sha256):
    """As much of a source as `turned` looks at."""
    info = SimpleNamespace(sha256=sha256)
    return SimpleNamespace(variables={"params": {"head": {"kernel": kernel}}}, info=info)


def test_descriptors_that_were_turned_give_the_same_tokens(rng):
    model = MatcherConfig(layers=1, width=32, heads=2, dimension=8)
    params = jax.device_get(init_params(model, jax.random.key(0)))
    origin = Provenance("old", "abc", 8)
    kernel, turn = rng.normal(size=(20, 8)), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    before, after = head_only(kernel, "abc"), head_only(kernel @ turn, "def")
    moved = ship_matcher.turned(MatcherWeights(model, origin, {}, params), before, after, "new")
    assert moved.described_with == Provenance("new", "def", 8)

    inputs = rng.normal(size=(5, 8 + 3))
    theirs = np.concatenate([inputs[:, :8] @ turn, inputs[:, 8:]], axis=1)
    own, other = (one["embedding"]["input"]["kernel"] for one in (params, moved.params))
    # Sums of eleven products, whose factors float32 rounds.
    np.testing.assert_allclose(theirs @ other, inputs @ own, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("other", "sha256", "message"),
    [(np.diag(np.arange(1.0, 9)), "abc", "no turn"), (np.eye(8), "xyz", "other weights")],
)
def test_other_descriptors_are_not_taken_for_turned_ones(rng, other, sha256, message):
    model = MatcherConfig(layers=1, width=32, heads=2, dimension=8)
    origin = Provenance("old", sha256, 8)
    kernel = rng.normal(size=(20, 8))
    before, after = head_only(kernel, "abc"), head_only(kernel @ other, "def")
    with pytest.raises(InputError, match=message):
        ship_matcher.turned(MatcherWeights(model, origin, {}, {}), before, after, "new")


def test_what_ships_is_what_loads(folder):
    write_files("abc", ["beach/0.jpg", "field/0.jpg"])
    assert shipped.list_matchers() == []
    assert ship_matcher.main(GIVEN) == 0
    assert shipped.list_matchers() == ["toy"]
    assert kjax.load_matcher("toy").described_with.sha256 == "abc"
    card = shipped.matcher_card("toy")
    assert card.use == "anything, also commercial; name Ann (CC-BY-4.0)"
    page = (folder / "matchers" / "toy.md").read_text()
    assert card.sha256 in page
    assert "beach" in page


def test_info_about_what_ships(folder, capsys):
    write_files("abc", ["beach/0.jpg", "field/0.jpg"])
    assert main(["info", "toy", "--matcher"]) == 2
    assert "no such matcher: toy (none ships with this version" in capsys.readouterr().err
    ship_matcher.main(GIVEN)
    capsys.readouterr()
    assert main(["info", "toy", "--matcher"]) == 0
    told = capsys.readouterr().out
    assert "descriptors of toy, 8 numbers" in told
    assert "anything, also commercial; name Ann (CC-BY-4.0)" in told
    assert main(["info", "other", "--matcher"]) == 2
    assert "no such matcher: other (those that ship: toy)" in capsys.readouterr().err


def test_what_was_altered_is_refused(folder):
    write_files("abc", ["beach/0.jpg"])
    ship_matcher.main(GIVEN)
    files = folder / "matchers"
    weights, card = (files / name for name in ("toy.npz", "toy.json"))
    before = weights.read_bytes()
    weights.write_bytes(before[:-1])
    with pytest.raises(InputError, match="missing or was altered: reinstall kjax"):
        kjax.load_matcher("toy")
    weights.write_bytes(before)
    card.write_text(card.read_text().replace("is small", "is large"))
    with pytest.raises(InputError, match="was altered"):
        kjax.load_matcher("toy")


@pytest.mark.parametrize(
    ("weights_sha256", "photograph", "said"),
    [
        ("other", "beach/0.jpg", "for other weights than the shipped toy"),
        ("abc", "beach/9.jpg", "beach/9.jpg is not in the ledger"),
    ],
)
def test_what_may_not_ship(folder, capsys, weights_sha256, photograph, said):
    write_files(weights_sha256, [photograph])
    assert ship_matcher.main(GIVEN) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "matchers").exists()


def test_a_name_that_does_not_ship(folder):
    with pytest.raises(InputError, match=r"no such matcher: toy \(none ships"):
        kjax.load_matcher("toy")
