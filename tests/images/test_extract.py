import functools
from unittest import mock

import cv2
import jax
import jax.numpy as jnp
import kornia
import numpy as np
import pytest
import torch
from kornia.feature import extract_patches_from_pyramid, laf_from_center_scale_ori
from refusals import assert_refused

from kjax.data.cutting.keypoints import Keypoints
from kjax.data.cutting.patches import cut_patches, plan_levels
from kjax.images import extract, pyramid
from kjax.images.pyramid import pack_pyramid

SIZE = 16
"""Of the tests' patches: few pixels to compute, yet some in every direction."""


@pytest.fixture
def image(rng):
    """Uneven sides, odd ones, and detail of every size."""
    noise = [cv2.resize(rng.random((n, n)), (151, 118)) for n in (4, 16, 64)]
    return (255 * np.mean(noise, axis=0)).astype(np.float32)


def extract_patches(*given, **options):
    """By JAX; outside its transformations OpenCV and NumPy must give the same."""
    found = extract.extract_patches(*given, **options)
    if any(isinstance(one, jax.core.Tracer) for one in found):
        return found
    for module in (cv2, None):
        with mock.patch.object(pyramid, "optional", return_value=module):
            same = extract.extract_patches(*given, **options, backend="numpy")
        assert isinstance(same.patches, np.ndarray)
        np.testing.assert_array_equal(same.valid, found.valid)
        np.testing.assert_allclose(same.patches, found.patches, atol=5e-3)
    return found


def random_keypoints(rng, count, *, sides=(4.0, 60.0), margin=10.0, shape=(118, 151)):
    """Positions, sides of patches in pixels and angles in degrees; some positions lie outside."""
    xy = rng.uniform(-margin, np.array(shape[::-1]) - 1 + margin, (count, 2))
    side = np.exp(rng.uniform(*np.log(sides), count))
    return xy.astype(np.float32), side.astype(np.float32), rng.uniform(0, 360, count)


def patch_matrix(xy, side, degrees, size=SIZE):
    """OpenCV's map from a patch's pixels to the image's."""
    step = side / size * np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
    linear = np.array([[step[0], -step[1]], [step[1], step[0]]])
    return np.column_stack([linear, xy - linear.sum(axis=1) * (size - 1) / 2])


