"""The default data, cut from scikit-image's wheel."""

import shutil
import socket
import sys
from unittest import mock

import cv2
import numpy as np
import pytest
from refusals import assert_refused

from kjax.data import embedded
from kjax.data.embedded import cut_stereo, embedded_test, embedded_train, visible_in_right
from kjax.data.phototour import read_interest
from kjax.data.selfsupervised import Tolerances


@pytest.fixture(scope="module", autouse=True)
def no_network():
    """Nothing here may reach for the network."""
    refuse = mock.Mock(side_effect=AssertionError("the embedded data must not be downloaded"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def train(cache):
    return embedded_train(cache_dir=cache, progress=False)


@pytest.fixture(scope="module")
def held_out(cache):
    return embedded_test(cache_dir=cache, progress=False)


def rootsift(patches):
    """OpenCV's RootSIFT over the whole of each patch."""
    sift = cv2.SIFT_create()
    keypoint = [cv2.KeyPoint(31.5, 31.5, 64 / 6, 0)]
    described = np.concatenate([sift.compute(np.array(patch), keypoint)[1] for patch in patches])
    return np.sqrt(described / described.sum(axis=1, keepdims=True))


def false_positive_rate(descriptors, pairs):
    distance = np.linalg.norm(descriptors[pairs.first] - descriptors[pairs.second], axis=1)
    threshold = np.quantile(distance[pairs.matching], 0.95)
    return (distance[~pairs.matching] < threshold).mean()


def test_enough_to_train_on(train):
    points, counts = np.unique(train.point_ids, return_counts=True)
    assert len(points) > 4000
    assert counts.min() >= 2
    assert counts.mean() > 3
    photo = read_interest(train.folder, patch_count=len(train.patches))[:, 0]
    names = (train.folder / "images.txt").read_text().split()[1::2]
    assert names == list(embedded.TRAIN_PHOTOS)
    # Every photograph has its share, and no texture drowns the rest.
    assert np.bincount(photo.astype(int)).min() > 400
    assert np.bincount(photo.astype(int)).max() < 0.2 * len(photo)
    assert train.pairs.matching.sum() == 5000


def test_held_out_pairs_are_real_and_neither_trivial_nor_hopeless(held_out):
    patches, pairs = held_out, held_out.pairs
    assert pairs.matching.sum() > 1500
    assert (~pairs.matching).sum() == 20_000
    same = patches.point_ids[pairs.first] == patches.point_ids[pairs.second]
    np.testing.assert_array_equal(same, pairs.matching)
    # One patch from each photograph of the pair.
    side = read_interest(patches.folder, patch_count=len(patches.patches))[:, 0]
    assert (side[pairs.first] != side[pairs.second])[pairs.matching].all()
    assert 0.02 < false_positive_rate(rootsift(patches.patches), pairs) < 0.1
    pixels = patches.patches.reshape(len(patches.patches), -1).astype(np.float32)
    pixels -= pixels.mean(axis=1, keepdims=True)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    assert 0.1 < false_positive_rate(pixels, pairs) < 0.3


def assert_same(got, expected):
    np.testing.assert_array_equal(got.patches, expected.patches)
    np.testing.assert_array_equal(got.pairs, expected.pairs)


def test_the_cache_is_read_for_the_same_settings_only(cache, held_out):
    before = (held_out.folder / "info.txt").stat()
    again = embedded_test(cache_dir=cache, progress=False)
    after = (again.folder / "info.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert_same(again, held_out)
    stricter = embedded_test(cache_dir=cache, progress=False, tolerances=Tolerances())
    assert len(stricter.patches) < len(held_out.patches)


def test_an_interrupted_cut_leaves_nothing_and_is_repeated(tmp_path, held_out, monkeypatch):
    monkeypatch.setattr("numpy.savetxt", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        embedded_test(cache_dir=tmp_path, progress=False)
    monkeypatch.undo()
    assert list((tmp_path / "embedded").iterdir()) == []
    assert_same(embedded_test(cache_dir=tmp_path, progress=False), held_out)


@pytest.mark.parametrize("name", ["patches0003.bmp", "info.txt"])
def test_a_damaged_set_is_cut_again(tmp_path, cache, held_out, name):
    shutil.copytree(cache / "embedded", tmp_path / "embedded")
    path = tmp_path / "embedded" / held_out.folder.name / name
    path.write_bytes(path.read_bytes()[:100])
    assert_same(embedded_test(cache_dir=tmp_path, progress=False), held_out)


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    options = {"cache_dir": tmp_path / "file", "progress": False}
    assert_refused(r"cannot write to the cache folder .*KJAX_CACHE", embedded_test, **options)


@pytest.mark.parametrize(
    ("load", "module"),
    [(embedded_train, "skimage"), (embedded_test, "skimage"), (embedded_test, "cv2")],
)
def test_a_missing_package_is_named(monkeypatch, tmp_path, load, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert_refused(r": pip install 'kjax\[photos\]'", load, cache_dir=tmp_path, progress=False)


def test_hidden_outside_and_unknown_pixels_are_not_visible():
    far, near = 2.0, 6.0
    disparity = np.full((1, 20), far)
    disparity[0, 10:13] = near  # lands on 4, 5 and 6, where the far pixels 6, 7 and 8 would
    disparity[0, 15:17] = np.inf, np.nan
    hidden = np.flatnonzero(~visible_in_right(disparity)[0])
    assert hidden.tolist() == [0, 1, 6, 7, 8, 15, 16]


def test_a_shifted_photograph_is_cut_at_the_same_places(rng):
    texture = cv2.GaussianBlur(rng.normal(size=(200, 300)), (0, 0), 3)
    texture = np.clip(128 + 50 * texture / texture.std(), 0, 255).astype(np.uint8)
    left, right = texture[:, :280], texture[:, 20:]  # right[x - 20] is left[x]
    disparity = np.full(left.shape, 20.0)
    disparity[:, 200:] = np.inf
    cut = cut_stereo(left, right, disparity, tolerances=Tolerances(0.1, 0.05, 2.0))
    places = cut.interest.reshape(-1, 2, 5)
    assert len(places) > 100
    np.testing.assert_allclose(places[:, 0, 1] - places[:, 1, 1], 20, atol=0.3)
    np.testing.assert_allclose(places[:, 0, 2], places[:, 1, 2], atol=0.3)
    assert places[:, 0, 1].max() < 200
    inner = (places[:, 0, 1] > 60) & (places[:, 0, 1] < 200)
    pairs = cut.patches.reshape(-1, 2, 64, 64)[inner].astype(float)
    assert np.abs(pairs[:, 0] - pairs[:, 1]).mean() < 2
