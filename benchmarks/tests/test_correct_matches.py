"""Sequences with known homographies, counting correct matches, and describing keypoints."""

import json

import keypoint_descriptors
import numpy as np
import pytest
from homography_sequences import find_sequences, read_homography
from keypoint_descriptors import load_keypoint_descriptors, sift_octaves
from PIL import Image
from scripts import BENCHMARKS, load_script

from kjax.data.cutting.keypoints import detect
from kjax.errors import InputError
from kjax.images.features import Matches
from kjax.images.geometry import Count, count_correct, one_per_location, project

cv2 = pytest.importorskip("cv2")
skimage_data = pytest.importorskip("skimage.data")

SHIFT = np.array([[1.0, 0, 10], [0, 1, -5], [0, 0, 1]])


def homography(number):
    """A turn, a shrinking and a little perspective, more of each as the number grows."""
    angle, scale = 0.08 * number, 1 - 0.04 * number
    c, s = scale * np.cos(angle), scale * np.sin(angle)
    return np.array([[c, -s, 12.0 * number], [s, c, 4], [2e-4, -1e-4 * number, 1]])


def write_matrix(path, matrix):
    if path.suffix != ".xml":
        return np.savetxt(path, matrix)
    numbers = " ".join(map(str, matrix.ravel()))
    return path.write_text(
        '<?xml version="1.0"?>\n<opencv_storage>\n<H12 type_id="opencv-matrix">\n<rows>3</rows>\n'
        f"<cols>3</cols>\n<dt>d</dt>\n<data>\n{numbers}</data></H12>\n</opencv_storage>\n"
    )


@pytest.fixture(scope="module")
def photograph():
    return skimage_data.camera()[100:340, 100:400]


def write_sequence(folder, photograph, *, photo="img{}.png", matrix="H1to{}p"):
    folder.mkdir()
    Image.fromarray(photograph).save(folder / photo.format(1))
    for number in range(2, 7):
        H = homography(number - 1)
        warped = cv2.warpPerspective(photograph, H, photograph.shape[::-1])
        Image.fromarray(warped).save(folder / photo.format(number))
        write_matrix(folder / matrix.format(number), H)
    return folder


def hand_made(indices, distances=None):
    count = len(indices)
    values = np.arange(count) if distances is None else distances
    return Matches(
        np.array(indices, np.int32).reshape(-1, 2),
        np.asarray(values, np.float32),
        np.zeros(count, np.float32),
    )


# Files


@pytest.mark.parametrize(
    ("photo", "matrix"),
    [("img{}.png", "H1to{}p.xml"), ("img{}.ppm", "H1to{}p"), ("{}.ppm", "H_1_{}")],
)
def test_layouts(tmp_path, photograph, photo, matrix):
    folder = write_sequence(tmp_path / "wall", photograph, photo=photo, matrix=matrix)
    for asked in (folder, tmp_path):
        (sequence,) = find_sequences([asked])
        assert sequence.name == "wall"
        assert [path.name for path in sequence.photos] == [photo.format(n) for n in range(1, 7)]
        expected = [homography(number) for number in range(1, 6)]
        np.testing.assert_allclose(sequence.homographies, expected, rtol=1e-12)


