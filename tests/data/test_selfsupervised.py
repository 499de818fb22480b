"""Patch sets from plain photographs: views, correspondence and cutting."""

import dataclasses

import cv2
import numpy as np
import pytest
import skimage.data
from colmap_files import correlation
from refusals import assert_refused

from kjax.data import selfsupervised
from kjax.data.appearance import change_photo
from kjax.data.cutting.keypoints import Keypoints
from kjax.data.selfsupervised import Tolerances, ViewConfig, cut_self_supervised, match_keypoints

SAME_LIGHT = dict.fromkeys(("max_gamma", "max_contrast"), 1.0)
SAME_LIGHT |= dict.fromkeys(("max_brightness", "max_blur", "max_noise"), 0.0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two photographs of blobs of all sizes."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("photos")
    for name in ("one.png", "two.png"):
        layers = [cv2.GaussianBlur(rng.normal(size=(200, 300)), (0, 0), s) for s in (2, 4, 8)]
        texture = sum(layer / layer.std() for layer in layers)
        cv2.imwrite(str(folder / name), np.clip(128 + 30 * texture, 0, 255).astype(np.uint8))
    return sorted(folder.iterdir())


def cut(paths, config=None, seed=0):
    config = config or ViewConfig(views=2, max_points=100)
    names = [path.name for path in paths]
    return cut_self_supervised(paths, names, config=config, seed=seed, progress=False)


@pytest.fixture(scope="module")
def both(photos):
    return cut(photos)


def references(made):
    """Return the numbers of the first patches of the points."""
    return np.flatnonzero(np.r_[True, np.diff(made.point_ids) > 0])


# Sets


def test_points_of_a_photograph_have_similar_patches(both):
    ids, counts = np.unique(both.point_ids, return_counts=True)
    np.testing.assert_array_equal(ids, np.arange(200))
    assert set(counts) == {2, 3}
    first, patches = references(both), both.patches
    assert np.median([correlation(patches[i], patches[i + 1]) for i in first]) > 0.65
    assert abs(np.median([correlation(patches[i], patches[i - 1]) for i in first])) < 0.2
    assert set(both.interest[:, 0]) == {0, 1}


def test_the_same_seed_gives_the_same_bytes_whatever_else_is_cut(photos, both):
    again, alone = cut(photos), cut(photos[1:])
    for field in ("patches", "point_ids", "interest"):
        np.testing.assert_array_equal(getattr(both, field), getattr(again, field))
    np.testing.assert_array_equal(both.patches[both.interest[:, 0] == 1], alone.patches)
    assert not np.array_equal(cut(photos, seed=1).patches[:100], both.patches[:100])


def test_points_sizes_and_sides_are_limited(photos):
    made = cut(photos[:1], ViewConfig(views=1, max_points=7, min_sigma=3.0))
    assert len(np.unique(made.point_ids)) == 7
    assert made.interest[:, 4].min() > np.log2(3.0) - 1.5
    assert made.interest[references(made), 4].min() >= np.log2(3.0)
    made = cut(photos[:1], ViewConfig(views=1, max_side=150))
    assert (made.interest[references(made), 1:3].max(axis=0) < (150, 100)).all()


def test_unreadable_and_featureless_photographs(photos, tmp_path):
    broken, blank = tmp_path / "broken.png", tmp_path / "wall.png"
    broken.write_bytes(b"\x89PNG not really")
    cv2.imwrite(str(blank), np.full((100, 100), 90, np.uint8))
    unreadable = [broken, tmp_path / "missing.png"]
    assert_refused("none of the 2 photographs could be read", cut, unreadable)
    assert_refused("none of the 1 photographs has points", cut, [blank])


def test_twins_of_overlapping_photographs_are_one_point(tmp_path):
    """Two crops of a photograph share 100 columns; a third photograph shows something else."""
    picture = skimage.data.camera()[:300]
    for number, part in enumerate((picture[:, :300], picture[:, 200:], skimage.data.coins())):
        cv2.imwrite(str(tmp_path / f"{number}.png"), part)
    made = cut(sorted(tmp_path.iterdir()), ViewConfig(views=2))
    seen = [set(made.point_ids[made.interest[:, 0] == number]) for number in range(3)]
    assert len(seen[0] & seen[1]) > 20
    assert not seen[2] & (seen[0] | seen[1])
    # No two points are in one place.
    rows = made.interest[references(made)]
    crops = (rows[rows[:, 0] == number] for number in (0, 1))
    a, b = (keypoints(at[:, 1:3], 2 ** at[:, 4], at[:, 3]) for at in crops)
    found = match_keypoints(a._replace(xy=a.xy - [200, 0]), b, tolerances=Tolerances())
    assert (found >= 0).sum() < 3


# Views


def test_a_view_shows_the_photograph_through_its_homography(photos):
    photo = cv2.imread(str(photos[0]), cv2.IMREAD_GRAYSCALE)
    config = ViewConfig(**SAME_LIGHT)
    view = selfsupervised.random_view(np.random.default_rng(5), photo, config=config)
    assert np.abs(view.homography - np.eye(3)).max() > 0.05
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    back = cv2.warpPerspective(view.pixels, view.homography, photo.shape[::-1], flags=flags)
    # All of it is in view: even the corners come back.
    ends = slice(None, 30), slice(-30, None)
    for part in [np.s_[:, :], *((rows, columns) for rows in ends for columns in ends)]:
        assert correlation(back[part], photo[part]) > 0.98


def test_random_homographies_stay_in_their_ranges():
    rng = np.random.default_rng(0)
    drawn = [selfsupervised.random_homography(rng, config=ViewConfig()) for _ in range(300)]
    homographies, zooms = map(np.array, zip(*drawn, strict=True))
    np.testing.assert_array_equal(homographies[:, :, 2], np.tile([0, 0, 1], (300, 1)))
    values = np.linalg.svd(homographies[:, :2, :2], compute_uv=False)
    np.testing.assert_allclose(np.sqrt(values.prod(axis=1)), zooms)
    assert 1 / 1.4 <= zooms.min() < 0.75 < 1.35 < zooms.max() <= 1.4
    assert 1.45 < (values[:, 0] / values[:, 1]).max() <= 1.5 + 1e-9
    assert 0.24 < np.linalg.norm(homographies[:, 2, :2], axis=1).max() <= 0.25


def test_light_changes_are_monotonic_except_for_noise():
    levels = np.arange(256, dtype=np.uint8).repeat(4).reshape(32, 32)
    config = ViewConfig(max_blur=0.0, max_noise=0.0)
    changed = change_photo(np.random.default_rng(1), levels, config).ravel()
    assert (np.diff(changed.astype(int)) >= 0).all()
    assert np.abs(changed.astype(int) - levels.ravel()).max() > 10
    noisy = dataclasses.replace(config, max_noise=20.0)
    flat = change_photo(np.random.default_rng(1), np.full((99, 99), 128, np.uint8), noisy)
    assert flat.std() > 1


# Correspondence


def keypoints(xy, sigma=2.0, radians=0.0):
    xy = np.asarray(xy, np.float64)
    rows = np.ones(len(xy))
    return Keypoints.of_sigma(xy, sigma * rows, radians * rows)


def test_a_homography_moves_scales_and_turns_keypoints(rng):
    points = keypoints(rng.uniform(50, 400, (20, 2)), rng.uniform(1, 8, 20), rng.uniform(-3, 3, 20))
    homography = np.array([[0.9, -0.4, 30], [0.5, 1.2, -20], [3e-4, -2e-4, 1]])

    def project(xy):
        moved = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
        return moved[:, :2] / moved[:, 2:]

    moved = selfsupervised.transform_keypoints(points, homography)
    np.testing.assert_allclose(moved.xy, project(points.xy))
    tiny = 1e-4
    along = np.stack([np.cos(points.radians), np.sin(points.radians)], axis=1) * tiny
    across = along[:, ::-1] * [-1, 1]
    u = (project(points.xy + along) - moved.xy) / tiny
    v = (project(points.xy + across) - moved.xy) / tiny
    np.testing.assert_allclose(moved.radians, np.arctan2(u[:, 1], u[:, 0]), atol=1e-5)
    area = np.abs(u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0])
    np.testing.assert_allclose(moved.sigma, points.sigma * np.sqrt(area), rtol=1e-5)


