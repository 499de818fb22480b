"""Patches out of photographs: geometry, anti-aliasing, detection."""

import sys

import cv2
import numpy as np
import pytest
from scripts import load_script

from kjax.data.cutting import Keypoints, cut_patches, detect_sift, list_photos, read_grey
from kjax.errors import InputError


def keypoint(x, y, sigma, angle):
    return Keypoints(np.array([[x, y]]), np.array([sigma]), np.array([angle]))


@pytest.fixture
def ramp():
    """A photograph whose grey value tells the place: 20 + x/2 + y/4."""
    rows, columns = np.mgrid[:240, :320]
    return (20 + columns / 2 + rows / 4).astype(np.uint8)


def test_a_patch_looks_where_the_geometry_says(ramp):
    x, y, sigma, angle = 150.25, 101.5, 2.0, 0.6
    (patch,) = cut_patches(ramp, keypoint(x, y, sigma, angle))
    step = 24 * sigma / 64
    v, u = np.mgrid[:64, :64] - 31.5
    at_x = x + step * (np.cos(angle) * u - np.sin(angle) * v)
    at_y = y + step * (np.sin(angle) * u + np.cos(angle) * v)
    # The photograph was cut off to whole grey values (½ on average), the patch rounded.
    error = patch - (20 + at_x / 2 + at_y / 4)
    np.testing.assert_allclose(error.mean(), -0.375, atol=0.05)
    assert np.abs(error + 0.375).max() < 1.2


def test_an_upright_patch_at_step_one_is_a_crop(rng):
    photo = rng.integers(0, 256, (200, 200), dtype=np.uint8)
    (patch,) = cut_patches(photo, keypoint(100.5, 90.5, 64 / 24, 0.0))
    np.testing.assert_array_equal(patch, photo[59:123, 69:133])


def test_beyond_the_border_the_photograph_is_mirrored(rng):
    photo = rng.integers(0, 256, (200, 200), dtype=np.uint8)
    (patch,) = cut_patches(photo, keypoint(1.5, 90.5, 64 / 24, 0.0))
    mirrored = np.pad(photo, 40, mode="reflect")
    np.testing.assert_array_equal(patch, mirrored[99:163, 10:74])


def test_large_patches_are_low_passed(rng):
    photo = rng.integers(0, 256, (800, 800), dtype=np.uint8)
    (fine,) = cut_patches(photo, keypoint(400.5, 400.5, 64 / 24, 0.0))
    (between,) = cut_patches(photo, keypoint(400.5, 400.5, 2 ** (2 / 3) * 64 / 24, 0.0))
    (coarse,) = cut_patches(photo, keypoint(400.5, 400.5, 8 * 64 / 24, 0.0))
    # Noise averaged over about 8×8 pixels; picking every eighth pixel would leave it as it was.
    assert fine.std() > 65
    assert between.std() < 35  # 50 without the levels between octaves
    assert coarse.std() < 15


def test_equals_the_reference_cutting_script(shared_data):
    script = load_script(shared_data / "cut_phototour.py")
    photo = read_grey(shared_data / "photos" / "fountain" / "003.jpg")
    found = detect_sift(photo)[0].take(np.arange(0, 1500, 5))
    pyramid = script.Pyramid(photo)
    theirs = [
        script.cut(pyramid, x, y, sigma, angle, 64, 24)
        for (x, y), sigma, angle in zip(*(column.tolist() for column in found), strict=True)
    ]
    np.testing.assert_array_equal(cut_patches(photo, found), theirs)


def test_detected_keypoints_lie_on_what_they_detect():
    blobs = np.zeros((160, 200), np.float32)
    centres = [(60.0, 50.0), (130.5, 90.25)]
    rows, columns = np.mgrid[:160, :200]
    for x, y in centres:
        blobs += 200 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 6.0**2))
    found, response = detect_sift(np.rint(blobs).astype(np.uint8), contrast=0.02)
    assert (np.diff(response) <= 0).all()
    for centre in centres:
        distance = np.linalg.norm(found.xy - centre, axis=1)
        assert distance.min() < 0.1
        # A Gaussian blob is found at the scale at which DoG answers most strongly: its own.
        assert 5 < found.sigma[distance.argmin()] < 7


def test_a_blank_photograph_has_no_keypoints():
    found, response = detect_sift(np.full((100, 100), 128, np.uint8))
    assert found.xy.shape == (0, 2)
    assert len(response) == 0
    assert cut_patches(np.zeros((9, 9), np.uint8), found).shape == (0, 64, 64)


def test_photographs_are_listed_by_name_and_read_in_grey(tmp_path, rng):
    (tmp_path / "b").mkdir()
    pixels = rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)
    for name in ("ü.PNG", "b/a.png", "a.png"):
        cv2.imencode(".png", pixels)[1].tofile(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no photograph")
    names = [path.relative_to(tmp_path).as_posix() for path in list_photos(tmp_path)]
    assert names == ["a.png", "b/a.png", "ü.PNG"]
    grey = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    np.testing.assert_allclose(read_grey(tmp_path / "ü.PNG"), grey, atol=1)


def test_what_is_no_photograph_reads_as_none(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no pixels here")
    for name in ("empty.png", "text.png", "missing.png"):
        assert read_grey(tmp_path / name) is None


def test_a_folder_without_photographs_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no photographs"):
        list_photos(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        list_photos(tmp_path / "nowhere")


def test_without_opencv_the_error_says_what_to_install(monkeypatch, ramp):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(InputError, match="pip install opencv-contrib-python-headless"):
        cut_patches(ramp, keypoint(100.0, 100.0, 2.0, 0.0))
