import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch7_files
from models import make_model
from refusals import assert_refused

from kjax.baselines import deepcompare, deepdesc, load_baseline, tfeat
from kjax.baselines.torch7 import read_torch7
from kjax.data.embedded import stereo_patch_pairs
from kjax.model.patches import resize_patches
from kjax.weights.files import save_variables

torch = pytest.importorskip("torch")
functional = torch.nn.functional


@pytest.fixture(scope="module")
def patches():
    return stereo_patch_pairs(4, size=64)[:, 0]


@pytest.fixture(scope="module")
def small(patches):
    """The same patches, 32×32, as the networks of that size are given them."""
    return np.asarray(resize_patches(jnp.asarray(patches), 32, rounded=True))


@pytest.fixture
def released(shared_data):
    """A function from a name to a file of weights that its authors released."""

    def find(name):
        if not (shared_data / name).is_file():
            pytest.skip(f"the released weights {name} are not here")
        return shared_data / name

    return find


@pytest.fixture(scope="module")
def real_patches(shared_data):
    """Patches of the real Notre Dame set, 64×64."""
    paths = sorted((shared_data / "ubc_notredame").glob("patches*.bmp"))
    mosaics = np.stack([cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) for path in paths])
    return mosaics.reshape(-1, 16, 64, 16, 64).swapaxes(2, 3).reshape(-1, 64, 64)


def torch_images(patches):
    return torch.from_numpy(np.array(patches, np.float32))[:, None]


def check(baseline, facts, patches, expected, atol=1e-5):
    assert (baseline.name, baseline.dimension, baseline.parameters) == facts
    np.testing.assert_allclose(baseline.describe(patches), expected, atol=atol)
    constant = np.stack([np.full((64, 64), grey, np.uint8) for grey in (0, 1, 77, 255)])
    assert np.isfinite(baseline.describe(constant)).all()


def random_layer(rng, shape, gain=1.5):
    """Weights that keep the signal's size through a layer."""
    scale = gain / np.sqrt(np.prod(shape[1:]))
    weight = (scale * rng.normal(size=shape)).astype(np.float32)
    return weight, (0.1 * rng.normal(size=shape[0])).astype(np.float32)


def random_layers(rng, shapes):
    return {name: random_layer(rng, shape) for name, shape in shapes.items()}


def tfeat_twin(weights, images):
    x = functional.instance_norm(images)
    x = functional.conv2d(x, weights["features.1.weight"], weights["features.1.bias"])
    x = functional.max_pool2d(torch.tanh(x), 2)
    x = functional.conv2d(x, weights["features.4.weight"], weights["features.4.bias"])
    x = torch.tanh(x).flatten(1)
    return torch.tanh(functional.linear(x, weights["descr.0.weight"], weights["descr.0.bias"]))


def test_tfeat_with_released_weights_equals_torch(shared_data, patches, small):
    path = shared_data / "tfeat" / "tfeat-liberty.params"
    weights = torch.load(path, map_location="cpu", weights_only=True)
    baseline = load_baseline("tfeat", path)
    assert baseline.source == "tfeat-liberty.params"
    expected = tfeat_twin(weights, torch_images(small)).numpy()
    check(baseline, ("TFeat", 128, 599_808), patches, expected)


def hard_tfeat_twin(weights, images):
    """As in the authors' HardNet.py."""
    x = (images - images.mean((1, 2, 3), keepdim=True)) / (images.std((1, 2, 3), keepdim=True))
    x = functional.conv2d(x, weights["features.0.weight"], weights["features.0.bias"]).tanh()
    x = functional.max_pool2d(x, 2)
    x = functional.conv2d(x, weights["features.3.weight"], weights["features.3.bias"]).tanh()
    x = functional.conv2d(x, weights["classifier.1.weight"], weights["classifier.1.bias"])
    return functional.normalize(x.tanh().flatten(1))


