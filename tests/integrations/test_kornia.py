"""kornia's module: the descriptors that kjax gives of the same frames."""

import cv2
import numpy as np
import pytest
import skimage.data
from models import CHANNELS, make_model
from refusals import refused

torch = pytest.importorskip("torch")
kornia = pytest.importorskip("kornia")

from kornia.feature import LocalFeature, ScaleSpaceDetector, laf_from_center_scale_ori  # noqa: E402

import kjax  # noqa: E402
from kjax.integrations.kornia import LAFDescriptor  # noqa: E402
from kjax.model.patches import resize_patches  # noqa: E402
from kjax.weights.files import save_variables  # noqa: E402
from kjax.weights.info import ModelInfo, fields_of  # noqa: E402

KORNIA_PIXELS = "kornia" if kornia.__version__ >= "0.9" else "kornia0.8"
COUNT = 40
# Of unit vectors, in float32 against float64. Positions up to 256 pixels are rounded to 2^-16 of
# one, in some four steps; a pixel of contrast 1 that moves by 2^-14 changes by 6e-5 at most.
LIMIT = 6e-5


@pytest.fixture(scope="module")
def photo():
    return skimage.data.camera()[40:240, 150:400].astype(np.float32) / 255


@pytest.fixture(scope="module")
def descriptor():
    return LAFDescriptor("fast")


@pytest.fixture
def frames(rng):
    """Centres, half widths and degrees, of which some need each level of the pyramid."""
    xy = rng.uniform(10, 190, (COUNT, 2))
    return xy, np.exp(rng.uniform(np.log(8), np.log(90), COUNT)), rng.uniform(0, 360, COUNT)


def as_lafs(frames, dtype=torch.float32):
    xy, half, degrees = (torch.tensor(column, dtype=dtype)[None] for column in frames)
    return laf_from_center_scale_ori(xy, half[..., None, None], degrees[..., None])


def as_image(photo, dtype=torch.float32):
    return torch.tensor(photo, dtype=dtype)[None, None]


def distances(found, expected):
    return np.linalg.norm(np.asarray(found) - np.asarray(expected), axis=1)


def test_equals_kjax(photo, descriptor, frames):
    exact = descriptor(as_image(photo, torch.float64), as_lafs(frames, torch.float64))[0]
    assert exact.dtype == torch.float64
    found = descriptor(as_image(photo), as_lafs(frames))[0]
    conventions = {"size_is": "half_width", "angle_is": "kornia", "pyramid": KORNIA_PIXELS}
    columns = (column.astype(np.float32) for column in frames)
    patches, valid = kjax.extract_patches(photo, *columns, size=64, **conventions)
    assert valid.all()
    ours = kjax.load("fast").describe(resize_patches(patches, 32))
    assert distances(found, exact).max() < LIMIT
    assert distances(ours, exact).max() < LIMIT
    assert distances(found, found.flip(0)).max() > 0.5


def test_frames_of_keypoints_are_described_as_by_describe_image(photo, descriptor, frames):
    xy, half, degrees = frames
    describer = kjax.load("fast")
    keypoints = np.column_stack([xy, 2 * half / describer.extent, -degrees])
    ours = describer.describe_image(photo, keypoints).descriptors
    # The pyramids differ, so patches that are coarser than the photograph differ a little.
    fine = 2 * half < 64
    apart = distances(descriptor(as_image(photo), as_lafs(frames))[0], ours)
    assert 5 < fine.sum() < COUNT
    assert apart[fine].max() < 2 * LIMIT
    assert apart.max() < 0.3


def test_works_with_kornias_detectors(photo, descriptor):
    # kornia's frames are 12σ wide; these weights like 9.3 diameters of 2σ.
    assert descriptor.scaling_coef == pytest.approx(kjax.load("fast").extent / 6)
    images = as_image(photo[:96, :96]).repeat(2, 1, 1, 1)
    local = LocalFeature(ScaleSpaceDetector(8), descriptor, descriptor.scaling_coef)
    lafs, _, descriptors = local(images)
    assert descriptors.shape == (2, 8, 128)
    torch.testing.assert_close(descriptors.norm(dim=-1), torch.ones(2, 8))
    torch.testing.assert_close(descriptor(images.repeat(1, 3, 1, 1), lafs), descriptors)


def test_gradients_reach_images_and_frames(photo, descriptor, frames):
    image, lafs = as_image(photo).requires_grad_(), as_lafs(frames).requires_grad_()
    (descriptor(image, lafs) * torch.linspace(-1, 1, 128)).sum().backward()
    for gradient in (image.grad, lafs.grad):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 1e-3


def test_affine_shapes_count(photo, descriptor, frames):
    """A frame twice as wide as high sees what a square sees in the photograph at half its width."""
    # Blurred, so that neither is too coarse.
    photo = cv2.GaussianBlur(photo, (0, 0), 3)
    squeezed = as_image(photo).reshape(1, 1, 200, 125, 2).mean(-1)
    squares = torch.zeros(1, COUNT, 2, 3)
    squares[..., :2] = 12.0 * torch.eye(2)
    squares[..., 2] = torch.tensor(frames[0]) / 2 + 20
    wide = squares.clone()
    wide[..., 0, :] *= 2
    wide[..., 0, 2] += 0.5
    expected = descriptor(squeezed, squares)[0]
    wide_apart = distances(descriptor(as_image(photo), wide)[0], expected)
    wide[..., 0, 0] /= 2
    square_apart = distances(descriptor(as_image(photo), wide)[0], expected)
    assert np.median(wide_apart) < 0.2 * np.median(square_apart)


def test_context_is_refused(tmp_path):
    model, variables = make_model("xy", context=(1, 4), channels=CHANNELS)
    save_variables(tmp_path / "w.npz", variables, info=ModelInfo(fields_of(model)))
    with refused("describes points with their surroundings, which these patches lack"):
        LAFDescriptor(tmp_path / "w.npz")
