"""A describer on patches and images, also in the place of OpenCV's SIFT."""

import cv2
import jax
import numpy as np
import pytest
from models import CHANNELS, make_model, random_patches
from PIL import Image
from refusals import assert_refused, refused

import kjax
import kjax.images.describer as describer_module
import kjax.model.patches
from kjax.data.cutting.keypoints import DETECTORS, as_keypoints, detect, find_in_grey, to_opencv
from kjax.data.cutting.photographs import grey_values, read_reduced
from kjax.weights import shipped
from kjax.weights.files import save_variables
from kjax.weights.source import typical_extent

NARROW = {"patch_size": 16, "channels": CHANNELS}
DIMENSION = 128


@pytest.fixture(scope="module")
def describer():
    return kjax.Describer(*make_model("xy", **NARROW), max_keypoints=60)


@pytest.fixture(scope="module")
def photograph():
    """Blobs of many sizes, where SIFT finds keypoints."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (3, 160, 220)).astype(np.float32)
    sigmas = (1.5, 3, 6)
    grey = sum(cv2.GaussianBlur(n, (0, 0), s) * s for n, s in zip(noise, sigmas, strict=True))
    return np.interp(grey, (grey.min(), grey.max()), (0, 255)).astype(np.uint8)


@pytest.mark.parametrize("count", [0, 1, 5, 1030])
def test_any_number_of_patches(describer, rng, count):
    patches = random_patches(rng, count, 16)
    model, variables = make_model("xy", **NARROW)
    described = describer.describe(patches)
    assert described.shape == (count, describer.dimension) == (count, DIMENSION)
    if count:
        expected = model.apply(variables, patches[-3:])
        np.testing.assert_allclose(described[-3:], expected, atol=2e-6)


def test_forms_of_patches(describer, rng):
    patches = random_patches(rng, 3, 16)
    expected = describer.describe(patches)
    torch = pytest.importorskip("torch")
    forms = [patches.reshape(3, 16, 16, 1), patches.reshape(3, 1, 16, 16)]
    forms += [jax.numpy.asarray(patches), patches.tolist(), torch.from_numpy(patches)]
    for form in forms:
        np.testing.assert_array_equal(describer.describe(form), expected)
    for factor in (1e-9, 1e36):
        scaled = describer.describe(patches.astype(np.float32) * np.float32(factor))
        np.testing.assert_allclose(scaled, expected, atol=1e-6)
    resized = kjax.model.patches.resize_patches(random_patches(rng, 2, 32), 16)
    assert describer.describe(resized).shape == (2, DIMENSION)
    learned = torch.ones(3, 16, 16, requires_grad=True)
    assert_refused("must be an array, not Tensor", describer.describe, learned)


def test_refused_patches(describer):
    for patches, message in (
        (np.zeros((2, 32, 32), np.uint8), r"\[N, 16, 16\]: resize .*resize_patches\(patches, 16\)"),
        (np.zeros((16, 16), np.uint8), r"patches\[None\]"),
        (None, "patches"),
        ("patches.npy", "patches"),
        ([[1], [1, 2]], "patches"),
        (np.ones((1, 16, 16), bool), "patches of type bool"),
    ):
        assert_refused(message, describer.describe, patches)


def test_context_is_cut_around_the_patches():
    photo = pytest.importorskip("skimage").data.camera()
    model = make_model("xy", context=(1, 4), **NARROW)
    describer = kjax.Describer(*model, max_keypoints=60, extent=7.5)
    found = describer.describe_image(photo)
    assert len(found) == 60
    assert found.xy.min() < 4 * 7.5 * found.scales.max() / 2, "no patch crosses the border"
    options = {"angle": found.angles, "size": 64, "extent": 7.5}
    by_width = [
        kjax.extract_patches(photo, found.xy, width * found.scales, **options).patches
        for width in (1, 4)
    ]
    patches = kjax.model.patches.resize_patches(np.stack(by_width, axis=1), 16)
    np.testing.assert_allclose(describer.describe(patches), found.descriptors, atol=1e-5)
    for bare in (patches[:, 0], patches[:, :1], patches[0]):
        with refused(r"xy .*context=1,4 describes points with .*lack: use best, or describe_image"):
            describer.describe(bare)
    patches = np.array(patches)
    patches[7, 1, 3, 3] = np.nan
    assert_refused("patch 7 has NaN or infinite pixels", describer.describe, patches)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nonfinite_pixels_are_refused_whatever_the_network_makes_of_them(value, rng):
    # On some machines a compiled ReLU makes 0 of NaN: the head `sum` then gives finite numbers.
    describer = kjax.Describer(*make_model("sum", **NARROW))
    patches, image = random_patches(rng, 70, 16).astype(np.float32), np.ones((40, 40, 3), "f4")
    patches[66, 3, 3] = image[20, 20, 1] = value
    assert_refused("patch 66 has NaN or infinite pixels", describer.describe, patches)
    point = np.array([[5.0, 5.0, 2.0]])
    assert_refused("NaN or infinite pixels", describer.describe_image, image, point)


def test_int8_matches_like_float32(photograph):
    pytest.importorskip("onnxruntime")
    exact, small = (kjax.load("tiny", dtype=dtype) for dtype in ("float32", "int8"))
    assert small.feature_settings()["dtype"] == "int8"
    a, b = (one.describe_image(photograph).descriptors for one in (exact, small))
    assert (a * b).sum(axis=1).mean() > 0.998
    np.testing.assert_array_equal((a @ b.T).argmax(axis=1), np.arange(len(a)))  # both may mix


def test_repr(describer):
    start = "Describer(model='xy s=1 N=16 c=4-4-8-8-16-16', patch_size=16, dimension=128, "
    assert repr(describer) == f"{start}extent=12, dtype='float32')"
    start = "Describer('hardnet', model='hardnet', patch_size=32, dimension=128, extent="
    assert repr(kjax.load("hardnet", dtype="bfloat16")).startswith(start)


def test_forms_of_images(describer, photograph, tmp_path):
    # Red and blue are different pictures: the wrong order finds other keypoints.
    colour = np.stack([photograph, photograph // 2, photograph[::-1]], axis=-1)
    path = tmp_path / "a b.png"
    Image.fromarray(colour).save(path)
    expected = describer.describe_image(colour)
    torch = pytest.importorskip("torch")
    for form in (path, str(path), jax.numpy.asarray(colour), torch.from_numpy(colour)):
        found = describer.describe_image(form)
        np.testing.assert_array_equal(found.descriptors, expected.descriptors)
    mixed = [colour[..., ::-1], np.zeros((9, 9), np.uint8), path]
    found, blank, last = describer.describe_image(mixed, order="bgr")
    assert len(blank) == 0
    for one in (found, last):
        np.testing.assert_array_equal(one.xy, expected.xy)
    for form in (colour[..., ::-1], path, str(path)):
        keypoints, descriptors = describer.detectAndCompute(form)
        np.testing.assert_allclose([point.pt for point in keypoints], expected.xy)
        np.testing.assert_array_equal(descriptors, expected.descriptors)
    points = expected.xy, expected.scales, expected.angles
    cut = kjax.extract_patches(str(path), *points, order="bgr")
    np.testing.assert_array_equal(cut.patches, kjax.extract_patches(colour, *points).patches)


def test_refused_images_and_keypoints(describer):
    for image, options, message in (
        (None, {}, r"None: cv2\.imread"),
        ("nowhere.jpg", {}, "no such file"),
        (np.zeros((3, 40, 50), np.uint8), {}, "move the channels to the end"),
        (np.zeros((9, 9), np.uint8), {"mask": np.ones((5, 5))}, r"mask has shape \[5, 5\]"),
        (np.zeros((9, 9), np.uint8), {"max_keypoints": 0}, "at least one"),
        (np.zeros((9, 9), np.uint8), {"keypoints": [[4, 4]], "upright": True}, "with the angle −1"),
        (np.zeros((9, 9), np.uint8), {"keypoints": np.zeros((3, 5))}, "2 to 4"),
        (np.zeros((9, 9), np.uint8), {"keypoints": np.ones((2, 4, 2, 3))}, r"LAFs \[N, 2, 3\]"),
    ):
        assert_refused(message, describer.describe_image, image, **options)


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
    assert_refused("scale it to 0–1", detect, photograph * 1e4)


@pytest.mark.parametrize("white", [255, 1023, 4095, 16383])
def test_uint16_images_with_fewer_bits(photograph, white):
    photograph = np.maximum(photograph, 255 * np.eye(*photograph.shape, dtype=np.uint8))
    deep = np.rint(photograph * (white / 255)).astype(np.uint16)
    np.testing.assert_array_equal(detect(deep).xy, detect(photograph).xy)


def test_another_size_or_number_of_keypoints_compiles_nothing(describer, photograph, caplog):
    photograph = photograph[:-7]  # a shape that no other test has compiled
    points = detect(photograph, max_keypoints=64)
    by_numpy = describer.describe_image(photograph, points)
    describer = kjax.Describer(*make_model("xy", **NARROW), backend="jax")
    with jax.log_compiles():
        found = describer.describe_image(photograph, points)
        np.testing.assert_array_equal(found.xy, by_numpy.xy)
        np.testing.assert_allclose(found.descriptors, by_numpy.descriptors, atol=1e-4)
        assert "ompil" in caplog.text
        caplog.clear()
        fewer = points.keep(np.arange(len(points.xy)) < 59)
        assert describer.describe_image(photograph, fewer).xy.shape == (59, 2)
        assert describer.describe_image(photograph[1:, :-1], fewer).xy.shape == (59, 2)
    assert "ompil" not in caplog.text


def test_devices(photograph, monkeypatch):
    second, used, resize = jax.devices()[1], [], describer_module._resize()
    spy = lambda *args: used.append(args[0].devices()) or resize(*args)  # noqa: E731
    monkeypatch.setattr(describer_module, "_resize", lambda: spy)
    here, there, same = (
        kjax.load("tiny", device=device, backend="jax", max_keypoints=60)
        for device in (None, second, "cpu:1")
    )
    found = [one.describe_image(photograph).descriptors for one in (here, there, same)]
    assert used[1:] == [{second}, {second}]
    np.testing.assert_array_equal(found[1:], [found[0]] * 2)
    assert_refused(r"no device 'cpu:9': JAX has cpu:0, cpu:1", kjax.load, "tiny", device="cpu:9")


def test_forms_of_keypoints(describer, photograph):
    found = detect(photograph, max_keypoints=9)
    table = np.column_stack([found.xy, found.scales, found.angles])
    for form in (found, to_opencv(found), table):
        features = describer.describe_image(photograph, form)
        np.testing.assert_allclose(features.xy, found.xy)
        assert features.image_size == (220, 160)
    assert as_keypoints(found.xy).angles[0] == -1
    flat = np.array([[[1, 1, 9], [1, 1, 9.0]]])
    for none in ([], np.zeros((0, 4)), np.array([[-900.0, 5, 3, 0]]), flat):
        assert describer.describe_image(photograph, none).descriptors.shape == (0, DIMENSION)
    for empty in (np.zeros((0, 5), np.uint8), np.full((40, 40), 7, np.uint8)):
        assert len(describer.describe_image(empty)) == 0


def test_extent_scales_patches(rng):
    image = rng.integers(0, 256, (200, 200), dtype=np.uint8)
    keypoints = np.array([[100.0, 100.0, 5.0, 30.0], [80.0, 120.0, 4.0, 0.0]])
    model = make_model("sum", **NARROW)
    usual, narrow = kjax.Describer(*model), kjax.Describer(*model, extent=6.0)
    found = usual.describe_image(image, keypoints)
    same = narrow.describe_image(image, keypoints * [1, 1, 2, 1])
    np.testing.assert_allclose(found.descriptors, same.descriptors, atol=1e-5)
    assert typical_extent((0.9, 1.0)) == 11.7
    assert typical_extent((0.2, 0.7)) == shipped.card("best").extent


def test_large_images_are_reduced(photograph, describer, tmp_path):
    """The centre of a pixel becomes the centre of the four pixels it stands for."""
    large = np.repeat(np.repeat(photograph, 2, axis=0), 2, axis=1)
    reducing = kjax.Describer(*make_model("xy", **NARROW), max_keypoints=60, max_side=220)
    expected, found = describer.describe_image(photograph), reducing.describe_image(large)
    assert found.image_size == (440, 320)
    np.testing.assert_allclose(found.xy, 2 * expected.xy + 0.5, atol=1e-4)
    np.testing.assert_allclose(found.scales, 2 * expected.scales, rtol=1e-6)
    np.testing.assert_array_equal(found.descriptors, expected.descriptors)
    mask = np.arange(440)[None] < np.full((320, 1), 220)
    assert reducing.describe_image(large, mask=mask).xy[:, 0].max() < 222
    # Files too. Given keypoints are not reduced.
    Image.fromarray(large).save(tmp_path / "a.png")
    np.testing.assert_allclose(reducing.describe_image(tmp_path / "a.png").xy, found.xy, atol=1e-4)
    deep = large.astype(">u2") * 257
    Image.fromarray(deep.astype("<u2")).save(tmp_path / "deep.png")
    Image.frombytes("I;16B", (440, 320), deep.tobytes()).save(tmp_path / "deep.tif")
    for name in ("deep.png", "deep.tif"):
        pixels, size = read_reduced(tmp_path / name, 220)
        assert size == (440, 320)
        np.testing.assert_allclose(grey_values(pixels), photograph.astype("f4"), atol=2.5)
    points = found.keypoints()
    given = (one.describe_image(large, points).descriptors for one in (reducing, describer))
    np.testing.assert_array_equal(*given)


def test_the_checksum_is_that_of_the_weights_not_of_the_file(tmp_path):
    pytest.importorskip("safetensors")
    _, variables = make_model("hardnet", patch_size=8)
    names = ("a.npz", "b.npz", "c.safetensors")
    for name in names:
        save_variables(tmp_path / name, variables)
    first, *others = (kjax.load(str(tmp_path / name)).sha256 for name in names)
    assert others == [first, first]
    save_variables(tmp_path / "d.npz", jax.tree.map(lambda leaf: leaf + 1e-3, variables))
    assert kjax.load(str(tmp_path / "d.npz")).sha256 != first
    assert kjax.load("hardnet").sha256 == shipped.card("hardnet").sha256


# The interface of OpenCV's Feature2D


def fields(keypoint):
    names = ("pt", "size", "angle", "response", "octave", "class_id")
    return tuple(getattr(keypoint, name) for name in names)


def test_detect_then_compute_equals_detect_and_compute(describer, photograph):
    found = describer.detect(photograph, None)
    assert len(found) == 60
    sift = cv2.SIFT_create(enable_precise_upscale=True, contrastThreshold=0.01)
    assert {fields(one) for one in found} <= {fields(one) for one in sift.detect(photograph)}
    keypoints, descriptors = describer.compute(photograph, found)
    assert [fields(one) for one in keypoints] == [fields(one) for one in found]
    again, same = describer.detectAndCompute(photograph, None)
    assert [fields(one) for one in again] == [fields(one) for one in found]
    np.testing.assert_array_equal(same, descriptors)
    np.testing.assert_array_equal(describer.describe_image(photograph).descriptors, descriptors)
    for name in ("descriptorSize", "descriptorType", "defaultNorm"):
        assert getattr(describer, name)() == getattr(sift, name)(), name
    mask = np.zeros(photograph.shape, np.uint8)
    mask[:, :110] = 1
    inside, _ = describer.detectAndCompute(photograph, mask)
    assert len(inside) > 10
    assert all(point.pt[0] < 111 for point in inside)
    # OpenCV's matchers take the descriptors.
    second = np.ascontiguousarray(descriptors[::-1])
    brute = cv2.BFMatcher(describer.defaultNorm(), crossCheck=True).match(descriptors, second)
    assert [one.distance < 1e-3 for one in brute] == [True] * len(descriptors)


def test_provided_keypoints_and_other_detectors(describer, photograph):
    provided = [
        cv2.KeyPoint(100, 90, 4, 30, 0.5, 513, 42),
        cv2.KeyPoint(-900, 90, 4, 30, 0.5, 1, 43),  # outside the image
        cv2.KeyPoint(50.5, 60, 3, -1, 0.25, 2, 44),
    ]
    use = {"useProvidedKeypoints": True, "keypoints": provided}
    kept, descriptors = describer.detectAndCompute(photograph, None, **use)
    assert [fields(one) for one in kept] == [fields(provided[0]), fields(provided[2])]
    assert descriptors.shape == (2, DIMENSION)
    assert_refused(r"None: cv2\.imread", describer.detectAndCompute, None)
    for use, points in ((True, None), (False, [cv2.KeyPoint(9, 9, 4)])):
        given = photograph, None, use
        assert_refused("belong together", describer.detectAndCompute, *given, keypoints=points)
    message = r"not cv2\.KeyPoint objects: describe_image"
    assert_refused(message, describer.compute, photograph, np.ones((2, 4)).tolist())
    assert_refused("did you mean 'AKAZE'", kjax.load, "hardnet", detector="AKAZ")
    options = {"detector": "ORB", "max_keypoints": 50, "upright": True}
    orb = kjax.Describer(*make_model("xy", **NARROW), **options)
    keypoints, descriptors = orb.detectAndCompute(photograph)
    assert len(keypoints) == len(descriptors) > 20
    assert {one.angle for one in keypoints} == {-1}
    assert {"detector": "OpenCV ORB", "upright": True}.items() <= orb.feature_settings().items()
    np.testing.assert_array_equal(orb.describe_image(photograph).descriptors, descriptors)
    assert (orb.describe_image(photograph, upright=False).angles != -1).all()


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_follow_scale_and_rotation(photograph, name, rng):
    """Keypoints of the image at twice the size, rotated by a right angle."""
    photograph = cv2.resize(photograph, (320, 240))
    large = cv2.rotate(cv2.resize(photograph, None, fx=2, fy=2), cv2.ROTATE_90_CLOCKWISE)
    options = {"detector": name, "max_keypoints": 400}
    small, rotated = (find_in_grey(image, **options) for image in (photograph, large))
    ranks = [DETECTORS[name].rank(one) for one in rotated]
    assert ranks == sorted(ranks, reverse=True)
    where = np.array([(478.5 - 2 * one.pt[1], 2 * one.pt[0] + 0.5) for one in small])
    distances = np.linalg.norm(where[:, None] - [one.pt for one in rotated], axis=-1)
    nearest, near = distances.argmin(axis=1), np.flatnonzero(distances.min(axis=1) < 2)
    assert len(near) > 20
    # ORB finds a corner in several of its levels.
    assert 1.1 < np.median([rotated[nearest[i]].size / small[i].size for i in near]) < 2.7
    turns = [(rotated[nearest[i]].angle - small[i].angle) % 360 for i in near]
    assert abs(np.median(turns) - 90) < 15
    # Sizes are diameters of SIFT's kind, from a few pixels on.
    assert 1.5 < np.median([one.size for one in small]) < 20
    for shape in ((0, 5), (1, 1), (2, 3), (9, 9)):
        assert find_in_grey(rng.integers(0, 256, shape, np.uint8), detector=name) == []


def test_lafs_are_the_patches_themselves(describer, photograph):
    torch = pytest.importorskip("torch")
    laf = np.array([[40.0, 12, 110], [-6, 22, 80]], np.float32)
    # The middle of this image, ±30 pixels, shows the patch.
    straight = np.column_stack([laf[:, :2] / 30, laf[:, 2] - laf[:, :2] @ [80 / 30, 80 / 30]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    upright = cv2.warpAffine(photograph, straight, (161, 161), flags=flags)
    expected = describer.describe_image(upright, [[80, 80, 60 / describer.extent, 0]]).descriptors
    for lafs in (laf[None], laf[None, None], torch.from_numpy(laf)[None, None]):
        found = describer.describe_image(photograph, lafs)
        assert (found.descriptors @ expected.T).item() > 0.98
    np.testing.assert_allclose(found.xy, [[110, 80]])
    np.testing.assert_allclose(found.angles, [np.rad2deg(np.arctan2(-6, 40)) % 360], rtol=1e-5)
    area = 40 * 22 + 12 * 6
    np.testing.assert_allclose(found.scales * describer.extent, 2 * np.sqrt(area), rtol=1e-5)
    # A square of the same position, size and direction shows something else.
    table = np.column_stack([found.xy, found.scales, found.angles])
    square = describer.describe_image(photograph, table).descriptors
    assert (square @ expected.T).item() < (found.descriptors @ expected.T).item() - 0.001
