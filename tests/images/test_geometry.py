import functools

import cv2
import numpy as np
import pytest
from refusals import assert_refused

from kjax.images import geometry
from kjax.images.match import Matches

HOMOGRAPHY = np.array([[0.9, -0.2, 40.0], [0.15, 1.1, -20.0], [1e-4, -5e-5, 1.0]])


def planar_matches(rng, good=120, bad=80, noise=0.3):
    a = rng.uniform(0, 600, (good + bad, 2))
    b = np.column_stack([a, np.ones(len(a))]) @ HOMOGRAPHY.T
    b = b[:, :2] / b[:, 2:] + noise * rng.normal(size=a.shape)
    b[good:] = rng.uniform(0, 600, (bad, 2))
    return a, b, np.arange(good + bad) < good


def corners_off(model):
    corners = np.array([[0, 0, 1], [600, 0, 1], [0, 600, 1], [600, 600, 1.0]]).T
    there, truth = model @ corners, HOMOGRAPHY @ corners
    return np.linalg.norm(there[:2] / there[2] - truth[:2] / truth[2], axis=0).mean()


def test_a_homography_is_refined_on_all_matches_near_it(rng):
    """Of 0.3 px of noise 120 matches leave a tenth or two at the corners; wrong ones add little."""
    plain, refined = [], []
    for _ in range(20):
        a, b, _ = planar_matches(rng)
        b[100:110] += 2.0  # near, but all off the same way
        plain.append(corners_off(geometry.verify(a, b, refine=False).model))
        found = geometry.verify(a, b)
        refined.append(corners_off(found.model))
        assert found.inliers[:100].all()
        assert found.inliers[120:].mean() < 0.05
    assert np.mean(refined) < 0.6 * np.mean(plain)
    assert np.mean(refined) < 0.25
    # Gaussian noise, for which least squares are best.
    pairs = [planar_matches(rng, noise=0.8)[:2] for _ in range(20)]
    verify = functools.partial(geometry.verify, model="homography")
    plain, refined = (
        [corners_off(verify(*one, refine=refine).model) for one in pairs]
        for refine in (False, True)
    )
    assert np.mean(refined) < 1.12 * np.mean(plain)


def test_what_cannot_be_refined_stays():
    given = np.diag([1.0, 1.0, 1.0]), np.ones(4, bool)
    corners = np.array([[0, 0], [9, 0], [0, 9], [9, 9.0]])
    model, inliers = geometry.refine_model("homography", *given, corners, corners + 0.5, 3.0)
    assert model is given[0]
    assert inliers is given[1]
    many = np.tile(corners, (5, 1))
    model, inliers = geometry.refine_model(
        "homography", given[0], np.ones(20, bool), many, many, 3.0
    )
    np.testing.assert_array_equal(model, np.eye(3))  # nothing is better than exact


def test_finds_an_epipolar_geometry(rng):
    points = rng.uniform((-2, -2, 4), (2, 2, 8), (200, 3))
    turn, _ = cv2.Rodrigues(np.array([0.05, -0.2, 0.03]))
    moved = points @ turn.T + (0.8, 0.1, 0.05)
    a, b = (500 * x[:, :2] / x[:, 2:] + (320, 240) for x in (points, moved))
    b[150:] = rng.uniform(0, 480, (50, 2))
    found = geometry.verify(a, b, model="fundamental", threshold=1.0)
    ones = np.ones((200, 1))
    lines = np.column_stack([a, ones]) @ found.model.T
    off = np.abs((np.column_stack([b, ones]) * lines).sum(1)) / np.hypot(*lines[:, :2].T)
    assert off[:150].max() < 0.1
    assert found.inliers[:150].all()
    # A random point is near its line at times.
    assert found.inliers[150:].mean() < 0.2


def test_epipolar_geometries_are_refined():
    """Where keypoints have errors with heavy tails: a fifth nearer the truth."""
    turn, _ = cv2.Rodrigues(np.array([0.05, -0.2, 0.03]))
    off, ones = {False: [], True: []}, np.ones((300, 1))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        points = rng.uniform((-2, -2, 4), (2, 2, 8), (300, 3))
        moved = points @ turn.T + (0.8, 0.1, 0.05)
        exact = [500 * x[:, :2] / x[:, 2:] + (320, 240) for x in (points, moved)]
        a, b = (x + 0.2 * rng.standard_t(2, x.shape) for x in exact)
        b[:60] += rng.uniform(20, 90, (60, 2))
        left, right = (np.column_stack([x, ones]) for x in exact)
        for refine, found in off.items():
            model = geometry.verify(a, b, model="fundamental", refine=refine).model
            assert abs(np.linalg.det(model / np.linalg.norm(model))) < 1e-9
            lines = left @ model.T
            off_lines = np.abs((right * lines).sum(1)) / np.hypot(*lines[:, :2].T)
            found.append(np.median(off_lines))
    assert np.mean(off[True]) < 0.9 * np.mean(off[False])