def test_hard_tfeat_equals_torch(tmp_path, rng, patches, small):
    arrays = torch7_files.state_dict(random_layers(rng, tfeat.HARD_SHAPES))
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    others = {"SIFT.gx.0.weight": torch.zeros(1, 1, 1, 3)}
    path = tmp_path / "HardTFeat.pth"
    torch.save({"epoch": 2, "state_dict": weights | others}, path)
    baseline = load_baseline("hardtfeat", path)
    expected = hard_tfeat_twin(weights, torch_images(small)).numpy()
    check(baseline, ("HardTFeat", 128, 599_808), patches, expected)
    assert_refused(r"missing features\.1\.weight", load_baseline, "tfeat", path)


def test_hard_tfeat_with_released_weights_equals_torch(released, real_patches):
    path = released("hardtfeat/HardTFeat.pth")
    weights = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    small = np.asarray(resize_patches(jnp.asarray(real_patches), 32, rounded=True))
    expected = hard_tfeat_twin(weights, torch_images(small)).numpy()
    found = load_baseline("hardtfeat", path).describe(real_patches)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_tfeat_reads_every_format(tmp_path, rng, patches, small):
    shapes = tfeat.SHAPES | {"descr.0": (128, 4096)}
    arrays = torch7_files.state_dict(random_layers(rng, shapes))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    expected = tfeat_twin(tensors, torch_images(small)).numpy()
    np.savez(tmp_path / "a.npz", **arrays)
    wrapped = {f"module.{name}": tensor for name, tensor in tensors.items()}
    torch.save({"state_dict": wrapped}, tmp_path / "b.pth")
    for name in ("a.npz", "b.pth"):
        found = load_baseline("tfeat", tmp_path / name).describe(patches)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_weights_that_do_not_fit_are_named(tmp_path, rng):
    shapes = tfeat.SHAPES | {"features.4": (64, 32, 5, 5)}
    arrays = torch7_files.state_dict(random_layers(rng, shapes))
    del arrays["descr.0.bias"]
    arrays["features.1.bias"][3] = np.nan
    np.savez(tmp_path / "bad.npz", **arrays)
    told = assert_refused("", load_baseline, "tfeat", tmp_path / "bad.npz")
    for part in (
        "missing descr.0.bias",
        "features.4.weight has shape [64, 32, 5, 5] instead of [64, 32, 6, 6]",
        "features.1.bias does not hold finite",
    ):
        assert part in told


L2NET = ((32, 3, 1), (32, 3, 1), (64, 3, 2), (64, 3, 1), (128, 3, 2), (128, 3, 1), (128, 8, 1))
"""Channels, side and stride."""


@pytest.fixture(scope="module")
def l2net_twin():
    torch.manual_seed(0)
    layers, before = [], 1
    for channels, side, stride in L2NET:
        padding = 1 if side == 3 else 0
        norm = torch.nn.BatchNorm2d(channels, affine=False, eps=1e-10)
        norm.running_mean.normal_(std=0.1)
        norm.running_var.uniform_(0.5, 1.5)
        conv = torch.nn.Conv2d(before, channels, side, stride=stride, padding=padding)
        layers += [conv, norm, torch.nn.ReLU()]
        before = channels
    return torch.nn.Sequential(*layers[:-1]).eval()


def l2net_expected(twin, patches, mean_image):
    images = torch_images(patches - mean_image)
    flat = images.flatten(1)
    normalized = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-12)
    with torch.no_grad():
        return functional.normalize(twin(normalized.reshape(images.shape)).flatten(1)).numpy()


