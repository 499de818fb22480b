"""From patches and photographs to descriptors, and the command that matches two photographs."""

import jax
import numpy as np
import pytest
from models import make_model, random_patches
from PIL import Image

import kjax
import kjax.train.augment
from kjax.cli import main
from kjax.data.cutting.keypoints import as_keypoints, detect, to_opencv
from kjax.errors import InputError
from kjax.weights import shipped
from kjax.weights.files import save_variables
from kjax.weights.source import typical_extent

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


@pytest.mark.parametrize("shape", [(3, 16, 16, 1), (3, 1, 16, 16)])
def test_patches_with_an_axis_of_channels(describer, rng, shape):
    patches = random_patches(rng, 3, 16)
    np.testing.assert_array_equal(
        describer.describe(patches.reshape(shape)), describer.describe(patches)
    )


def test_the_size_that_is_wrong_says_how_to_mend_it(describer, rng):
    large = random_patches(rng, 2, 32)
    with pytest.raises(InputError, match=r"resize_patches\(patches, 16\)"):
        describer.describe(large)
    assert describer.describe(kjax.model.patches.resize_patches(large, 16)).shape == (2, 128)
    with pytest.raises(InputError, match=r"patches\[None\]"):
        describer.describe(large[0, :16, :16])


def test_patches_of_other_libraries(describer, rng):
    patches = random_patches(rng, 3, 16)
    expected = describer.describe(patches)
    np.testing.assert_array_equal(describer.describe(jax.numpy.asarray(patches)), expected)
    np.testing.assert_array_equal(describer.describe(patches.tolist()), expected)
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(describer.describe(torch.from_numpy(patches)), expected)
    with pytest.raises(InputError, match="must be an array, not Tensor"):
        describer.describe(torch.ones(3, 16, 16, requires_grad=True))


@pytest.mark.parametrize(
    "patches", [None, "patches.npy", [[1], [1, 2]], np.ones((1, 16, 16), bool)]
)
def test_what_is_no_patches_is_refused(describer, patches):
    with pytest.raises(InputError, match="patches"):
        describer.describe(patches)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_no_numbers_are_refused_whatever_the_network_makes_of_them(value, rng):
    # On some machines a compiled ReLU makes 0 of NaN: the head `sum` then gives finite numbers.
    describer = kjax.Describer(*make_model("sum", patch_size=16))
    patches = random_patches(rng, 70, 16).astype(np.float32)
    patches[66, 3, 3] = value
    with pytest.raises(InputError, match="patch 66 has NaN or infinite pixels"):
        describer.describe(patches)
    image = np.ones((40, 40, 3), np.float32)
    image[20, 20, 1] = value
    with pytest.raises(InputError, match="NaN or infinite pixels"):
        describer.describe_image(image, np.array([[5.0, 5.0, 2.0]]))


def test_repr(describer):
    assert repr(describer) == (
        "Describer(model='xy s=1 N=16', patch_size=16, dimension=128, extent=12, dtype='float32')"
    )
    assert repr(kjax.load("hardnet", dtype="bfloat16")) == (
        "Describer('hardnet', model='hardnet', patch_size=32, dimension=128, extent=9.3, "
        "dtype='bfloat16')"
    )


