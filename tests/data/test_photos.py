"""Patch sets from reconstructions and from plain photographs."""

import dataclasses

import cv2
import numpy as np
import pytest
from colmap_files import PlaneScene, write_binary, write_database

from kjax.data.cutting.keypoints import Keypoints
from kjax.data.phototour import (
    PatchSet,
    SetPhotograph,
    TestPairs,
    check_output,
    find_match_file,
    read_match_file,
    read_phototour,
    sample_test_pairs,
    write_phototour,
)
from kjax.data.reconstruction import TrackFilters, WorldShapes, consistent, cut_reconstruction
from kjax.data.selfsupervised import (
    Tolerances,
    ViewConfig,
    change_light,
    cut_self_supervised,
    distinct_places,
    match_keypoints,
    random_homography,
    random_view,
    transform_keypoints,
    wrap_angle,
)
from kjax.errors import InputError


def correlation(a, b):
    a, b = (x.astype(np.float64) - x.mean() for x in (a, b))
    return (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())


# Reconstructions


def cut_scene(folder, **options):
    settings = {"filters": TrackFilters(), "max_patches": 10_000, "seed": 0, "progress": False}
    return cut_reconstruction(
        folder / "sparse", folder / "database.db", folder / "photos", **(settings | options)
    )


def test_patches_of_one_point_look_the_same(tmp_path):
    scene = PlaneScene()
    cut = cut_scene(scene.write(tmp_path))
    assert [one.name for one in cut.photographs] == list(scene.names)
    assert cut.unreadable == ()
    np.testing.assert_array_equal(cut.point_ids, np.repeat(np.arange(40), 3))
    np.testing.assert_array_equal(cut.interest[:, 0], np.tile([0, 1, 2], 40))
    first = scene.keypoints(0)
    np.testing.assert_allclose(cut.interest[::3, 1:3], first[:, :2] - 0.5, atol=1e-4)
    np.testing.assert_allclose(cut.interest[::3, 4], np.log2(first[:, 2]), atol=1e-6)
    triples = cut.patches.reshape(40, 3, 64, 64)
    for triple in triples:
        # Half a pixel of displacement would leave 0.998 at best.
        assert correlation(triple[0], triple[1]) > 0.999
        assert correlation(triple[0], triple[2]) > 0.999
    assert abs(correlation(triples[0, 0], triples[1, 1])) < 0.9


def test_old_affine_databases_give_the_same_set(tmp_path):
    scene = PlaneScene()
    tables = {}
    for name, table in scene.tables().items():
        cosine, sine = table[:, 2] * np.cos(table[:, 3]), table[:, 2] * np.sin(table[:, 3])
        tables[name] = np.column_stack([table[:, :2], cosine, -sine, sine, cosine])
    binary = cut_scene(scene.write(tmp_path / "binary"))
    affine = cut_scene(scene.write(tmp_path / "affine", new_schema=False, tables=tables))
    np.testing.assert_array_equal(affine.point_ids, binary.point_ids)
    np.testing.assert_allclose(
        affine.interest[:, [0, 1, 2, 4]], binary.interest[:, [0, 1, 2, 4]], atol=1e-5
    )
    assert np.abs(affine.patches.astype(int) - binary.patches).max() <= 1


def observations(cut, point_of_scene, scene):
    """Numbers of the photographs that see a point of the scene in the set."""
    rows = []
    for view in range(3):
        xy = scene.keypoints(view)[point_of_scene, :2] - 0.5
        here = cut.interest[:, 0] == view
        near = np.linalg.norm(cut.interest[:, 1:3] - xy, axis=1) < 1e-3
        rows += [view] * int((here & near).sum())
    return rows


