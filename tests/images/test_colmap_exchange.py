"""COLMAP: its bytes, text files and databases, and the program itself, replaced by a script."""

import itertools
import os
import shutil
import sqlite3
import subprocess

import numpy as np
import pytest
from exchanged import assert_equal, make_features
from PIL import Image
from refusals import assert_refused

import kjax
from kjax.data.colmap import read_keypoints, read_rows
from kjax.images.collection.matching import match_and_verify_all
from kjax.images.exchange import colmap_database, colmap_program
from kjax.images.exchange.colmap_bytes import NORM, SHRINKING, colmap_bytes, write_colmap_text
from kjax.images.exchange.colmap_database import CameraGuess, Geometry, read_matches, write_database
from kjax.images.features import Features


def features(descriptors, **more):
    return Features(np.zeros((len(descriptors), 2), np.float32), descriptors, (64, 48), **more)


def unit_vectors(rng, count, dimension=128):
    rows = rng.normal(size=(count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def angles(first, second):
    """As COLMAP has them."""
    product = first.astype(np.float64) @ second.astype(np.float64).T
    return np.arccos(np.minimum(product / NORM**2, 1))


@pytest.mark.parametrize("dimension", [128, 64])
def test_colmaps_angles_are_distances_times_s(rng, dimension):
    first = unit_vectors(rng, 200, dimension)
    # From copies to strangers.
    noise = unit_vectors(rng, 200, dimension) * np.linspace(0.3, 3, 200, dtype=np.float32)[:, None]
    second = first + noise
    second /= np.linalg.norm(second, axis=1, keepdims=True)
    found = np.diag(angles(colmap_bytes(features(first)), colmap_bytes(features(second))))
    distances = np.linalg.norm(first - second, axis=1)
    # asin, the mean, entries cut off and rounding: each a few hundredths at most.
    np.testing.assert_allclose(found, SHRINKING * distances, atol=0.03)
    assert np.corrcoef(found, distances)[0, 1] > 0.99


def test_bytes_of_colmap(rng):
    given = unit_vectors(rng, 100)
    rows = colmap_bytes(features(given)).astype(np.float64)
    # 128 roundings, each of variance 1/12, along the direction of the row: σ = 0.29.
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), NORM, atol=1.5)
    np.testing.assert_allclose(colmap_bytes(features(given).quantized("uint8")), rows, atol=2)
    no_direction = np.vstack([np.zeros((1, 128), np.float32), unit_vectors(rng, 1)])
    assert set(colmap_bytes(features(no_direction))[0]) == {45}  # the diagonal
    sift = rng.integers(0, 200, (3, 128))
    for dtype in (np.float32, np.uint8):
        np.testing.assert_array_equal(colmap_bytes(features(sift.astype(dtype))), sift)


def test_what_colmap_cannot_compare():
    for descriptors, more, message in (
        (np.ones((1, 129), np.float32), {}, "128 numbers, not 129"),
        (np.ones((1, 32), np.uint8), {"distance": "Hamming"}, "cannot compare binary descriptors"),
        (np.full((1, 128), np.nan, np.float32), {}, "NaN or infinite"),
    ):
        assert_refused(message, colmap_bytes, features(descriptors, **more))


@pytest.mark.skipif(shutil.which("colmap") is None, reason="COLMAP is not on this machine")
def test_colmaps_own_matcher_finds_our_matches(tmp_path, rng):
    count = 150
    grey = rng.integers(0, 256, (48, 64), np.uint8)
    positions = rng.uniform(0, 45, (count, 2)).astype(np.float32)
    first = unit_vectors(rng, count)
    order = rng.permutation(count)
    near = first[order] + 0.5 * unit_vectors(rng, count)
    described = {"a.png": first, "b.png": near / np.linalg.norm(near, axis=1, keepdims=True)}
    (tmp_path / "photos").mkdir()
    (tmp_path / "text").mkdir()
    for name, rows in described.items():
        Image.fromarray(grey).save(tmp_path / "photos" / name)
        xy = positions if name == "a.png" else positions[order]
        write_colmap_text(tmp_path / "text" / f"{name}.txt", Features(xy, rows, (64, 48)))
    database = tmp_path / "database.db"
    folders = {"--image_path": tmp_path / "photos", "--import_path": tmp_path / "text"}
    words = [str(word) for option in folders.items() for word in option]
    words = ["colmap", "feature_importer", "--database_path", str(database), *words]
    subprocess.run(words, env={**os.environ, "QT_QPA_PLATFORM": "offscreen"}, check=True)
    colmap_program.match_and_verify(database, log=tmp_path / "log.txt")
    found = {tuple(pair) for pair in read_matches(database)["a.png", "b.png"].tolist()}
    ours = kjax.match(*described.values(), method="mutual_ratio", ratio=0.8)
    wanted = {tuple(pair) for pair in ours.indices.tolist()}
    assert len(wanted) == count
    # COLMAP's search is approximate.
    assert len(found & wanted) > 0.9 * count
    assert len(found - wanted) < 0.02 * count


