"""COLMAP as a program, replaced by a script, and its databases."""

import contextlib
import itertools
import sqlite3

import numpy as np
import pytest

from kjax.errors import InputError
from kjax.images.collection.matching import match_all
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import CameraGuess, write_database
from kjax.images.features import Features
from kjax.images.match import match


@pytest.fixture
def colmap(tmp_path, monkeypatch):
    """Make `colmap` a shell script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("QT_QPA_PLATFORM", raising=False)

    def make(script):
        (tmp_path / "colmap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "colmap").chmod(0o755)
        return tmp_path / "log.txt"

    return make


def write_photos(path, names, **camera):
    empty = Features(np.zeros((2, 2), np.float32), np.zeros((2, 0), np.float32), (640, 480))
    photos = dict.fromkeys(names, empty)
    guesses = {name: CameraGuess(**{"identity": name} | camera) for name in names}
    write_database(path, photos, {}, cameras=guesses)


def rows(path, query):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_missing_colmap(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="not on the PATH: install it"):
        colmap_program.require_colmap()


def test_commands_of_colmap(colmap, tmp_path):
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


def test_a_mapping_without_a_model_is_retried_with_close_images(colmap, tmp_path):
    log = colmap('echo "asked: $@"')
    found = colmap_program.reconstruct(tmp_path / "a.db", tmp_path, tmp_path / "out", log=log)
    usual, closer = (line for line in log.read_text().splitlines() if line.startswith("asked"))
    assert found == []
    assert "init_min" not in usual
    assert "--Mapper.init_min_tri_angle 4 " in closer
    assert "--Mapper.init_max_forward_motion 1" in closer


def test_a_mapping_with_a_model_is_not_retried(colmap, tmp_path):
    out = tmp_path / "out"
    log = colmap(f'echo "asked: $@"; mkdir -p {out}/0; touch {out}/0/images.bin')
    assert colmap_program.reconstruct(tmp_path / "a.db", tmp_path, out, log=log) == [out / "0"]
    assert log.read_text().count("asked") == 1


def test_pycolmap_also_retries_with_close_images(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(
        colmap_program, "run_logged", lambda command, *_, **__: commands.append(command[7:])
    )
    (tmp_path / "a.db").touch()
    found = colmap_program.pycolmap_reconstruct(
        tmp_path / "a.db", tmp_path, tmp_path / "out", log=tmp_path / "log", threads=1, watch=print
    )
    assert found == []
    assert commands == [[], [f"{name}={n}" for name, n in colmap_program.CLOSE_START.items()]]


def test_failures_are_reported_but_no_model_is_a_result(colmap, tmp_path):
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


def test_cameras_are_copied_by_name(tmp_path):
    write_photos(tmp_path / "theirs.db", ["b", "a", "c"], focal=500.0)
    write_photos(tmp_path / "ours.db", ["a", "b", "c"])
    colmap_program.copy_cameras(tmp_path / "theirs.db", tmp_path / "ours.db")
    query = "SELECT name, camera_id FROM images ORDER BY name"
    assert rows(tmp_path / "ours.db", query) == [("a", 2), ("b", 1), ("c", 3)]
    cameras = [
        rows(tmp_path / f"{name}.db", "SELECT * FROM cameras") for name in ("ours", "theirs")
    ]
    assert cameras[0] == cameras[1]
    write_photos(tmp_path / "one.db", ["a", "b", "c"], identity="one")
    colmap_program.copy_cameras(tmp_path / "one.db", tmp_path / "ours.db")
    assert len(rows(tmp_path / "ours.db", "SELECT * FROM cameras")) == 1
    sizes = colmap_program.photo_sizes(tmp_path / "theirs.db")
    assert list(sizes.items()) == [(name, (640, 480)) for name in "bac"]


def test_descriptors_of_colmap(tmp_path, rng):
    path = tmp_path / "a.db"
    write_photos(path, ["a", "b"])
    values = rng.integers(0, 256, (2, 128), np.uint8)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for number, data in ((1, values), (2, values[::-1])):
            blob = np.ascontiguousarray(data).tobytes()
            connection.execute("INSERT INTO descriptors VALUES (?, 2, 128, ?)", (number, blob))
    found = colmap_program.read_sift(path)
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(found["b"], values[::-1])


def test_all_pairs_are_matched_as_each_would_be(rng):
    base = rng.normal(size=(30, 16)).astype(np.float32)
    rows = [base[start : start + 12] for start in (0, 3, 6, 9)]
    points = np.zeros((12, 2), np.float32)
    features = {name: Features(points, one, (9, 9)) for name, one in zip("abcd", rows, strict=True)}
    found = match_all(features, ratio=0.9, distance="L2")
    assert list(found) == list(itertools.combinations("abcd", 2))
    for (first, second), pair in found.items():
        sides = features[first].descriptors, features[second].descriptors
        expected = match(*sides, method="mutual_ratio", ratio=0.9).indices
        assert len(expected) > 2
        np.testing.assert_array_equal(pair.indices, expected)
