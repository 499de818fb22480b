"""Trainings whose weights anyone may use: all that they learn from must have an open licence."""

from collections.abc import Iterable
from pathlib import Path

from kjax.data.sets import read_photographs
from kjax.errors import InputError
from kjax.runs.config import flat_fields
from kjax.runs.workdir import stored_config
from kjax.weights import shipped
from kjax.weights.ledger import are_open, check_open
from kjax.weights.source import is_workdir


def check_open_sets(names: Iterable[str]) -> None:
    """Refuses sets that hold other photographs, or that do not tell which."""
    ledger = shipped.photographs()
    for name in names:
        check_open(name, read_photographs(name), ledger)


def check_open_weights(role: str, word: str) -> None:
    """Refuses a teacher or a start that learned from other photographs, or that does not tell."""
    if not _learned_from_open(word):
        raise InputError(
            f"the {role} {word} is not known to have learned from open photographs alone: give "
            "shipped weights that did, or the workdir of a run with config.data.only_open=True"
        )


def _learned_from_open(word: str) -> bool:
    # A run wins over shipped weights of its name, as in `kjax.weights.source`. One that began
    # with the field set was checked then, and so were its own teacher and start.
    if is_workdir(word):
        return flat_fields(stored_config(Path(word))).get("data.only_open") is True
    if shipped.find(word) is not None:
        return are_open(shipped.card(word).photographs)
    return False  # a weights file tells nothing that could be checked
