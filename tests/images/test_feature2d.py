"""A describer in the place of OpenCV's SIFT, other detectors, and kornia's LAFs."""

import cv2
import numpy as np
import pytest
from models import make_model

import kjax
from kjax.data.cutting.detectors import DETECTORS, find_keypoints
from kjax.errors import InputError


@pytest.fixture(scope="module")
def describer():
    return kjax.Describer(*make_model("xy", s=1, patch_size=16), max_keypoints=60)


@pytest.fixture(scope="module")
def photograph():
    coarse = np.random.default_rng(0).integers(0, 256, (30, 40), np.uint8)
    return cv2.resize(coarse, (320, 240), interpolation=cv2.INTER_CUBIC)


def told(keypoint):
    """All that a keypoint knows."""
    names = ("pt", "size", "angle", "response", "octave", "class_id")
    return tuple(getattr(keypoint, name) for name in names)


def test_numbers_that_opencv_asks_for(describer):
    sift = cv2.SIFT_create()
    for name in ("descriptorSize", "descriptorType", "defaultNorm"):
        assert getattr(describer, name)() == getattr(sift, name)(), name


def test_detect_then_compute_is_both_at_once(describer, photograph):
    found = describer.detect(photograph, None)
    assert len(found) == 60
    # SIFT's own, with all that they know.
    sift = {told(one) for one in cv2.SIFT_create(enable_precise_upscale=True).detect(photograph)}
    assert {told(one) for one in found} <= sift
    assert len({one.octave for one in found}) > 5
    keypoints, descriptors = describer.compute(photograph, found)
    assert [told(one) for one in keypoints] == [told(one) for one in found]
    again, same = describer.detectAndCompute(photograph, None)
    assert [told(one) for one in again] == [told(one) for one in found]
    np.testing.assert_array_equal(same, descriptors)
    np.testing.assert_array_equal(describer.describe_image(photograph).descriptors, descriptors)
    describer.max_keypoints = 7
    try:
        assert len(describer.detect(photograph)) == 7
    finally:
        describer.max_keypoints = 60


def test_given_keypoints_come_back_as_they_are(describer, photograph):
    given = [
        cv2.KeyPoint(100, 90, 4, 30, 0.5, 513, 42),
        cv2.KeyPoint(-900, 90, 4, 30, 0.5, 1, 43),  # shows nothing
        cv2.KeyPoint(50.5, 60, 3, -1, 0.25, 2, 44),
    ]
    kept, descriptors = describer.detectAndCompute(
        photograph, None, useProvidedKeypoints=True, keypoints=given
    )
    assert [told(one) for one in kept] == [told(given[0]), told(given[2])]
    assert descriptors.shape == (2, 128)
    nothing, none = describer.compute(photograph, [])
    assert (nothing, none.shape) == ([], (0, 128))


def test_what_opencv_would_not_take(describer, photograph):
    for wrong in ((True, None), (False, [cv2.KeyPoint(9, 9, 4)])):
        with pytest.raises(InputError, match="belong together"):
            describer.detectAndCompute(photograph, None, wrong[0], keypoints=wrong[1])
    with pytest.raises(InputError, match=r"no cv2\.KeyPoint objects: describe_image"):
        describer.compute(photograph, np.ones((2, 4)).tolist())
    with pytest.raises(InputError, match="did you mean 'AKAZE'"):
        kjax.load("hardnet", detector="AKAZ")


