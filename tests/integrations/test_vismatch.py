"""vismatch's matcher, on vismatch where it is installed, otherwise on what stands in."""

import importlib.util
import sys
import types

import numpy as np
import pytest
import skimage.data

torch = pytest.importorskip("torch")

import kjax  # noqa: E402


class BaseMatcher(torch.nn.Module):
    """What stands in."""

    def __init__(self, device="cpu", **options):
        super().__init__()
        self.device = device


@pytest.fixture
def matcher_class(monkeypatch):
    if importlib.util.find_spec("vismatch") is None:
        stand_in = types.ModuleType("vismatch")
        stand_in.BaseMatcher = BaseMatcher
        monkeypatch.setitem(sys.modules, "vismatch", stand_in)
    from kjax.integrations.vismatch import KjaxMatcher

    yield KjaxMatcher
    del sys.modules["kjax.integrations.vismatch"]


@pytest.mark.parametrize("method", ["mutual_ratio", "learned"])
def test_equals_kjax(matcher_class, method, monkeypatch):
    learned = types.SimpleNamespace(match=kjax.match)
    monkeypatch.setattr("kjax.images.learned.cached_matcher", lambda _: learned)
    photos = [photo[:200, :300] / np.float32(255) for photo in skimage.data.stereo_motorcycle()[:2]]
    images = [torch.from_numpy(photo).permute(2, 0, 1) for photo in photos]
    matcher = matcher_class(weights="tiny", max_num_keypoints=100, method=method)
    ours, theirs, all_ours, all_theirs, first, second, sure = matcher._forward(*images)
    describer = kjax.load("tiny")
    left, right = (describer.describe_image(photo, max_keypoints=100) for photo in photos)
    np.testing.assert_array_equal(first, left.descriptors)
    np.testing.assert_array_equal(second, right.descriptors)
    matches = kjax.match(left.descriptors, right.descriptors, method="mutual_ratio", ratio=0.94)
    assert len(matches) > 20
    np.testing.assert_array_equal(all_ours, left.xy)
    np.testing.assert_array_equal(all_theirs, right.xy)
    np.testing.assert_array_equal(ours, left.xy[matches.indices[:, 0]])
    np.testing.assert_array_equal(theirs, right.xy[matches.indices[:, 1]])
    np.testing.assert_array_equal(sure, 1 - matches.ratios)


def test_vismatch_itself(matcher_class):
    if BaseMatcher in matcher_class.__mro__:
        pytest.skip("vismatch is not installed")
    image = torch.from_numpy(skimage.data.camera()[:200, :300] / np.float32(255)).repeat(3, 1, 1)
    matcher = matcher_class(weights="tiny", max_num_keypoints=100)
    result = matcher(image, image.roll(7, dims=2))
    assert result["num_inliers"] > 30
    moved = result["inlier_kpts1"] - result["inlier_kpts0"]
    assert (np.abs(moved - np.array([7, 0])).max(axis=1) < 0.01).mean() > 0.75
    assert matcher.extract(image)["all_desc0"].shape[1] == 128
    assert matcher(torch.zeros(3, 64, 64), image)["num_inliers"] == 0
