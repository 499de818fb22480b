"""COLMAP as a program, for which a script stands in, and what its databases hold."""

import contextlib
import dataclasses
import itertools
import sqlite3

import cv2
import numpy as np
import pytest
from scripts import BENCHMARKS, load_script

from kjax.errors import InputError
from kjax.images.collection import mapping
from kjax.images.collection.mapping import match_all
from kjax.images.exchange import colmap_program, reconstructors
from kjax.images.exchange.colmap_database import write_database
from kjax.images.features import Features
from kjax.images.matching import match


@pytest.fixture
def colmap(tmp_path, monkeypatch):
    """Makes `colmap` a shell script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("QT_QPA_PLATFORM", raising=False)

    def make(script):
        (tmp_path / "colmap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "colmap").chmod(0o755)
        return tmp_path / "log.txt"

    return make


@pytest.fixture(scope="module")
def benchmark_module():
    return load_script(BENCHMARKS / "reconstruct.py")


def write_photos(path, names, *, focal=None, single_camera=False):
    empty = Features(np.zeros((2, 2), np.float32), np.zeros((2, 0), np.float32), (640, 480))
    photos = dict.fromkeys(names, empty)
    write_database(path, photos, {}, focal=focal, single_camera=single_camera)


def rows(path, query):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_colmap_that_is_missing(monkeypatch, tmp_path, benchmark_module, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="not on the PATH: install it"):
        colmap_program.require_colmap()
    asked = [str(tmp_path), "--descriptors", "sift", "--out", str(tmp_path / "out")]
    assert benchmark_module.main(asked) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("word", ["nobody", "fast+learned"])
def test_a_wrong_command_is_told_before_colmap_runs(
    colmap, tmp_path, benchmark_module, capsys, word
):
    log = colmap(f"echo ran >> {tmp_path}/log.txt")
    (tmp_path / "photos").mkdir()
    assert cv2.imwrite(str(tmp_path / "photos" / "a.png"), np.zeros((32, 32), np.uint8))
    asked = [str(tmp_path / "photos"), "--command", word, "--out", str(tmp_path / "out")]
    assert benchmark_module.main(asked) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not log.exists()


def test_what_colmap_is_asked(colmap, tmp_path):
    log = colmap('echo "asked: $@, on $QT_QPA_PLATFORM"')
    colmap_program.match_and_verify(tmp_path / "a.db", log=log)
    colmap_program.extract_sift(
        tmp_path / "a.db", tmp_path, max_keypoints=77, single_camera=False, log=log
    )
    first, second = (line for line in log.read_text().splitlines() if line.startswith("asked"))
    assert first.startswith(f"asked: exhaustive_matcher --database_path {tmp_path / 'a.db'} ")
    assert "--SiftMatching.num_threads 1 " in first
    assert first.endswith("--random_seed 0, on offscreen")
    assert "--ImageReader.single_camera_per_image 1 " in second
    assert "--SiftExtraction.max_num_features 77 " in second


def test_a_mapping_that_finds_nothing_begins_once_more_with_closer_photographs(colmap, tmp_path):
    log = colmap('echo "asked: $@"')
    found = colmap_program.reconstruct(tmp_path / "a.db", tmp_path, tmp_path / "out", log=log)
    usual, closer = (line for line in log.read_text().splitlines() if line.startswith("asked"))
    assert found == []
    assert "init_min" not in usual
    assert "--Mapper.init_min_tri_angle 4 " in closer
    assert "--Mapper.init_max_forward_motion 1" in closer


def test_a_mapping_that_finds_a_model_ends(colmap, tmp_path):
    out = tmp_path / "out"
    log = colmap(f'echo "asked: $@"; mkdir -p {out}/0; touch {out}/0/images.bin')
    assert colmap_program.reconstruct(tmp_path / "a.db", tmp_path, out, log=log) == [out / "0"]
    assert log.read_text().count("asked") == 1


def test_pycolmap_begins_once_more_too(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(reconstructors, "_run", lambda *words, watch: asked.append(words[6:]))
    (tmp_path / "a.db").touch()
    found = reconstructors._reconstruct(
        tmp_path / "a.db", tmp_path, tmp_path / "out", log=tmp_path / "log", threads=1, watch=print
    )
    assert found == []
    assert asked == [(), tuple(f"{name}={n}" for name, n in colmap_program.CLOSER.items())]


def test_failures_are_told_but_no_model_is_a_result(colmap, tmp_path):
    log = colmap("exit 3")
    with pytest.raises(InputError, match=r"exhaustive_matcher failed with exit code 3: see .*log"):
        colmap_program.match_and_verify(tmp_path / "a.db", log=log)
    with pytest.raises(InputError, match="mapper failed"):
        colmap_program.reconstruct(tmp_path / "a.db", tmp_path, tmp_path / "one", log=log)
    colmap("echo 'ERROR: failed to create sparse model' >&2; exit 1")
    none = colmap_program.reconstruct(tmp_path / "a.db", tmp_path, tmp_path / "two", log=log)
    assert none == []
    colmap(f"mkdir {tmp_path}/three/0; touch {tmp_path}/three/0/images.bin")
    made = colmap_program.reconstruct(tmp_path / "a.db", tmp_path, tmp_path / "three", log=log)
    assert made == [tmp_path / "three" / "0"]


def test_an_earlier_mapping_without_a_model_hides_no_failure(colmap, tmp_path):
    log = colmap("echo 'ERROR: failed to create sparse model' >&2; exit 1")
    assert colmap_program.reconstruct(tmp_path / "a.db", tmp_path, tmp_path / "one", log=log) == []
    colmap("exit 3")
    with pytest.raises(InputError, match="mapper failed"):
        colmap_program.reconstruct(tmp_path / "a.db", tmp_path, tmp_path / "two", log=log)


def test_cameras_are_copied_by_the_photographs_names(tmp_path):
    write_photos(tmp_path / "theirs.db", ["b", "a", "c"], focal=500.0)
    write_photos(tmp_path / "ours.db", ["a", "b", "c"])
    colmap_program.copy_cameras(tmp_path / "theirs.db", tmp_path / "ours.db")
    query = "SELECT name, camera_id FROM images ORDER BY name"
    assert rows(tmp_path / "ours.db", query) == [("a", 2), ("b", 1), ("c", 3)]
    cameras = [
        rows(tmp_path / f"{name}.db", "SELECT * FROM cameras") for name in ("ours", "theirs")
    ]
    assert cameras[0] == cameras[1]
    write_photos(tmp_path / "one.db", ["a", "b", "c"], single_camera=True)
    colmap_program.copy_cameras(tmp_path / "one.db", tmp_path / "ours.db")
    assert len(rows(tmp_path / "ours.db", "SELECT * FROM cameras")) == 1
    sizes = colmap_program.photo_sizes(tmp_path / "theirs.db")
    assert list(sizes.items()) == [(name, (640, 480)) for name in "bac"]


def test_colmaps_descriptors(tmp_path, rng, benchmark_module):
    path = tmp_path / "a.db"
    write_photos(path, ["a", "b"])
    values = rng.integers(0, 256, (2, 128), np.uint8)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for number, data in ((1, values), (2, values[::-1])):
            blob = np.ascontiguousarray(data).tobytes()
            connection.execute("INSERT INTO descriptors VALUES (?, 2, 128, ?)", (number, blob))
    features = benchmark_module.own_sift(path)
    np.testing.assert_array_equal(features["a"].descriptors, values)
    np.testing.assert_array_equal(features["b"].descriptors, values[::-1])
    (pair,) = match_all(features, ratio=1.0, distance="L2", progress=False).values()
    assert pair.indices.tolist() == [[0, 1], [1, 0]]


def test_all_pairs_are_matched_as_each_would_be(rng, monkeypatch):
    monkeypatch.setattr(mapping, "AT_ONCE", 4)
    base = rng.normal(size=(30, 16)).astype(np.float32)
    rows = [base[start : start + 12] for start in (0, 3, 6, 9)]
    points = np.zeros((12, 2), np.float32)
    features = {name: Features(points, one, (9, 9)) for name, one in zip("abcd", rows, strict=True)}
    found = match_all(features, ratio=0.9, distance="L2", progress=False)
    assert list(found) == list(itertools.combinations("abcd", 2))
    for (first, second), pair in found.items():
        sides = features[first].descriptors, features[second].descriptors
        expected = match(*sides, method="mutual_ratio", ratio=0.9).indices
        assert len(expected) > 2
        np.testing.assert_array_equal(pair.indices, expected)


def test_table_marks_what_reaches_both_rows_of_colmap(benchmark_module):
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