def test_opencvs_matchers_take_the_descriptors(describer, photograph):
    _, first = describer.detectAndCompute(photograph)
    second = np.ascontiguousarray(first[::-1])
    brute = cv2.BFMatcher(describer.defaultNorm(), crossCheck=True).match(first, second)
    trees = cv2.FlannBasedMatcher({"algorithm": 1, "trees": 4}, {"checks": 60})
    for one in (*brute, *(pair[0] for pair in trees.knnMatch(first, second, k=2))):
        assert one.distance < 1e-3
        np.testing.assert_allclose(first[one.queryIdx], second[one.trainIdx], atol=1e-3)
    assert len(brute) == len(first)


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_follow_scale_and_rotation(photograph, name):
    """Photographs at twice the size, turned by a right angle: so are the keypoints."""
    large = cv2.rotate(cv2.resize(photograph, None, fx=2, fy=2), cv2.ROTATE_90_CLOCKWISE)
    small, turned = (
        find_keypoints(image, name=name, max_keypoints=400) for image in (photograph, large)
    )
    ranks = [DETECTORS[name].rank(one) for one in turned]
    assert ranks == sorted(ranks, reverse=True)
    where = np.array([(478.5 - 2 * one.pt[1], 2 * one.pt[0] + 0.5) for one in small])
    places = np.array([one.pt for one in turned])
    distances = np.linalg.norm(where[:, None] - places[None], axis=-1)
    nearest = distances.argmin(axis=1)
    near = np.flatnonzero(distances.min(axis=1) < 2)
    assert len(near) > 20
    factors = [turned[nearest[i]].size / small[i].size for i in near]
    turns = [(turned[nearest[i]].angle - small[i].angle) % 360 for i in near]
    # ORB finds a corner in several of its levels.
    assert 1.1 < np.median(factors) < 2.7
    assert abs(np.median(turns) - 90) < 15
    # Sizes are diameters of SIFT's kind, from a few pixels on.
    assert 1.5 < np.median([one.size for one in small]) < 20


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (2, 3), (9, 9)])
def test_the_smallest_photographs_have_no_keypoints(name, shape, rng):
    assert find_keypoints(rng.integers(0, 256, shape, np.uint8), name=name) == []


def test_other_detectors_by_name(photograph):
    model = make_model("xy", s=1, patch_size=16)
    orb = kjax.Describer(*model, detector="ORB", max_keypoints=50)
    keypoints, descriptors = orb.detectAndCompute(photograph)
    assert len(keypoints) == len(descriptors) > 20
    assert {one.octave for one in keypoints} <= set(range(8))
    assert orb.feature_settings()["detector"] == "OpenCV ORB"
    assert orb.feature_settings()["max_keypoints"] == 50
    np.testing.assert_array_equal(orb.describe_image(photograph).descriptors, descriptors)


def test_lafs_are_patches_themselves(describer, photograph):
    """A LAF's patch is resampled by hand, an image in which it is upright is described by us."""
    torch = pytest.importorskip("torch")
    laf = np.array([[40.0, 12, 150], [-6, 22, 120]], np.float32)
    # The middle of this image, ±30 pixels, shows the patch.
    straight = np.column_stack([laf[:, :2] / 30, laf[:, 2] - laf[:, :2] @ [80 / 30, 80 / 30]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    upright = cv2.warpAffine(photograph, straight, (161, 161), flags=flags)
    expected = describer.describe_image(upright, [[80, 80, 60 / describer.extent, 0]]).descriptors
    for lafs in (laf[None], laf[None, None], torch.from_numpy(laf)[None, None]):
        found = describer.describe_image(photograph, lafs)
        assert (found.descriptors @ expected.T).item() > 0.98
    np.testing.assert_allclose(found.xy, [[150, 120]])
    np.testing.assert_allclose(found.angles, [np.rad2deg(np.arctan2(-6, 40)) % 360], rtol=1e-5)
    area = 40 * 22 + 12 * 6
    np.testing.assert_allclose(found.scales * describer.extent, 2 * np.sqrt(area), rtol=1e-5)
    # A square of the same place, size and direction shows something else.
    table = np.column_stack([found.xy, found.scales, found.angles])
    square = describer.describe_image(photograph, table).descriptors
    assert (square @ expected.T).item() < (found.descriptors @ expected.T).item() - 0.01


def test_shapes_that_are_no_keypoints(describer, photograph):
    with pytest.raises(InputError, match=r"or LAFs \[N, 2, 3\]"):
        describer.describe_image(photograph, np.ones((2, 4, 2, 3)))
    flat = np.array([[[1, 1, 9], [1, 1, 9.0]]])
    assert len(describer.describe_image(photograph, flat)) == 0
