"""Matches brought into register, on a photograph and an affine view of it."""

import dataclasses

import numpy as np
import pytest
import skimage.data
from refusals import assert_refused

import kjax
from kjax.images import align
from kjax.images.features import Features, Matches

cv2 = pytest.importorskip("cv2")

MATRIX = np.array([[0.95, -0.24, 90.0], [0.2, 1.05, -30.0]])
"""From the photograph to the view."""
FAR = 40
"""Pixels from the border at which patches lie wholly in both."""


def features(xy, scales, angles, photo):
    rows = np.zeros((len(xy), 4), np.float32)
    columns = (np.asarray(one, np.float32) for one in (scales, angles))
    return Features(np.asarray(xy, np.float32), rows, photo.shape[::-1], *columns)


def one_to_one(count):
    rows = np.repeat(np.arange(count, dtype=np.int32)[:, None], 2, axis=1)
    return Matches(rows, *np.zeros((2, count), np.float32))


@dataclasses.dataclass
class Views:
    """A photograph, a view of it, and keypoints of both, the second ones disturbed."""

    photo: np.ndarray
    view: np.ndarray
    a: Features
    b: Features
    true: np.ndarray

    @property
    def matches(self):
        return one_to_one(len(self.a))

    def align(self, **changed):
        given = dataclasses.replace(self, **changed)
        return kjax.align_matches(given.photo, given.view, given.a, given.b, given.matches)

    def off(self, xy):
        return np.linalg.norm(xy - self.true, axis=1)


@pytest.fixture(scope="module")
def views():
    photo = skimage.data.camera()
    view = cv2.warpAffine(photo, MATRIX, (620, 600), flags=cv2.INTER_CUBIC)
    rng = np.random.default_rng(0)
    found = cv2.SIFT_create(300, enable_precise_upscale=True).detect(photo)
    table = np.array([(*one.pt, one.size, one.angle) for one in found if 4 < one.size < 20])
    there = table[:, :2] @ MATRIX[:, :2].T + MATRIX[:, 2]
    inside = [
        ((xy > FAR) & (xy < np.array(shape[::-1]) - FAR)).all(axis=1)
        for xy, shape in ((table[:, :2], photo.shape), (there, view.shape))
    ]
    table, there = (rows[inside[0] & inside[1]] for rows in (table, there))
    turn = np.rad2deg(np.arctan2(0.22, 1.0))
    way = rng.uniform(0, 2 * np.pi, len(table))
    # As a detector's: at most 2 pixels, less of small keypoints.
    far = np.minimum(rng.uniform(0, 2, len(table)), 0.3 * table[:, 2])
    disturbed = there + (far * [np.cos(way), np.sin(way)]).T
    a = features(table[:, :2], table[:, 2], table[:, 3], photo)
    b = features(disturbed, table[:, 2] * 1.02, table[:, 3] + turn, view)
    return Views(photo, view, a, b, there)


def test_disturbed_keypoints_find_back(views):
    found = views.align()
    before, after = views.off(views.b.xy), views.off(found.xy_b)
    assert len(before) > 80
    assert np.median(before) > 0.7
    assert found.aligned.mean() > 0.8
    assert np.median(after[found.aligned]) < 0.1
    assert (after <= before + 0.3).mean() > 0.98
    np.testing.assert_array_equal(found.xy_a, views.a.xy)
    moved = np.linalg.norm(found.xy_b - views.b.xy, axis=1)
    assert (moved <= align.FARTHEST * views.b.scales + 1e-3).all()
    images = views.photo, views.view, views.a, views.b
    assert kjax.align_matches(*images, Matches.none()).xy_b.shape == (0, 2)
    assert_refused("matches do not fit", kjax.align_matches, *images, one_to_one(len(views.a) + 1))


def test_what_is_not_aligned_stays_to_the_bit(views):
    wrong = dataclasses.replace(views.b, xy=views.b.xy[::-1].copy())
    found = views.align(b=wrong)
    assert found.aligned.mean() < 0.1
    np.testing.assert_array_equal(found.xy_b[~found.aligned], wrong.xy[~found.aligned])


def test_gain_and_offset_change_nothing(views):
    found = views.align()
    darker = views.align(view=(0.4 * views.view + 30).astype(np.float32))
    assert (found.aligned == darker.aligned).mean() > 0.98
    both = found.aligned & darker.aligned
    np.testing.assert_allclose(darker.xy_b[both], found.xy_b[both], atol=0.02)


def test_alone_as_among_others(views, monkeypatch):
    """Blocks of matches, and photographs filled up to one of few shapes."""
    found = views.align()
    monkeypatch.setattr(align, "BLOCK", 48)
    again = views.align()
    assert (found.aligned == again.aligned).all()
    np.testing.assert_allclose(again.xy_b, found.xy_b, atol=1e-3)


@pytest.mark.parametrize("flat", ["photo", "view"])
def test_textureless_patches_are_left_alone(views, flat):
    found = views.align(**{flat: np.full_like(getattr(views, flat), 93)})
    assert not found.aligned.any()
    np.testing.assert_array_equal(found.xy_b, views.b.xy)


def test_an_edge_does_not_run_away():
    """Along it nothing tells where the keypoint lies."""
    photo = np.zeros((200, 200), np.uint8)
    photo[:, 100:] = 200
    photo = cv2.GaussianBlur(photo, (0, 0), 3)
    one, other = (features([xy], [8], [0], photo) for xy in ((100, 100), (101, 100)))
    found = kjax.align_matches(photo, photo, one, other, one_to_one(1))
    assert abs(found.xy_b[0, 1] - 100) < 0.5


@pytest.mark.parametrize(
    ("xy", "scale"), [((3, 200), 8), ((200, 200), 400), ((np.nan, 9), 8), ((200, 200), np.inf)]
)
def test_patches_over_the_border_are_left_alone(views, xy, scale):
    one = features([xy], [scale], [0], views.photo)
    found = kjax.align_matches(views.photo, views.photo, one, one, one_to_one(1))
    assert not found.aligned.any()
    np.testing.assert_array_equal(found.xy_b, one.xy)


def test_bad_input(views):
    for changed, message in (
        (lambda v: {"view": v.view[:-1]}, "image has 620×599 pixels, its features are of 620×600"),
        (lambda v: {"a": dataclasses.replace(v.a, scales=None)}, "the keypoints have no scales"),
        (lambda v: {"view": None}, "the image is None"),
    ):
        assert_refused(message, views.align, **changed(views))
