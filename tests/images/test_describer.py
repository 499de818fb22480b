"""From patches and photographs to descriptors, and the command that matches two photographs."""

import jax
import numpy as np
import pytest
from models import make_model, random_patches
from PIL import Image

import kjax
from kjax import pretrained
from kjax.cli import main
from kjax.errors import InputError
from kjax.images.detection import as_keypoints, detect, to_opencv
from kjax.interop import save_variables
from kjax.interop.source import typical_extent

cv2 = pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def describer():
    return kjax.Describer(*make_model("xy", s=1, patch_size=16))


@pytest.fixture(scope="module")
def photograph():
    """Blobs of many sizes, where SIFT finds keypoints."""
    rng = np.random.default_rng(0)
    layers = [
        cv2.GaussianBlur(rng.normal(0, 1, (160, 220)).astype(np.float32), (0, 0), sigma) * sigma
        for sigma in (1.5, 3, 6)
    ]
    grey = sum(layers)
    return np.interp(grey, (grey.min(), grey.max()), (0, 255)).astype(np.uint8)


@pytest.mark.parametrize("count", [0, 1, 5, 1030])
def test_patches_of_any_number(describer, rng, count):
    patches = random_patches(rng, count, 16)
    model, variables = make_model("xy", s=1, patch_size=16)
    described = describer.describe(patches)
    assert described.shape == (count, describer.dimension) == (count, 128)
    some = slice(max(count - 3, 0), count)
    if count:
        expected = model.apply(variables, patches[some])
        np.testing.assert_allclose(described[some], expected, atol=2e-6)


def test_patches_of_another_size_are_refused(describer):
    with pytest.raises(InputError, match=r"\[N, 16, 16\]"):
        describer.describe(np.zeros((2, 32, 32), np.uint8))


def test_another_number_of_keypoints_compiles_nothing(describer, photograph, caplog):
    photograph = photograph[:-7]  # a shape that no other test has had compiled
    points = detect(photograph, max_keypoints=64)
    with jax.log_compiles():
        describer.describe_image(photograph, points)
        assert "ompil" in caplog.text
        caplog.clear()
        fewer = points.keep(np.arange(len(points.xy)) < 59)
        assert describer.describe_image(photograph, fewer).xy.shape == (59, 2)
    assert "ompil" not in caplog.text


def test_the_range_of_grey_does_not_matter(describer, photograph):
    points = detect(photograph, max_keypoints=20)
    as_bytes = describer.describe_image(photograph, points)
    wide = describer.describe_image(photograph.astype(np.uint16) * 257, points)
    unit = describer.describe_image(photograph.astype(np.float32) / 255, points)
    colour = describer.describe_image(np.stack([photograph] * 3, axis=-1), points)
    for other in (wide, unit, colour):
        np.testing.assert_allclose(other.descriptors, as_bytes.descriptors, atol=2e-5)


def test_like_opencv(describer, photograph):
    mask = np.zeros(photograph.shape, np.uint8)
    mask[:, :110] = 1
    keypoints, descriptors = describer.detectAndCompute(photograph, mask)
    assert len(keypoints) == len(descriptors) > 10
    assert all(point.pt[0] < 111 for point in keypoints)
    # The descriptors fit OpenCV's own matcher, and find themselves.
    matches = cv2.BFMatcher(cv2.NORM_L2).match(descriptors, descriptors)
    assert all(one.distance < 1e-3 for one in matches)


def test_keypoints_in_every_form(describer, photograph):
    found = detect(photograph, max_keypoints=9)
    table = np.column_stack([found.xy, found.scales, found.angles])
    for form in (found, to_opencv(found), table):
        features = describer.describe_image(photograph, form)
        np.testing.assert_allclose(features.xy, found.xy)
        assert features.image_size == (220, 160)
    assert as_keypoints(found.xy).angles[0] == -1
    with pytest.raises(InputError, match="2 to 4"):
        describer.describe_image(photograph, np.zeros((3, 5)))


@pytest.mark.parametrize("keypoints", [[], np.zeros((0, 4)), np.array([[-900.0, 5, 3, 0]])])
def test_no_keypoints(describer, photograph, keypoints):
    features = describer.describe_image(photograph, keypoints)
    assert len(features) == 0
    assert features.descriptors.shape == (0, 128)


def test_empty_and_flat_photographs(describer):
    assert len(describer.describe_image(np.zeros((0, 5), np.uint8))) == 0
    assert len(describer.describe_image(np.full((40, 40), 7, np.uint8))) == 0
    with pytest.raises(InputError, match="NaN"):
        describer.describe_image(np.full((40, 40), np.nan, np.float32))


