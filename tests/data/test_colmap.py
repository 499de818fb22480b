import contextlib
import shutil
import sqlite3
import struct

import numpy as np
import pytest
from colmap_files import write_binary, write_database
from refusals import assert_refused

from kjax.data.colmap import NO_POINT, keypoint_shapes, read_keypoints, read_model, read_rows
from kjax.images.exchange import colmap_database
from kjax.images.features import Features

CAMERAS = {
    1: (2, 640, 480, (512.5, 320.0, 240.0, -0.01)),
    4: (1, 100, 50, (70.0, 71.0, 50.0, 25.0)),
}
HALF = 0.5**0.5
IMAGES = {
    2: ((HALF, 0.0, 0.0, HALF), (1.0, 2.0, 3.0), 1, "a b/ü.jpg", [(1.5, 2.5, 9), (3.5, 4.5, None)]),
    5: ((2.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 4, "none.png", []),
    6: ((0.5, 0.1, -0.7, 0.3), (0.0, 0.0, 1.0), 4, "last.png", [(0.5, 0.25, 3)]),
}
POINTS = {9: ((0.1, 0.2, 5.0), 0.75, [(2, 0)]), 3: ((-1.0, 0.0, 4.0), -1.0, [(6, 0), (2, 1)])}
NAN, INF = float("nan"), float("inf")


# Models


@pytest.fixture
def folder(tmp_path):
    write_binary(tmp_path / "sparse" / "0", CAMERAS, IMAGES, POINTS)
    return tmp_path / "sparse" / "0"


def test_models_are_read(folder):
    model = read_model(folder)
    cameras = {1: (640, 480, 512.5, CAMERAS[1][3]), 4: (100, 50, 70.0, CAMERAS[4][3])}
    assert model.cameras == cameras
    assert [model.images[i].name for i in (2, 5, 6)] == ["a b/ü.jpg", "none.png", "last.png"]
    first = model.images[2]
    assert first.camera_id == 1
    np.testing.assert_allclose(first.rotation, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12)
    np.testing.assert_array_equal(first.translation, [1, 2, 3])
    np.testing.assert_array_equal(first.xy, [[1.5, 2.5], [3.5, 4.5]])
    np.testing.assert_array_equal(first.point_ids, [9, NO_POINT])
    np.testing.assert_allclose(model.images[5].rotation, np.eye(3))
    assert model.images[5].xy.shape == (0, 2)
    np.testing.assert_array_equal(model.points.ids, [3, 9])
    np.testing.assert_array_equal(model.points.xyz, [[-1, 0, 4], [0.1, 0.2, 5]])
    np.testing.assert_array_equal(model.points.error, [-1, 0.75])
    rotation = model.images[6].rotation
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotation), 1)
    # q v q* for v = (0, 0, 1), by Hamilton's rules, over |q|² = 0.84
    w, x, y, z = IMAGES[6][0]
    expected = [2 * (x * z + w * y), 2 * (y * z - w * x), w * w - x * x - y * y + z * z]
    np.testing.assert_allclose(rotation[:, 2] * 0.84, expected)


TRACK = 8 + 8 + 24 + 3 + 8  # after number, position, colour and error of the first point
KEYPOINTS = 8 + 4 + 56 + 4 + len("a b/ü.jpg".encode()) + 1
COUNTS = {"cameras": [0], "images": [0, KEYPOINTS], "points3D": [0, TRACK]}


@pytest.mark.parametrize("stem", COUNTS)
def test_truncated_files_and_counts_beyond_them_are_refused(folder, stem):
    """Counts of records, of keypoints of an image and of images that see a point."""
    path = folder / f"{stem}.bin"
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in (3, 20, -1)]
    for length in (2**20, 2**61, 2**64 - 1):
        count = struct.pack("<Q", length)
        damaged += [whole[:place] + count + whole[place + 8 :] for place in COUNTS[stem]]
    for content in damaged:
        path.write_bytes(content)
        assert_refused(rf"{stem}\.bin is truncated", read_model, folder)


def test_extra_bytes_missing_files_and_wrong_folders_are_refused(folder, tmp_path):
    (shutil.copytree(folder, tmp_path / "more" / "lacking") / "points3D.bin").unlink()
    with open(folder / "points3D.bin", "ab") as file:
        file.write(b"more")
    refusals = {
        folder: r"points3D\.bin .*records of \d+ of \d+ bytes",
        folder.parent: r"did you mean .*sparse/0\?",
        tmp_path: r"has no images\.bin: Give .*model_converter --output_type BIN",
        tmp_path / "nowhere": "no such folder",
        tmp_path / "more" / "lacking": r"lacks points3D\.bin",
    }
    for wrong, message in refusals.items():
        assert_refused(message, read_model, wrong)


def image(quaternion=(1.0, 0.0, 0.0, 0.0), translation=(0.0, 0.0, 0.0)):
    return {2: (quaternion, translation, *IMAGES[2][2:])}


def camera(model=0, focal=500.0):
    return {1: (model, 480, 360, (focal, 240.0, 180.0))}


