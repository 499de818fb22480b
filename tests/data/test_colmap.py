"""COLMAP's models and databases: read in every form, and refused when damaged."""

import sqlite3

import numpy as np
import pytest
from colmap_files import PlaneScene, write_binary, write_database, write_text

from kjax.data.colmap import NO_POINT, keypoint_shapes, read_keypoints, read_model
from kjax.errors import InputError

CAMERAS = {
    1: (2, 640, 480, (512.5, 320.0, 240.0, -0.01)),
    4: (1, 100, 50, (70.0, 71.0, 50.0, 25.0)),
}
HALF = 0.5**0.5
IMAGES = {
    2: ((HALF, 0.0, 0.0, HALF), (1.0, 2.0, 3.0), 1, "a b/ü.jpg", [(1.5, 2.5, 9), (3.5, 4.5, None)]),
    5: ((2.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 4, "none.png", []),
    6: ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0), 4, "last.png", [(0.5, 0.25, 3)]),
}
POINTS = {9: ((0.1, 0.2, 5.0), 0.75, [(2, 0)]), 3: ((-1.0, 0.0, 4.0), -1.0, [(6, 0), (2, 1)])}
WRITERS = {"binary": write_binary, "text": write_text}


@pytest.fixture(params=WRITERS)
def model_folder(request, tmp_path):
    WRITERS[request.param](tmp_path / "sparse" / "0", CAMERAS, IMAGES, POINTS)
    return tmp_path / "sparse" / "0"


def test_models_are_read(model_folder):
    model = read_model(model_folder)
    assert model.cameras == {1: (640, 480, 512.5), 4: (100, 50, 70.0)}
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


def test_a_general_rotation_keeps_lengths_and_follows_the_quaternion(tmp_path):
    quaternion = (0.5, 0.1, -0.7, 0.3)
    write_binary(tmp_path, CAMERAS, {2: (quaternion, *IMAGES[2][1:])}, POINTS)
    rotation = read_model(tmp_path).images[2].rotation
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotation), 1)
    # q v q* for v = (0, 0, 1), by Hamilton's rules, over |q|² = 0.84
    np.testing.assert_allclose(
        rotation[:, 2] * 0.84,
        [2 * (0.1 * 0.3 + 0.5 * -0.7), 2 * (-0.7 * 0.3 - 0.5 * 0.1), 0.25 - 0.01 - 0.49 + 0.09],
    )


@pytest.mark.parametrize("stem", ["cameras", "images", "points3D"])
@pytest.mark.parametrize("cut", [3, 20, -1])
def test_a_truncated_binary_file_is_refused(tmp_path, stem, cut):
    write_binary(tmp_path, CAMERAS, IMAGES, POINTS)
    path = tmp_path / f"{stem}.bin"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=rf"{stem}\.bin is truncated: it ends at byte \d+"):
        read_model(tmp_path)


