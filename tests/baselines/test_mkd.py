import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from kjax.baselines import mkd
from kjax.data.embedded import stereo_patch_pairs

describe = jax.jit(mkd.describe_raw, static_argnames=("kernel", "magnitude_epsilon"))


@pytest.fixture(scope="module")
def photographs():
    """Real patches, 0 to 1."""
    return stereo_patch_pairs(6, size=64)[:, 0].astype(np.float32) / 255


def whitening_of(dimension, rng):
    basis, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
    eigvals = np.sort(rng.uniform(1e-4, 0.05, dimension))[::-1]
    return mkd.Whitening(0.1 * rng.normal(size=dimension), basis, eigvals.copy(), "none")


def tensors_of(whitening, dtype):
    torch = pytest.importorskip("torch")
    parts = {part: getattr(whitening, part) for part in ("mean", "eigvecs", "eigvals")}
    return {part: torch.from_numpy(array.astype(dtype)) for part, array in parts.items()}


def kornia_epsilon():
    """What this kornia adds to squared magnitudes: 1e-8 before version 0.9, and then nothing."""
    conversions = pytest.importorskip("kornia.geometry.conversions")
    zero = pytest.importorskip("torch").zeros(1)
    return round(float(conversions.cart2pol(zero, zero, 1e-8)[0]) ** 2, 12)


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("kernel", ["polar", "cart", "concat"])
def test_equals_kornia(photographs, kernel, size):
    torch, kornia = (pytest.importorskip(name) for name in ("torch", "kornia.feature"))
    patches = photographs if size == 64 else photographs[:, ::2, ::2].copy()
    theirs = kornia.MKDDescriptor(patch_size=size, kernel_type=kernel, whitening=None)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(patches)[:, None]).numpy()
    found = describe(patches, kernel=kernel, magnitude_epsilon=kornia_epsilon())
    assert found.shape == (6, mkd.DIMENSIONS[kernel])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("mode", mkd.MODES)
def test_whitening_equals_kornia(mode, rng):
    torch, module = (pytest.importorskip(name) for name in ("torch", "kornia.feature.mkd"))
    whitening = whitening_of(238, rng)
    model = {("lw" if mode == "lw" else "pca"): tensors_of(whitening, np.float32)}
    raw = rng.normal(size=(5, 238)).astype(np.float32)
    raw /= np.linalg.norm(raw, axis=1, keepdims=True)
    theirs = module.Whitening(mode, model, in_dims=238, output_dims=128)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(raw)).numpy()
    matrix, power = mkd.projection(whitening, mode)
    mean = jnp.asarray(whitening.mean, jnp.float32)
    found = mkd.whiten(jnp.asarray(raw), mean, jnp.asarray(matrix), power=power)
    assert found.shape == (5, 128)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_grey_values_may_be_scaled_and_shifted(photographs):
    found = describe(photographs, magnitude_epsilon=0.0)
    changed = describe(0.5 * photographs + 0.3, magnitude_epsilon=0.0)
    np.testing.assert_allclose(found, changed, atol=2e-4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("side", [64, 65, 96])
def test_area_resizing_equals_opencv(rng, side):
    cv2 = pytest.importorskip("cv2")
    patches = rng.integers(0, 256, (20, side, side), dtype=np.uint8)
    expected = [cv2.resize(patch, (32, 32), interpolation=cv2.INTER_AREA) for patch in patches]
    found = np.asarray(mkd.resize_area(jnp.asarray(patches, jnp.float32), 32))
    difference = np.abs(found - expected)
    # Sums that round to a half, or next to it, may go either way.
    assert difference.max() <= 1
    assert (difference > 0).mean() < (0.001 if side == 65 else 0.15 if side == 96 else 1e-9)


def test_files_of_several_sets(tmp_path, rng):
    torch = pytest.importorskip("torch")
    path = tmp_path / "mkd.pth"
    sets = ("yosemite", "liberty")
    content = {name: {"lw": tensors_of(whitening_of(238, rng), np.float64)} for name in sets}
    torch.save(content, path)
    assert mkd.load_whitening(path, "lw").training_set == "liberty"
    other = mkd.load_whitening(path, "lw", "yosemite")
    np.testing.assert_array_equal(other.eigvecs, content["yosemite"]["lw"]["eigvecs"].numpy())
    assert_refused("holds no pca whitening, which pcawt needs", mkd.load_whitening, path, "pcawt")
    assert_refused("unknown training set 'notredame'", mkd.load_whitening, path, "lw", "notredame")
    del content["liberty"]["lw"]["mean"], content["yosemite"]["lw"]["eigvals"]
    torch.save(content, path)
    assert_refused("missing yosemite/lw/eigvals", mkd.load_whitening, path, "lw")