def test_observations_that_disagree_with_the_geometry_are_dropped(tmp_path):
    scene = PlaneScene()
    tables = scene.tables()
    errors = np.full(40, 0.5)
    tables[scene.names[1]][1 + 0, 3] += 0.6  # point 0 is turned by 34° in the second photograph
    tables[scene.names[2]][1 + 1, 2] *= 1.5  # point 1 is 0.58 octaves larger in the third
    errors[2] = 3.0  # point 2 is badly placed
    tables[scene.names[0]][1 + 3, 3] += 1.0  # point 3 disagrees in every photograph
    tables[scene.names[1]][1 + 3, 2] *= 2.0
    cut = cut_scene(scene.write(tmp_path, tables=tables, errors=errors))
    assert observations(cut, 0, scene) == [0, 2]
    assert observations(cut, 1, scene) == [0, 1]
    assert observations(cut, 2, scene) == []
    assert observations(cut, 3, scene) == []
    assert observations(cut, 4, scene) == [0, 1, 2]
    loose = TrackFilters(max_reprojection_error=5.0, max_octaves=2.0, max_turn=90.0)
    cut = cut_scene(tmp_path, filters=loose)
    assert len(cut.patches) == 120


def shapes(log_size, degrees, ray_degrees):
    rays = np.deg2rad(np.asarray(ray_degrees, np.float64))
    ray = np.stack([np.sin(rays), np.zeros_like(rays), np.cos(rays)], axis=1)
    return WorldShapes(np.asarray(log_size, np.float64), np.deg2rad(degrees), ray)


@pytest.mark.parametrize(
    ("log_size", "degrees", "ray_degrees", "kept"),
    [
        ([0, 0.4, 0.8], [0, 0, 0], [0, 5, 10], [1, 1, 1]),  # all agree with the middle one
        ([0, 0.4, 1.1], [0, 0, 0], [0, 5, 10], [1, 1, 0]),
        ([0, 0, 0], [170, -175, 140], [0, 5, 10], [1, 1, 0]),  # 15° apart across the seam
        ([0, 0, 0], [0, 0, 0], [0, 50, 130], [1, 1, 0]),  # seen from too far round
        ([0, 0, 0], [0, 0, 0], [0, 0.5, 1.5], [0, 0, 0]),  # all seen from the same place
        ([0, 1, 2], [0, 0, 0], [0, 5, 10], [0, 0, 0]),  # no two agree
    ],
)
def test_the_largest_agreeing_group_is_kept(log_size, degrees, ray_degrees, kept):
    # A second point, which is fine, follows: each is judged by itself.
    both = WorldShapes(
        *(
            np.concatenate(pair)
            for pair in zip(
                shapes(log_size, degrees, ray_degrees),
                shapes([9, 9], [90, 90], [0, 9]),
                strict=True,
            )
        )
    )
    marked = consistent(np.array([4, 4, 4, 8, 8]), both, filters=TrackFilters())
    np.testing.assert_array_equal(marked, [*map(bool, kept), True, True])


def test_one_keypoint_per_photograph_and_point(tmp_path):
    scene = PlaneScene()
    folder = scene.write(tmp_path)
    cameras, images, points = scene.model(scene.tables())
    quaternion, translation, camera, name, rows = images[1]
    rows[0] = (*rows[0][:2], 105)  # the stray keypoint claims a point that another one sees
    images[1] = (quaternion, translation, camera, name, rows)
    write_binary(folder / "doubled", cameras, images, points)
    cut = cut_reconstruction(
        folder / "doubled",
        folder / "database.db",
        folder / "photos",
        filters=TrackFilters(max_octaves=9.0, max_turn=180.0),
        max_patches=1000,
        seed=0,
        progress=False,
    )
    assert len(cut.patches) == 120


def test_max_patches_keeps_whole_points_and_the_seed_decides_which(tmp_path):
    folder = PlaneScene().write(tmp_path)
    small = cut_scene(folder, max_patches=31)
    np.testing.assert_array_equal(small.point_ids, np.repeat(np.arange(10), 3))
    np.testing.assert_array_equal(cut_scene(folder, max_patches=31).patches, small.patches)
    other = cut_scene(folder, max_patches=31, seed=1)
    assert not np.array_equal(other.patches, small.patches)
    with pytest.raises(InputError, match="--max-patches 2 has no room for a point's patches"):
        cut_scene(folder, max_patches=2)


