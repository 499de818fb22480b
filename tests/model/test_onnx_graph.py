"""Layers for onnxruntime give what the network's own give, to the edges of the maps."""

import jax
import numpy as np
import pytest
from models import make_model, random_patches

import kjax
from kjax.model import STRIDES, onnx_graph
from kjax.model.folding import fold_head
from kjax.model.onnx_graph import onnx_model
from kjax.model.patches import normalize_patches

LIGHT, WIDE = (8, 8, 16, 16, 32, 32), (8, 16, 16, 16, 64, 48)
BOTH = (8, 8, 12, 16, 64, 80)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(
    ("head", "channels", "size"),
    [
        ("hardnet", LIGHT, 8),
        ("cat", LIGHT, 32),
        ("hardnet", WIDE, 16),
        ("sum", WIDE, 8),
        ("combined", BOTH, 32),
        ("combined_star", BOTH, 16),
    ],
)
def test_descriptors_are_the_same(rng, head, channels, size, dtype):
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    model, variables = make_model(head, patch_size=size, channels=channels)
    patches = random_patches(rng, 5, size).astype(np.float32)
    patches[0] = 7
    folded, weights = fold_head(*kjax.fold(model, variables))
    own = folded.clone(dtype=np.dtype(dtype))
    graph = onnx_model(own, weights, dtype="float32", block=16)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"patches": patches})
    expected = model.apply(variables, patches)
    if dtype == "int8":
        assert (found * expected).sum(axis=1).min() > 0.997
        layers = [node.op_type for node in graph.graph.node if "Conv" in node.op_type]
        assert layers == (2 if head == "combined_star" else 1) * 6 * ["QLinearConv"]
        return
    # Unit vectors, through seven layers of float32: as in tests/parity/test_torch_twin.py.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def convolve_whole_numbers(patches, layers):
    """The trunk in 8 bits as it is defined, layer by layer, in units of `STEP`."""
    step, x = onnx_graph.PATCH_STEP, np.asarray(normalize_patches(patches[..., None]))
    x = np.clip(np.rint(x / step), -onnx_graph.GREY, 255 - onnx_graph.GREY)
    for (kernel, bias), stride in zip(layers, STRIDES, strict=True):
        whole, steps = onnx_graph.to_int8(kernel)
        given = x, whole.astype(np.float32), (stride, stride), [(1, 1)] * 2
        # Exact in float32: below 2**24.
        sums = jax.lax.conv_general_dilated(*given, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        sums = np.asarray(sums) + np.rint(bias / (step * steps))
        x = np.clip(np.rint(sums * (steps * (step / onnx_graph.STEP))), 0, 255).astype(np.float32)
        step = onnx_graph.STEP
    return x


@pytest.mark.parametrize(("channels", "size"), [(LIGHT, 32), (WIDE, 16), (BOTH, 12)])
def test_8_bit_maps_are_exact(rng, channels, size):
    """Columns computed as channels change nothing."""
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    model, variables = make_model("hardnet", patch_size=size, channels=channels)
    folded, weights = fold_head(*kjax.fold(model, variables))
    graph = onnx_model(folded.clone(dtype=np.dtype("int8")), weights, dtype="float32")
    (last,) = [node.input[0] for node in graph.graph.node if node.op_type == "Flatten"]
    graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(last))
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    patches = random_patches(rng, 3, size).astype(np.float32)
    found = session.run([last], {"patches": patches})[0].transpose(0, 2, 3, 1).astype(int)
    trunk = weights["params"]["trunk"]
    layers = [
        (np.asarray(one["kernel"]), np.asarray(one["bias"])) for _, one in sorted(trunk.items())
    ]
    expected = convolve_whole_numbers(patches, layers)
    # Ties are rounded either way: one in thousands, by one.
    assert np.abs(found - expected).max() <= 1
    assert (found != expected).mean() < 0.002


@pytest.mark.parametrize(
    ("channels", "block", "size", "convolutions"),
    [
        (LIGHT, 16, 32, [[4, 3], [2, 3], [2, 3], [3, 3], [3, 3], [3, 3]]),
        (LIGHT, 8, 32, [[3, 3]] * 6),
        (WIDE, 16, 8, [[3, 3]] * 6),
        (WIDE, 16, 16, [[3, 3]] * 5 + 6 * [[6, 1], [1, 3]] + [[1, 1]] * 5),
    ],
)
def test_layers_are_taken_where_they_pay(channels, block, size, convolutions):
    pytest.importorskip("onnx")
    model, variables = make_model("hardnet", patch_size=size, channels=channels)
    graph = onnx_model(*kjax.fold(model, variables), dtype="float32", block=block).graph
    shapes = [
        list(attribute.ints)
        for node in graph.node
        for attribute in node.attribute
        if node.op_type == "Conv" and attribute.name == "kernel_shape"
    ]
    assert shapes == convolutions


def test_errors_of_8_bit_weights_sum_to_little(rng):
    kernel = rng.normal(size=(3, 3, 16, 5)).astype(np.float32)
    kernel[..., 0] = 0
    whole, steps = onnx_graph.to_int8(kernel)
    # Two products with bytes fit into 16 bits.
    assert 2 * 255 * int(np.abs(whole).max()) < 2**15
    assert (whole[..., 0] == 0).all()
    errors = whole - kernel / steps
    assert np.abs(errors).max() < 1
    assert np.abs(errors.sum(axis=(0, 1, 2))).max() < 0.501
    # The last step moves few kernels, by one.
    sums = np.abs(errors.sum(axis=(0, 1)))
    assert sums.max() < 1.501
    assert sums.mean() < 0.5


def test_combinations_are_those_of_minimal_filtering(rng):
    rows, kernel = rng.normal(size=6), rng.normal(size=3)
    m = (onnx_graph.ROW_COMBINATIONS @ rows) * (onnx_graph.KERNEL_COMBINATIONS @ kernel)
    made = [m[0] + m[1] + m[2] + m[3] + m[4], m[1] - m[2] + 2 * (m[3] - m[4])]
    made += [m[1] + m[2] + 4 * (m[3] + m[4]), m[1] - m[2] + 8 * (m[3] - m[4]) + m[5]]
    np.testing.assert_allclose(made, np.correlate(rows, kernel), atol=1e-12)
