import sys
import types
from unittest.mock import Mock

import numpy as np
import pytest

from kjax.baselines import load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.baselines.opencv import root_sift
from kjax.data.embedded import stereo_patch_pairs

cv2 = pytest.importorskip("cv2")
needs_contrib = pytest.mark.skipif(not hasattr(cv2, "xfeatures2d"), reason="no contrib modules")


@pytest.fixture
def patches():
    pairs = stereo_patch_pairs(4, size=64)[:, 0]
    return np.pad(pairs, ((0, 0), (0, 1), (0, 1)), mode="reflect")


def test_sift_is_that_of_the_official_script(patches):
    keypoint = cv2.KeyPoint()
    keypoint.pt, keypoint.size = (32.5, 32.5), 65 / 5.303
    expected = [cv2.SIFT_create().compute(patch, [keypoint])[1][0] for patch in patches]
    sift = load_baseline("sift")
    np.testing.assert_array_equal(sift.describe(patches), expected)
    many = np.concatenate([np.roll(patches, shift, axis=2) for shift in range(0, 60, 4)] * 10)
    np.testing.assert_array_equal(sift.describe(many)[::97], sift.describe(many[::97]))
    assert sift.source == f"OpenCV {cv2.__version__}"
    assert (sift.name, sift.distance, sift.dimension, sift.parameters) == ("SIFT", "L2", 128, None)


def test_root_sift_has_unit_norm_and_hellinger_products(patches):
    sift, root = (load_baseline(name).describe(patches) for name in ("sift", "rootsift"))
    np.testing.assert_allclose(np.linalg.norm(root, axis=1), 1, rtol=1e-6)
    shares = sift / sift.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(root[0] @ root[1], np.sqrt(shares[0] * shares[1]).sum(), rtol=1e-5)
    np.testing.assert_array_equal(root_sift(np.zeros((1, 128), np.float32)), 0)


def test_orb_sees_the_whole_patch(patches):
    orb = load_baseline("orb")
    assert orb.distance == "L1"
    changed = patches.copy()
    changed[:, :14], changed[:, -14:] = 255, 0
    # Its pattern of 31 pixels lies inside what is left, unless it is magnified.
    assert (orb.describe(patches) != orb.describe(changed)).sum(axis=1).min() > 10


@needs_contrib
def test_contrib_descriptors_are_taken_at_the_middle_pixel(patches):
    contrib, keypoint = cv2.xfeatures2d, cv2.KeyPoint(32, 32, 65)
    brief, teblid = contrib.BriefDescriptorExtractor_create(32), contrib.TEBLID_create(1.0)
    for name, extractor in {"brief": brief, "teblid": teblid}.items():
        packed = [extractor.compute(patch, [keypoint])[1][0] for patch in patches]
        found = load_baseline(name).describe(patches)
        np.testing.assert_array_equal(found, np.unpackbits(np.array(packed), axis=1))


def pretend(monkeypatch, **contents):
    module = types.ModuleType("cv2")
    vars(module).update(__version__="9.9", error=cv2.error, **contents)
    monkeypatch.setitem(sys.modules, "cv2", module)


def test_a_missing_or_incomplete_opencv_is_reported(monkeypatch):
    create = Mock(side_effect=cv2.error("built without downloaded Boost descriptor features"))
    pretend(monkeypatch, xfeatures2d=types.SimpleNamespace(BoostDesc_create=create))
    with pytest.raises(Unavailable, match="built without the data of BBoost"):
        load_baseline("bboost")
    pretend(monkeypatch)
    for name in ("brief", "teblid", "bboost", "sift"):
        if name == "sift":
            monkeypatch.setitem(sys.modules, "cv2", None)
        packages = "('kjax.photos.'|opencv-contrib-python-headless)"
        with pytest.raises(Unavailable, match=f"pip install {packages}"):
            load_baseline(name)


def test_bboost_is_binboost_of_the_whole_upright_patch(monkeypatch, patches):
    packed = np.full((1, 32), patches[0, 0, 0], np.uint8)
    create = Mock()
    create.return_value.compute.return_value = (None, packed)
    fake = types.SimpleNamespace(BoostDesc_create=create)
    pretend(monkeypatch, xfeatures2d=fake, KeyPoint=cv2.KeyPoint)
    found = load_baseline("bboost").describe(patches[:1])
    np.testing.assert_array_equal(found, np.unpackbits(packed, axis=1))
    create.assert_called_with(302, True, 1.0)
    image, (keypoint,) = create.return_value.compute.call_args.args
    np.testing.assert_array_equal(image, patches[0])
    assert (keypoint.pt, keypoint.size, keypoint.angle) == ((32.0, 32.0), 65.0, 0.0)