def test_unreadable_photographs_are_left_out_with_their_patches(tmp_path):
    scene = PlaneScene()
    folder = scene.write(tmp_path)
    (folder / "photos" / scene.names[1]).write_bytes(b"not an image")
    cut = cut_scene(folder)
    assert cut.unreadable == (scene.names[1],)
    np.testing.assert_array_equal(cut.point_ids, np.repeat(np.arange(40), 2))
    np.testing.assert_array_equal(np.unique(cut.interest[:, 0]), [0, 2])
    (folder / "photos" / scene.names[0]).unlink()
    with pytest.raises(InputError, match="no point is seen by two of the photographs"):
        cut_scene(folder)
    (folder / "photos" / scene.names[2]).unlink()
    with pytest.raises(InputError, match="none of the model's 3 photographs can be read"):
        cut_scene(folder)


def test_a_database_of_another_run_is_refused(tmp_path):
    scene = PlaneScene()
    for problem, change in {
        "no keypoints of first.png": lambda tables: tables.pop("first.png"),
        "keypoints of third.png differ": lambda tables: tables.update(
            {"third.png": tables["third.png"][:-1]}
        ),
        "keypoints of first.png differ": lambda tables: tables.update(
            {"first.png": tables["first.png"] + np.float32(0.5)}
        ),
    }.items():
        folder = scene.write(tmp_path / problem.replace(" ", "-"))
        tables = scene.tables()
        change(tables)
        (folder / "database.db").unlink()
        write_database(folder / "database.db", tables, new_schema=True)
        with pytest.raises(InputError, match=problem):
            cut_scene(folder)


def test_keypoints_without_scale_are_refused(tmp_path):
    scene = PlaneScene()
    tables = {name: table[:, :2] for name, table in scene.tables().items()}
    with pytest.raises(InputError, match="no scale and orientation"):
        cut_scene(scene.write(tmp_path, tables=tables))


def test_photographs_of_another_size_are_refused(tmp_path):
    scene = PlaneScene()
    folder = scene.write(tmp_path)
    cv2.imwrite(str(folder / "photos" / "first.png"), np.zeros((100, 200), np.uint8))
    with pytest.raises(InputError, match=r"has 200×100 pixels, but the model's 480×360"):
        cut_scene(folder)


def test_filters_that_leave_nothing_say_so(tmp_path):
    folder = PlaneScene().write(tmp_path)
    with pytest.raises(InputError, match=r"no 3-D point of .* passes the filters: loosen them"):
        cut_scene(folder, filters=TrackFilters(max_reprojection_error=0.1))


# Correspondence


def random_keypoints(rng, count):
    return Keypoints.of_sigma(
        rng.uniform(50, 400, (count, 2)), rng.uniform(1, 8, count), rng.uniform(-3, 3, count)
    )


def test_a_homography_moves_scales_and_turns_keypoints(rng):
    keypoints = random_keypoints(rng, 20)
    homography = np.array([[0.9, -0.4, 30], [0.5, 1.2, -20], [3e-4, -2e-4, 1]])

    def project(xy):
        moved = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
        return moved[:, :2] / moved[:, 2:]

    moved = transform_keypoints(keypoints, homography)
    np.testing.assert_allclose(moved.xy, project(keypoints.xy))
    tiny = 1e-4
    along = np.stack([np.cos(keypoints.radians), np.sin(keypoints.radians)], axis=1) * tiny
    across = along[:, ::-1] * [-1, 1]
    u = (project(keypoints.xy + along) - moved.xy) / tiny
    v = (project(keypoints.xy + across) - moved.xy) / tiny
    np.testing.assert_allclose(moved.radians, np.arctan2(u[:, 1], u[:, 0]), atol=1e-5)
    area = np.abs(u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0])
    np.testing.assert_allclose(moved.sigma, keypoints.sigma * np.sqrt(area), rtol=1e-5)


@pytest.mark.parametrize(
    ("dx", "factor", "turn", "accepted"),
    [
        (0.0, 1.0, 0.0, True),
        (1.9, 1.4, 20.0, True),
        (2.1, 1.0, 0.0, False),
        (0.0, 1.5, 0.0, False),
        (0.0, 0.67, 0.0, False),
        (0.0, 1.0, 25.0, False),
        (0.0, 1.0, 350.0, True),
    ],
)
def test_detections_match_within_tolerances(dx, factor, turn, accepted):
    expected = Keypoints.of_sigma(np.array([[50.0, 60.0]]), np.array([2.0]), np.array([1.0]))
    found = Keypoints.of_sigma(
        np.array([[200.0, 60.0], [50.0 + dx, 60.0]]),
        np.array([2.0, 2.0 * factor]),
        np.array([1.0, 1.0 + np.deg2rad(turn)]),
    )
    matches = match_keypoints(expected, found, tolerances=Tolerances())
    np.testing.assert_array_equal(matches, [1 if accepted else -1])


