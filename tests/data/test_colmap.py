"""COLMAP's models and databases: read in every form, and refused when damaged."""

import contextlib
import sqlite3

import numpy as np
import pytest
from colmap_files import PlaneScene, write_binary, write_database, write_text

from kjax.data.colmap import NO_POINT, keypoint_shapes, read_keypoints, read_model
from kjax.data.reconstruction import TrackFilters, cut_reconstruction
from kjax.errors import InputError
from kjax.images.exchange import colmap_database
from kjax.images.exchange.colmap_program import photo_sizes, read_sift
from kjax.images.features import Features

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
    assert model.cameras == {
        1: (640, 480, 512.5, CAMERAS[1][3]),
        4: (100, 50, 70.0, CAMERAS[4][3]),
    }
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


# Files that somebody spoiled


def spoiled_scene(tmp_path, writer, *, image=None, camera=None, point=None):
    """A good model with one entry replaced."""
    scene = PlaneScene(count=4)
    cameras, images, points = scene.model(scene.tables())
    if image is not None:
        images[1] = (*image, *images[1][len(image) :])
    if camera is not None:
        cameras[7] = camera
    if point is not None:
        points[point[0]] = point[1]
    writer(tmp_path, cameras, images, points)
    return tmp_path


@pytest.mark.parametrize("writer", [write_binary, write_text])
@pytest.mark.parametrize(
    "pose",
    [
        ((0.0, 0.0, 0.0, 0.0),),
        ((float("nan"), 0.0, 0.0, 1.0),),
        ((float("inf"), 0.0, 0.0, 1.0),),
        ((1.0, 0.0, 0.0, 0.0), [0.0, float("nan"), 0.0]),
    ],
)
def test_an_image_without_a_pose_is_refused(tmp_path, writer, pose):
    with pytest.raises(InputError, match=r"images\.\w+.*: first\.png has no pose"):
        read_model(spoiled_scene(tmp_path, writer, image=pose))


@pytest.mark.parametrize("writer", [write_binary, write_text])
@pytest.mark.parametrize("focal", [0.0, -5.0, float("nan"), float("inf")])
def test_a_camera_that_cannot_be_is_refused(tmp_path, writer, focal):
    camera = (0, 480, 360, (focal, 240.0, 180.0))
    with pytest.raises(
        InputError, match=r"cameras\.\w+.*: a camera of 480×360 pixels has the focal length"
    ):
        read_model(spoiled_scene(tmp_path, writer, camera=camera))


def test_a_number_of_a_point_that_cannot_be_is_refused(tmp_path):
    point = (2**64 - 1, ([0.0, 0.0, 0.0], 0.1, []))
    with pytest.raises(InputError, match=r"points3D\.bin numbers its points"):
        read_model(spoiled_scene(tmp_path, write_binary, point=point))
    lines = (spoiled_scene(tmp_path / "text", write_text) / "points3D.txt").read_text()
    (tmp_path / "text" / "points3D.txt").write_text(lines.replace("\n100 ", "\n-100 "))
    with pytest.raises(InputError, match=r"points3D\.txt numbers its points -100"):
        read_model(tmp_path / "text")


@pytest.mark.parametrize("length", [2**20, 2**61, 2**64 - 1])
def test_counts_beyond_the_file_are_truncation(tmp_path, length):
    """Of points in the file, of keypoints of an image, of images that see a point."""
    folder = spoiled_scene(tmp_path, write_binary)
    count = length.to_bytes(8, "little")
    track = 8 + 8 + 24 + 3 + 8  # after number, position, colour and error of the first point
    for name, place in (("points3D", 0), ("points3D", track), ("images", 0), ("cameras", 0)):
        whole = (folder / f"{name}.bin").read_bytes()
        (folder / f"{name}.bin").write_bytes(whole[:place] + count + whole[place + 8 :])
        with pytest.raises(InputError, match=rf"{name}\.bin is truncated"):
            read_model(folder)
        (folder / f"{name}.bin").write_bytes(whole)


@pytest.mark.parametrize("number", ["nan", "1e300", "inf", "9" * 400])
def test_a_keypoint_of_a_point_that_cannot_be_is_named_by_its_line(tmp_path, number):
    folder = spoiled_scene(tmp_path, write_text)
    text = (folder / "images.txt").read_text().replace(" 100", f" {number}", 1)
    (folder / "images.txt").write_text(text)
    with pytest.raises(InputError, match=r"images\.txt, line 3: not of COLMAP's format"):
        read_model(folder)