def bilinear(image, matrix, size=SIZE):
    """By the definition, in float64, with the border repeated."""
    v, u = np.mgrid[:size, :size]
    x, y = np.einsum("ij,jvu->ivu", matrix, np.stack([u, v, np.ones_like(u)]))
    x, y = np.clip(x, 0, image.shape[1] - 1), np.clip(y, 0, image.shape[0] - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    bottom, right = np.minimum([top + 1, left + 1], np.array(image.shape)[:, None, None] - 1)
    upper = image[top, left] * (left + 1 - x) + image[top, right] * (x - left)
    lower = image[bottom, left] * (left + 1 - x) + image[bottom, right] * (x - left)
    return upper * (top + 1 - y) + lower * (y - top)


# Geometry


@pytest.mark.parametrize(
    ("convention", "xy", "scale", "angle", "side"),
    [
        ({}, (70.25, 50.5), 3.0, 30.0, 36.0),
        ({}, (70.25, 50.5), 3.0, -1.0, 36.0),
        ({"size_is": "sigma"}, (70.25, 50.5), 1.5, 30.0, 36.0),
        ({"size_is": "sigma", "extent": 6.0}, (70.25, 50.5), 3.0, 30.0, 36.0),
        ({"size_is": "hloc"}, (70.25, 50.5), 1.5, 30.0, 18.0),
        ({"size_is": "half_width"}, (70.25, 50.5), 18.0, 30.0, 36.0),
        ({"angle_is": "radians"}, (70.25, 50.5), 3.0, np.radians(30), 36.0),
        ({"angle_is": "kornia"}, (70.25, 50.5), 3.0, -30.0, 36.0),
        ({"pixel_origin": "corner"}, (70.75, 51.0), 3.0, 30.0, 36.0),
    ],
)
def test_conventions(image, convention, xy, scale, angle, side):
    found = extract_patches(image, [xy], [scale], [angle], size=SIZE, pyramid="off", **convention)
    degrees = 0.0 if angle == -1 else 30.0
    golden = bilinear(image, patch_matrix((70.25, 50.5), side, degrees))
    np.testing.assert_allclose(found.patches[0], golden, atol=2e-3)


def opencv_level(image, number):
    """The copy for steps of 2^(number/3)."""
    octave, third = divmod(number, 3)
    for _ in range(octave):
        image = cv2.pyrDown(image, borderType=cv2.BORDER_REPLICATE)
    if third:
        width = 0.5 * np.sqrt(4 ** (third / 3) - 1)
        image = cv2.GaussianBlur(image, (0, 0), width, borderType=cv2.BORDER_REPLICATE)
    return image, 2**octave


def test_pyramid_against_opencv(image, rng):
    xy, side, degrees = random_keypoints(rng, 100, sides=(10.0, 300.0))
    patches, valid = extract_patches(image, xy, side, degrees, size=SIZE, extent=1.0)
    last = int(np.ceil(3 * np.log2(151 / SIZE)))
    levels = np.rint(3 * np.log2(np.maximum(side / SIZE, 1))).astype(int).clip(0, last)
    assert set(levels) >= set(range(last + 1))
    for number in np.flatnonzero(valid):
        level, spacing = opencv_level(image, levels[number])
        matrix = patch_matrix(xy[number] / spacing, side[number] / spacing, degrees[number])
        np.testing.assert_allclose(patches[number], bilinear(level, matrix), atol=5e-3)


def test_equals_the_patches_of_training(image):
    """What `kjax.data` cuts, but for its rounding to whole grey values at every step."""
    photo = np.rint(image).astype(np.uint8)
    xy = np.array([[70.3, 60.2], [50.0, 61.5], [80.7, 55.1]])
    sigma, angle = np.array([1.1, 2.2, 3.7]), np.array([0.3, 2.5, -1.7])
    golden = cut_patches(photo, Keypoints.of_sigma(xy, sigma, angle))
    found = extract_patches(photo, xy, sigma, angle, size=64, size_is="sigma", angle_is="radians")
    np.testing.assert_allclose(found.patches, golden, atol=2.0)


@pytest.mark.parametrize("kind", ["thirds", "kornia"])
def test_large_levels_are_blurred_as_small_ones(image, monkeypatch, kind):
    """By sums of slices, and by matrices."""
    image = jnp.asarray(image[None, :33, :40])
    levels = plan_levels(33, 40, size=8, kind=kind)
    assert len(levels) > 2

    def pack(largest):
        for name in ("MATRIX_SIDE", "ACCELERATED_MATRIX_SIDE"):
            monkeypatch.setattr(pyramid, name, largest)
        return jax.jit(lambda pixels: pack_pyramid(pixels, levels=levels, kind=kind))(image)

    np.testing.assert_allclose(pack(0), pack(64), atol=1e-3)


@pytest.mark.parametrize("kind", ["thirds", "octaves"])
def test_large_patches_do_not_alias(kind):
    board = 255.0 * (np.indices((200, 200)).sum(axis=0) % 2).astype(np.float32)
    cut = functools.partial(extract_patches, board, [[100, 100]], [110.0], [20.0], extent=1.0)
    assert cut(size=SIZE, pyramid=kind).patches.std() < 1 < cut(size=SIZE, pyramid="off")[0].std()


# Kornia


def kornia_lafs(xy, side, degrees):
    tensors = (torch.tensor(values, dtype=torch.float32) for values in (xy, side / 2, degrees))
    center, half, angle = tensors
    return laf_from_center_scale_ori(center[None], half[None, :, None, None], angle[None, :, None])


def old_kornia(image, lafs, size):
    """What kornia 0.8 does, from its definition: one `grid_sample` per level."""
    pixels = torch.tensor(image)[None, None]
    height, width = image.shape
    whole = torch.tensor([width - 1.0, height - 1.0])
    step = 2 * lafs[0, :, :, :2].det().sqrt() / size
    levels = step.log2().clamp(min=0).long()
    patches = torch.zeros(len(levels), size, size)
    number = 0
    while min(pixels.shape[2:]) >= size:
        sides = torch.tensor([pixels.shape[3], pixels.shape[2]], dtype=torch.float32)
        chosen = levels == number
        own = lafs[0, chosen].clone()
        own[:, :, :2] *= (sides.min() - 1) / whole.min()
        own[:, :, 2] *= (sides - 1) / whole
        grid = torch.nn.functional.affine_grid(own, [len(own), 1, size, size], align_corners=False)
        grid = 2 * grid / (sides - 1) - 1
        options, every = {"padding_mode": "border", "align_corners": False}, (len(own), -1, -1, -1)
        found = torch.nn.functional.grid_sample(pixels.expand(every), grid, **options)
        patches[chosen] = found[:, 0]
        pixels = kornia.geometry.transform.pyrdown(pixels)
        number += 1
    return patches.numpy(), levels.numpy() < number


KORNIA_PIXELS = "kornia" if kornia.__version__ >= "0.9" else "kornia0.8"


def new_kornia(image, lafs, size):
    patches = extract_patches_from_pyramid(torch.tensor(image)[None, None], lafs, size)
    return patches[0, :, 0].numpy(), True


FRAMES = {"size": SIZE, "size_is": "half_width"}


@pytest.mark.parametrize(
    ("reference", "kind"), [(new_kornia, KORNIA_PIXELS), (old_kornia, "kornia0.8")]
)
def test_equals_the_installed_kornia_and_that_of_old(image, rng, reference, kind):
    xy, side, degrees = random_keypoints(rng, 40, sides=(8.0, 100.0))
    golden, has_level = reference(image / 255, kornia_lafs(xy, side, degrees), SIZE)
    cut = functools.partial(extract_patches, image / 255, xy, side / 2, degrees, angle_is="kornia")
    patches, valid = cut(pyramid=kind, **FRAMES)
    compared = np.asarray(valid) & has_level
    assert compared.sum() > 30
    np.testing.assert_allclose(patches[compared], golden[compared], atol=1e-4)
    # The two kornias differ: otherwise this test would say nothing.
    newer, _ = cut(pyramid="kornia" if kind == "kornia0.8" else "kornia0.8", **FRAMES)
    assert np.abs(newer[compared] - golden[compared]).max() > 1e-2


def test_affine_frames_equal_the_installed_kornia(image, rng):
    """Rotated, squeezed, sheared, and mirrored frames."""
    lafs = kornia_lafs(*random_keypoints(rng, 40, sides=(8.0, 100.0)))
    squeeze = np.array([[1, 0.4], [0, 1]]) @ np.diag([1.5, 0.6])
    lafs[..., :2] = lafs[..., :2] @ torch.tensor(squeeze, dtype=torch.float32)
    lafs[:, ::5, :, 0] *= -1
    matrices, xy = lafs[0, :, :, :2].numpy(), lafs[0, :, :, 2].numpy()
    scale = np.sqrt(np.abs(np.linalg.det(matrices)))
    golden, _ = new_kornia(image / 255, lafs, SIZE)
    # The matrix's own size does not count.
    options = {"shape": 7 * matrices, "pyramid": KORNIA_PIXELS, **FRAMES}
    found = extract_patches(image / 255, xy, scale, **options)
    assert found.valid.sum() > 30
    np.testing.assert_allclose(found.patches[found.valid], golden[found.valid], atol=1e-4)


cut_octaves = functools.partial(extract_patches, size=SIZE, extent=1.0, pyramid="octaves")


def test_batches_equal_single_images(image, rng):
    images = np.stack([image, image[::-1]])
    columns = map(np.stack, zip(random_keypoints(rng, 5), random_keypoints(rng, 5), strict=True))
    given = [images, *columns]
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
    both = cut_octaves(*given, mask=mask)
    for number in range(2):
        one = cut_octaves(*(column[number] for column in given))
        np.testing.assert_array_equal(both.valid[number], one.valid & mask[number])
        kept = both.valid[number]
        np.testing.assert_allclose(both.patches[number][kept], one.patches[kept], atol=1e-3)
    assert not both.patches[~both.valid].any()
    assert_refused("for 2 images", cut_octaves, images, np.zeros((3, 1, 2)), np.ones((3, 1)))


def test_jit_and_vmap_equal_eager(image, rng):
    given = [jnp.asarray(values) for values in random_keypoints(rng, 6)]
    eager = cut_octaves(image, *given)
    mapped = jax.vmap(lambda *keypoint: cut_octaves(image, *(one[None] for one in keypoint)))
    once = jax.tree.map(lambda values: values[:, 0], mapped(*given))
    for found in (jax.jit(cut_octaves)(image, *given), once):
        np.testing.assert_allclose(found.patches, eager.patches, atol=1e-3)
        np.testing.assert_array_equal(found.valid, eager.valid)


def test_numbers_of_keypoints_share_programs(image):
    before = extract._compiled()._cache_size()
    for count in (33, 40, 48):
        found = extract_patches(image, np.full((count, 2), 50.0), np.ones(count), size=3)
        assert found.patches.shape == (count, 3, 3)
        assert found.valid.all()
    assert extract._compiled()._cache_size() == before + 1


@pytest.mark.parametrize(
    ("kind", "on_cpu"), [("thirds", True), ("octaves", True), ("off", True), ("thirds", False)]
)
def test_sizes_of_images_share_programs(image, rng, monkeypatch, kind, on_cpu):
    """Images of NumPy are filled up to one of few shapes; those of JAX stay as they are."""
    monkeypatch.setattr(extract, "on_cpu", lambda: on_cpu)
    sizes = [(61, 97), (64, 100), (57, 112)]
    extract._compiled().clear_cache()
    compiled = []
    for height, width in sizes:
        crop = image[:height, :width]
        xy = rng.uniform(-10, [width + 10, height + 10], (40, 2))
        options = {"scale": rng.uniform(0.5, 15, 40), "size": 8, "pyramid": kind}
        before = extract._compiled()._cache_size()
        found = extract_patches(crop, xy, **options)
        compiled.append(extract._compiled()._cache_size() - before)
        expected = extract_patches(jnp.asarray(crop), xy, **options)
        np.testing.assert_array_equal(found.valid, expected.valid)
        np.testing.assert_allclose(found.patches, expected.patches, atol=1e-3)
    assert compiled[1:] == [0, 0]


def test_accelerators_pad_photos_to_few_shapes(monkeypatch):
    monkeypatch.setattr(extract, "on_cpu", lambda: False)
    sides = [(680, 880), (1024, 1536), (1536, 1024), (1200, 1600), (512, 512), (3000, 2000)]
    padded = [(1024, 1024), (1536, 1536), (1536, 1536), (2048, 2048), (512, 512), (3072, 2048)]
    assert [extract.padded_sides(*shape) for shape in sides] == padded


# What keypoints may hold


def test_keypoints_that_mean_nothing_are_blank(image):
    nan, inf = np.nan, np.inf
    xy = np.full((9, 2), 50.0)
    xy[1, 0], xy[2, 1], xy[8, 0] = nan, inf, 1e30
    scale = np.array([2, 2, 2, nan, inf, 0, -2, 1e30, 2])
    found = extract_patches(image, xy, scale, size=SIZE, pyramid="off")
    assert found.valid.tolist() == [True] + [False] * 8
    assert np.isfinite(found.patches).all()
    assert found.patches[0].all()
    assert not found.patches[1:].any()
    assert extract_patches(image, [], [], [], size=SIZE).valid.shape == (0,)
    turned = extract_patches(image, [[50, 50]] * 2, [2.0] * 2, [nan, 0], size=SIZE, pyramid="off")
    assert turned.valid.tolist() == [False, True]


def test_keypoints_outside_see_the_repeated_border(image):
    # Half-sides of 12: the first patch reaches 2 pixels in, the second none.
    found = extract_patches(image, [[-10, 60], [-13, 60]], [24.0] * 2, extent=1.0, size=24)
    assert found.valid.tolist() == [True, False]
    rows = np.linspace(48.5, 71.5, 24)
    border = (image[rows.astype(int), 0] + image[rows.astype(int) + 1, 0]) / 2
    np.testing.assert_allclose(found.patches[0, :, :21], np.tile(border[:, None], 21), atol=1e-3)
    assert not found.patches[1].any()


@pytest.mark.parametrize(
    ("shape", "points"),
    [((9, 9), (0, 2)), ((1, 9, 9), (1, 0, 2)), *((x, (2, 2)) for x in ((0, 5), (5, 0), (0, 0)))],
)
def test_without_keypoints_or_pixels_there_are_no_patches(shape, points):
    image, scale = np.zeros(shape, np.uint8), np.ones(points[:-1])
    found = extract_patches(image, np.ones(points), scale, size=SIZE)
    assert found.patches.shape == (*points[:-1], SIZE, SIZE)
    assert found.valid.shape == points[:-1]
    assert not found.patches.any()
    assert not found.valid.any()


@pytest.mark.parametrize("kind", ["thirds", "octaves", "off", "kornia", "kornia0.8"])
@pytest.mark.parametrize("height", [1, 40])
def test_thin_images(height, kind):
    image = np.arange(height, dtype=np.float32)[:, None]
    found = extract_patches(image, [[0, 0.2], [0, 20.0]], [0.1, 3.0], [0, 90], size=8, pyramid=kind)
    assert found.valid[0]
    # Their only column is repeated: at 0° down the rows, at 90° down the columns.
    assert np.ptp(found.patches[0], axis=1).max() < 1e-4
    assert np.ptp(found.patches[1], axis=0).max() < 1e-4
    if height > 1:
        assert np.ptp(found.patches[0], axis=0).max() > 0.1
        assert np.ptp(found.patches[1], axis=1).max() > 10


# What images may hold


def test_kinds_of_images_agree(image, rng):
    grey = image.astype(np.uint8)
    keypoints = random_keypoints(rng, 4)
    cut = functools.partial(extract_patches, size=SIZE, extent=1.0)
    expected = cut(grey.astype(np.float32), *keypoints).patches
    same = [grey, grey.astype(np.uint16) * 257, grey[..., None], np.stack([grey] * 3, axis=-1)]
    for other in (*same, jnp.asarray(grey), np.asfortranarray(grey, np.float32)):
        np.testing.assert_allclose(cut(other, *keypoints).patches, expected, atol=1e-3)
    unit = cut(grey / 255, *keypoints).patches
    np.testing.assert_allclose(255 * unit, expected, atol=1e-3)


def test_positions_stay_exact_in_huge_images(optimized):
    side = 10_000
    image = np.zeros((side, side), np.uint8)
    corner = np.random.default_rng(0).integers(0, 256, (60, 60), np.uint8)
    image[-60:, -60:] = corner
    xy = np.array([[30.25, 28.5], [57.5, 59.0]])
    angles, options = [33.0, 0.0], {"size": SIZE, "extent": 1.0, "pyramid": "off"}
    patches, valid = extract_patches(image, xy + side - 60, [20.0, 20.0], angles, **options)
    assert valid.all()
    for patch, position, degrees in zip(patches, xy, angles, strict=True):
        matrix = patch_matrix(position, 20.0, degrees)
        np.testing.assert_allclose(patch, bilinear(corner.astype(float), matrix), atol=0.01)


def test_more_pixels_than_can_be_counted_are_refused():
    def cut(image):
        return extract_patches(image, [[1, 1]], [1.0])

    huge = jax.ShapeDtypeStruct((10_000, 10_000), np.uint8)
    assert jax.eval_shape(cut, huge).patches.shape == (1, 32, 32)
    assert_refused("octaves", jax.eval_shape, cut, jax.ShapeDtypeStruct((30_000, 30_000), np.uint8))


@pytest.mark.parametrize("kind", ["octaves", "kornia"])
def test_gradients_match_finite_differences(rng, kind):
    weight = rng.random((2, 5, 5))

    def loss(*arguments):
        return (weight * extract_patches(*arguments, size=5, pyramid=kind).patches).sum()

    image, xy = rng.random((13, 15)), np.array([[7.3, 5.7], [1.2, 11.4]])
    arguments = [image, xy, np.array([0.41, 1.23]), np.array([20.0, 200.0])]
    with jax.enable_x64(True):
        compiled = jax.jit(loss)
        gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*arguments)
        for number, gradient in enumerate(gradients):
            direction = 1e-6 * rng.standard_normal(gradient.shape)
            ahead, behind = list(arguments), list(arguments)
            ahead[number] = arguments[number] + direction
            behind[number] = arguments[number] - direction
            slope = (compiled(*ahead) - compiled(*behind)) / 2
            assert abs(slope) > 1e-9
            np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-4)