@pytest.mark.parametrize(
    ("cameras", "images", "points", "message"),
    [
        ({1: CAMERAS[1]}, IMAGES, POINTS, "none.png uses camera 4 or points that are not in the"),
        (CAMERAS, IMAGES, {3: POINTS[3]}, r"ü\.jpg uses camera 1 or points that are not in the"),
        (camera(model=17), {}, {}, "camera model 17.*EQUIRECTANGULAR"),
        (camera(model=99), {}, {}, "camera model 99, which is not supported"),
        (camera(focal=0.0), {}, {}, r"cameras\.bin .*480×360 pixels have the focal length 0"),
        (camera(focal=NAN), {}, {}, r"cameras\.bin .*the focal length nan"),
        (camera(focal=INF), {}, {}, r"cameras\.bin .*the focal length inf"),
        (CAMERAS, image((0.0, 0.0, 0.0, 0.0)), POINTS, r"images\.bin .*ü\.jpg has no pose"),
        (CAMERAS, image((NAN, 0.0, 0.0, 1.0)), POINTS, "has no pose"),
        (CAMERAS, image((INF, 0.0, 0.0, 1.0)), POINTS, "has no pose"),
        (CAMERAS, image(translation=(0.0, NAN, 0.0)), POINTS, "has no pose"),
        ({}, {}, {2**64 - 1: POINTS[3]}, r"points3D\.bin is truncated or damaged"),
    ],
)
def test_impossible_values_are_refused(tmp_path, cameras, images, points, message):
    write_binary(tmp_path, cameras, images, points)
    assert_refused(message, read_model, tmp_path)


# Databases


@pytest.mark.parametrize("new_schema", [False, True])
@pytest.mark.parametrize("columns", [2, 4, 6])
def test_keypoints_are_read_from_old_and_new_databases(tmp_path, rng, new_schema, columns):
    table = rng.normal(size=(5, columns)).astype(np.float32)
    tables = {"a/b c.jpg": table, "empty.jpg": table[:0]}
    write_database(tmp_path / "odd name?.db", tables, new_schema=new_schema)
    read = read_keypoints(tmp_path / "odd name?.db")
    assert read.keys() == tables.keys()
    for name, expected in tables.items():
        np.testing.assert_array_equal(read[name], expected)


def test_scale_and_orientation_of_both_kinds_of_keypoints():
    sigma, angle = np.array([2.0, 3.5]), np.array([0.3, -2.5])
    similar = np.column_stack([np.zeros((2, 2)), sigma, angle])
    cosine, sine = sigma * np.cos(angle), sigma * np.sin(angle)
    affine = np.column_stack([np.zeros((2, 2)), cosine, -sine, sine, cosine])
    for table in (similar, affine):
        np.testing.assert_allclose(keypoint_shapes(table), [sigma, angle])


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "database.db"
    features = Features(np.ones((2, 2), np.float32), np.ones((2, 1), np.float32), (9, 9))
    pairs = {("a", "b"): np.array([[0, 1], [1, 0]], np.int32)}
    colmap_database.write_database(path, {"a": features, "b": features}, pairs)
    return path


def test_keypoints_still_in_the_write_ahead_log_are_read(database):
    with contextlib.closing(sqlite3.connect(database)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("UPDATE images SET name = 'renamed' WHERE name = 'a'")
        writer.commit()
        assert database.with_name("database.db-wal").exists()
        assert set(read_keypoints(database)) == {"renamed", "b"}


def execute(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def untyped(table):
    """Return statements after which a table takes values of any type."""
    copy = f"CREATE TABLE copy AS SELECT * FROM {table}"
    return copy, f"DROP TABLE {table}", f"ALTER TABLE copy RENAME TO {table}"


DAMAGES = {
    read_keypoints: [
        *([f"UPDATE keypoints SET rows = {value}"] for value in ("-1", "'x'", 2**63 - 1)),
        *([f"UPDATE keypoints SET data = {value}"] for value in ("'text'", 7, "x'00'")),
        ["UPDATE keypoints SET data = x'00000000'"],
        ["UPDATE keypoints SET cols = 1.5"],
        [*untyped("images"), "UPDATE images SET name = NULL"],
        ["DROP TABLE images"],
        ["DROP TABLE keypoints"],
    ],
    colmap_database.read_matches: [
        *([f"UPDATE matches SET data = {value}"] for value in ("x'0011'", "'text'")),
        ["UPDATE matches SET data = x'ffffffff00000000'"],
        *([f"UPDATE matches SET pair_id = {value}"] for value in (77, -77)),
        *([*untyped("matches"), f"UPDATE matches SET pair_id = {v}"] for v in ("'x'", "NULL")),
        ["DELETE FROM keypoints", "DELETE FROM images"],
    ],
}


@pytest.mark.parametrize(
    ("read", "statements"),
    [(read, statements) for read, table in DAMAGES.items() for statements in table],
)
def test_damaged_databases_are_refused(database, read, statements):
    execute(database, *statements)
    assert_refused(r"database\.db", read, database)


def test_a_database_is_only_read_and_names_that_are_not_utf8_are_kept(database, tmp_path):
    execute(database, "UPDATE images SET name = CAST(x'61ff' AS TEXT) WHERE name = 'a'")
    before = database.read_bytes()
    assert set(read_keypoints(database)) == {"a\udcff", "b"}
    colmap_database.read_matches(database)
    colmap_database.read_features(database)
    assert database.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["database.db"]


def test_other_files_and_endless_views_are_refused(tmp_path):
    (tmp_path / "text.db").write_text("not a database, but long enough to look like one" * 50)
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    execute(tmp_path / "a.db", f"CREATE VIEW images AS {numbers} SELECT x AS image_id FROM n")
    unreadable = r"cannot be read as a COLMAP database \("
    refusals = {"no.db": "no such database", "text.db": f"{unreadable}file is not"}
    for name, message in (refusals | {"a.db": rf"{unreadable}interrupted\)"}).items():
        assert_refused(message, read_rows, tmp_path / name, "SELECT image_id FROM images")
