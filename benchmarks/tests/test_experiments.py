"""Sweeps: trainings, scores, records and averages."""

import numpy as np
import pytest
import reproduce
from evaluation_data import write_hpatches, write_test_set
from experiments import claims, scoring
from experiments.page import Spread, cell, mean_fpr, mean_of, pooled_std, spread
from experiments.sweep import ResidentSets, Sweep, weights_path
from experiments.trainings import QUESTIONS, Training, make_trainings, rows_of
from models import make_model
from program import read_records

from kjax.data.phototour import read_phototour
from kjax.data.sets import read_test_sets
from kjax.errors import InputError
from kjax.eval import misalignment
from kjax.eval.entries import find_entry
from kjax.eval.hpatches.tasks import open_benchmark
from kjax.eval.run import score
from kjax.model import describe
from kjax.model.descriptor import parameter_count
from kjax.runs import workdir
from kjax.weights.files import load_variables, save_variables

SMALL = ("model.head=sum", "model.patch_size=8", "train.pairs=4", "train.steps=1")


@pytest.fixture
def small_batches(monkeypatch):
    """Few patches per batch, and few misalignments."""
    monkeypatch.setattr(misalignment, "TARGETS_PER_LEVEL", 1)
    monkeypatch.setattr(describe, "preferred_batch", lambda: 8)
    monkeypatch.setattr(scoring, "preferred_batch", lambda: 8)
    monkeypatch.setattr(scoring, "JITTER", {"rotation": (0.0, 10.0)})


@pytest.mark.usefixtures("small_batches")
def test_a_sweep_records_every_training_once(tmp_path, monkeypatch):
    for name in ("one", "two"):
        write_test_set(tmp_path / name)
    noisy = read_phototour(tmp_path / "two", progress=False)
    names = [str(tmp_path / name) for name in ("one", "two")]
    sets = read_test_sets(names, progress=False)
    sweep = Sweep(
        sets=ResidentSets(tmp_path, progress=False),
        scorer=scoring.Scorer(scoring.Tests(sets=sets, validation=noisy, jittered=noisy)),
        records=tmp_path / "small.jsonl",
        weights=tmp_path / "weights",
        progress=False,
    )
    trainings = [Training("heads", "sum", SMALL, ("one",), seed) for seed in (0, 1)]
    assert sweep.run(trainings) == 0
    first, second = read_records(sweep.records)
    assert (first["name"], second["name"]) == ("heads/sum/one/0", "heads/sum/one/1")
    own = {"model.head": "sum", "model.patch_size": 8, "train.pairs": 4, "train.steps": 1}
    assert (first["config"], first["pairs"]) == (own, 4)
    result = first["result"]
    assert (result["parameters"], result["dimension"]) == (285_984, 128)
    # Trained models are not tested on their training sets.
    assert [rate["test"] for rate in result["phototour"]] == ["two"]
    validation, reported = result["misaligned"]
    assert (validation["validation"], reported["validation"]) == (True, False)
    assert list(validation["by_level"]) == ["easy", "hard", "tough"]
    assert 0 <= reported["by_amount"]["rotation"]["10"] <= 1
    assert result != second["result"]  # another seed
    weights = load_variables(weights_path(tmp_path / "weights", trainings[1]))
    assert parameter_count(weights) == result["parameters"]
    # Recorded trainings are skipped.
    monkeypatch.setattr("experiments.sweep.prepare", lambda *_: pytest.fail("computed again"))
    assert sweep.run(trainings) == 0
    assert len(read_records(sweep.records)) == 2


@pytest.mark.usefixtures("small_batches")
def test_sweeps_and_evaluations_agree(tmp_path):
    model, variables = make_model("sum", s=1, patch_size=8)
    save_variables(tmp_path / "weights.npz", variables)
    sets = read_test_sets([str(write_test_set(tmp_path / "pairs"))], progress=False)
    folder, protocols = write_hpatches(tmp_path / "sequences", patches=4), ("python", "matlab")
    benchmark = open_benchmark(folder, protocols=protocols, progress=False)
    entry = find_entry(f"{tmp_path / 'weights.npz'}:sum,patch_size=8")
    found, _ = score(entry, sets, benchmark, progress=False)
    tests = scoring.Tests(sets=sets, benchmark=benchmark)
    scored = scoring.Scorer(tests).score(found.name, model, variables)
    # Patches resized in advance or on the fly are the same.
    assert scored.phototour == scoring.concise(found).phototour
    assert scored.hpatches == scoring.concise(found).hpatches


def test_an_amount_of_zero_shows_the_middle_of_another_patch(patch_set):
    made = scoring.controlled_set(patch_set, {"rotation": [0.0]}, size=32, points=10, group=10)
    assert (made.groups, made.names) == ((10,), ("rotation/0",))
    for patch in made.patches:
        assert any(np.array_equal(patch, one) for one in patch_set.patches[:, 16:48, 16:48])
    reference, target = made.patches.astype(int).reshape(2, 10, 32, 32)
    greys = (target - reference).reshape(10, -1)
    assert (greys == greys[:, :1]).all()
    assert set(np.abs(greys[:, 0])) <= {10, 20}
    with pytest.raises(InputError, match="unknown misalignment 'blur': choose from translation"):
        scoring.controlled_set(patch_set, {"blur": [1.0]}, size=32)


