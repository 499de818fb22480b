"""`config.data.only_open`: a training that would learn from other photographs does not begin."""

import json
from pathlib import Path

import pytest
from ledger_files import ROWS, write_ledger, write_set
from refusals import assert_refused

from kjax.runs.config import load_config, validate
from kjax.train.run import learned_from_open, make_program, read_train_set, run
from kjax.weights import shipped

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config that wants open photographs, and a ledger without weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    write_ledger(tmp_path, ROWS)
    config = load_config(ROOT / "configs" / "smoke.py")
    config.data.only_open = True
    return config


WRONG = {"tower/0.jpg": "without a licence", "holiday/me.jpg": "not in the ledger", None: "again"}


@pytest.mark.parametrize(("photograph", "message"), WRONG.items())
def test_other_sets_are_refused_before_the_run_begins(config, photograph, message):
    config.data.train = ("sea", "open")
    write_set(Path("sea"), "beach/0.jpg")
    write_set(Path("open"), "field/0.jpg")
    assert len(read_train_set(validate(config)).patches) == 8
    config.data.train = ("sea", "land")
    write_set(Path("land"), "field/0.jpg", photograph or "beach/1.jpg")
    if photograph is None:
        Path("land/photographs.csv").unlink()
    assert_refused(message, run, validate(config), Path("out"))
    assert not Path("out").exists()
    config.data.only_open = False
    assert len(read_train_set(validate(config)).patches) == 12


def test_so_must_the_start(config):
    config.init = "anfang"
    Path("anfang").mkdir()
    Path("anfang/config.json").write_text(json.dumps({"data": {"only_open": False}}))
    message = "the start anfang is not known to be trained on open"
    assert_refused(message, make_program, validate(config))


def test_a_run_wins_over_open_weights_of_its_name(config, monkeypatch):
    monkeypatch.setattr(shipped, "find", lambda word: word)
    Path("best").mkdir()
    Path("best/config.json").write_text(json.dumps({"data": {"only_open": False}}))
    assert not learned_from_open("best")


@pytest.mark.parametrize("stored", [{}, {"data": {}}, {"data": {"only_open": False}}])
def test_a_teacher_must_be_known_to_be_open(config, stored):
    config.distill.teacher = "lehrer"
    Path("lehrer").mkdir()
    Path("lehrer/config.json").write_text(json.dumps(stored))
    message = "the teacher lehrer is not known to be trained on open"
    assert_refused(message, make_program, validate(config))
    Path("lehrer/config.json").write_text(json.dumps({"data": {"only_open": True}}))
    assert learned_from_open("lehrer")
    Path("weights.npz").touch()
    assert not learned_from_open("weights.npz")


def test_all_shipped_weights_learned_from_open_photographs():
    assert all(map(learned_from_open, shipped.list_weights()))
