import shutil

import cv2
import numpy as np
import pytest
from colmap_files import PlaneScene, correlation, write_binary, write_database
from refusals import assert_refused, refused

from kjax.data.reconstruction import TrackFilters, consistent, cut_reconstruction

SCENE = PlaneScene()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return SCENE.write(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def folder(written, tmp_path):
    """A copy of the scene that may be changed."""
    return shutil.copytree(written, tmp_path / "scene")


def cut_scene(folder, *, model="sparse", **options):
    settings = {"filters": TrackFilters(), "max_patches": 10_000, "seed": 0, "progress": False}
    paths = folder / model, folder / "database.db", folder / "photos"
    return cut_reconstruction(*paths, **(settings | options))


def replace_database(folder, tables, **options):
    (folder / "database.db").unlink()
    write_database(folder / "database.db", tables, **({"new_schema": True} | options))


@pytest.mark.parametrize("old", [False, True])
def test_patches_of_one_point_look_the_same(folder, old):
    """Also where the database is an old one, of affine keypoints."""
    if old:
        tables = {}
        for name, table in SCENE.tables().items():
            cosine, sine = table[:, 2] * np.cos(table[:, 3]), table[:, 2] * np.sin(table[:, 3])
            tables[name] = np.column_stack([table[:, :2], cosine, -sine, sine, cosine])
        replace_database(folder, tables, new_schema=False)
    cut = cut_scene(folder)
    assert [one.name for one in cut.photographs] == list(SCENE.names)
    assert cut.unreadable == ()
    np.testing.assert_array_equal(cut.point_ids, np.repeat(np.arange(40), 3))
    np.testing.assert_array_equal(cut.interest[:, 0], np.tile([0, 1, 2], 40))
    first = SCENE.keypoints(0)
    np.testing.assert_allclose(cut.interest[::3, 1:3], first[:, :2] - 0.5, atol=1e-4)
    np.testing.assert_allclose(cut.interest[::3, 4], np.log2(first[:, 2]), atol=1e-6)
    triples = cut.patches.reshape(40, 3, 64, 64)
    for triple in triples:
        # Half a pixel of displacement would leave 0.998 at best.
        assert correlation(triple[0], triple[1]) > 0.999
        assert correlation(triple[0], triple[2]) > 0.999
    assert abs(correlation(triples[0, 0], triples[1, 1])) < 0.9


def observations(cut, point):
    """Return the numbers of the photographs that see a point of the scene in the set."""
    places = [[view, *(SCENE.keypoints(view)[point, :2] - 0.5)] for view in range(3)]
    found = np.abs(cut.interest[:, None, :3] - np.array(places)[None]).max(axis=2) < 1e-3
    return np.nonzero(found.T)[0].tolist()


def test_observations_that_disagree_with_the_geometry_are_dropped(folder):
    tables, errors = SCENE.tables(), np.full(40, 0.5)
    tables[SCENE.names[1]][1 + 0, 3] += 0.6  # point 0 is turned by 34° in the second photograph
    tables[SCENE.names[2]][1 + 1, 2] *= 1.5  # point 1 is 0.58 octaves larger in the third
    errors[2] = 3.0  # point 2 is badly placed
    tables[SCENE.names[0]][1 + 3, 3] += 1.0  # point 3 disagrees in every photograph
    tables[SCENE.names[1]][1 + 3, 2] *= 2.0
    for place, value in (((5, 2), np.nan), ((6, 2), np.inf), ((7, 2), 0), ((8, 3), np.nan)):
        tables[SCENE.names[0]][1 + place[0], place[1]] = value
    replace_database(folder, tables)
    write_binary(folder / "sparse", *SCENE.model(tables, errors))
    cut = cut_scene(folder)
    expected = {0: [0, 2], 1: [0, 1], 2: [], 3: [], 4: [0, 1, 2]}
    expected |= {point: [1, 2] for point in range(5, 9)}
    assert {point: observations(cut, point) for point in expected} == expected
    loose = TrackFilters(max_reprojection_error=5.0, max_octaves=2.0, max_turn=90.0)
    assert len(cut_scene(folder, filters=loose).patches) == 120 - 4


def shapes(log_size, degrees, ray_degrees):
    rays = np.deg2rad(np.asarray(ray_degrees, np.float64))
    ray = np.stack([np.sin(rays), np.zeros_like(rays), np.cos(rays)], axis=1)
    return np.asarray(log_size, np.float64), np.deg2rad(degrees), ray


def test_the_largest_agreeing_group_is_kept():
    for log_size, degrees, ray_degrees, kept in (
        ([0, 0.4, 0.8], [0, 0, 0], [0, 5, 10], [1, 1, 1]),  # all agree with the middle one
        ([0, 0.4, 1.1], [0, 0, 0], [0, 5, 10], [1, 1, 0]),
        ([0, 0, 0], [170, -175, 140], [0, 5, 10], [1, 1, 0]),  # 15° apart across the seam
        ([0, 0, 0], [0, 0, 0], [0, 50, 130], [1, 1, 0]),  # seen from too far round
        ([0, 0, 0], [0, 0, 0], [0, 0.5, 1.5], [0, 0, 0]),  # all seen from the same place
        ([0, 1, 2], [0, 0, 0], [0, 5, 10], [0, 0, 0]),  # no two agree
    ):
        # A second point, which is fine, follows: each is judged on its own.
        parts = shapes(log_size, degrees, ray_degrees), shapes([9, 9], [90, 90], [0, 9])
        both = tuple(map(np.concatenate, zip(*parts, strict=True)))
        marked = consistent(np.array([4, 4, 4, 8, 8]), both, filters=TrackFilters())
        np.testing.assert_array_equal(marked, [*map(bool, kept), True, True])


def test_one_keypoint_per_photograph_and_point(folder):
    cameras, images, points = SCENE.model(SCENE.tables())
    rows = images[1][4]
    rows[0] = (*rows[0][:2], 105)  # the stray keypoint claims a point that another one sees
    write_binary(folder / "doubled", cameras, images, points)
    loose = TrackFilters(max_octaves=9.0, max_turn=180.0)
    assert len(cut_scene(folder, model="doubled", filters=loose).patches) == 120


def test_max_patches_keeps_whole_points_and_the_seed_decides_which(written):
    small = cut_scene(written, max_patches=31)
    np.testing.assert_array_equal(small.point_ids, np.repeat(np.arange(10), 3))
    np.testing.assert_array_equal(cut_scene(written, max_patches=31).patches, small.patches)
    other = cut_scene(written, max_patches=31, seed=1)
    assert not np.array_equal(other.patches, small.patches)
    with refused("--max-patches 2 has no room for a point's patches"):
        cut_scene(written, max_patches=2)
    with refused(r"no 3-D point of .* passes the filters: loosen them"):
        cut_scene(written, filters=TrackFilters(max_reprojection_error=0.1))


def test_unreadable_photographs_are_left_out_with_their_patches(folder):
    (folder / "photos" / SCENE.names[1]).write_bytes(b"not an image")
    cut = cut_scene(folder)
    assert cut.unreadable == (SCENE.names[1],)
    np.testing.assert_array_equal(cut.point_ids, np.repeat(np.arange(40), 2))
    np.testing.assert_array_equal(np.unique(cut.interest[:, 0]), [0, 2])
    (folder / "photos" / SCENE.names[0]).unlink()
    assert_refused("2 of the model.s 3 .* no point is seen by two others", cut_scene, folder)


def shrink(folder):
    cv2.imwrite(str(folder / "photos" / "first.png"), np.zeros((100, 200), np.uint8))


def change_tables(change):
    tables = {name: change(table) for name, table in SCENE.tables().items()}
    return lambda folder: replace_database(folder, tables)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: replace_database(folder, {}), "no keypoints of first.png"),
        (change_tables(lambda table: table[:-1]), "keypoints of first.png differ"),
        (change_tables(lambda table: table + np.float32(0.5)), "keypoints of first.png differ"),
        (change_tables(lambda table: table[:, :2]), "no scale and orientation: extract SIFT"),
        (shrink, r"has 200×100 pixels, but the model's 480×360"),
    ],
)
def test_other_databases_and_photographs_are_refused(folder, damage, message):
    damage(folder)
    assert_refused(message, cut_scene, folder)
