import numpy as np
import pytest
from scripts import BENCHMARKS, load_script


def test_overlap_of_two_views():
    benchmark = load_script(BENCHMARKS / "pairs.py")
    view = np.eye(3)
    half = np.array([[1.0, 0, 480], [0, 1, 0], [0, 0, 1]])
    assert benchmark.overlap(view, view) == 1
    assert benchmark.overlap(view, half) == pytest.approx(0.5)
    assert benchmark.overlap(view, half @ half @ half) == 0
