import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kjax.baselines import load_baseline, mkd
from kjax.data.embedded import stereo_patch_pairs
from kjax.errors import InputError

describe = jax.jit(mkd.describe_raw, static_argnames=("kernel", "magnitude_epsilon"))


@pytest.fixture(scope="module")
def photographs():
    """Real patches, 0 to 1."""
    return stereo_patch_pairs(6, size=64)[:, 0].astype(np.float32) / 255


def whitening_of(dimension, rng, algorithm="pca"):
    basis, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
    eigvals = np.sort(rng.uniform(1e-4, 0.05, dimension))[::-1]
    return mkd.Whitening(0.1 * rng.normal(size=dimension), basis, eigvals.copy(), algorithm, "none")


def kornia_epsilon():
    """What this kornia adds to squared magnitudes: 1e-8 before version 0.9, and then nothing."""
    torch, conversions = (
        pytest.importorskip(name) for name in ("torch", "kornia.geometry.conversions")
    )
    zero = torch.zeros(1)
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
    whitening = whitening_of(238, rng, "lw" if mode == "lw" else "pca")
    model = {
        whitening.algorithm: {
            part: torch.from_numpy(getattr(whitening, part).astype(np.float32))
            for part in ("mean", "eigvecs", "eigvals")
        }
    }
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


def test_fitted_components_are_uncorrelated(rng):
    mixing = rng.normal(size=(20, 20)) * np.geomspace(1, 0.05, 20)
    descriptors = rng.normal(size=(5000, 20)) @ mixing + 3
    whitening = mkd.fit_pca(descriptors, fitted_on="noise")
    assert (np.diff(whitening.eigvals) <= 0).all()
    projected = (descriptors - whitening.mean) @ whitening.eigvecs
    np.testing.assert_allclose(
        projected.T @ projected / 5000,
        np.diag(whitening.eigvals),
        atol=1e-10 * whitening.eigvals[0],
    )
    matrix, power = mkd.projection(whitening, "pcawt", attenuation=1.0)
    white = (descriptors - whitening.mean) @ matrix
    np.testing.assert_allclose(white.T @ white / 5000, np.eye(20), atol=1e-4)
    assert power == 1


def test_a_whitening_is_fitted_saved_and_read_again(tmp_path):
    pairs = stereo_patch_pairs(250, size=64)
    training = pairs[:, 0]
    fitted = mkd.fit_mkd("pcawt", training, fitted_on="motorcycle")
    assert fitted.source == "PCA fitted by kjax on 250 patches of motorcycle"
    assert (fitted.name, fitted.dimension, fitted.parameters) == ("MKD pcawt", 128, 238 * 129)
    raw = load_baseline("mkd").describe(training)
    path = tmp_path / "whitening.npz"
    mkd.save_whitening(path, mkd.fit_pca(raw, fitted_on="motorcycle"))
    again = load_baseline("mkd-pcawt", path)
    assert again.source == "whitening.npz (motorcycle)"
    np.testing.assert_allclose(
        again.describe(pairs[:9, 1]), fitted.describe(pairs[:9, 1]), atol=2e-4
    )
    with pytest.raises(InputError, match="holds no whitening of the kind lw"):
        load_baseline("mkd-lw", path)
    with pytest.raises(InputError, match="unknown training set 'yosemite'"):
        load_baseline("mkd-pca", path, training_set="yosemite")


def test_files_of_several_sets(tmp_path, rng):
    torch = pytest.importorskip("torch")
    path = tmp_path / "mkd.pth"
    content = {}
    for name in ("yosemite", "liberty"):
        whitening = whitening_of(238, rng, "lw")
        parts = {part: getattr(whitening, part) for part in ("mean", "eigvecs", "eigvals")}
        tensors = {part: torch.from_numpy(array.copy()) for part, array in parts.items()}
        content[name] = {"lw": tensors}
    torch.save(content, path)
    assert mkd.load_whitening(path, "lw").training_set == "liberty"
    other = mkd.load_whitening(path, "lw", "yosemite")
    np.testing.assert_array_equal(other.eigvecs, content["yosemite"]["lw"]["eigvecs"].numpy())
    del content["liberty"]["lw"]["mean"], content["yosemite"]["lw"]["eigvals"]
    torch.save(content, path)
    with pytest.raises(InputError, match="missing yosemite/lw/eigvals"):
        mkd.load_whitening(path, "lw")


def test_empty_directions_are_not_magnified(rng):
    descriptors = np.zeros((100, 6))
    descriptors[:, :2] = rng.normal(size=(100, 2))
    whitening = mkd.fit_pca(descriptors, fitted_on="a plane")
    matrix, _ = mkd.projection(whitening, "pcawt", attenuation=1.0)
    assert np.abs(matrix).max() < 1e4


def test_fitting_refuses_what_it_cannot_do(rng):
    with pytest.raises(InputError, match="20 descriptors of 30 dimensions"):
        mkd.fit_pca(rng.normal(size=(20, 30)), fitted_on="few")
    with pytest.raises(InputError, match="must be finite"):
        mkd.fit_pca(np.full((40, 3), np.nan), fitted_on="nothing")
    with pytest.raises(InputError, match="lw is learned from matching pairs"):
        mkd.fit_mkd("lw", np.zeros((1, 64, 64), np.uint8), fitted_on="nothing")
    with pytest.raises(InputError, match="unknown whitening 'zca'"):
        mkd.projection(whitening_of(3, rng), "zca")
    with pytest.raises(InputError, match="lw needs a whitening of the kind lw"):
        mkd.projection(whitening_of(3, rng), "lw")
