"""The page of results that is committed is the one that the committed records make."""

import re
from pathlib import Path

import pytest
from experiments import page
from experiments.records import read_records
from experiments.trainings import DEFAULTS, QUESTIONS
from scripts import BENCHMARKS, load_script

from kjax.errors import InputError
from kjax.eval.report.markdown import to_markdown
from kjax.runs import workdir

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records():
    files = sorted((ROOT / "results").glob("*.jsonl"))
    return [record for path in files for record in read_records(path)]


def test_the_page_is_made_of_the_records(records):
    written = to_markdown(page.compose_page(records, DEFAULTS), charts="svg")
    assert written.text == (ROOT / "docs" / page.PAGE).read_text(encoding="utf-8"), (
        "run: python benchmarks/reproduce.py page"
    )
    # Drawing the figures takes seconds, and has tests.
    drawn = {path.name for path in (ROOT / "docs" / "figures").iterdir()}
    assert set(written.pictures) == {name for name in drawn if not name.startswith("peers-")}


def test_every_record_names_a_commit(records):
    """Records that ran before their code was committed say so in words."""
    for record in records:
        commit = record.versions["commit"]
        known = re.fullmatch(r"[0-9a-f]{12}( \(committed after this ran\))?", commit)
        assert known, (record.name, commit)


def test_code_that_is_not_committed_is_not_recorded(monkeypatch):
    reproduce = load_script(BENCHMARKS / "tools" / "reproduce.py")
    words = ["heads", "--train", "a", "--data", "nowhere"]
    source = {"commit": "0" * 40, "dirty": True}
    monkeypatch.setattr(workdir, "source_version", lambda tree: source)
    for arguments in (words, ["rivals", *words[1:]]):
        with pytest.raises(InputError, match=r"not committed.*--allow-changes"):
            reproduce.main(arguments)
        with pytest.raises(InputError, match="no such folder"):
            reproduce.main([*arguments, "--allow-changes"])
    source["dirty"] = False
    with pytest.raises(InputError, match="no such folder"):
        reproduce.main(words)


def test_every_question_has_a_default_to_show():
    assert set(DEFAULTS) == set(QUESTIONS)


def test_another_name_keeps_trainings_apart():
    reproduce = load_script(BENCHMARKS / "tools" / "reproduce.py")
    arguments = ["heads", "--train", "a", "--rows", "sum", "--seeds", "3"]
    named = [*arguments, "--name", "long"]
    trainings = [
        reproduce.make_trainings(*reproduce.parse_arguments(one)) for one in (arguments, named)
    ]
    assert [[training.name for training in some] for some in trainings] == [
        ["heads/sum/a/3"],
        ["long/sum/a/3"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads"], "nothing to train on"),
        (["heads", "--train", "a", "--rows", "polar"], "unknown row of heads 'polar'"),
        (["heads", "--train", "a", "--config.model.s=x"], "config.model.s must be a whole number"),
        (["page", "--results", "nowhere"], "holds no records"),
    ],
)
def test_bad_input_is_told_before_anything_is_read(arguments, message):
    with pytest.raises(InputError, match=message):
        load_script(BENCHMARKS / "tools" / "reproduce.py").main(arguments)
