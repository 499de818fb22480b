"""A place for shipped weights of the tests' own."""

import pytest
from ledger_files import ROWS, write_ledger

from kjax.weights import shipped


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of shipped weights with a ledger and no weights, and another to be in."""
    place = tmp_path / "pretrained"
    place.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(shipped, "FOLDER", place)
    write_ledger(place, ROWS)
    return place
