"""Backends that describe patches give the same descriptors; the choice is fixed by machine."""

import pickle
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, random_patches
from refusals import assert_refused
from scripts import output_of

import kjax
from kjax.images import runner
from kjax.images.runner import JAX, ONNXRUNTIME, Runner

NARROW = {"channels": (8, 8, 16, 16, 32, 32)}


@pytest.fixture(autouse=True)
def _no_override(monkeypatch):
    monkeypatch.delenv(runner.VARIABLE, raising=False)


def make_runner(head: str = "combined", *, backend: str | None = None, **options) -> Runner:
    return Runner(*kjax.fold(*make_model(head, patch_size=8, **NARROW, **options)), backend=backend)


@pytest.mark.parametrize("head", ["combined", "combined_star", "cat", "context"])
@pytest.mark.parametrize("backend", [JAX, ONNXRUNTIME])
def test_backends_agree(rng, head, backend, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(runner, "QUICKLY_COMPILED", 16)
    options: dict = {}
    if head == "context":
        head, options = "combined", {"context": (1, 2, 4), "dimension": 16}
    model, variables = make_model(head, patch_size=8, **NARROW, **options)
    patches = random_patches(rng, 105, 8)[: 35 * len(model.context)].reshape(35, *model.patch_shape)
    made = make_runner(head, backend=backend, **options)
    found, expected = made.describe(patches, threads=2), model.apply(variables, patches)
    # Unit vectors, through seven layers of float32: as in tests/parity/test_torch_twin.py.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    copy = pickle.loads(pickle.dumps(made))  # without the compiled programs
    np.testing.assert_array_equal(copy.describe(patches), found)
    for count in (0, 1, 35) if backend == JAX else ():
        there = made.describe_on_device(jnp.asarray(patches[:count], jnp.float32))
        assert there.shape == (count, made.dimension)
        np.testing.assert_allclose(there, expected[:count], rtol=0, atol=1e-5)


def test_backend_and_batch_by_machine(monkeypatch):
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: True)
    assert make_runner().backend == ONNXRUNTIME
    assert make_runner().batch_size(10**6) == runner.ONNX_BATCH
    assert make_runner(dtype="bfloat16").backend == JAX
    by_jax = make_runner(backend=JAX)
    sizes = [by_jax.batch_size(count) for count in (0, 3, 9, runner.REPAYS_COMPILING)]
    assert sizes == [1, 4, runner.QUICKLY_COMPILED, 16]
    folded, weights = kjax.fold(*make_model("combined", patch_size=8, **NARROW))
    int8 = folded.clone(dtype=np.dtype("int8")), weights
    assert Runner(*int8).backend == ONNXRUNTIME
    assert_refused("int8 needs onnxruntime on a CPU", Runner, *int8, backend=JAX)
    assert make_runner(backend=ONNXRUNTIME).backend == ONNXRUNTIME
    monkeypatch.setenv(runner.VARIABLE, ONNXRUNTIME)
    assert make_runner().backend == ONNXRUNTIME
    monkeypatch.setenv(runner.VARIABLE, "torch")
    assert_refused("unknown backend 'torch': choose from jax, onnxruntime", make_runner)
    monkeypatch.delenv(runner.VARIABLE)
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: None)
    assert make_runner().backend == JAX
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = r"needs onnxruntime: pip install 'kjax\[export\]'"
    assert_refused(message, make_runner, backend=ONNXRUNTIME)


def test_int8_by_choice_only_where_it_is_faster(monkeypatch):
    monkeypatch.setattr(runner, "cpu_features", lambda: {"avx2", "avx_vnni"})
    monkeypatch.setattr(runner.platform, "system", lambda: "Linux")
    assert runner.fastest_dtype() == "int8"
    assert runner.fastest_dtype(JAX) == runner.fastest_dtype(device="gpu") == "float32"
    monkeypatch.setenv(runner.VARIABLE, JAX)
    assert runner.fastest_dtype() == "float32"
    monkeypatch.delenv(runner.VARIABLE)
    monkeypatch.setattr(runner, "cpu_features", lambda: {"avx2", "avx512f"})
    assert runner.fastest_dtype() == "float32"
    monkeypatch.setattr(runner.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(runner.platform, "machine", lambda: "arm64")
    assert runner.fastest_dtype() == "int8"


PROGRAM = """
import os, jax
from kjax.images.runner import keep_compiled_programs
for elsewhere, compiled in ((None, "off"), (None, ""), ("/elsewhere", "")):
    jax.config.update("jax_compilation_cache_dir", elsewhere)
    os.environ["KJAX_COMPILED"] = compiled
    keep_compiled_programs()
    print(jax.config.jax_compilation_cache_dir)
"""


def test_compilation_cache_folder(tmp_path):
    printed = output_of(PROGRAM, KJAX_CACHE=str(tmp_path))
    assert printed.split() == ["None", f"{tmp_path}/compiled", "/elsewhere"]