def test_a_detection_goes_to_the_nearest_prediction_only():
    expected = Keypoints.of_sigma(
        np.array([[50.0, 60], [50.6, 60], [90, 60]]), np.full(3, 2.0), np.zeros(3)
    )
    found = Keypoints.of_sigma(np.array([[50.5, 60.0]]), np.array([2.0]), np.zeros(1))
    np.testing.assert_array_equal(
        match_keypoints(expected, found, tolerances=Tolerances()), [-1, 0, -1]
    )
    nothing = found.keep(np.array([], np.int64))
    np.testing.assert_array_equal(
        match_keypoints(expected, nothing, tolerances=Tolerances()), [-1, -1, -1]
    )


def test_one_place_counts_once():
    xy = np.array([[10.0, 10], [10, 10], [10.9, 10], [12, 10]])
    keypoints = Keypoints.of_sigma(xy, np.array([2.0, 2, 2, 2]), np.array([0.0, 1, 0, 0]))
    np.testing.assert_array_equal(distinct_places(keypoints), [True, False, False, True])


def test_angles_wrap():
    np.testing.assert_allclose(
        wrap_angle(np.array([3.5, -3.5, 7.0])), [3.5 - 2 * np.pi, 2 * np.pi - 3.5, 7 - 2 * np.pi]
    )


# Plain photographs


@pytest.fixture
def photo_files(tmp_path, rng):
    """Two photographs of blobs of all sizes."""
    paths = []
    for name in ("one.png", "two.png"):
        layers = [cv2.GaussianBlur(rng.normal(size=(300, 400)), (0, 0), s) for s in (2, 4, 8)]
        texture = sum(layer / layer.std() for layer in layers)
        path = tmp_path / name
        cv2.imwrite(str(path), np.clip(128 + 30 * texture, 0, 255).astype(np.uint8))
        paths.append(path)
    return paths


def cut(paths, config=None, seed=0):
    config = config or ViewConfig(views=2, max_points=200)
    names = [path.name for path in paths]
    return cut_self_supervised(paths, names, config=config, seed=seed, progress=False)


def test_points_of_a_photograph_have_similar_patches(photo_files):
    made = cut(photo_files)
    ids, counts = np.unique(made.point_ids, return_counts=True)
    np.testing.assert_array_equal(ids, np.arange(len(ids)))
    assert len(ids) == 400
    assert set(counts) == {2, 3}
    first = np.flatnonzero(np.r_[True, np.diff(made.point_ids) > 0])
    same = [correlation(made.patches[i], made.patches[i + 1]) for i in first]
    other = [correlation(made.patches[i], made.patches[i - 1]) for i in first]
    assert np.median(same) > 0.65
    assert abs(np.median(other)) < 0.2
    assert set(made.interest[:, 0]) == {0, 1}


def test_the_same_seed_gives_the_same_bytes_whatever_else_is_cut(photo_files):
    both, again, alone = cut(photo_files), cut(photo_files), cut(photo_files[1:])
    for field in ("patches", "point_ids", "interest"):
        np.testing.assert_array_equal(getattr(both, field), getattr(again, field))
    np.testing.assert_array_equal(both.patches[both.interest[:, 0] == 1], alone.patches)
    assert not np.array_equal(cut(photo_files, seed=1).patches[:100], both.patches[:100])


def test_views_that_change_nothing_give_equal_patches(photo_files):
    config = ViewConfig(
        views=1,
        max_points=200,
        max_rotation_degrees=0.0,
        max_zoom=1.0,
        max_stretch=1.0,
        max_perspective=0.0,
        max_gamma=1.0,
        max_contrast=1.0,
        max_brightness=0.0,
        max_blur=0.0,
        max_noise=0.0,
    )
    made = cut(photo_files[:1], config)
    pairs = made.patches.reshape(-1, 2, 64, 64)
    np.testing.assert_array_equal(pairs[:, 0], pairs[:, 1])


