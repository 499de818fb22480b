import jax
import numpy as np
import pytest
from refusals import assert_refused

pytest.importorskip("torch")
import torch
from models import make_model, random_patches

import kjax
from kjax.parity.torch_reference import TorchDescriptor
from kjax.weights.torch_names import from_torch, to_torch


@pytest.mark.parametrize("head", kjax.HEADS)
def test_round_trip(head):
    s = 2 if head == "combined" else 1
    model, variables = make_model(head, s=s)
    state_dict = to_torch(variables)
    reference = TorchDescriptor(head, s)
    reference.load_state_dict(state_dict, strict=True)
    for restored in (from_torch(reference.state_dict(), model), from_torch(state_dict)):
        assert jax.tree.structure(restored) == jax.tree.structure(variables)
        jax.tree.map(np.testing.assert_array_equal, restored, variables)


def test_wrappers_and_data_parallel_prefixes_are_removed():
    _, variables = make_model("hardnet")
    wrapped = {"epoch": 9, "state_dict": {f"module.{k}": v for k, v in to_torch(variables).items()}}
    jax.tree.map(np.testing.assert_array_equal, from_torch(wrapped), variables)


def test_a_checkpoint_that_does_not_fit_is_refused_by_name():
    for changes, message in (
        ({"features.3.weight": None}, "missing features.3.weight"),
        ({"features.21.weight": (3,)}, "unexpected features.21.weight"),
        ({"features_polar.0.weight": (32, 3, 3, 3)}, r"polar.0.weight .* of \[32, 1, 3, 3\]"),
        ({"head.weight": (128, 2305)}, r"shape \[128, 2305\] instead of \[128, 2304\]"),
        ({"head.bias": (128,)}, "head.bias holds int32"),
        ({"head.weight": None, "head.bias": None}, "missing head.bias, head.weight"),
    ):
        kind = torch.int32 if "head.bias" in changes else torch.float32
        added = {name: shape and torch.zeros(shape, dtype=kind) for name, shape in changes.items()}
        state_dict = to_torch(make_model("combined_star")[1]) | added
        left = {name: array for name, array in state_dict.items() if array is not None}
        assert_refused(message, from_torch, left)


def test_other_refusals():
    state_dict = to_torch(make_model("xy", s=2)[1])
    _, folded = kjax.fold(*make_model("hardnet"))
    for convert, arguments, message in (
        (from_torch, (state_dict, kjax.build("xy", s=1)), r"shape \[128, 3200\] instead of"),
        (from_torch, (state_dict, kjax.build("hardnet")), r"missing features\.19\.weight"),
        (from_torch, ({},), "not a state dict"),
        (from_torch, ({"state_dict": 3},), "not a state dict"),
        (to_torch, (folded,), "folded"),
    ):
        assert_refused(message, convert, *arguments)


def test_kornias_hardnet_has_the_same_descriptors_both_ways(rng):
    feature = pytest.importorskip("kornia.feature")
    model, variables = make_model("hardnet")
    theirs = feature.HardNet(pretrained=False).eval()
    theirs.load_state_dict(to_torch(variables), strict=True)
    patches = random_patches(rng, 8, 32).astype(np.float32) / 255
    with torch.no_grad():
        expected = theirs(torch.from_numpy(patches[:, None])).numpy()
    found = model.apply(from_torch(theirs.state_dict(), model), patches)
    np.testing.assert_allclose(found, expected, atol=1e-5)