def test_colmap_text_units(tmp_path):
    columns = {"scales": np.array([6, 6], "f4"), "angles": np.array([180, -1], "f4")}
    rows = np.float32(0.25) * np.eye(2, 128, dtype=np.float32)
    write_colmap_text(tmp_path / "a.txt", features(rows, **columns))
    header, first, second = (tmp_path / "a.txt").read_text().splitlines()
    assert header == "2 128"
    numbers = first.split()
    # The first pixel's centre is (0.5, 0.5), σ half the diameter, 180° are π, one is 512.
    assert numbers[:3] == ["0.5", "0.5", "3"]
    assert float(numbers[3]) == pytest.approx(np.pi)
    assert numbers[4:] == ["128", *["0"] * 127]
    assert second.split()[3] == "0"


# Databases


def some_matches(rng, count=10):
    return np.column_stack([rng.permutation(count), rng.permutation(count)]).astype(np.int32)


@pytest.mark.parametrize("shaped", [False, True])
def test_database_round_trip(tmp_path, rng, shaped):
    path = tmp_path / "database.db"
    names = ("b.jpg", "in folder/a.jpg", "c.jpg")
    photos = {name: make_features(rng, 10, shaped=shaped) for name in names}
    pairs = {names[:2]: some_matches(rng), (names[2], names[0]): some_matches(rng)}
    write_database(path, photos, pairs)
    tables, again = read_keypoints(path), colmap_database.read_features(path)
    assert set(tables) == set(again) == set(names)
    for name, features in photos.items():
        np.testing.assert_allclose(tables[name][:, :2], features.xy + 0.5, rtol=1e-6)
        assert_equal(again[name], features, ("xy", "scales", "angles"), atol=5e-5)
    matches = read_matches(path)
    assert list(matches) == [names[:2], (names[0], names[2])]
    np.testing.assert_array_equal(matches[names[:2]], pairs[names[:2]])
    # COLMAP has the image of the lower id first.
    np.testing.assert_array_equal(matches[names[0], names[2]], pairs[names[2], names[0]][:, ::-1])
    verified = Geometry(4, 2, some_matches(rng, 4).astype("<u4").tobytes(), 3, b"F", *[None] * 4)
    colmap_database.add_geometries(path, {names[:2]: verified})
    assert colmap_database.read_geometries(path) == {names[:2]: verified}
    assert [len(one) for one in read_matches(path, verified=True).values()] == [4]
    assert list(tmp_path.iterdir()) == [path]


def test_database_cameras(tmp_path, rng):
    photos = {name: make_features(rng, size=(600, 800)) for name in ("a", "b")}

    def cameras(*guess):
        guesses = {name: CameraGuess(*guess) for name in photos} if guess else None
        write_database(tmp_path / "database.db", photos, {}, cameras=guesses, overwrite=True)
        rows = sqlite3.connect(tmp_path / "database.db").execute("SELECT * FROM cameras").fetchall()
        return [(*row[:4], np.frombuffer(row[4]).tolist(), row[5]) for row in rows]

    guess = [2, 600, 800, [960, 300, 400, 0], 0]
    assert cameras() == [(1, *guess), (2, *guess)]
    known = [2, 600, 800, [700, 300, 400, 0], 1]
    assert cameras("one", 700.0) == [(1, *known)]
    photos["c"] = make_features(rng)
    assert_refused("several sizes", cameras, "one")


def test_database_refusals(tmp_path, rng):
    path = tmp_path / "database.db"
    photos = {name: make_features(rng, 10) for name in ("a", "b")}
    pair = some_matches(rng)
    large = pair + np.int32(1)
    for pairs, message in (
        ({("a", "c"): pair}, "c has matches but no features"),
        ({("a", "b"): large}, "do not fit"),
        ({("a", "b"): pair, ("b", "a"): pair}, "given twice"),
    ):
        assert_refused(message, write_database, path, photos, pairs)
    assert not path.exists()
    write_database(path, photos, {})
    assert_refused("exists", write_database, path, photos, {})
    path.write_text("text")
    assert_refused("COLMAP database", colmap_database.read_matches, path)