def test_max_points_and_min_sigma_limit_what_is_taken(photo_files):
    made = cut(photo_files[:1], ViewConfig(views=1, max_points=7, min_sigma=3.0))
    assert len(np.unique(made.point_ids)) == 7
    assert made.interest[:, 4].min() > np.log2(3.0) - 1.5
    references = made.interest[np.r_[True, np.diff(made.point_ids) > 0]]
    assert references[:, 4].min() >= np.log2(3.0)


def test_large_photographs_are_reduced(photo_files):
    made = cut(photo_files[:1], ViewConfig(views=1, max_side=200))
    references = made.interest[np.r_[True, np.diff(made.point_ids) > 0]]
    assert references[:, 1].max() < 200
    assert references[:, 2].max() < 150


def test_a_view_shows_the_photograph_through_its_homography(photo_files):
    photo = cv2.imread(str(photo_files[0]), cv2.IMREAD_GRAYSCALE)
    plain = ViewConfig(
        max_gamma=1.0, max_contrast=1.0, max_brightness=0.0, max_blur=0.0, max_noise=0.0
    )
    view = random_view(np.random.default_rng(5), photo, config=plain)
    assert np.abs(view.homography - np.eye(3)).max() > 0.05
    back = cv2.warpPerspective(
        view.pixels, view.homography, (400, 300), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    )
    # All of it is in view: even the corners come back.
    for part in (
        np.s_[:, :],
        np.s_[:30, :30],
        np.s_[-30:, -30:],
        np.s_[:30, -30:],
        np.s_[-30:, :30],
    ):
        assert correlation(back[part], photo[part]) > 0.98


def test_random_homographies_stay_in_their_ranges():
    config = ViewConfig()
    rng = np.random.default_rng(0)
    zooms, stretches, tilts = [], [], []
    for _ in range(300):
        homography, zoom = random_homography(rng, config=config)
        np.testing.assert_array_equal(homography[:, 2], [0, 0, 1])
        values = np.linalg.svd(homography[:2, :2], compute_uv=False)
        np.testing.assert_allclose(np.sqrt(values.prod()), zoom)
        zooms.append(zoom)
        stretches.append(values[0] / values[1])
        tilts.append(np.linalg.norm(homography[2, :2]))
    assert 1 / 1.4 <= min(zooms) < 0.75
    assert 1.35 < max(zooms) <= 1.4
    assert 1.45 < max(stretches) <= 1.5 + 1e-9
    assert 0.24 < max(tilts) <= 0.25


def test_light_changes_are_monotonic_but_for_noise():
    levels = np.arange(256, dtype=np.uint8).repeat(4).reshape(32, 32)
    config = ViewConfig(max_blur=0.0, max_noise=0.0)
    changed = change_light(np.random.default_rng(1), levels, config=config).ravel()
    assert (np.diff(changed.astype(int)) >= 0).all()
    assert np.abs(changed.astype(int) - levels.ravel()).max() > 10
    noisy = dataclasses.replace(config, max_noise=20.0)
    flat = change_light(np.random.default_rng(1), np.full((99, 99), 128, np.uint8), config=noisy)
    assert flat.std() > 1


def test_unreadable_photographs_are_named(photo_files):
    photo_files[0].write_bytes(b"\x89PNG not really")
    made = cut(photo_files)
    assert made.unreadable == ("one.png",)
    assert [one.name for one in made.photographs] == ["two.png"]
    photo_files[1].unlink()
    with pytest.raises(InputError, match="none of the 2 photographs could be read"):
        cut(photo_files)


def test_featureless_photographs_are_refused(tmp_path):
    path = tmp_path / "wall.png"
    cv2.imwrite(str(path), np.full((100, 100), 90, np.uint8))
    with pytest.raises(InputError, match="none of the 1 photographs has points"):
        cut([path])


# Test pairs and files


