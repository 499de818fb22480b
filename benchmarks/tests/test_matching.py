"""Sequences with known homographies, descriptors of keypoints, and the programs that use them."""

import json
import re

import correct_matches
import gallery
import hard
import keypoint_descriptors
import numpy as np
import pytest
import scipy.io
from homography_sequences import find_sequences, read_homography
from keypoint_descriptors import load_keypoint_descriptors
from PIL import Image

from kjax.data.cutting.keypoints import detect
from kjax.errors import InputError
from kjax.images.sift import sift_octaves

cv2 = pytest.importorskip("cv2")
skimage_data = pytest.importorskip("skimage.data")


def homography(number):
    """A rotation, a scale and a little perspective, which grow with the number."""
    angle, scale = 0.08 * number, 1 - 0.04 * number
    c, s = scale * np.cos(angle), scale * np.sin(angle)
    return np.array([[c, -s, 12.0 * number], [s, c, 4], [2e-4, -1e-4 * number, 1]])


@pytest.fixture(scope="module")
def photo():
    return skimage_data.camera()[100:340, 100:400]


def write_sequence(folder, photo, *, name="img{}.png", matrix="H1to{}p"):
    folder.mkdir()
    Image.fromarray(photo).save(folder / name.format(1))
    for number in range(2, 7):
        H = homography(number - 1)
        warped = cv2.warpPerspective(photo, H, photo.shape[::-1])
        Image.fromarray(warped).save(folder / name.format(number))
        path = folder / matrix.format(number)
        np.savetxt(path, H)
        if path.suffix == ".xml":
            text = f"<H><data>{path.read_text()}</data></H>"
            path.write_text(f"<opencv_storage>{text}</opencv_storage>")
    return folder


@pytest.mark.parametrize(
    ("name", "matrix"),
    [("img{}.png", "H1to{}p.xml"), ("img{}.ppm", "H1to{}p"), ("{}.ppm", "H_1_{}")],
)
def test_layouts(tmp_path, photo, name, matrix):
    folder = write_sequence(tmp_path / "wall", photo, name=name, matrix=matrix)
    for given in (folder, tmp_path):
        (sequence,) = find_sequences([given])
        assert sequence.name == "wall"
        assert [path.name for path in sequence.photos] == [name.format(n) for n in range(1, 7)]
        expected = [homography(number) for number in range(1, 6)]
        np.testing.assert_allclose(sequence.homographies, expected, rtol=1e-12)


def test_incomplete_sequences_are_refused(tmp_path, photo):
    for given, message in ((tmp_path / "nowhere", "no such folder"), (tmp_path, "img1")):
        with pytest.raises(InputError, match=message):
            find_sequences([given])
    folder = write_sequence(tmp_path / "wall", photo)
    with pytest.raises(InputError, match="called wall"):
        find_sequences([folder, tmp_path])
    for file, message in (("H1to3p", "lacks the homography H1to3p"), ("img4.png", "lacks photo 4")):
        (folder / file).unlink()
        with pytest.raises(InputError, match=message):
            find_sequences([folder])


@pytest.mark.parametrize(
    "text",
    ["1 0 0 0 1 0 0 0", "1 0 0 1 0 0 0 0 1", "1 0 0 0 1 0 0 0 nan", "<a>" * 5000, "9" * 5000],
)
def test_damaged_homographies_are_refused(tmp_path, text):
    (tmp_path / "H").write_text(text)
    with pytest.raises(InputError, match="is not a homography"):
        read_homography(tmp_path / "H")


def test_rootsift_is_opencvs_own(photo):
    """Octaves are recovered from sizes, so all descriptors are the same."""
    sift = cv2.SIFT_create(enable_precise_upscale=True)
    found, expected = sift.detectAndCompute(photo, None)
    keypoints = detect(photo)
    order = np.argsort([-point.response for point in found], kind="stable")
    octaves = np.array([found[n].octave & 0xFFFF for n in order])  # the third byte is not used
    np.testing.assert_array_equal(sift_octaves(keypoints.scales), octaves)
    loaded = load_keypoint_descriptors(["sift", "rootsift"])
    np.testing.assert_array_equal(loaded["sift"].describe(photo, keypoints), expected[order])
    turned = keypoints._replace(angles=keypoints.angles - np.float32(360))
    described = loaded["sift"].describe(photo, turned)
    assert np.abs(described - expected[order]).max() <= 2, "rounding"
    rooted = loaded["rootsift"].describe(photo, keypoints)
    np.testing.assert_allclose(np.linalg.norm(rooted, axis=1), 1, atol=1e-5)
    assert loaded["sift"].describe(photo, keypoints.keep(np.zeros(0, int))).shape == (0, 128)


class Recorder:
    """Stands in for a baseline and for a describer, and keeps its input."""

    name, distance, lost = "Recorder", "L1", 0

    def describe(self, patches):
        self.patches = patches
        return np.zeros((len(patches), 2), np.float32)

    def describe_image(self, image, keypoints):
        self.descriptors = np.zeros((len(keypoints.xy) - self.lost, 2), np.float32)
        return self