def test_l2net_equals_torch_in_every_format(tmp_path, rng, l2net_twin, patches, small):
    state = {f"features.{name}": tensor for name, tensor in l2net_twin.state_dict().items()}
    state = {name: one for name, one in state.items() if not name.endswith("batches_tracked")}
    torch.save(state, tmp_path / "port.pth")
    baseline = load_baseline("l2net", tmp_path / "port.pth")
    assert baseline.source == "port.pth (holds no mean image: none subtracted)"
    expected = l2net_expected(l2net_twin, small, 0.0)
    check(baseline, ("L2-Net", 128, 1_334_560 + 576), patches, expected)
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    mean_image = rng.uniform(80, 150, (32, 32)).astype(np.float32)
    np.savez(tmp_path / "mean.npz", pixMean=mean_image, **arrays)
    layers = torch7_files.l2net_layers(arrays)
    torch7_files.write_matconvnet(tmp_path / "L2Net-LIB.mat", layers, pixMean=mean_image)
    expected = l2net_expected(l2net_twin, small, mean_image)
    for name in ("mean.npz", "L2Net-LIB.mat"):
        baseline = load_baseline("l2net", tmp_path / name)
        assert baseline.source == name
        np.testing.assert_allclose(baseline.describe(patches), expected, atol=1e-5)
    torch7_files.write_matconvnet(tmp_path / "short.mat", layers[:-3])
    assert_refused(r"missing features\.18", load_baseline, "l2net", tmp_path / "short.mat")


PARAMETERS = {"siam": 908_416, "siam2stream": 2_400_832}


def conv(images, layers, name, stride=1):
    weight, bias = (torch.from_numpy(array) for array in layers[name])
    return functional.conv2d(images, weight, bias, stride)


def convolved(layers, images, names, stride, pools):
    """Convolutions with ReLU between, the first with a stride, and pooling after the first ones."""
    x = images
    for i, name in enumerate(names):
        x = conv(x if i == 0 else x.relu(), layers, name, 1 if i else stride)
        x = functional.max_pool2d(x, 2) if i < pools else x
    return x.flatten(1)


def deepcompare_expected(name, layers, patches):
    images = torch_images(patches)
    images = (images - images.mean((1, 2, 3), keepdim=True)) / 256
    if name == "siam":
        return functional.normalize(convolved(layers, images, layers, 3, 2).relu()).numpy()
    middle, half = functional.pad(images, (-16,) * 4), functional.avg_pool2d(images, 2)
    retina, fovea = ([f"{stream}.conv{i}" for i in range(4)] for stream in ("retina", "fovea"))
    parts = convolved(layers, middle, retina, 2, 1), convolved(layers, half, fovea, 2, 1)
    return functional.normalize(torch.cat(parts, dim=1)).numpy()


@pytest.mark.parametrize("name", PARAMETERS)
def test_deepcompare_equals_torch_in_every_format(tmp_path, name, rng, patches):
    layers = random_layers(rng, deepcompare.LAYERS[name])
    decision = [(np.zeros((4, 4), np.float32), np.zeros(4, np.float32))] * 2
    torch7_files.write_deepcompare(tmp_path / "full.bin", name, [*layers.values(), *decision])
    torch7_files.write_deepcompare(tmp_path / "short.bin", f"{name}_desc", layers.values())
    network = torch7_files.deepcompare_network(name, layers.values())
    (tmp_path / "nn.t7").write_bytes(torch7_files.dumps(network))
    np.savez(tmp_path / "arrays.npz", **torch7_files.state_dict(layers))
    expected = deepcompare_expected(name, layers, patches)
    for file in ("full.bin", "short.bin", "nn.t7", "arrays.npz"):
        baseline = load_baseline("deepcompare", tmp_path / file)
        facts = (f"DeepCompare {name}", expected.shape[1], PARAMETERS[name])
        assert (baseline.name, baseline.dimension, baseline.parameters) == facts
        own, other = (deepcompare.load_params(tmp_path / one)[1] for one in (file, "nn.t7"))
        jax.tree.map(np.testing.assert_array_equal, own, other)
    check(baseline, facts, patches, expected)


def test_deepcompare_refuses_what_has_no_descriptor(tmp_path, rng):
    path = tmp_path / "2ch_liberty.bin"
    for network, channels, message in (
        ("2ch", 2, "'2ch' compares pairs of patches"),
        ("siam", 1, r"missing conv1\.weight"),
    ):
        torch7_files.write_deepcompare(path, network, [random_layer(rng, (96, channels, 7, 7))])
        assert_refused(message, load_baseline, "deepcompare", path)
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused("not one of DeepCompare's binary files", load_baseline, "deepcompare", path)


