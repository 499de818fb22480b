"""Sequences of distorted photographs."""

import numpy as np
import pytest
from homography_sequences import find_sequences
from PIL import Image
from scripts import BENCHMARKS, load_script

cv2 = pytest.importorskip("cv2")
skimage_data = pytest.importorskip("skimage.data")

EFFECTS = ("blur", "jpeg", "light", "noise")


@pytest.fixture(scope="module")
def distort():
    """The command as a module."""
    return load_script(BENCHMARKS / "distort.py")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """One in grey and one in colours."""
    folder = tmp_path_factory.mktemp("photos")
    arrays = {
        "camera": skimage_data.camera()[100:196, 180:308],
        "cat": skimage_data.chelsea()[80:170, 100:200],
    }
    for name, pixels in arrays.items():
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder, arrays


@pytest.fixture(scope="module")
def made(distort, photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "distorted"
    folder, _ = photos
    assert distort.main([str(folder / "camera.png"), str(folder / "cat.png"), *options(out)]) == 0
    return out


def options(out, *more):
    return ["--out", str(out), "--quiet", *more]


def pixels_of(sequence):
    return [np.asarray(Image.open(path)) for path in sequence.photos]


def psnr(first, second):
    squared = (first.astype(np.float64) - second) ** 2
    return 10 * np.log10(255**2 / squared.mean())


def test_layout_is_that_of_sequences_whose_camera_stands_still(made):
    sequences = find_sequences([made])
    names = [f"{stem}-{effect}" for stem in ("camera", "cat") for effect in EFFECTS]
    assert [sequence.name for sequence in sequences] == names
    for sequence in sequences:
        np.testing.assert_array_equal(sequence.homographies, np.stack([np.eye(3)] * 5))


def test_first_is_the_original_and_distortion_grows(made, photos):
    for sequence in find_sequences([made]):
        first, *others = pixels_of(sequence)
        np.testing.assert_array_equal(first, photos[1][sequence.name.split("-")[0]])
        assert {(other.shape, other.dtype) for other in others} == {(first.shape, first.dtype)}
        quality = np.array([psnr(first, other) for other in others])
        assert (np.diff(quality) < -0.3).all(), (sequence.name, quality)


def test_each_effect_is_what_it_is_called(made, distort):
    found = {sequence.name: pixels_of(sequence) for sequence in find_sequences([made])}
    first = found["camera-blur"][0].astype(np.float64)
    sharpness = [cv2.Laplacian(one, cv2.CV_64F).std() for one in found["camera-blur"]]
    assert (np.diff(sharpness) < 0).all()
    means = [one.mean() for one in found["camera-light"]]
    assert means[-1] < 0.4 * means[0]
    middle = (first > 60) & (first < 190)  # far from clipping
    added = (found["camera-noise"][2] - first)[middle]
    assert added.std() == pytest.approx(distort.NOISES[1], rel=0.1)
    _, file = cv2.imencode(".jpg", found["camera-jpeg"][0], [cv2.IMWRITE_JPEG_QUALITY, 40])
    np.testing.assert_array_equal(found["camera-jpeg"][1], cv2.imdecode(file, 0))


def test_blurred_black_stays_black(distort, rng):
    photo = np.zeros((300, 300), np.uint8)
    photo[:, 200:] = 255
    for level in range(5):  # what is below zero would be no number after the tone curve, and warn
        np.testing.assert_array_equal(distort.blur(photo, level, rng)[:, :150], 0)


def test_disc_weighs_one_and_spreads_over_its_area(distort):
    for radius in (1.5, 4.0):
        weights = distort.disc(radius)
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_array_equal(weights, weights.T)
        assert 1 / weights.max() == pytest.approx(np.pi * radius**2, rel=0.1)


def test_a_seed_makes_the_same_noise_whatever_else_is_made(made, distort, photos, tmp_path):
    folder, _ = photos
    for seed, same in ((0, True), (1, False)):
        out = tmp_path / str(seed)
        assert distort.main([str(folder / "cat.png"), *options(out, f"--seed={seed}")]) == 0
        for effect in ("light", "noise"):
            again, before = (
                (root / f"cat-{effect}" / "img3.png").read_bytes() for root in (out, made)
            )
            assert (again == before) is same


def test_bad_input_is_one_line_and_writes_nothing(made, distort, photos, tmp_path, capsys):
    camera = str(photos[0] / "camera.png")
    (tmp_path / "text.png").write_text("no photograph")
    (tmp_path / "empty.png").touch()
    Image.fromarray(np.zeros((8, 90), np.uint8)).save(tmp_path / "small.png")
    out = tmp_path / "out"
    for arguments, message in {
        (camera, *options(made)): "already exists",
        (str(tmp_path / "absent.png"), *options(out)): "no such photograph",
        (camera, str(tmp_path / "text.png"), *options(out)): "text.png is no photograph",
        (str(tmp_path / "empty.png"), *options(out)): "empty.png is no photograph",
        (str(tmp_path / "small.png"), *options(out)): "smaller than 32 pixels",
        (camera, camera, *options(out)): "several photographs are called camera",
        (camera, *options(out, "--seed=-1")): "--seed must not be negative",
    }.items():
        assert distort.main(list(arguments)) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert message in error
        assert not out.exists()
        assert not list(tmp_path.glob(".*"))


def test_an_empty_folder_is_filled(distort, photos, tmp_path):
    assert distort.main([str(photos[0] / "camera.png"), *options(tmp_path)]) == 0
    assert len(find_sequences([tmp_path])) == 4


def test_photographs_by_default_are_there(distort):
    paths = distort.wheel_photos()
    assert paths
    assert all(path.is_file() for path in paths)
