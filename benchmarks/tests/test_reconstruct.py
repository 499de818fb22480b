import dataclasses

import cv2
import numpy as np
import pytest
from scripts import BENCHMARKS, load_script


@pytest.fixture(scope="module")
def benchmark_module():
    return load_script(BENCHMARKS / "reconstruct.py")


def test_missing_colmap_is_one_line(monkeypatch, tmp_path, benchmark_module, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = [str(tmp_path), "--descriptors", "sift", "--out", str(tmp_path / "out")]
    assert benchmark_module.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("weights", ["nobody", "fast+learned"])
def test_unknown_weights_are_refused_before_colmap_runs(
    monkeypatch, tmp_path, benchmark_module, capsys, weights
):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "colmap").write_text(f"#!/bin/sh\necho ran >> {tmp_path}/log.txt\n")
    (tmp_path / "colmap").chmod(0o755)
    (tmp_path / "photos").mkdir()
    assert cv2.imwrite(str(tmp_path / "photos" / "a.png"), np.zeros((32, 32), np.uint8))
    arguments = [str(tmp_path / "photos"), "--command", weights, "--out", str(tmp_path / "out")]
    assert benchmark_module.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "log.txt").exists()


def test_table_marks_rows_that_reach_both_rows_of_colmap(benchmark_module):
    seconds = {"describe": 1.0, "match": 2.0, "map": 3.0}
    first = benchmark_module.Row(9, 50, 36, 8, 70, 1, 9, 100, 400, 4.0, 0.5, "A", seconds)
    exact = dataclasses.replace(first, method="B", points=120)
    between = dataclasses.replace(first, method="C", points=110)
    equal = dataclasses.replace(exact, method="D")
    lines = benchmark_module.table([first, exact, between, equal]).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[5:7]] for line in lines]
    assert cells == [
        ["9 of 9", "100"],
        ["9 of 9", "120"],
        ["9 of 9 ≥", "110"],
        ["9 of 9 ≥", "120 ≥"],
    ]
