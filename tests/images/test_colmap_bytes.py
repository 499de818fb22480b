"""Descriptors for COLMAP's own matcher: its angles are our distances, and it finds our matches."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

import kjax
from kjax.errors import InputError
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_bytes import NORM, SHRINKING, colmap_bytes, write_colmap_text
from kjax.images.exchange.colmap_database import read_matches
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


def test_norms_are_those_that_colmap_assumes(rng):
    rows = colmap_bytes(features(unit_vectors(rng, 100))).astype(np.float64)
    # 128 roundings, each of variance 1/12, along the direction of the row: σ = 0.29.
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), NORM, atol=1.5)


def test_a_descriptor_of_no_direction_is_the_diagonal(rng):
    rows = np.vstack([np.zeros((1, 128), np.float32), unit_vectors(rng, 1)])
    assert set(colmap_bytes(features(rows))[0]) == {45}


def test_what_is_not_negative_stays_sift(rng):
    sift = rng.integers(0, 200, (3, 128)).astype(np.float32)
    np.testing.assert_array_equal(colmap_bytes(features(sift)), sift)
    own = sift.astype(np.uint8)
    np.testing.assert_array_equal(colmap_bytes(features(own)), own)


@pytest.mark.parametrize(
    ("descriptors", "more", "message"),
    [
        (np.ones((1, 129), np.float32), {}, "128 numbers, not 129"),
        (np.ones((1, 32), np.uint8), {"distance": "Hamming"}, "cannot compare binary descriptors"),
        (np.full((1, 128), np.nan, np.float32), {}, "NaN or infinite"),
    ],
)
def test_what_colmap_cannot_compare(descriptors, more, message):
    with pytest.raises(InputError, match=message):
        colmap_bytes(features(descriptors, **more))


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
    subprocess.run(
        ["colmap", "feature_importer", "--database_path", str(database), *words],
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        check=True,
    )
    colmap_program.match_and_verify(database, log=tmp_path / "log.txt")
    found = {tuple(pair) for pair in read_matches(database)["a.png", "b.png"].tolist()}
    ours = kjax.match(*described.values(), method="mutual_ratio", ratio=0.8)
    wanted = {tuple(pair) for pair in ours.indices.tolist()}
    assert len(wanted) == count
    # COLMAP's search is approximate.
    assert len(found & wanted) > 0.9 * count
    assert len(found - wanted) < 0.02 * count