# The program


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


def test_commands_of_colmap(colmap, tmp_path):
    log = colmap('echo "asked: $@, on $QT_QPA_PLATFORM"')
    colmap_program.match_and_verify(tmp_path / "a.db", log=log)
    options = {"max_keypoints": 77, "single_camera": False, "log": log}
    colmap_program.extract_sift(tmp_path / "a.db", tmp_path, **options)
    first, second = (line for line in log.read_text().splitlines() if line.startswith("asked"))
    assert first.startswith(f"asked: exhaustive_matcher --database_path {tmp_path / 'a.db'} ")
    assert "--SiftMatching.num_threads 1 " in first
    assert first.endswith("--random_seed 0, on offscreen")
    assert "--ImageReader.single_camera_per_image 1 " in second
    assert "--SiftExtraction.max_num_features 77 " in second


def test_failures_are_reported_but_no_model_is_a_result(colmap, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert_refused("not on the PATH: install it", colmap_program.require_colmap)
    log, database = colmap("exit 3"), tmp_path / "a.db"
    message = r"exhaustive_matcher failed with exit code 3: see .*log"
    assert_refused(message, colmap_program.match_and_verify, database, log=log)

    def reconstruct(name):
        return colmap_program.reconstruct(database, tmp_path, tmp_path / name, log=log)

    assert_refused("mapper failed", reconstruct, "one")
    colmap("echo 'ERROR: failed to create sparse model' >&2; exit 1")
    assert reconstruct("two") == []
    colmap(f"echo once; mkdir {tmp_path}/three/0; touch {tmp_path}/three/0/images.bin")
    assert reconstruct("three") == [tmp_path / "three" / "0"]
    assert log.read_text().splitlines().count("once") == 1, "a model needs no second attempt"
    colmap("exit 3")  # the earlier message about no model is not this run's
    assert_refused("mapper failed", reconstruct, "four")


@pytest.mark.parametrize("program", ["reconstruct", "pycolmap_reconstruct"])
def test_mappings_without_a_model_are_retried_with_close_images(program, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(colmap_program, "require_colmap", lambda: "colmap")
    note = lambda words, *_, **__: commands.append(str(words))  # noqa: E731
    monkeypatch.setattr(colmap_program, "run_logged", note)
    (tmp_path / "a.db").touch()
    map_photos = getattr(colmap_program, program)
    paths = tmp_path / "a.db", tmp_path, tmp_path / "out"
    assert map_photos(*paths, log=tmp_path / "log", watch=print) == []
    usual, closer = commands
    for name in colmap_program.CLOSE_START:
        assert name not in usual
        assert name in closer


def test_cameras_are_copied_by_name(tmp_path):
    write_photos(tmp_path / "theirs.db", ["b", "a", "c"], focal=500.0)
    write_photos(tmp_path / "ours.db", ["a", "b", "c"])
    colmap_program.copy_cameras(tmp_path / "theirs.db", tmp_path / "ours.db")
    query = "SELECT name, camera_id FROM images ORDER BY name"
    assert read_rows(tmp_path / "ours.db", query) == [("a", 2), ("b", 1), ("c", 3)]
    query = "SELECT * FROM cameras"
    assert read_rows(tmp_path / "ours.db", query) == read_rows(tmp_path / "theirs.db", query)


def test_all_pairs_are_matched_by_name(rng, tmp_path, monkeypatch):
    for name in ("copy_cameras", "match_and_verify"):
        monkeypatch.setattr(colmap_program, name, lambda *_, **__: None)
    base, path = rng.normal(size=(30, 16)).astype(np.float32), tmp_path / "a.db"
    photos = {name: features(base[3 * i : 3 * i + 12]) for i, name in enumerate("abcd")}
    match_and_verify_all(path, photos, base=path, ratio=0.9, log=tmp_path / "log.txt")
    found = read_matches(path)
    assert list(found) == list(itertools.combinations("abcd", 2))
    for pair, indices in found.items():
        sides = (photos[name].descriptors for name in pair)
        expected = kjax.match(*sides, method="mutual_ratio", ratio=0.9).indices
        np.testing.assert_array_equal(indices, expected)
        assert len(expected) > 2
