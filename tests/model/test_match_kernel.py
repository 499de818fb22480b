import numpy as np
import pytest
from models import make_model, random_patches

import kjax


@pytest.mark.parametrize("s", [1, 2])
@pytest.mark.parametrize("head", kjax.HEADS)
def test_similarities_add_up_to_the_inner_product(rng, head, s):
    model, variables = make_model(head, s=s)
    patches = random_patches(rng, 2, 32)
    encodings = model.apply(variables, patches, method="local_encodings")
    psi_a, psi_b = np.asarray(model.apply(variables, patches, method="unnormalized"), np.float64)
    table = encodings[0] @ encodings[1].T
    assert table.shape == (64, 64)
    scale = np.linalg.norm(psi_a) * np.linalg.norm(psi_b)
    assert float(table.sum()) == pytest.approx(psi_a @ psi_b, abs=1e-5 * scale)


@pytest.mark.parametrize("head", kjax.HEADS)
def test_encodings_add_up_to_the_descriptor(rng, head):
    model, variables = make_model(head)
    patches = random_patches(rng, 2, 32)
    total = model.apply(variables, patches, method="local_encodings").sum(axis=1)
    expected = model.apply(variables, patches, method="unnormalized")
    np.testing.assert_allclose(total, expected, atol=1e-5 * float(abs(expected).max()))


def test_hardnet_encodings_are_the_blocks_of_the_fully_connected_layer(rng):
    model, variables = make_model("hardnet")
    patches = random_patches(rng, 1, 32)
    (phi,) = model.apply(variables, patches, method="feature_maps")
    encodings = model.apply(variables, patches, method="local_encodings")
    kernel = np.asarray(variables["params"]["head"]["kernel"])
    np.testing.assert_allclose(
        encodings[0, 3 * 8 + 5], np.asarray(phi)[0, 3, 5] @ kernel[3, 5], atol=1e-5
    )


def test_weights_are_left_out_on_request(rng):
    model, variables = make_model("polar", head_bias=False)
    patches = random_patches(rng, 1, 32)
    weighted, plain = (
        model.apply(variables, patches, weighted=weighted, method="local_encodings")
        for weighted in (True, False)
    )
    np.testing.assert_allclose(weighted[0, 0], np.exp(-1) * plain[0, 0], rtol=1e-4)
