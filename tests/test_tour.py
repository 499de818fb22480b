"""The notebook runs, was run in order, and the gallery shows its pictures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"
MACHINE_PATHS = re.compile(r"/(home|tmp|root|Users|work|usr|var|opt)/")


@pytest.fixture(scope="module")
def cells():
    notebook = json.loads((DOCS / "tour.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_notebook_runs_from_top_to_bottom(cells, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.setenv("KJAX_QUICK", "1")
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path))
    names: dict = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    names["plt"].close("all")
    np.testing.assert_array_equal(names["similarity"].argmax(axis=1), np.arange(8))
    assert len(names["matches"]) > 0
    assert np.isfinite(names["losses"]).all()
    assert names["losses"][0] != names["losses"][-1]
    assert names["difference"] < 1e-4


def test_notebook_is_clean(cells):
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(counts) + 1))
    text = (DOCS / "tour.ipynb").read_text(encoding="utf-8")
    assert '"error"' not in json.dumps([cell["outputs"] for cell in cells])
    assert not MACHINE_PATHS.search(text)
    assert len(text) < 400_000


def test_gallery_shows_every_picture():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    files = {path.name: path.stat().st_size for path in (DOCS / "gallery").iterdir()}
    assert set(re.findall(r"\]\(gallery/([^)]+)\)", page)) == set(files)
    assert max(files.values()) <= 200_000
