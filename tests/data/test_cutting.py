"""Patches out of photographs: geometry, anti-aliasing, detection."""

import sys

import cv2
import numpy as np
import pytest
import skimage.data
from refusals import assert_refused
from scripts import load_script

from kjax.data.cutting import keypoints
from kjax.data.cutting.keypoints import SIFT, STEADY, Keypoints, detect_in_grey, find_in_grey
from kjax.data.cutting.patches import cut_patches
from kjax.data.cutting.photographs import list_photos, read_grey_or_none, read_photograph
from kjax.files import images
from kjax.images.extract import extract_patches


def keypoint(x, y, sigma, angle):
    return Keypoints.of_sigma(np.array([[x, y]]), np.array([sigma]), np.array([angle]))


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


@pytest.mark.parametrize("x", [100, 1])
def test_an_upright_patch_at_step_one_is_a_crop_that_repeats_the_border(rng, x):
    photo = rng.integers(0, 256, (200, 200), dtype=np.uint8)
    (patch,) = cut_patches(photo, keypoint(x + 0.5, 90.5, 64 / 24, 0.0))
    repeated = np.pad(photo, 40, mode="edge")
    np.testing.assert_array_equal(patch, repeated[99:163, x + 9 : x + 73])


def test_large_patches_are_low_passed(rng):
    photo = rng.integers(0, 256, (800, 800), dtype=np.uint8)
    sizes = (1, 2 ** (2 / 3), 8)
    points = [keypoint(400.5, 400.5, size * 64 / 24, 0.0) for size in sizes]
    fine, between, coarse = cut_patches(photo, Keypoints.join(points)).std(axis=(1, 2))
    assert fine > 65
    assert between < 35  # 50 without the levels between octaves
    assert coarse < 15  # picking every eighth pixel would leave it as it was


def sees_no_border(keypoints, shape):
    """Whether a patch, and what is blurred into it, lies within the photograph.

    A level's pixels lie at most 2^½ t apart. The low pass of every octave reaches 2 of its finer
    one's pixels, all of them together fewer than 2 of the last one's; the Gaussian 2, since it ends
    at 3σ < 2; bilinear sampling 1.
    """
    step = np.maximum(24 * keypoints.sigma / 64, 1)
    reach = (np.abs(np.cos(keypoints.radians)) + np.abs(np.sin(keypoints.radians))) * 32 * step
    reach += 5 * np.sqrt(2) * step
    last = np.array(shape[::-1]) - 1
    inside = (keypoints.xy >= reach[:, None]) & (keypoints.xy <= last - reach[:, None])
    return inside.all(axis=1)


def test_equals_the_reference_cutting_script(shared_data):
    """But beyond the border, which the script mirrors."""
    script = load_script(shared_data / "cut_phototour.py")
    photo = read_grey_or_none(shared_data / "photos" / "fountain" / "003.jpg")
    found = detect_in_grey(photo).keep(np.arange(0, 1500, 5))
    inside = sees_no_border(found, photo.shape)
    assert inside.sum() > 250
    pyramid = script.Pyramid(photo)
    rows = np.column_stack([found.xy, found.sigma, found.radians]).tolist()
    theirs = [script.cut(pyramid, *row, 64, 24) for row in rows]
    ours = cut_patches(photo, found)
    np.testing.assert_array_equal(ours[inside], np.array(theirs)[inside])
    assert (ours != theirs).any()  # so that the border was not left out in vain


@pytest.mark.parametrize("inside", [True, False])
def test_training_and_use_cut_the_same_patches(shared_data, inside):
    photo = read_grey_or_none(shared_data / "photos" / "fountain" / "003.jpg")[300:600, 500:900]
    found = detect_in_grey(photo)
    found = found.keep(np.flatnonzero(sees_no_border(found, photo.shape) == inside)[:100])
    assert len(found.xy) == 100
    xy, scales, angles, _ = found
    used, valid = extract_patches(photo, xy, scales, angles, size=64)
    assert valid.all()
    # OpenCV rounds positions to 1/32 of a pixel, and every low pass and the patch to whole greys.
    slope = max(np.abs(np.diff(photo.astype(int), axis=axis)).max() for axis in (0, 1))
    octaves = np.log2(max(photo.shape) / 64)
    np.testing.assert_allclose(used, cut_patches(photo, found), atol=slope / 32 + (octaves + 2) / 2)


def test_detected_keypoints_lie_on_what_they_detect():
    blobs = np.zeros((160, 200), np.float32)
    centres = [(60.0, 50.0), (130.5, 90.25)]
    rows, columns = np.mgrid[:160, :200]
    for x, y in centres:
        blobs += 200 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 6.0**2))
    found = detect_in_grey(np.rint(blobs).astype(np.uint8), max_keypoints=None, contrast=0.02)
    assert (np.diff(found.scores) <= 0).all()
    for centre in centres:
        distance = np.linalg.norm(found.xy - centre, axis=1)
        assert distance.min() < 0.1
        # A Gaussian blob is found at the scale at which DoG answers most strongly: its own.
        assert 5 < found.sigma[distance.argmin()] < 7


