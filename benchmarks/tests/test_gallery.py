"""The notebook runs, the page has its pictures, and both stay small and free of machines' paths."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scripts import BENCHMARKS, load_script

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
PAGE = ROOT / "docs" / "gallery.md"
MACHINE_PATHS = re.compile(r"/(home|tmp|root|Users|work|usr|var|opt)/")


@pytest.fixture(scope="module")
def gallery():
    """The command as a module."""
    return load_script(BENCHMARKS / "tools" / "gallery.py")


def notebook_cells(kind):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def test_notebook_runs_from_top_to_bottom(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.setenv("KJAX_QUICK", "1")
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path))
    seen: dict = {}
    for cell in notebook_cells("code"):
        exec(compile("".join(cell["source"]), cell["id"], "exec"), seen)
    seen["plt"].close("all")
    assert seen["right"].shape == seen["left"].shape  # the photographs
    np.testing.assert_array_equal(seen["similarity"].argmax(axis=1), np.arange(8))
    assert len(seen["matches"]) > 0
    assert np.isfinite(seen["losses"]).all()
    assert seen["losses"][0] != seen["losses"][-1]
    assert seen["difference"] < 1e-4


def test_notebook_was_run_in_order_and_is_clean():
    counts = [cell["execution_count"] for cell in notebook_cells("code")]
    assert counts == list(range(1, len(counts) + 1))
    outputs = json.dumps([cell["outputs"] for cell in notebook_cells("code")])
    assert '"error"' not in outputs
    assert not MACHINE_PATHS.search(NOTEBOOK.read_text(encoding="utf-8"))
    assert NOTEBOOK.stat().st_size < 400_000


def test_page_shows_every_picture_and_they_are_small():
    shown = set(re.findall(r"\]\(gallery/([^)]+)\)", PAGE.read_text(encoding="utf-8")))
    files = {path.name: path.stat().st_size for path in (ROOT / "docs" / "gallery").iterdir()}
    assert shown == set(files)
    assert max(files.values()) <= 200_000
    assert sum(files.values()) <= 1_200_000


def test_disparity_says_which_matches_are_right(gallery):
    disparity = np.full((20, 30), 5, np.float32)
    disparity[:, 20:] = np.inf
    blank = np.zeros((20, 30, 3), np.uint8)
    xy_left = np.array([[10, 4], [10, 4], [25, 4]], np.float32)
    xy_right = np.array([[7, 4], [10, 4], [25, 4]], np.float32)
    right, known = gallery.agrees_with_disparity(
        gallery.Stereo(blank, blank, disparity), xy_left, xy_right
    )
    assert right.tolist() == [True, False, False]
    assert known.tolist() == [True, True, False]


def test_nearest_come_first(gallery):
    targets = np.eye(4, 8, dtype=np.float32)
    queries = 0.9 * targets[[2, 0]] + 0.1 * targets[[3, 1]]
    assert gallery.rank(queries, targets, count=2).tolist() == [[2, 3], [0, 1]]


def test_retrieval_picture(gallery, tmp_path, rng):
    patches = rng.uniform(0, 255, (3, 64, 64)).astype(np.float32)
    row = (0, [(np.array([1, 2]), np.array([True, False]))])
    gallery.draw_retrieval(patches, patches, [row], {"best": "best"}, tmp_path / "r.jpg")
    with gallery.Image.open(tmp_path / "r.jpg") as picture:
        blue = (np.asarray(picture).astype(int) @ [-1, 0, 1] > 150).any(axis=0)
    # The frame is about the first of the two answers, and about nothing else.
    columns = np.flatnonzero(blue) / len(blue)
    assert 0.3 < columns.min() < columns.max() < 0.75