def ddesc_twin(layers, kernels, images):
    x = images
    for i, side in enumerate((2, 3, 4)):
        x = conv(x, layers, f"conv{i + 1}").tanh()
        x = functional.lp_pool2d(x, 2, side)
        if i < 2:
            kernel = torch.from_numpy(kernels[i])[None, None]
            padding = tuple(n // 2 for n in kernels[i].shape)
            across = x.sum(1, keepdim=True)
            total = functional.conv2d(across, kernel, padding=padding)
            ones = torch.full_like(across[:1], x.shape[1])
            x = x - total / functional.conv2d(ones, kernel, padding=padding)
    return x.flatten(1).numpy()


def test_deepdesc_equals_torch(tmp_path, rng, patches):
    layers = random_layers(rng, deepdesc.LAYERS)
    mean, std = (rng.uniform(*ends, (64, 64)) for ends in ((90, 130), (40, 60)))
    kernels = [rng.uniform(0.1, 1, (5, 5)).astype(np.float32) for _ in range(2)]
    network = torch7_files.deepdesc_network(layers.values(), kernels)
    content = {"desc": network, "mean": mean[None], "std": std[None]}
    (tmp_path / "net.t7").write_bytes(torch7_files.dumps(content))
    baseline = load_baseline("ddesc", tmp_path / "net.t7")
    expected = ddesc_twin(layers, kernels, torch_images((patches - mean) / std))
    assert expected.std(axis=0).mean() > 0.01  # the twin tells patches apart
    check(baseline, ("DDesc", 128, 280_320), patches, expected, atol=2e-5)


def test_deepdesc_refuses_other_arrays(tmp_path, rng):
    arrays = torch7_files.state_dict(random_layers(rng, deepdesc.LAYERS))
    arrays |= {"mean": np.full((64, 64), 120.0), "std": np.full((64, 64), 50.0)}
    arrays |= dict.fromkeys(deepdesc.KERNELS, np.ones((5, 5)))
    np.savez(tmp_path / "net.npz", **arrays)
    load_baseline("ddesc", tmp_path / "net.npz")
    for changes, message in (
        ({"std": np.zeros((64, 64))}, "deviations or the kernels are not all positive"),
        ({"kernel2": np.zeros((5, 5))}, "deviations or the kernels are not all positive"),
        ({"kernel1": np.ones((5, 7))}, r"kernel1 has shape \[5, 7\] instead of \[5, 5\]"),
        ({"mean": np.array(120.0)}, r"mean has shape \[\] instead of \[64, 64\]"),
    ):
        np.savez(tmp_path / "net.npz", **(arrays | changes))
        assert_refused(message, load_baseline, "ddesc", tmp_path / "net.npz")


RELEASED = ("split1_072000", "split2_104000", "split3_067000", "split4_073000")


@pytest.mark.parametrize("name", RELEASED)
def test_deepdesc_with_released_weights_equals_torch(released, real_patches, name):
    path = released(f"deepdesc/CNN3_p8_n8_{name}.t7")
    content = read_torch7(path)
    copies = ([part.copy() for part in pair] for pair in content["desc"].convolutions())
    layers = dict(zip(deepdesc.LAYERS, copies, strict=True))
    norms = [one for one in content["desc"].flat_modules() if "Normalization" in one.kind]
    kernels = [one.tensor("kernel").copy() for one in norms]
    images = torch_images((real_patches - content["mean"]) / content["std"])
    found = load_baseline("ddesc", path).describe(real_patches)
    np.testing.assert_allclose(found, ddesc_twin(layers, kernels, images), atol=1e-5)


def test_hardnet_is_ours_with_another_name(tmp_path, patches, small):
    model, variables = make_model("hardnet")
    save_variables(tmp_path / "hardnet.npz", variables)
    baseline = load_baseline("hardnet", tmp_path / "hardnet.npz")
    expected = jax.jit(model.apply)(variables, small)
    check(baseline, ("HardNet", 128, 1_334_560), patches, expected)
