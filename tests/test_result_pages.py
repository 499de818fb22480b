"""The committed pages of results are what the committed records give."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_WORDS = 2500


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def check(page: str, text: str, command: str) -> None:
    committed = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == committed, f"run: python benchmarks/{command} page"
    assert len(text.split()) <= MAX_WORDS


def test_results():
    from experiments import page

    records = page.read_all(ROOT / "results")
    check(page.PAGE, page.compose_page(records), "reproduce.py")
    for record in (one for each in records.values() for one in each):
        known = r"[0-9a-f]{12}( \(committed after this ran\))?"
        assert re.fullmatch(known, record["versions"]["commit"]), record["name"]


def test_peers():
    from peer_table import page

    records = page.read_shown(ROOT / "results" / "peers.jsonl")
    check(page.PAGE, page.compose_page(records), "peers.py")


def test_every_figure_is_shown():
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    for path in (ROOT / "docs" / "figures").iterdir():
        assert f"figures/{path.name}" in pages