def test_few_matches_that_agree_are_not_chance_and_reproducible(rng):
    a, b, good = planar_matches(rng, good=14, bad=40)
    first = geometry.verify(a, b)
    assert first.inliers[good].mean() > 0.8
    assert first.kind == "homography"
    assert geometry.verify(a, b, false_alarms=1e-99).model is None
    cv2.setRNGSeed(99)
    cv2.randu(np.empty((10, 10)), 0, 1)
    second = geometry.verify(a, b)
    np.testing.assert_array_equal(first.model, second.model)
    np.testing.assert_array_equal(first.inliers, second.inliers)


@pytest.mark.parametrize("model", ["homography", "fundamental", "auto"])
def test_what_agrees_by_chance_is_no_model(rng, model):
    """Any four or seven matches have a model, and a few more agree with it by chance."""
    few = [np.stack([points, points + 1]) for points in rng.uniform(0, 99, (3, 3, 2))]
    many = [rng.uniform(0, 500, (2, count, 2)) for count in (4, 5, 8, 9, 30, 300) * 3]
    for points in (*few, *many, np.full((2, 50, 2), 7.0)):
        found = geometry.verify(*points, model=model)
        assert (found.model, found.kind) == (None, None)
        assert found.inliers.tolist() == [False] * len(points[0])


def test_bad_input_is_refused():
    for value, threshold, message in ((np.nan, 1.0, "NaN"), (1.0, 0.0, "threshold is 0")):
        sides = np.full((9, 2), value), np.ones((9, 2))
        assert_refused(message, geometry.verify, *sides, threshold=threshold)


# Correct matches


SHIFT = np.array([[1.0, 0, 10], [0, 1, -5], [0, 0, 1]])


def hand_made(indices, distances=None):
    values = np.arange(len(indices)) if distances is None else distances
    rows, values = np.array(indices, np.int32).reshape(-1, 2), np.asarray(values, np.float32)
    return Matches(rows, values, np.zeros(len(rows), np.float32))


def test_projection():
    points = np.array([[0.0, 0], [3, 4]])
    np.testing.assert_allclose(geometry.project(2 * SHIFT, points), [[10, -5], [13, -1]])
    tilted = np.array([[1.0, 0, 0], [0, 1, 0], [-0.5, 0, 1]])
    moved = geometry.project(tilted, np.array([[1.0, 1], [4, 1]]))
    np.testing.assert_allclose(moved[0], [2, 2])
    assert np.isnan(moved[1]).all(), "the point lies behind the camera"


def test_correct_matches_lie_within_the_threshold():
    a = np.array([[0, 0], [20, 0], [40, 0], [60, 0]], np.float32)
    errors = np.array([[0, 0], [3, 0], [0, 3.01], [30, 0]], np.float32)
    b = (geometry.project(SHIFT, a) + errors).astype(np.float32)
    matches = hand_made([(n, n) for n in range(4)])
    assert geometry.count_correct(matches, a, b, SHIFT, threshold=3.0) == geometry.Count(2, 4)
    assert geometry.count_correct(matches, a, b, SHIFT, threshold=3.1) == geometry.Count(3, 4)
    empty = np.empty((0, 2), np.float32)
    assert geometry.count_correct(hand_made([]), empty, empty, SHIFT, threshold=3.0).precision == 0


def test_a_location_counts_once():
    """Keypoints 0 and 1 of either photo are one point with two orientations."""
    a = np.array([[5, 5], [5, 5], [50, 5]], np.float32)
    b = geometry.project(SHIFT, a).astype(np.float32)
    both = hand_made([(0, 0), (1, 1), (2, 2)], [0.3, 0.2, 0.1])
    assert geometry.one_per_location(both, a, b).tolist() == [False, True, True]
    # The nearer match of the location is wrong: the truth does not choose.
    wrong = hand_made([(0, 0), (1, 2)], [0.3, 0.2])
    assert geometry.count_correct(wrong, a, b, SHIFT, threshold=3.0) == geometry.Count(0, 1)
    shared = hand_made([(2, 0), (0, 1)], [0.1, 0.2])
    assert geometry.one_per_location(shared, a, b).tolist() == [True, False]