def test_a_binary_file_with_more_than_its_format_is_refused(tmp_path):
    write_binary(tmp_path, CAMERAS, IMAGES, POINTS)
    with open(tmp_path / "points3D.bin", "ab") as file:
        file.write(b"more")
    with pytest.raises(InputError, match=r"points3D\.bin has 4 bytes too many"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("stem", "line", "message"),
    [
        ("cameras", "1 PINHOLE 640 wide", r"cameras\.txt, line 3: not of COLMAP's format"),
        ("images", "2 1 0 0 0 0 0", r"images\.txt, line 2: not of COLMAP's format"),
        ("points3D", "9 0 0 zero 1 2 3 0.5", r"points3D\.txt, line 2: not of COLMAP's format"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, stem, line, message):
    write_text(tmp_path, CAMERAS, IMAGES, POINTS)
    path = tmp_path / f"{stem}.txt"
    comments = [text for text in path.read_text().splitlines() if text.startswith("#")]
    path.write_text("\n".join([*comments, line, ""]))
    with pytest.raises(InputError, match=message):
        read_model(tmp_path)


def test_a_text_file_that_ends_before_an_images_keypoints_is_refused(tmp_path):
    write_text(tmp_path, CAMERAS, IMAGES, POINTS)
    path = tmp_path / "images.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(InputError, match=r"images\.txt is truncated: last\.png"):
        read_model(tmp_path)


def test_the_parent_of_a_model_gets_a_hint(model_folder):
    with pytest.raises(InputError, match=r"did you mean .*sparse/0\?"):
        read_model(model_folder.parent)


def test_a_folder_without_a_model_and_a_model_without_a_file_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read_model(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"neither images\.bin nor images\.txt"):
        read_model(tmp_path)
    write_binary(tmp_path, CAMERAS, IMAGES, POINTS)
    (tmp_path / "points3D.bin").unlink()
    with pytest.raises(InputError, match=r"lacks points3D\.bin"):
        read_model(tmp_path)


def test_files_of_different_models_are_refused(tmp_path):
    write_binary(tmp_path, {1: CAMERAS[1]}, IMAGES, POINTS)
    with pytest.raises(InputError, match=r"none\.png uses camera 4, which is not among"):
        read_model(tmp_path)
    write_binary(tmp_path, CAMERAS, IMAGES, {3: POINTS[3]})
    with pytest.raises(InputError, match=r"sees point 9, which is not among the points"):
        read_model(tmp_path)


@pytest.mark.parametrize("writer", WRITERS.values())
def test_panoramas_are_refused(tmp_path, writer):
    writer(tmp_path, {1: (17, 640, 320, (640.0, 320.0))}, {}, {})
    with pytest.raises(InputError, match="EQUIRECTANGULAR"):
        read_model(tmp_path)


def test_an_unknown_camera_model_asks_for_text(tmp_path):
    write_binary(tmp_path, {1: (99, 640, 320, (640.0,))}, {}, {})
    with pytest.raises(InputError, match=r"number 99: convert the model to text"):
        read_model(tmp_path)


@pytest.mark.parametrize("new_schema", [False, True])
@pytest.mark.parametrize("columns", [2, 4, 6])
def test_keypoints_are_read_from_old_and_new_databases(tmp_path, rng, new_schema, columns):
    tables = {
        "a/b c.jpg": rng.normal(size=(5, columns)).astype(np.float32),
        "empty.jpg": np.empty((0, columns), np.float32),
    }
    write_database(tmp_path / "odd name?.db", tables, new_schema=new_schema)
    read = read_keypoints(tmp_path / "odd name?.db")
    assert read.keys() == tables.keys()
    for name, table in tables.items():
        np.testing.assert_array_equal(read[name], table)


def test_scale_and_orientation_of_both_kinds_of_keypoints():
    sigma, angle = np.array([2.0, 3.5]), np.array([0.3, -2.5])
    similar = np.column_stack([np.zeros((2, 2)), sigma, angle])
    cosine, sine = sigma * np.cos(angle), sigma * np.sin(angle)
    affine = np.column_stack([np.zeros((2, 2)), cosine, -sine, sine, cosine])
    for table in (similar, affine):
        np.testing.assert_allclose(keypoint_shapes(table), [sigma, angle])
    with pytest.raises(InputError, match="no scale and orientation: extract SIFT"):
        keypoint_shapes(np.zeros((2, 2)))


def test_what_is_no_database_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such database"):
        read_keypoints(tmp_path / "nothing.db")
    (tmp_path / "text.db").write_text("this is no database, but long enough to look like one" * 50)
    with pytest.raises(InputError, match=r"cannot be read as a COLMAP database \(file is not"):
        read_keypoints(tmp_path / "text.db")


def test_a_database_without_a_table_is_refused(tmp_path):
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE images (image_id INTEGER, name TEXT)")
    connection.close()
    with pytest.raises(InputError, match=r"COLMAP database \(no such table: keypoints\)"):
        read_keypoints(path)


def test_a_damaged_keypoint_record_is_refused(tmp_path):
    path = tmp_path / "cut.db"
    write_database(path, {"a.jpg": np.zeros((3, 4), np.float32)}, new_schema=True)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE keypoints SET data = x'00000000'")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match=r"a\.jpg are damaged: 4 bytes for 3×4 values"):
        read_keypoints(path)


def test_keypoints_still_in_the_write_ahead_log_are_read(tmp_path):
    path = tmp_path / "open.db"
    write_database(path, {"a.jpg": np.zeros((3, 4), np.float32)}, new_schema=True)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("UPDATE images SET name = 'renamed.jpg'")
    writer.commit()
    assert path.with_name("open.db-wal").exists()
    assert list(read_keypoints(path)) == ["renamed.jpg"]
    writer.close()


def test_the_scene_of_the_other_tests_reads_back(tmp_path):
    scene = PlaneScene()
    scene.write(tmp_path)
    model = read_model(tmp_path / "sparse")
    keypoints = read_keypoints(tmp_path / "database.db")
    for image in model.images.values():
        np.testing.assert_allclose(image.xy, keypoints[image.name][:, :2], atol=1e-4)
