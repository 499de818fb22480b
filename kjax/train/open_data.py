"""Trainings whose weights anyone may use: all that they learn from must have an open licence."""

from collections.abc import Iterable
from pathlib import Path

from kjax import pretrained
from kjax.data.set_photographs import read_photographs
from kjax.errors import InputError
from kjax.pretrained.ledger import are_open, check_open
from kjax.train.config import flat_fields
from kjax.train.workdir import stored_config


def check_open_sets(names: Iterable[str]) -> None:
    """Refuses sets that hold other photographs, or that do not tell which."""
    ledger = pretrained.photographs()
    for name in names:
        check_open(name, read_photographs(name), ledger)


def check_open_teacher(teacher: str) -> None:
    """Refuses a teacher that learned from other photographs, or that does not tell."""
    if not _learned_from_open(teacher):
        raise InputError(
            f"the teacher {teacher} is not known to have learned from open photographs alone: give "
            "shipped weights that did, or the workdir of a run with config.data.only_open=True"
        )


def _learned_from_open(teacher: str) -> bool:
    if (name := pretrained.find(teacher)) is not None:
        return are_open(pretrained.card(name).photographs)
    if not Path(teacher).is_dir():
        return False  # a weights file tells nothing that could be checked
    # A run that began with the field set was checked then, and so was its own teacher.
    return flat_fields(stored_config(Path(teacher))).get("data.only_open") is True