def test_colours_are_made_grey_once_for_keypoints_and_patches(describer, photograph):
    # Red and blue are different pictures: the wrong order finds other keypoints.
    colour = np.stack([photograph, photograph // 2, photograph[::-1]], axis=-1)
    expected = describer.describe_image(colour)
    found = describer.describe_image(colour[..., ::-1], order="bgr")
    np.testing.assert_array_equal(found.xy, expected.xy)
    np.testing.assert_array_equal(found.descriptors, expected.descriptors)
    keypoints, descriptors = describer.detectAndCompute(colour[..., ::-1])
    np.testing.assert_allclose([point.pt for point in keypoints], expected.xy)
    np.testing.assert_array_equal(descriptors, expected.descriptors)
    dark = detect(colour // 100)
    np.testing.assert_array_equal(describer.describe_image(colour // 100).xy, dark.xy)


def test_paths_and_images_of_other_libraries(describer, photograph, tmp_path):
    colour = np.stack([photograph, photograph // 2, photograph[::-1]], axis=-1)
    Image.fromarray(colour).save(tmp_path / "a b.png")
    expected = describer.describe_image(colour)
    path = tmp_path / "a b.png"
    torch = pytest.importorskip("torch")
    for form in (path, str(path), jax.numpy.asarray(colour), torch.from_numpy(colour)):
        np.testing.assert_array_equal(
            describer.describe_image(form).descriptors, expected.descriptors
        )
    for _, descriptors in (describer.detectAndCompute(path), describer.detectAndCompute(str(path))):
        np.testing.assert_array_equal(descriptors, expected.descriptors)
    points = expected.xy, expected.scales, expected.angles
    np.testing.assert_array_equal(
        kjax.extract_patches(str(path), *points, order="bgr").patches,
        kjax.extract_patches(colour, *points).patches,
    )


def test_a_failed_imread_is_told_as_such(describer):
    for call in (describer.describe_image, describer.detectAndCompute):
        with pytest.raises(InputError, match=r"None: cv2\.imread"):
            call(None)
    with pytest.raises(InputError, match="no such file"):
        describer.describe_image("nowhere.jpg")
    with pytest.raises(InputError, match="move the channels to the end"):
        describer.describe_image(np.zeros((3, 40, 50), np.uint8))


def test_masks_and_numbers_of_keypoints_are_checked(describer, photograph):
    with pytest.raises(InputError, match=r"mask has shape \[5, 5\]"):
        describer.describe_image(photograph, mask=np.ones((5, 5), np.uint8))
    half = np.arange(photograph.shape[1]) < 110
    mask = np.broadcast_to(half, photograph.shape)
    assert 0 < describer.describe_image(photograph, mask=mask).xy[:, 0].max() < 111
    for count in (0, -5):
        with pytest.raises(InputError, match="at least one"):
            describer.describe_image(photograph, max_keypoints=count)


@pytest.mark.parametrize("white", [1, 255, 65535])
def test_floating_images_with_values_beyond_white(photograph, white):
    photograph = photograph.copy()
    photograph[0, 0] = 255
    expected = detect(photograph).xy
    assert len(expected) > 300
    floating = photograph.astype(np.float32) * np.float32(white / 255)
    floating[0, 0] = white * 1.000001
    np.testing.assert_array_equal(detect(floating).xy, expected)
    # As far as resizing and sharpening go: what lies beyond white is white.
    floating[photograph == 255] = 1.5 * white
    floating[photograph == 0] = -0.1 * white
    np.testing.assert_array_equal(detect(floating).xy, expected)


def test_floating_images_of_no_known_range(photograph):
    with pytest.raises(InputError, match="scale it to 0–1"):
        detect(photograph * 1e4)


def test_another_size_or_number_of_keypoints_compiles_nothing(describer, photograph, caplog):
    photograph = photograph[:-7]  # a shape that no other test has had compiled
    points = detect(photograph, max_keypoints=64)
    with jax.log_compiles():
        describer.describe_image(photograph, points)
        assert "ompil" in caplog.text
        caplog.clear()
        fewer = points.keep(np.arange(len(points.xy)) < 59)
        assert describer.describe_image(photograph, fewer).xy.shape == (59, 2)
        assert describer.describe_image(photograph[1:, :-1], fewer).xy.shape == (59, 2)
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
    [("none.png", None, "no such file"), ("text.png", b"hello", "not one of")],
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
    assert typical_extent((0.2, 0.7)) == shipped.card("best").extent


def test_the_checksum_is_that_of_the_weights_not_of_the_file(tmp_path):
    pytest.importorskip("safetensors")
    _, variables = make_model("hardnet", patch_size=8)
    names = ("a.npz", "b.npz", "c.safetensors")
    for name in names:
        save_variables(tmp_path / name, variables)
    first, *others = (kjax.load(str(tmp_path / name)).sha256 for name in names)
    assert others == [first, first]
    changed = jax.tree.map(lambda leaf: leaf + 1e-3, variables)
    save_variables(tmp_path / "d.npz", changed)
    assert kjax.load(str(tmp_path / "d.npz")).sha256 != first
    assert kjax.load("hardnet").sha256 == shipped.card("hardnet").sha256
