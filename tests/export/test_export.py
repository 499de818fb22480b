"""Exported files against the models that they were made of."""

import functools

import jax
import numpy as np
import pytest
from models import ENCODED, UNUSUAL, make_model, narrow, random_patches, without_means
from refusals import assert_refused

from kjax.export import model as export
from kjax.export.files import read_facts, write_onnx
from kjax.export.model import export_model, load_exported
from kjax.model import HEADS, onnx_graph
from kjax.model.folding import fold
from kjax.weights.info import ModelInfo

FUNCTIONS = (".stablehlo", ".onnx")
SIZE = 16


@pytest.fixture(autouse=True)
def need_packages(request):
    if "onnx" in request.node.name:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")


@functools.cache
def compiled(model):
    return jax.jit(model.apply)


def in_jax(model, variables, patches):
    with jax.default_matmul_precision("highest"):
        return np.asarray(compiled(model)(variables, patches))


def difference(path, model, variables, patches):
    return np.abs(load_exported(path)(patches) - in_jax(model, variables, patches)).max()


@pytest.mark.parametrize(
    ("suffix", "head", "context"),
    [
        # Each head has operators of its own there; `combined` has its test below.
        *((".onnx", head, (1,)) for head in HEADS if head != "combined"),
        *((".stablehlo", head, (1,)) for head in ("hardnet", "combined_star")),
        *((suffix, "hardnet", (1, 4)) for suffix in FUNCTIONS),
    ],
)
def test_exported_functions_give_what_the_model_gives(suffix, head, context, tmp_path, rng):
    model, variables = make_model(head, patch_size=SIZE, context=context, **narrow(head))
    path = tmp_path / f"descriptor{suffix}"
    told = export_model(path, model, variables)
    assert 0 < told < 1e-5
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name], "temporary files left"
    # Other patches, of another range, and one without any structure.
    patches = 100 * rng.normal(size=(2, *model.patch_shape)).astype(np.float32)
    patches[1] = 0.1
    assert difference(path, model, variables, patches) < 1e-5
    assert read_facts(path).get("context") == ("1, 4" if model.has_context else None)


@pytest.mark.parametrize(
    ("head", "batch", "context"),
    [
        *((head, None, (1,)) for head in HEADS),
        ("hardnet", 3, (1,)),
        *(("combined_star", batch, (1, 4)) for batch in (None, 3)),
    ],
)
def test_onnx_files_run_in_opencv(head, batch, context, tmp_path, rng):
    cv2 = pytest.importorskip("cv2")
    # No biases: the patch without any structure becomes the zero vector, which is a special case.
    options = {"head_bias": head not in ENCODED, "context": context, **narrow(head)}
    model, variables = make_model(head, patch_size=SIZE, **options)
    variables = without_means(variables)
    path = tmp_path / "descriptor.onnx"
    # Directly, without the check in onnxruntime: this is one.
    graph = onnx_graph.onnx_model(*fold(model, variables), dtype="float32", batch=batch)
    write_onnx(path, graph, {})
    patches = 100 * rng.normal(size=(5, *model.patch_shape)).astype(np.float32)
    patches[1] = 0.1
    expected = in_jax(model, variables, patches)
    network = cv2.dnn.readNetFromONNX(str(path))
    for count in (batch,) if batch else (5, 2, 5):  # a network that knew another size
        blobs = [patches[:count]]
        if not model.has_context:
            blobs = [patches[:count, None], cv2.dnn.blobFromImages(list(patches[:count]))]
        for blob in blobs:
            network.setInput(blob)
            np.testing.assert_allclose(network.forward(), expected[:count], atol=1e-5)