def test_what_is_no_sequence_is_refused(tmp_path, photograph):
    with pytest.raises(InputError, match="no such folder"):
        find_sequences([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="img1"):
        find_sequences([tmp_path])
    folder = write_sequence(tmp_path / "wall", photograph)
    with pytest.raises(InputError, match="called wall"):
        find_sequences([folder, tmp_path])
    (folder / "H1to3p").write_text("1 0 0 0 1 0 0 0")
    with pytest.raises(InputError, match=r"H1to3p .* nine numbers"):
        find_sequences([folder])
    (folder / "H1to3p").write_text("1 0 0 1 0 0 0 0 1")
    with pytest.raises(InputError, match="no inverse"):
        read_homography(folder / "H1to3p")
    (folder / "H1to3p").unlink()
    with pytest.raises(InputError, match="lacks the homography H1to3p"):
        find_sequences([folder])
    (folder / "img4.png").unlink()
    with pytest.raises(InputError, match="lacks photograph 4"):
        find_sequences([folder])


# Counting


def test_projection():
    points = np.array([[0.0, 0], [3, 4]])
    np.testing.assert_allclose(project(2 * SHIFT, points), [[10, -5], [13, -1]])
    tilted = np.array([[1.0, 0, 0], [0, 1, 0], [-0.5, 0, 1]])
    moved = project(tilted, np.array([[1.0, 1], [4, 1]]))
    np.testing.assert_allclose(moved[0], [2, 2])
    assert np.isnan(moved[1]).all(), "the point lies behind"
    np.testing.assert_allclose(project(-tilted, np.array([[1.0, 1]])), [[2, 2]])


def test_a_match_is_correct_within_the_threshold_of_the_second_photograph():
    a = np.array([[0, 0], [20, 0], [40, 0], [60, 0]], np.float32)
    errors = np.array([[0, 0], [3, 0], [0, 3.01], [30, 0]], np.float32)
    b = (project(SHIFT, a) + errors).astype(np.float32)
    matches = hand_made([(n, n) for n in range(4)])
    assert count_correct(matches, a, b, SHIFT, threshold=3.0) == Count(2, 4)
    assert count_correct(matches, a, b, SHIFT, threshold=3.1) == Count(3, 4)
    assert count_correct(matches, a, b, np.linalg.inv(SHIFT), threshold=3.0).correct == 0
    assert Count(3, 4).precision == 0.75


def test_no_matches():
    nothing = count_correct(hand_made([]), np.empty((0, 2)), np.empty((0, 2)), SHIFT, threshold=3.0)
    assert nothing == Count(0, 0)
    assert nothing.precision == 0


def test_a_location_counts_once():
    """Keypoints 0 and 1 of either photograph are one point with two orientations."""
    a = np.array([[5, 5], [5, 5], [50, 5]], np.float32)
    b = (project(SHIFT, a)).astype(np.float32)
    both = hand_made([(0, 0), (1, 1), (2, 2)], [0.3, 0.2, 0.1])
    assert one_per_location(both, a, b).tolist() == [False, True, True]
    assert count_correct(both, a, b, SHIFT, threshold=3.0) == Count(2, 2)
    # The nearer match of the location is the wrong one: the truth does not choose.
    wrong = hand_made([(0, 0), (1, 2)], [0.3, 0.2])
    assert count_correct(wrong, a, b, SHIFT, threshold=3.0) == Count(0, 1)
    # Two locations of the first photograph with one of the second.
    shared = hand_made([(2, 0), (0, 1)], [0.1, 0.2])
    assert one_per_location(shared, a, b).tolist() == [True, False]


# Descriptors


def test_rootsift_is_opencvs_own(photograph):
    """The octaves that keypoints lost are found again: all descriptors are the same."""
    sift = cv2.SIFT_create(enable_precise_upscale=True)
    found, expected = sift.detectAndCompute(photograph, None)
    keypoints = detect(photograph)
    order = np.argsort([-point.response for point in found], kind="stable")
    mask = 0xFFFF  # the third byte is a fraction that no one reads
    octaves = np.array([found[n].octave & mask for n in order])
    np.testing.assert_array_equal(sift_octaves(keypoints.scales), octaves)
    loaded = load_keypoint_descriptors(["sift", "rootsift"])
    np.testing.assert_array_equal(loaded["sift"].describe(photograph, keypoints), expected[order])
    turned = keypoints._replace(angles=keypoints.angles - np.float32(360))
    described = loaded["sift"].describe(photograph, turned)
    assert np.abs(described - expected[order]).max() <= 2, "rounding alone"
    rooted = loaded["rootsift"].describe(photograph, keypoints)
    np.testing.assert_allclose(np.linalg.norm(rooted, axis=1), 1, atol=1e-5)
    assert loaded["sift"].describe(photograph, keypoints.keep(np.zeros(0, int))).shape == (0, 128)


def test_sizes_beyond_sifts_have_an_octave():
    tiny, huge = sift_octaves(np.array([1e-3, 3.2 * 2**5], np.float32))
    assert (tiny & 255, tiny >> 8) == (255, 0)
    assert (huge & 255, huge >> 8) == (4, 3)


class Recorder:
    """Stands in for a rival and for one of our describers, and keeps what it is given."""

    name, distance = "Recorder", "L1"

    def describe(self, patches):
        self.patches = patches
        return np.zeros((len(patches), 2), np.float32)

    def describe_image(self, image, keypoints):
        self.descriptors = np.zeros((len(keypoints.xy) - self.lost, 2), np.float32)
        return self

    lost = 0


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(keypoint_descriptors, "load_baseline", lambda word, weights: made)
    monkeypatch.setattr(keypoint_descriptors, "load", lambda word, seed: made)
    return made


def test_extent_is_the_side_of_a_patch_over_the_size(photograph, recorder):
    keypoints = detect(photograph, max_keypoints=8)
    twice = keypoints._replace(scales=2 * keypoints.scales)
    wide = load_keypoint_descriptors(["orb", "out/run"], extent=24.0)
    usual = load_keypoint_descriptors(["orb", "out/run"])
    wide["orb"].describe(photograph, keypoints)
    of_rival = recorder.patches
    usual["orb"].describe(photograph, twice)
    np.testing.assert_array_equal(of_rival, recorder.patches)
    assert of_rival.dtype == np.uint8
    assert (usual["orb"].distance, usual["out/run"].distance) == ("Hamming", "L2")
    assert recorder.extent == 24.0
    recorder.lost = 1
    with pytest.raises(InputError, match="1 keypoints lie outside"):
        usual["out/run"].describe(photograph, keypoints)


def test_descriptors_that_cannot_be_had_are_refused():
    with pytest.raises(InputError, match="extent is 0"):
        load_keypoint_descriptors(["sift"], extent=0.0)
    with pytest.raises(InputError, match="RIVAL=FILE, not 'tfeat'"):
        load_keypoint_descriptors(["sift"], weights=["tfeat"])
    with pytest.raises(InputError, match="tfeat: weights are missing"):
        load_keypoint_descriptors(["tfeat"])


# The command


@pytest.fixture(scope="module")
def benchmark_main():
    return load_script(BENCHMARKS / "correct_matches.py").main


def test_command(tmp_path, photograph, benchmark_main, capsys):
    write_sequence(tmp_path / "wall", photograph)
    out = tmp_path / "matches.json"
    words = ["--descriptors", "sift", "--max-keypoints", "150", "--quiet", "--out", str(out)]
    assert benchmark_main([str(tmp_path), *words]) == 0
    printed = capsys.readouterr().out
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["settings"]["max_keypoints"] == 150
    pairs = found["sequences"]["wall"]
    assert set(pairs) == {"rootsift", "sift"}
    for word, counts in pairs.items():
        assert len(counts) == 5, word
        assert all(count["correct"] <= count["matches"] <= 150 for count in counts)
        assert counts[0]["correct"] > 0.6 * counts[0]["matches"] > 40
        correct = sum(count["correct"] for count in counts)
        assert f"{correct:,} (" in printed
    assert "| sequences with at least RootSIFT's |  | " in printed
    assert benchmark_main([str(tmp_path / "no"), *words]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "1 0 0 0 1 0 0 0 nan",
        "1e300 0 0 0 1e300 0 0 0 1e300",
        "1 " * 200_000,
        "<a>" * 5000,
        "<!DOCTYPE x [<!ENTITY a 'aaaa'>]><x><data>&a;</data></x>",
        "9" * 5000 + " 0 0 0 1 0 0 0 1",
    ],
)
def test_homographies_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "H").write_text(text)
    with pytest.raises(InputError, match="is no homography"):
        read_homography(tmp_path / "H")