def test_unusable_keypoints_and_frames_have_no_gradient(image):
    def loss(xy, scale, angle, shape=None):
        cut = functools.partial(extract_patches, size=4, pyramid="off")
        return cut(image, xy, scale, angle, shape=shape).patches.sum()

    xy = jnp.array([[50.0, 50.3], [jnp.nan, 50], [50, 50], [50, 50]])
    scale, angle = jnp.array([2.0, 2, jnp.nan, 0]), jnp.array([10.0, 0, 0, jnp.inf])
    for gradient in jax.grad(loss, argnums=(0, 1, 2))(xy, scale, angle):
        assert np.abs(gradient[0]).max() > 0
        assert not gradient[1:].any()
    line, none, infinite = [[1.0, 1], [1, 1]], [[0.0, 0], [0, 0]], [[jnp.inf, 0], [0, 1]]
    shape = jnp.array([[[1.0, 0.2], [0.1, 2]], line, none, infinite, [[jnp.nan, 0], [0, 1]]])
    gradient = jax.grad(loss, argnums=3)(np.full((5, 2), 50.3), np.full(5, 2.0), None, shape)
    assert np.abs(gradient[0]).max() > 0
    assert not gradient[1:].any()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([[1, 1, 1]], [1.0]), {}, r"xy must be \[N,2\]"),
        (([1, 1], [1.0]), {}, r"xy must be \[N,2\]"),
        (([[1, 1]], [1.0, 2.0]), {}, "scale must have one value per keypoint"),
        (([[1, 1]], [1.0], [1.0, 2.0]), {}, "angle must have one value per keypoint"),
        (([[1, 1]], [1.0]), {"mask": [True, False]}, "mask must have one value per keypoint"),
        (([[1, 1]], [1.0]), {"shape": np.eye(2)}, "shape must have one value per keypoint"),
        (([[1, 1]], [1.0]), {"size_is": "sigm"}, "did you mean 'sigma'"),
        (([[1, 1]], [1.0]), {"angle_is": "degrees"}, "unknown angle_is"),
        (([[1, 1]], [1.0]), {"pixel_origin": "centre"}, "did you mean 'center'"),
        (([[1, 1]], [1.0]), {"pyramid": "third"}, "did you mean 'thirds'"),
        (([[1, 1]], [1.0]), {"order": "grb"}, "unknown order"),
        (([[1, 1]], [1.0]), {"size": 0}, "size must be at least 1"),
    ],
)
def test_mistakes_are_named(arguments, options, message):
    assert_refused(message, extract_patches, np.zeros((9, 9), np.uint8), *arguments, **options)