def test_onnx_convolutions_tell_what_opencv_4_does_not_guess(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "descriptor.onnx"
    export_model(path, *make_model("combined_star", patch_size=SIZE))
    graph = onnx.load(path).graph
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert len(convolutions) == 12
    for node in convolutions:
        assert {"kernel_shape", "strides", "pads"} <= {one.name for one in node.attribute}
    # Their shapes would be those of the moment at which it reads a file: one patch, or none.
    assert not {"Unsqueeze", "Squeeze", "Shape"} & {node.op_type for node in graph.node}
    # Of opset 18 on, reductions have their axes as an input, which it overlooks.
    assert not [node for node in graph.node if "Reduce" in node.op_type and len(node.input) > 1]


@pytest.mark.parametrize("suffix", FUNCTIONS)
def test_batches_of_any_or_a_fixed_size(suffix, tmp_path, rng):
    model, variables = make_model("sum", patch_size=SIZE, **narrow("sum"))
    path, patches = tmp_path / f"descriptor{suffix}", random_patches(rng, 20, SIZE)
    expected = in_jax(model, variables, patches)
    for dtype, batch, counts in (("uint8", None, (1, 20)), ("float32", 3, (3,))):
        export_model(path, model, variables, input_dtype=dtype, batch=batch)
        assert read_facts(path)["input"].endswith(f"{dtype}[{batch or 'batch'}, 16, 16]")
        for count in counts:
            found = load_exported(path)(patches[:count].astype(dtype))
            np.testing.assert_allclose(found, expected[:count], atol=1e-5)
    assert_refused("at least one patch, not 0", export_model, path, model, variables, batch=0)


def test_the_models_own_constants_are_exported_to_onnx(tmp_path):
    model, variables = make_model("combined", patch_size=SIZE, **narrow("combined"), **UNUSUAL)
    export_model(tmp_path / "descriptor.onnx", model, variables)


def test_a_reduced_precision_of_training_does_not_last(tmp_path, rng):
    model, variables = make_model("sum", patch_size=SIZE, **narrow("sum"))
    path = tmp_path / "descriptor.stablehlo"
    export_model(path, model.clone(dtype=jax.numpy.bfloat16), variables)
    assert difference(path, model, variables, rng.random((2, SIZE, SIZE), np.float32)) < 1e-5


def test_a_stablehlo_file_needs_jax_only(tmp_path, rng):
    model, variables = make_model("sum", patch_size=SIZE, **narrow("sum"))
    export_model(tmp_path / "descriptor.stablehlo", model, variables)
    content = bytearray((tmp_path / "descriptor.stablehlo").read_bytes())
    exported = jax.export.deserialize(content)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    patches = rng.random((2, SIZE, SIZE), np.float32)
    found = jax.jit(exported.call)(patches)
    np.testing.assert_allclose(found, in_jax(model, variables, patches), atol=1e-5)


@pytest.mark.parametrize("suffix", FUNCTIONS)
def test_exported_files_tell_what_they_are(suffix, tmp_path):
    path = tmp_path / f"descriptor{suffix}"
    info = ModelInfo(remarks={"trained on": "Straße"})
    export_model(path, *make_model("polar", patch_size=SIZE), info=info)
    about = read_facts(path)
    expected = {"head": "polar", "s": "1", "patch size": "16", "trained on": "Straße"}
    assert expected.items() <= about.items()
    assert about["parameters"] == f"{285_984 + 9 * 128 * 128 + 128:,}"
    assert about["input"].endswith("float32[batch, 16, 16]")
    assert about["output"].endswith("float32[batch, 128]")


def refused(path, message, head="sum", *, scale=1.0):
    """Exports in vain over an older file, which must stay, and nothing beside it."""
    path.write_text("old")
    model, variables = make_model(head, patch_size=SIZE, **narrow(head))
    scaled = jax.tree.map(lambda leaf: leaf * scale, variables)
    assert_refused(message, export_model, path, model, scaled)
    assert path.read_text() == "old"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_unknown_types(tmp_path):
    model, variables = make_model("sum", patch_size=SIZE, **narrow("sum"))
    for name, options, message in (
        ("a.onx", {}, r"unknown file type '\.onx': did you mean '\.onnx'"),
        ("a.onnx", {"input_dtype": "uint16"}, "unknown input dtype 'uint16'"),
    ):
        assert_refused(message, export_model, tmp_path / name, model, variables, **options)
    for read in (read_facts, load_exported):
        assert_refused(r"unknown file type '\.npz'", read, tmp_path / "weights.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", FUNCTIONS)
def test_wrong_functions_and_weights_are_refused(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"descriptor{suffix}"
    refused(path, r"batch_stats/trunk/\S+ is not finite", scale=np.nan)
    matrix, fold_right = onnx_graph.position_matrix, export.fold

    def fold_wrongly(model, variables):
        folded, weights = fold_right(model, variables)
        return folded, jax.tree.map(lambda leaf: leaf + 0.01, weights)

    if suffix == ".onnx":
        monkeypatch.setattr(onnx_graph, "position_matrix", lambda *args: matrix(*args)[::-1])
    else:
        monkeypatch.setattr(export, "fold", fold_wrongly)
    refused(path, "would differ from JAX by .*was not kept", "xy")


@pytest.mark.parametrize("suffix", FUNCTIONS)
def test_damaged_files_are_refused(suffix, tmp_path):
    path = tmp_path / f"descriptor{suffix}"
    export_model(path, *make_model("sum", patch_size=SIZE, **narrow("sum")))
    whole = path.read_bytes()
    cut = [whole[:length] for length in (20, len(whole) // 2, len(whole) - 10)]
    for content in (b"", b"something else", bytes(1000), *cut):
        path.write_bytes(content)
        for read in (read_facts,) if content in cut else (read_facts, load_exported):
            assert_refused(r"descriptor\.\w+ is not", read, path)