def test_test_pairs_are_right_distinct_and_repeatable():
    point_ids = np.random.default_rng(0).permutation(np.repeat(np.arange(50), [2, 3, 4, 5, 6] * 10))
    pairs = sample_test_pairs(point_ids, matching=150, non_matching=400, seed=3)
    assert (pairs.matching.sum(), len(pairs.matching)) == (150, 550)
    same = point_ids[pairs.first] == point_ids[pairs.second]
    np.testing.assert_array_equal(same, pairs.matching)
    assert (pairs.first != pairs.second).all()
    ends = np.sort(np.stack([pairs.first, pairs.second], axis=1), axis=1)
    assert len(np.unique(ends, axis=0)) == 550
    assert 0.05 < pairs.matching[:100].mean() < 0.6  # shuffled
    again = sample_test_pairs(point_ids, matching=150, non_matching=400, seed=3)
    other = sample_test_pairs(point_ids, matching=150, non_matching=400, seed=4)
    np.testing.assert_array_equal(pairs, again)
    assert not np.array_equal(pairs, other)


def test_small_sets_give_all_their_pairs():
    pairs = sample_test_pairs(np.array([0, 0, 1, 1, 1]), matching=99, non_matching=99, seed=0)
    assert (pairs.matching.sum(), (~pairs.matching).sum()) == (4, 6)
    for point_ids in ([0, 1, 2], [0, 0, 0], [5]):
        with pytest.raises(InputError, match="need at least two points"):
            sample_test_pairs(np.array(point_ids), matching=9, non_matching=9, seed=0)


@pytest.fixture
def small_set(rng):
    patches = rng.integers(0, 256, (6, 64, 64), dtype=np.uint8)
    interest = np.column_stack([[0, 1] * 3, rng.uniform(0, 9, (6, 4))])
    photographs = (SetPhotograph(0, "a.jpg", ""), SetPhotograph(1, "b/c d.jpg", ""))
    ids = np.repeat(np.arange(3), 2)
    return PatchSet("small", patches, ids, interest=interest, photographs=photographs)


def write(folder, cut, *, pairs, overwrite=False):
    options = {"interest": cut.interest, "photographs": cut.photographs, "overwrite": overwrite}
    return write_phototour(folder, cut.patches, cut.point_ids, pairs=pairs, **options)


PAIRS = TestPairs(np.array([0, 1]), np.array([1, 2]), np.array([True, False]))


def test_a_written_set_reads_back(tmp_path, small_set):
    folder = write(tmp_path / "new" / "set", small_set, pairs=PAIRS)
    read = read_phototour(folder, cache_dir=tmp_path / "cache", progress=False)
    np.testing.assert_array_equal(read.patches, small_set.patches)
    np.testing.assert_array_equal(read.point_ids, small_set.point_ids)
    pairs = read_match_file(find_match_file(folder), patch_count=6)
    np.testing.assert_array_equal(pairs, PAIRS)
    assert (folder / "images.txt").read_text() == "0 a.jpg\n1 b/c d.jpg\n"
    assert [path.name for path in folder.parent.iterdir()] == ["set"]


def test_only_patch_sets_are_overwritten_and_only_on_demand(tmp_path, small_set):
    folder = write(tmp_path / "set", small_set, pairs=PAIRS)
    with pytest.raises(InputError, match="already exists: choose another folder, or add --over"):
        check_output(folder, overwrite=False)
    (folder / "patches0001.bmp").touch()
    write(folder, small_set, pairs=PAIRS, overwrite=True)
    assert not (folder / "patches0001.bmp").exists()
    (folder / "holiday.jpg").touch()
    with pytest.raises(InputError, match=r"not just a patch set \(it holds holiday.jpg\)"):
        write(folder, small_set, pairs=PAIRS, overwrite=True)
    assert (folder / "info.txt").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        check_output(tmp_path / "file", overwrite=True)


def test_a_failed_write_leaves_the_old_set(tmp_path, small_set):
    folder = write(tmp_path / "set", small_set, pairs=PAIRS)
    before = sorted(path.name for path in folder.iterdir())
    wrong = PAIRS._replace(matching=~PAIRS.matching)
    with pytest.raises(InputError, match="disagrees"):
        write(folder, small_set, pairs=wrong, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