def database(tmp_path, *statements):
    path = tmp_path / "database.db"
    path.unlink(missing_ok=True)
    indices = np.array([[0, 1], [1, 0]], np.int32)
    features = Features(np.ones((2, 2), np.float32), np.ones((2, 1), np.float32), (9, 9))
    pairs = {("a", "b"): colmap_database.PairMatches(indices, indices)}
    colmap_database.write_database(path, {"a": features, "b": features}, pairs)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def as_anything(table):
    """Statements after which a table takes whatever it is given."""
    return (
        f"CREATE TABLE copy AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE copy RENAME TO {table}",
    )


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE keypoints SET rows = -1",),
        ("UPDATE keypoints SET rows = 'x'",),
        ("UPDATE keypoints SET cols = 1.5",),
        ("UPDATE keypoints SET data = 'text'",),
        ("UPDATE keypoints SET data = 7",),
        ("UPDATE keypoints SET data = x'00'",),
        ("UPDATE keypoints SET rows = 9223372036854775807",),
        (*as_anything("images"), "UPDATE images SET name = NULL"),
        (*as_anything("images"), "UPDATE images SET name = x'ff00'"),
        ("DROP TABLE images",),
    ],
)
def test_rows_of_keypoints_that_are_none_are_refused(tmp_path, statements):
    with pytest.raises(InputError, match=r"database\.db") as error:
        read_keypoints(database(tmp_path, *statements))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE matches SET data = x'0011'",),
        ("UPDATE matches SET data = 'text'",),
        ("UPDATE matches SET data = x'ffffffff00000000'",),
        ("UPDATE matches SET pair_id = 77",),
        ("UPDATE matches SET pair_id = -77",),
        (*as_anything("matches"), "UPDATE matches SET pair_id = 'x'"),
        (*as_anything("matches"), "UPDATE matches SET pair_id = NULL"),
        ("DELETE FROM keypoints", "DELETE FROM images"),
    ],
)
def test_rows_of_matches_that_are_none_are_refused(tmp_path, statements):
    with pytest.raises(InputError, match=r"database\.db has") as error:
        colmap_database.read_matches(database(tmp_path, *statements))
    assert "\n" not in str(error.value)


def test_names_that_are_not_utf8_are_kept(tmp_path):
    path = database(tmp_path, "UPDATE images SET name = CAST(x'61ff' AS TEXT) WHERE name = 'a'")
    assert set(read_keypoints(path)) == {"a\udcff", "b"}


@pytest.mark.parametrize(
    "table",
    [
        "CREATE VIEW keypoints AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) "
        "SELECT i AS image_id, 0 AS rows, 2 AS cols, NULL AS data FROM n",
        "CREATE TABLE keypoints (image_id INTEGER, rows DEFAULT 0, cols DEFAULT 2, "
        "data BLOB AS (zeroblob(1000000000)))",
    ],
)
def test_a_database_that_computes_its_rows_is_refused(tmp_path, table):
    path = database(tmp_path, "DROP TABLE keypoints", table)
    if "VIEW" not in table:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("INSERT INTO keypoints (image_id) VALUES (1)")
    with pytest.raises(InputError, match="cannot be read as a COLMAP database"):
        read_keypoints(path)


def test_a_database_is_only_read(tmp_path):
    path = database(tmp_path)
    before = path.read_bytes()
    colmap_database.read_matches(path)
    photo_sizes(path)
    read_sift(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["database.db"]


def test_keypoints_that_are_not_finite_are_left_out(tmp_path):
    scene = PlaneScene(count=8)
    tables = scene.tables()
    for number, column, value in ((2, 2, np.nan), (3, 2, np.inf), (4, 2, 0), (5, 3, np.nan)):
        tables["first.png"][number, column] = value
    scene.write(tmp_path, tables=tables)
    cut = cut_reconstruction(
        tmp_path / "sparse",
        tmp_path / "database.db",
        tmp_path / "photos",
        filters=TrackFilters(),
        max_patches=100,
        seed=0,
        progress=False,
    )
    assert len(cut.patches) == 3 * 8 - 4
