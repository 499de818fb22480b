import jax
import numpy as np
import pytest
from models import make_model, random_patches

import kjax
from kjax.errors import InputError
from kjax.model.folding import fold_head


@pytest.mark.parametrize("head", kjax.HEADS)
def test_folding_changes_no_descriptor(rng, head):
    model, variables = make_model(head, s=2)
    patches = random_patches(rng, 4, 32)
    folded_model, folded = kjax.fold(model, variables)
    assert "batch_stats" not in folded
    np.testing.assert_allclose(
        folded_model.apply(folded, patches), model.apply(variables, patches), atol=1e-5
    )


def test_weights_of_numpy_are_folded_to_the_same_numbers_on_the_device():
    """Else every call of the model would bring them there."""
    model, variables = make_model("combined_star", s=1)
    _, folded = kjax.fold(model, variables)
    _, same = kjax.fold(model, jax.tree.map(np.asarray, variables))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(same))
    jax.tree.map(np.testing.assert_array_equal, same, folded)


@pytest.mark.parametrize("head", ["xy", "combined", "combined_star", "sum"])
def test_position_encoding_folds_into_one_layer(rng, head):
    model, variables = make_model(head, s=2, patch_size=16, head_bias=head != "xy")
    patches = random_patches(rng, 3, 16)
    one_layer, weights = fold_head(*kjax.fold(model, variables))
    assert one_layer.head == {"xy": "hardnet", "combined": "hardnet"}.get(head, head)
    np.testing.assert_allclose(
        one_layer.apply(weights, patches), model.apply(variables, patches), atol=1e-5
    )


def test_a_folded_model_is_for_inference_only():
    model, variables = kjax.fold(*make_model("hardnet"))
    with pytest.raises(InputError, match="train the original"):
        model.apply(variables, np.zeros((2, 32, 32)), train=True)
    with pytest.raises(InputError, match="folded already"):
        kjax.fold(model, variables)


def test_folded_hardnet_encodings_include_batch_norm(rng):
    model, variables = kjax.fold(*make_model("hardnet"))
    patches = random_patches(rng, 2, 32)
    total = model.apply(variables, patches, method="local_encodings").sum(axis=1)
    normalized = total / np.linalg.norm(total, axis=1, keepdims=True)
    np.testing.assert_allclose(normalized, model.apply(variables, patches), atol=1e-5)
