import sqlite3

import numpy as np
import pytest

from kjax.data.colmap import read_keypoints
from kjax.errors import InputError
from kjax.images.exchange import colmap_database
from kjax.images.exchange.colmap_bytes import write_colmap_text
from kjax.images.exchange.colmap_database import PAIR_BASE, CameraGuess, PairMatches, write_database
from kjax.images.exchange.npz import read_npz, to_dictionary, write_npz
from kjax.images.features import Features

FIELDS = ("xy", "descriptors", "scales", "angles", "scores")


def make_features(rng, count=4, *, size=(640, 480), bytes_=False, shaped=True):
    descriptors = (
        rng.integers(0, 256, (count, 128), dtype=np.uint8)
        if bytes_
        else rng.normal(size=(count, 128)).astype(np.float32)
    )
    uniform = {
        key: rng.uniform(1, 9, count).astype(np.float32) if shaped else None
        for key in ("scales", "angles", "scores")
    }
    xy = rng.uniform(0, 480, (count, 2)).astype(np.float32)
    return Features(xy=xy, descriptors=descriptors, image_size=size, **uniform)


def assert_equal(one, other, fields=FIELDS, **tolerance):
    assert one.image_size == other.image_size
    for name in fields:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, **(tolerance or {"rtol": 1e-6}))


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("shaped", [False, True])
def test_npz_round_trip(tmp_path, rng, count, shaped):
    features = make_features(rng, count, shaped=shaped)
    write_npz(tmp_path / "a.npz", features)
    assert_equal(read_npz(tmp_path / "a.npz"), features, rtol=0)