def test_photographs_are_listed_by_name_and_read_in_grey(tmp_path, rng, monkeypatch):
    pixels = rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)
    hidden = (".thumbnails/a.png", "._a.png", "__MACOSX/a.png")
    for name in ("ü.PNG", "b/a.png", "a.png", *hidden):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imencode(".png", pixels)[1].tofile(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no photograph")
    (tmp_path / "c.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    names = [path.relative_to(tmp_path).as_posix() for path in list_photos(tmp_path)]
    assert names == ["a.png", "b/a.png", "c.HEIC", "ü.PNG"]
    monkeypatch.setattr(images, "FORMATS", ("PNG",))  # without pillow-heif
    assert_refused(r"c\.HEIC: pip install 'kjax\[heic\]'", read_photograph, tmp_path / "c.HEIC")
    grey = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    np.testing.assert_allclose(read_grey_or_none(tmp_path / "ü.PNG"), grey, atol=1)


def test_files_and_folders_without_photographs(tmp_path):
    assert_refused("holds no photographs", list_photos, tmp_path)
    assert_refused("no such folder", list_photos, tmp_path / "nowhere")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no pixels here")
    for name in ("empty.png", "text.png", "missing.png"):
        assert read_grey_or_none(tmp_path / name) is None


def test_without_opencv_the_error_says_what_to_install(monkeypatch, ramp):
    monkeypatch.setitem(sys.modules, "cv2", None)
    point = keypoint(100.0, 100.0, 2.0, 0.0)
    assert_refused(r"pip install 'kjax\[photos\]'", cut_patches, ramp, point)


def test_keypoints_are_chosen_by_contrast_or_by_size_or_both():
    photo = skimage.data.camera()
    every = detect_in_grey(photo, max_keypoints=None, contrast=0.02)
    for detector, rank in {SIFT: every.scores, keypoints.LARGEST: every.scales}.items():
        few = detect_in_grey(photo, max_keypoints=20, detector=detector)
        best = every.keep(np.argsort(-rank, kind="stable")[:20])
        np.testing.assert_array_equal(np.sort(few.scales), np.sort(best.scales), detector)
    assert len(every.xy) > len(detect_in_grey(photo, max_keypoints=None).xy)
    every = detect_in_grey(photo, max_keypoints=None, contrast=0.01)
    # Steady ones are chosen by both, and have a place once.
    order = np.argsort(-every.scores * every.scales**2, kind="stable")
    places = list(dict.fromkeys(map(tuple, every.xy[order].tolist())))
    assert len(places) < len(every.xy), "no place has two orientations"
    steady = detect_in_grey(photo, max_keypoints=20, detector=STEADY)
    assert list(map(tuple, steady.xy.tolist())) == places[:20]
    # So do upright ones of any kind. The limit is on places.
    for detector, rank in {SIFT: every.scores, STEADY: every.scores * every.scales**2}.items():
        order = np.argsort(-rank, kind="stable")
        places = list(dict.fromkeys(map(tuple, every.xy[order].tolist())))
        found = detect_in_grey(photo, max_keypoints=300, detector=detector, upright=True)
        assert sorted(map(tuple, found.xy.tolist())) == sorted(places[:300]), detector
        assert (found.angles == -1).all()
    places = dict.fromkeys(map(tuple, every.xy.tolist()))
    assert list(map(tuple, every.upright().xy.tolist())) == list(places)
    # The strongest orientation of a place turns with the photo; the first does for 0.90 of them.
    here = detect_in_grey(photo, max_keypoints=500, detector=STEADY)
    for turns in (1, 2):
        turned = np.ascontiguousarray(np.rot90(photo, turns))
        there = detect_in_grey(turned.astype("f4"), max_keypoints=500, detector=STEADY)
        a, b = (points.xy @ [1, 1j] - 255.5 * (1 + 1j) for points in (here, there))
        apart = np.abs(a[:, None] - b * 1j**turns)
        off = (there.angles[apart.argmin(axis=1)] - here.angles + 90 * turns)[apart.min(axis=1) < 1]
        assert len(off) > 400
        assert (np.cos(np.deg2rad(off)) > 0.9).mean() > 0.96


def test_bands_have_the_keypoints_of_the_whole_photograph(monkeypatch):
    """In the finest octave; the others come from a smaller copy, and may be enough."""
    photo = np.tile(skimage.data.camera(), (3, 1))
    mask = np.arange(512)[None] < np.full((len(photo), 1), 400)

    def found():
        points = find_in_grey(photo, mask=mask, max_keypoints=None, contrast=0.02)
        rows = [(*one.pt, one.size, one.angle, keypoints._octave(one)) for one in points]
        return np.array(sorted(rows, key=lambda row: row[2:]))

    whole = found()
    monkeypatch.setattr(keypoints, "SIFT_PIXELS", 300_000)  # three bands
    bands = found()
    fine, same = (rows[rows[:, 4] < 0] for rows in (whole, bands))
    assert len(fine) > 1500
    np.testing.assert_allclose(same[np.lexsort(same.T)], fine[np.lexsort(fine.T)], atol=1e-3)
    coarse, near = (rows[rows[:, 4] >= 0] for rows in (whole, bands))
    distances = np.linalg.norm(coarse[:, None, :2] - near[None, :, :2], axis=-1).min(axis=1)
    assert len(coarse) > 400
    assert np.median(distances) < 0.2
    steady = find_in_grey(photo, mask=mask, max_keypoints=100, detector=STEADY)
    assert len(steady) == 100
    assert min(keypoints._octave(one) for one in steady) >= 0
