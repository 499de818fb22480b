import jax
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from models import make_model, random_patches

import kjax
from kjax.errors import InputError
from kjax.parity.torch_reference import TorchDescriptor
from kjax.weights.torch_names import from_torch, to_torch


@pytest.mark.parametrize("s", [1, 2])
@pytest.mark.parametrize("head", kjax.HEADS)
def test_there_and_back(head, s):
    model, variables = make_model(head, s=s)
    state_dict = to_torch(variables)
    reference = TorchDescriptor(head, s)
    reference.load_state_dict(state_dict, strict=True)
    for restored in (from_torch(reference.state_dict(), model), from_torch(state_dict)):
        assert jax.tree.structure(restored) == jax.tree.structure(variables)
        jax.tree.map(np.testing.assert_array_equal, restored, variables)


def test_wrappers_and_data_parallel_prefixes_come_off():
    _, variables = make_model("hardnet")
    wrapped = {"epoch": 9, "state_dict": {f"module.{k}": v for k, v in to_torch(variables).items()}}
    jax.tree.map(np.testing.assert_array_equal, from_torch(wrapped), variables)


def broken(name):
    state_dict = to_torch(make_model("combined_star")[1])
    match name:
        case "missing":
            del state_dict["features.3.weight"], state_dict["head.bias"]
        case "extra":
            state_dict["features.21.weight"] = torch.zeros(3)
        case "shape":
            state_dict["features_polar.0.weight"] = torch.zeros(32, 3, 3, 3)
        case "inputs":
            state_dict["head.weight"] = torch.zeros(128, 2305)
        case "integers":
            state_dict["head.bias"] = torch.zeros(128, dtype=torch.int32)
        case "headless":
            del state_dict["head.weight"], state_dict["head.bias"]
    return state_dict


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "missing features.3.weight, head.bias"),
        ("extra", "unexpected features.21.weight"),
        ("shape", r"features_polar.0.weight has shape \[32, 3, 3, 3\] instead of \[32, 1, 3, 3\]"),
        ("inputs", r"head.weight has shape \[128, 2305\] instead of \[128, 2304\]"),
        ("integers", "head.bias holds int32"),
        ("headless", "missing head.bias, head.weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(name, message):
    with pytest.raises(InputError, match=message):
        from_torch(broken(name))


def test_a_checkpoint_of_another_model_is_refused():
    state_dict = to_torch(make_model("xy", s=2)[1])
    with pytest.raises(InputError, match=r"head.weight has shape \[128, 3200\] instead of"):
        from_torch(state_dict, kjax.build("xy", s=1))
    with pytest.raises(InputError, match=r"missing features\.19\.weight"):
        from_torch(state_dict, kjax.build("hardnet"))


@pytest.mark.parametrize("what", [{}, {"state_dict": 3}])
def test_no_state_dict_at_all(what):
    with pytest.raises(InputError, match="no state dict"):
        from_torch(what)


def test_folded_variables_have_no_counterpart():
    _, folded = kjax.fold(*make_model("hardnet"))
    with pytest.raises(InputError, match="folded"):
        to_torch(folded)


def test_equals_kornias_hardnet(rng):
    feature = pytest.importorskip("kornia.feature")
    torch.manual_seed(0)
    theirs = feature.HardNet(pretrained=False).eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    patches = random_patches(rng, 8, 32).astype(np.float32) / 255
    with torch.no_grad():
        expected = theirs(torch.from_numpy(patches[:, None])).numpy()
    model = kjax.build("hardnet")
    found = model.apply(from_torch(theirs.state_dict(), model), patches)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_our_weights_load_into_kornia(rng):
    feature = pytest.importorskip("kornia.feature")
    model, variables = make_model("hardnet")
    theirs = feature.HardNet(pretrained=False).eval()
    theirs.load_state_dict(to_torch(variables), strict=True)
    patches = random_patches(rng, 4, 32).astype(np.float32) / 255
    with torch.no_grad():
        found = theirs(torch.from_numpy(patches[:, None])).numpy()
    np.testing.assert_allclose(found, model.apply(variables, patches), atol=1e-5)
