"""Sweeps: what is trained, scored, recorded, and left alone the second time."""

import dataclasses
import json

import numpy as np
import pytest
from experiments import scoring
from experiments.compiled_training import Sets
from experiments.records import Record, append_record, read_records
from experiments.sweep import Sweep, weights_path
from experiments.trainings import (
    FINAL,
    HEADS,
    QUESTIONS,
    RECIPES,
    Training,
    make_trainings,
)
from record_files import trained

from kjax.data.phototour import read_phototour, sample_test_pairs, write_phototour
from kjax.data.sets import read_test_sets
from kjax.eval import misalignment
from kjax.model import describe
from kjax.model.descriptor import parameter_count
from kjax.weights.files import load_variables

SMALL = ("model.head=sum", "model.patch_size=8", "train.pairs=4", "train.steps=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two small sets on disk, each 20 points of three patches."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("one", "two")):
        rng = np.random.default_rng(seed)
        coarse = np.kron(rng.integers(0, 200, (20, 1, 8, 8)), np.ones((1, 1, 8, 8), int))
        patches = (coarse + rng.integers(0, 56, (20, 3, 64, 64))).reshape(-1, 64, 64)
        ids = np.repeat(np.arange(20), 3)
        pairs = sample_test_pairs(ids, matching=50, non_matching=50, seed=0)
        write_phototour(folder / name, patches.astype(np.uint8), ids, pairs=pairs)
    return folder


@pytest.fixture
def small_batches(monkeypatch):
    """As few patches as there are, and few ways to misalign them."""
    monkeypatch.setattr(misalignment, "TARGETS_PER_LEVEL", 1)
    monkeypatch.setattr(describe, "preferred_batch", lambda: 8)
    monkeypatch.setattr(scoring, "JITTER", {"rotation": (0.0, 10.0)})


def sweep_in(folder, data, **options) -> Sweep:
    noisy = read_phototour(data / "two", progress=False)
    tests = scoring.Tests(
        sets=read_test_sets([str(data / name) for name in ("one", "two")], progress=False),
        validation=noisy,
        jittered=noisy,
    )
    return Sweep(
        sets=Sets(data, progress=False),
        scorer=scoring.Scorer(tests),
        records=folder / "small.jsonl",
        weights=folder / "weights",
        progress=False,
        **options,
    )


@pytest.mark.usefixtures("small_batches")
def test_a_sweep_records_every_cell_once(tmp_path, data, monkeypatch):
    trainings = [Training("heads", "sum", SMALL, ("one",), seed) for seed in (0, 1)]
    sweep = sweep_in(tmp_path, data)
    assert sweep.run(trainings) == 0
    first, second = read_records(sweep.records)
    assert (first.name, second.name) == ("heads/sum/one/0", "heads/sum/one/1")
    assert first.config == {"model.head": "sum", "model.patch_size": 8} | {
        "train.pairs": 4,
        "train.steps": 1,
    }
    assert first.result.parameters == 285_984
    assert first.result.dimension == 128
    assert first.pairs == 4
    # Nothing is tested on what it was trained on.
    (rate,) = first.result.phototour
    assert (rate.test, rate.matching_pairs, rate.non_matching_pairs) == ("two", 50, 50)
    validation, reported = first.result.misaligned
    assert (validation.validation, reported.validation) == (True, False)
    assert list(validation.by_level) == ["easy", "hard", "tough"]
    assert 0 <= reported.by_amount["rotation"]["10"] <= 1
    assert first.result != second.result  # another seed
    weights = load_variables(weights_path(tmp_path / "weights", trainings[1]))
    assert parameter_count(weights) == first.result.parameters

    # What is recorded is not computed again.
    monkeypatch.setattr("experiments.sweep.prepare", lambda *_: pytest.fail("computed again"))
    assert sweep.run(trainings) == 0
    assert len(read_records(sweep.records)) == 2
    # And where there is no time, nothing is begun.
    monkeypatch.setattr(Sweep, "_prepare", lambda *_: None)
    other = [Training("heads", "sum", SMALL, ("one",), seed) for seed in (2, 3)]
    assert sweep_in(tmp_path, data, seconds=-1.0).run(other) == 2


def some_record(name: str) -> Record:
    return trained("sum", "one", 0, {"fpr95/x": 0.1}, name=name)


def test_a_torn_last_line_is_forgotten(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, some_record("a"))
    append_record(path, some_record("b"))
    path.write_bytes(path.read_bytes()[:-20])
    assert [record.name for record in read_records(path)] == ["a"]
    append_record(path, some_record("c"))
    assert [record.name for record in read_records(path)] == ["a", "c"]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, some_record("a"))
    path.write_bytes(path.read_bytes()[:-1])
    append_record(path, some_record("b"))
    assert [record.name for record in read_records(path)] == ["a", "b"]


def record_with(**changes) -> bytes:
    return json.dumps({**dataclasses.asdict(some_record("b")), **changes}).encode()


def record_with_rate(value) -> bytes:
    record = dataclasses.asdict(some_record("b"))
    record["result"]["phototour"][0]["fpr95"] = value
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps({"name": "b"}).encode(), "the record lacks"),
        (record_with(other=1), "unknown record field"),
        (record_with_rate("low"), "fpr95 must be a number"),
        (record_with(config=[1.0]), "config must be an object"),
        (record_with(result=[1.0]), "result must be a group of fields"),
        (record_with(seed=True), "seed must be a whole number"),
        (record_with(seconds=10**400), "seconds must be a number"),
        (b"[1, 2]", "the record must be a group of fields"),
        (b'{"name": "', "Unterminated string"),
        (b'{"name": "\xc3', "UTF-8"),
        (b"[" * 100_000, "too deep"),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_used(tmp_path, capsys, line, reason):
    path = tmp_path / "records.jsonl"
    for content in (record_with(name="a"), line, record_with(name="c")):
        path.write_bytes((path.read_bytes() if path.exists() else b"") + content + b"\n")
    assert [record.name for record in read_records(path)] == ["a", "c"]
    told = capsys.readouterr().err
    assert f"{path}, line 2 is not a record and is left out: " in told
    assert reason in told
    assert told.count("\n") == 1
    # The same at the end of the file, half written.
    path.write_bytes(record_with(name="a") + b"\n" + line)
    append_record(path, some_record("d"))
    assert [record.name for record in read_records(path)] == ["a", "d"]
    assert capsys.readouterr().err == "", "what is appended did not join the half line"


@pytest.mark.parametrize("table", [HEADS, RECIPES, FINAL, *QUESTIONS.values()])
def test_every_planned_training_has_a_valid_config(table):
    for row, settings in table.items():
        Training("heads", row, settings, ("one",), 0).config()


def test_ablations_change_one_thing_at_a_time():
    usual, *others = make_trainings("ablation", ["dropout"], ["one"], [0], ["train.steps=5"])
    assert usual.row == "default"
    assert [training.row for training in others] == ["0.0", "0.1"]
    for training in others:
        own = dict(training.difference())
        assert own.pop("model.dropout") == float(training.row)
        assert own == usual.difference()