def test_npz_refusals(tmp_path, rng):
    with pytest.raises(InputError, match=r"ends with \.npz"):
        write_npz(tmp_path / "a", make_features(rng))
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", xy=np.ones((2, 2)))
    with pytest.raises(InputError, match="lacks descriptors, image_size"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("shaped", [False, True])
def test_lightglue_shapes(rng, count, shaped):
    features = make_features(rng, count, shaped=shaped)
    dictionary = to_dictionary(features)
    np.testing.assert_array_equal(dictionary["descriptors"], features.descriptors[None])
    np.testing.assert_array_equal(dictionary["keypoints"], features.xy[None])
    assert ("oris" in dictionary) == ("scales" in dictionary) == shaped


def test_lightglue_units(rng):
    features = Features(
        xy=np.zeros((1, 2), np.float32),
        descriptors=np.ones((1, 3), np.float32),
        image_size=(640, 480),
        scales=np.array([6], np.float32),
        angles=np.array([180], np.float32),
    )
    dictionary = to_dictionary(features)
    assert dictionary["keypoints"].tolist() == [[[0, 0]]]
    assert dictionary["scales"].tolist() == [[3]]
    np.testing.assert_allclose(dictionary["oris"], [[np.pi]], rtol=1e-6)
    assert dictionary["image_size"].tolist() == [[640, 480]]
    assert "keypoint_scores" not in dictionary


@pytest.mark.parametrize("count", [0, 4])
def test_colmap_text_has_a_line_for_each_keypoint(tmp_path, rng, count):
    features = make_features(rng, count, bytes_=True)
    write_colmap_text(tmp_path / "a.jpg.txt", features)
    assert (tmp_path / "a.jpg.txt").read_text().startswith(f"{count} 128\n")
    _, *lines = (tmp_path / "a.jpg.txt").read_text().splitlines()
    table = np.array([line.split() for line in lines], np.float64).reshape(count, 132)
    # Half a pixel is added in single precision.
    np.testing.assert_allclose(table[:, :2] - 0.5, features.xy, atol=5e-5)
    np.testing.assert_allclose(table[:, 2], features.scales / 2, rtol=1e-6)
    np.testing.assert_allclose(table[:, 3], np.deg2rad(features.angles), rtol=1e-6)
    np.testing.assert_array_equal(table[:, 4:], features.descriptors)


def test_colmap_text_units(tmp_path):
    features = Features(
        xy=np.zeros((2, 2), np.float32),
        descriptors=np.eye(2, 128, dtype=np.float32) * np.float32(0.25),
        image_size=(640, 480),
        scales=np.array([6, 6], np.float32),
        angles=np.array([180, -1], np.float32),
    )
    write_colmap_text(tmp_path / "a.txt", features)
    _, first, second = (tmp_path / "a.txt").read_text().splitlines()
    numbers = first.split()
    # The first pixel's centre is (0.5, 0.5), σ half the diameter, 180° are π, one is 512.
    assert numbers[:3] == ["0.5", "0.5", "3"]
    assert float(numbers[3]) == pytest.approx(np.pi)
    assert numbers[4:] == ["128", *["0"] * 127]
    assert second.split()[3] == "0"


def some_pair(rng, count=10):
    indices = np.column_stack([rng.permutation(count), rng.permutation(count)]).astype(np.int32)
    return PairMatches(
        indices,
        indices[::2],
        np.array([[1.1, 0.2, 30], [-0.1, 0.9, 5], [1e-4, 0, 1]]),
        rng.normal(size=(3, 3)),
    )


@pytest.mark.parametrize("shaped", [False, True])
def test_database_round_trip(tmp_path, rng, shaped):
    path = tmp_path / "database.db"
    names = ("b.jpg", "in folder/a.jpg", "c.jpg")
    photos = {name: make_features(rng, 10, shaped=shaped) for name in names}
    pairs = {names[:2]: some_pair(rng), (names[2], names[0]): PairMatches(some_pair(rng).indices)}
    write_database(path, photos, pairs)

    tables = read_keypoints(path)
    assert set(tables) == set(names)
    for name, features in photos.items():
        np.testing.assert_allclose(tables[name][:, :2], features.xy + 0.5, rtol=1e-6)
    again = colmap_database.read_features(path, dict.fromkeys(names, (640, 480)))
    for name, features in photos.items():
        assert_equal(again[name], features, ("xy", "scales", "angles"), atol=5e-5)

    matches = colmap_database.read_matches(path)
    assert list(matches) == [names[:2], (names[0], names[2])]
    np.testing.assert_array_equal(matches[names[:2]], pairs[names[:2]].indices)
    # COLMAP has the image of the lower number first.
    turned = pairs[names[2], names[0]].indices[:, ::-1]
    np.testing.assert_array_equal(matches[names[0], names[2]], turned)
    verified = colmap_database.read_matches(path, verified=True)
    assert list(verified) == [names[:2]]
    np.testing.assert_array_equal(verified[names[:2]], pairs[names[:2]].verified)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("turned", [False, True])
def test_database_geometry_has_the_origin_and_direction_of_colmap(tmp_path, rng, turned):
    path = tmp_path / "database.db"
    photos = {name: make_features(rng, 10) for name in ("a", "b")}
    pair = some_pair(rng)
    write_database(path, photos, {("b", "a"): pair.turned()} if turned else {("a", "b"): pair})
    record = sqlite3.connect(path).execute(
        "SELECT pair_id, rows, cols, config, F, H FROM two_view_geometries"
    )
    (number, rows, columns, config, *blobs) = record.fetchone()
    assert (number, rows, columns, config) == (PAIR_BASE + 2, 5, 2, 6)
    fundamental, homography = (np.frombuffer(blob).reshape(3, 3) for blob in blobs)
    x, y = (np.append(rng.uniform(0, 400, 2), 1) for _ in range(2))
    shifted_x, shifted_y = (point + np.array([0.5, 0.5, 0]) for point in (x, y))
    assert shifted_y @ fundamental @ shifted_x == pytest.approx(y @ pair.fundamental @ x)
    expected = pair.homography @ x
    found = homography @ shifted_x
    np.testing.assert_allclose(found[:2] / found[2], expected[:2] / expected[2] + 0.5)


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
    with pytest.raises(InputError, match="several sizes"):
        cameras("one")


def test_database_refusals(tmp_path, rng):
    path = tmp_path / "database.db"
    photos = {name: make_features(rng, 10) for name in ("a", "b")}
    pair = some_pair(rng)
    large = PairMatches(pair.indices + np.int32(1))
    for pairs, message in (
        ({("a", "c"): pair}, "c has matches but no features"),
        ({("a", "b"): large}, "do not fit"),
        ({("a", "b"): pair, ("b", "a"): pair}, "given twice"),
    ):
        with pytest.raises(InputError, match=message):
            write_database(path, photos, pairs)
    assert not path.exists()
    write_database(path, photos, {})
    with pytest.raises(InputError, match="exists"):
        write_database(path, photos, {})
    path.write_text("text")
    with pytest.raises(InputError, match="COLMAP database"):
        colmap_database.read_matches(path)


def test_features_must_fit_together(rng):
    features = make_features(rng, 3)
    # Past the types' own checks, which tests have and users have not.
    object.__setattr__(features, "descriptors", features.descriptors[:2])
    with pytest.raises(InputError, match="3 keypoints have 2 descriptors"):
        features.__post_init__()