def test_maps_have_the_given_amount():
    rng = np.random.default_rng(0)
    turned = scoring.known_maps("rotation", 90.0, 50, rng)
    assert np.allclose(np.abs(turned[:, 0, 1]), 1)
    assert len(set(np.sign(turned[:, 0, 1]))) == 2
    scaled = scoring.known_maps("scale", 1.0, 50, rng)
    assert set(scaled[:, 0, 0]) == {0.5, 2.0}
    assert (scaled[:, 0, 1] == 0).all()
    moved = scoring.known_maps("translation", 0.25, 50, rng)
    # In half sides: a quarter of a side is half of a half side.
    assert np.allclose(np.hypot(moved[:, 0, 2], moved[:, 1, 2]), 0.5)


def test_every_training_has_a_valid_config():
    known = {name: rows_of(name) for name in reproduce.TRAINED}
    rows = [row for name in known if name != "ablation" for row in known[name].items()]
    rows += [row for values in QUESTIONS.values() for row in values.items()]
    assert {"plain", "strong, heavy photometry", "teacher", "continued, softmax"} <= {*dict(rows)}
    for row, settings in rows:
        Training("heads", row, settings, ("one",), 0).config()


def test_ablations_change_one_setting_at_a_time():
    rows = {"dropout": QUESTIONS["dropout"]}
    usual, *others = make_trainings("ablation", rows, ["one"], [0], ["train.steps=5"])
    assert [usual.row, *(one.row for one in others)] == ["default", "0.0", "0.1"]
    for training in others:
        own = dict(training.difference())
        assert own.pop("model.dropout") == float(training.row)
        assert own == usual.difference()


def test_uncommitted_code_is_not_recorded(monkeypatch, capsys):
    arguments = ["heads", "--train", "a", "--data", "nowhere"]
    source = {"commit": "0" * 40, "dirty": True}
    monkeypatch.setattr(workdir, "source_version", lambda tree: source)
    assert reproduce.main(arguments) == 2
    assert "uncommitted changes" in capsys.readouterr().err
    for options, source["dirty"] in ((["--allow-changes"], True), ([], False)):
        assert reproduce.main([*arguments, *options]) == 2
        assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads"], "no training set"),
        (["heads", "--train", "a", "--rows", "polar"], "unknown row of heads 'polar'"),
        (["heads", "--train", "a", "--config.model.s=x"], "model.s"),
        (["page", "--results", "nowhere"], "no records in nowhere"),
    ],
)
def test_bad_input_is_reported_before_anything_is_read(arguments, message, capsys):
    assert reproduce.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_spread_over_columns_and_seeds():
    # Seed means are 5 and 7: 6 ± √2.
    found = spread([{0: 2.0, 1: 4.0}, {0: 8.0, 1: 10.0}])
    assert found == Spread(6.0, pytest.approx(2**0.5), 2)
    assert spread([{0: 1.0, 1: 3.0}, {1: 5.0}]) == Spread(3.5, None, 1)
    assert spread([{}]) is None
    assert pooled_std(Spread(0, None, 1), Spread(0, 2.0, 3)) == 2.0
    # √((1·2 + 2·1)/3)
    assert pooled_std(Spread(0, 2**0.5, 2), Spread(0, 1.0, 3)) == pytest.approx((4 / 3) ** 0.5)
    assert cell(Spread(0.4312, 0.0123, 3), 2) == "43.12 ± 1.23"
    assert (cell(Spread(0.4312, None, 1)), cell(None)) == ("43.1", "–")


def record(train, seed, rates):
    scores = [{"test": test, "fpr95": rate} for test, rate in rates.items()]
    return {"train": train, "seed": seed, "result": {"phototour": scores}}


def test_mean_rates_of_ours_and_of_others():
    columns = [("castle", "fountain"), ("fountain", "castle")]
    ours = [record(["castle"], 0, {"fountain": 0.02}), record(["fountain"], 0, {"castle": 0.04})]
    assert mean_fpr(ours, columns) == Spread(0.03, None, 1)
    other = [record([], None, {"fountain": 0.1, "castle": 0.2, "garden": 0.9})]
    assert mean_fpr(other, columns) == Spread(pytest.approx(0.15), None, 1)
    assert mean_of(ours, lambda one: None) is None


def test_claims_are_differences_of_the_same_trainings_and_seeds():
    first = {("a", "t", 0): 0.10, ("a", "t", 1): 0.12, ("b", "t", 0): 0.9}
    second = {("a", "t", 0): 0.20, ("a", "t", 1): 0.24}
    found = claims.difference(first, second)
    assert found.mean == pytest.approx(-0.11)
    assert found.half == pytest.approx(12.7062047 * 0.01)  # two seeds: −0.10 and −0.12
    assert claims.difference_cell(found, -1) == "−11.00 ± 12.71"
    assert claims.difference_cell(claims.Difference(-0.11, 0.1), -1) == "**−11.00 ± 10.00**"
    assert claims.difference_cell(claims.Difference(-0.11, 0.1), 1) == "−11.00 ± 10.00"
    assert claims.difference(first, {}) is None


def test_joined_sets_are_one_training():
    made = make_trainings("heads", {"sum": ()}, ["a", "b+c"], [0], ())
    assert [one.train for one in made] == [("a",), ("b", "c")]