def test_the_command_finds_a_shift_and_draws_it(tmp_path, photograph, capsys):
    save_variables(tmp_path / "w.npz", make_model("hardnet", patch_size=16)[1])
    Image.fromarray(photograph[:, :200]).save(tmp_path / "a.png")
    Image.fromarray(photograph[:, 20:]).save(tmp_path / "b.png")
    files = [str(tmp_path / name) for name in ("a.png", "b.png")]
    out = str(tmp_path / "m.png")
    assert main(["match", *files, "--weights", str(tmp_path / "w.npz"), "--out", out]) == 0
    printed = capsys.readouterr().out
    agreeing = int(printed.split(" of them agree")[0].split("\n")[-1])
    assert agreeing > 20
    with Image.open(out) as picture:
        assert picture.width > 350


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("none.png", None, "no such file"), ("text.png", b"hello", "not an image")],
)
def test_bad_photographs_are_one_line(tmp_path, capsys, name, content, message):
    save_variables(tmp_path / "w.npz", make_model("hardnet", patch_size=16)[1])
    if content is not None:
        (tmp_path / name).write_bytes(content)
    bad = str(tmp_path / name)
    out = tmp_path / "m.png"
    weights = ("--weights", str(tmp_path / "w.npz"))
    assert main(["match", bad, bad, *weights, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.fixture
def folder(tmp_path, photograph):
    save_variables(tmp_path / "w.npz", make_model("hardnet", patch_size=16)[1])
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    Image.fromarray(photograph).save(tmp_path / "photos" / "a.png")
    Image.fromarray(photograph[:, ::-1]).save(tmp_path / "photos" / "deep" / "b.png")
    return tmp_path


def describe_folder(folder, out, *more):
    weights = ("--weights", str(folder / "w.npz"), "--keypoints", "50")
    return main(["describe", str(folder / "photos"), *weights, "--out", str(folder / out), *more])


def test_photographs_for_hloc(folder, photograph):
    pytest.importorskip("h5py")
    from kjax.images.exchange.hloc import read_features

    assert describe_folder(folder, "features.h5") == 0
    found = read_features(folder / "features.h5", "deep/b.png")
    again = kjax.load(str(folder / "w.npz")).describe_image(photograph[:, ::-1], max_keypoints=50)
    np.testing.assert_allclose(found.xy, again.xy)
    np.testing.assert_allclose(found.descriptors, again.descriptors, atol=1e-6)
    assert found.image_size == (220, 160)


def test_broken_photographs_are_left_out_and_the_same_command_goes_on(folder, capsys):
    broken = folder / "photos" / "broken.png"
    broken.write_bytes(b"not a photograph")
    assert describe_folder(folder, "features") == 1
    printed = capsys.readouterr()
    assert "left out" in printed.err
    assert "broken.png" in printed.err
    assert "2 of 3 photographs" in printed.out
    kept = folder / "features" / "deep" / "b.png.npz"
    before = kept.stat().st_mtime_ns
    broken.unlink()
    assert describe_folder(folder, "features") == 0
    assert kept.stat().st_mtime_ns == before


def test_photographs_for_colmap(folder, capsys):
    assert describe_folder(folder, "text", "--format", "colmap") == 0
    first = (folder / "text" / "a.png.txt").read_text().splitlines()[0]
    count, dimension = map(int, first.split())
    assert 10 < count <= 55
    assert dimension == 128
    assert main(["describe", "no*such", "--weights", str(folder / "w.npz"), "--out", "x"]) == 2
    assert "no such file, folder or pattern" in capsys.readouterr().err


def test_the_extent_is_that_of_the_weights(photograph_for_extent):
    image, keypoints = photograph_for_extent
    model, variables = make_model("sum", patch_size=16)
    usual = kjax.Describer(model, variables)
    narrow = kjax.Describer(model, variables, extent=6.0)
    larger = np.array([[x, y, 2 * size, angle] for x, y, size, angle in keypoints])
    np.testing.assert_allclose(
        usual.describe_image(image, keypoints).descriptors,
        narrow.describe_image(image, larger).descriptors,
        atol=1e-5,
    )


@pytest.fixture
def photograph_for_extent():
    image = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    return image, np.array([[100.0, 100.0, 5.0, 30.0], [80.0, 120.0, 4.0, 0.0]])


def test_the_extent_follows_the_training():
    assert typical_extent((0.9, 1.0)) == 11.7
    assert typical_extent((0.2, 0.7)) == pretrained.card("best").extent