def test_extent_is_the_patch_side_over_the_size(photo, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(keypoint_descriptors, "load_baseline", lambda name: recorder)
    monkeypatch.setattr(keypoint_descriptors, "load", lambda name: recorder)
    keypoints = detect(photo, max_keypoints=8)
    twice = keypoints._replace(scales=2 * keypoints.scales)
    wide = load_keypoint_descriptors(["orb", "out/run"], extent=24.0)
    usual = load_keypoint_descriptors(["orb", "out/run"])
    wide["orb"].describe(photo, keypoints)
    patches = recorder.patches
    usual["orb"].describe(photo, twice)
    np.testing.assert_array_equal(patches, recorder.patches)
    assert (usual["orb"].distance, usual["out/run"].distance) == ("Hamming", "L2")
    assert recorder.extent == 24.0
    recorder.lost = 1
    with pytest.raises(InputError, match="1 keypoints lie outside"):
        usual["out/run"].describe(photo, keypoints)


def test_correct_matches(tmp_path, photo, capsys):
    write_sequence(tmp_path / "wall", photo)
    options = ["--descriptors", "sift", "--max-keypoints", "150", "--quiet"]
    assert correct_matches.main([str(tmp_path), *options]) == 0
    *_, wall, overall, wins = capsys.readouterr().out.splitlines()
    for cell in wall.split(" | ")[1:]:
        correct, precision = (float(text) for text in re.findall(r"[\d.]+", cell))
        assert 60 < correct <= 5 * 150
        assert 20 < precision <= 100
    assert overall.split(" | ")[1:] == wall.split(" | ")[1:]
    assert " of 1 |" in wins
    assert correct_matches.main([str(tmp_path / "no"), *options]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_hard_pairs(tmp_path, photo, capsys):
    """A photo, and itself 8 px aside with other contrast, in both forms."""
    points = np.argwhere(np.ones((5, 6)))[:, ::-1] * 36.0 + 41
    moved = (255 * (photo[:-4, 8:] / 255.0) ** 0.7).astype(np.uint8)
    for name in ("moved", "other"):  # one of each half
        landmarks = {"LMfix": points, "LMmov": points - [8, 0]}
        pair = {"I_fix": photo, "I_move": moved, "Landmarks": landmarks}
        scipy.io.savemat(tmp_path / f"{name}.mat", pair)
    for folder, image in (("1", photo), ("2", moved)):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / "x.png"), cv2.resize(image, None, fx=4, fy=4))
    (tmp_path / "h").mkdir()
    np.savetxt(tmp_path / "h" / "x.txt", -2 * np.array([[1, 0, -32.0], [0, 1, 0], [0, 0, 1]]))
    results = tmp_path / "hard.jsonl"
    options = ["rootsift", "tiny:aside", "--keypoints", "300", "--results", str(results)]
    assert hard.main([*options, "--labelled", str(tmp_path), "--evd", str(tmp_path)]) == 0
    assert "| rootsift:upright | " in capsys.readouterr().out
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert [one["set"] for one in records] == ["develop"] * 5 + ["evd"] * 3
    rank, _, matched, _, aside, _, plane, _ = (one["pairs"][0] for one in records)
    assert rank["name"] == "moved"
    assert rank["ranked first"] > 0.8
    assert hard.main([*options, "--ranks", "--labelled", str(tmp_path)]) == 0
    assert len(results.read_text().splitlines()) == len(records) + 2
    assert min(matched["within 5 px"], matched["epipolar"], plane["EVD"]) > 0.9
    assert max(matched["error"], aside["error"], plane["error"]) < 0.5
    assert hard.main(options) == 2
    beyond = np.array([[1, 0, 0], [0, 1, 0], [0.01, 0, -1]])  # the origin has another sign
    np.testing.assert_allclose(hard.transfer(beyond, np.array([[200.0, 50]])), [[200, 50]])


def test_disparity_confirms_matches():
    disparity = np.full((20, 30), 5, np.float32)
    disparity[:, 20:] = np.inf
    blank = np.zeros((20, 30, 3), np.uint8)
    xy_left = np.array([[10, 4], [10, 4], [25, 4]], np.float32)
    xy_right = np.array([[7, 4], [10, 4], [25, 4]], np.float32)
    stereo = gallery.StereoPair(blank, blank, disparity)
    right, known = gallery.agrees_with_disparity(stereo, xy_left, xy_right)
    assert (right.tolist(), known.tolist()) == ([True, False, False], [True, True, False])


def test_retrieval_frames_right_answers(tmp_path, rng):
    pytest.importorskip("matplotlib")
    patches = rng.uniform(0, 255, (3, 64, 64)).astype(np.float32)
    answers = [(np.array([1, 2]), np.array([right, False])) for right in (True, False)]
    gallery.draw_retrieval(patches, patches, [(0, answers)], tmp_path / "r.jpg")
    with Image.open(tmp_path / "r.jpg") as picture:
        blue = (np.asarray(picture).astype(int) @ [-1, 0, 1] > 150).any(axis=0)
    columns = np.flatnonzero(blue) / len(blue)
    assert 0.2 < columns.min() < columns.max() < 0.45, "only the first answer is framed"