def test_detections_match_within_tolerances():
    for accepted, deviations in (
        (True, [(0.0, 1.0, 0.0), (1.9, 1.4, 20.0), (0.0, 1.0, 350.0)]),
        (False, [(2.1, 1.0, 0.0), (0.0, 1.5, 0.0), (0.0, 0.67, 0.0), (0.0, 1.0, 25.0)]),
    ):
        expected = keypoints([[50, 60]], radians=1.0)
        for dx, factor, turn in deviations:
            radians = np.array([1.0, 1.0 + np.deg2rad(turn)])
            found = keypoints([[200, 60], [50 + dx, 60]], np.array([2.0, 2.0 * factor]), radians)
            matches = match_keypoints(expected, found, tolerances=Tolerances())
            np.testing.assert_array_equal(matches, [1 if accepted else -1])


def test_a_detection_goes_to_the_nearest_prediction_only():
    expected, found = keypoints([[50, 60], [50.6, 60], [90, 60]]), keypoints([[50.5, 60]])
    matches = match_keypoints(expected, found, tolerances=Tolerances())
    np.testing.assert_array_equal(matches, [-1, 0, -1])
    nothing = found.keep(np.array([], np.int64))
    matches = match_keypoints(expected, nothing, tolerances=Tolerances())
    np.testing.assert_array_equal(matches, [-1, -1, -1])


def test_a_location_counts_once_and_angles_wrap():
    points = keypoints([[10, 10], [10, 10], [10.9, 10], [12, 10]], radians=np.array([0.0, 1, 0, 0]))
    distinct = selfsupervised.distinct_places(points)
    np.testing.assert_array_equal(distinct, [True, False, False, True])
    wrapped = selfsupervised.wrap_angle(np.array([3.5, -3.5, 7.0]))
    np.testing.assert_allclose(wrapped, [3.5 - 2 * np.pi, 2 * np.pi - 3.5, 7 - 2 * np.pi])
