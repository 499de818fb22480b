"""Ways to describe: all give the same, the fastest is guessed or measured once."""

import json
import pickle
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, random_patches

import kjax
from kjax.errors import InputError
from kjax.images import runner
from kjax.images.runner import JAX, ONNXRUNTIME, Runner, Way


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(runner.VARIABLE, raising=False)


def make_runner(head: str = "combined", *, backend: str | None = None, **options) -> Runner:
    return Runner(*kjax.fold(*make_model(head, patch_size=8, **options)), backend=backend)


@pytest.mark.parametrize("head", ["combined", "combined_star", "cat"])
def test_every_way_gives_the_same_descriptors(rng, head):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    light = {"channels": (8, 8, 16, 16, 32, 32)}
    model, variables = make_model(head, patch_size=8, **light)
    patches = random_patches(rng, 35, 8)
    expected = model.apply(variables, patches)
    made = make_runner(head, **light)
    for way in (Way(JAX, 8, 2), Way(JAX, 16, 1), Way(ONNXRUNTIME, 16, 2)):
        # Unit vectors, through seven layers of float32: as in tests/parity/test_torch_twin.py.
        np.testing.assert_allclose(made.describe_in(way, patches), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 5, 35])
def test_patches_on_the_device_are_described_there(rng, monkeypatch, count):
    monkeypatch.setattr(runner, "preferred_batch", lambda: 16)
    model, variables = make_model("hardnet", patch_size=8)
    patches = random_patches(rng, count, 8).astype(np.float32)
    made = make_runner("hardnet")
    found = made.describe_on_device(jnp.asarray(patches))
    assert found.shape == (count, made.dimension)
    if count:
        np.testing.assert_allclose(found, model.apply(variables, patches), rtol=0, atol=1e-5)


def test_a_copy_for_another_process_has_no_programs(rng):
    made = make_runner("hardnet")
    patches = random_patches(rng, 5, 8)
    expected = made.describe(patches)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(made)).describe(patches), expected)


def test_the_guess_is_what_was_seen_to_win(monkeypatch):
    monkeypatch.setattr(runner, "cores", lambda: 2)
    monkeypatch.setattr(runner, "default_threads", lambda: 2)
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(runner.platform, "machine", lambda: "x86_64")
    few, many = np.zeros((9, 8, 8), np.uint8), np.zeros((runner.REPAYS_COMPILING, 8, 8), np.uint8)
    wide, by_jax = make_runner(), make_runner(backend=JAX)
    assert wide.way(few) == wide.way(many) == Way(ONNXRUNTIME, runner.ONNX_BATCH, 2)
    assert by_jax.way(few) == Way(JAX, runner.QUICKLY_COMPILED, 2)
    assert by_jax.way(many) == Way(JAX, 16, 2)
    assert make_runner(dtype="bfloat16").way(few).backend == JAX
    monkeypatch.setattr(runner.platform, "machine", lambda: "aarch64")
    assert wide.way(few).backend == JAX
    assert make_runner(backend=ONNXRUNTIME).way(few).backend == ONNXRUNTIME
    monkeypatch.setattr(runner.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: None)
    assert wide.way(few).backend == JAX


def test_many_patches_are_measured_once_and_the_fastest_way_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "REPAYS_COMPILING", 2)
    monkeypatch.setattr(runner, "REPAYS_MEASURING", 4)
    now, tried = [0.0], []

    def describe_in(self, way, patches):
        tried.append(way)
        now[0] += 1.0 if (way.backend, way.batch) == (JAX, 64) else 2.0

    monkeypatch.setattr(Runner, "describe_in", describe_in)
    monkeypatch.setattr(runner.time, "perf_counter", lambda: now[0])
    patches = np.zeros((4, 8, 8), np.uint8)
    memory = tmp_path / "cache" / runner.MEMORY

    assert make_runner(backend="guess").way(patches).batch != 64
    assert not tried
    assert not memory.exists()
    assert make_runner().way(patches).batch == 64
    assert len(tried) >= 4
    tried.clear()
    assert make_runner().way(patches).batch == 64
    assert make_runner().way(patches[:2]).batch == 64, "remembered for fewer patches as well"
    assert not tried
    (key,) = json.loads(memory.read_text())
    assert "jaxlib" in key
    for damage in ("{", "[]", json.dumps({key: {"backend": JAX, "batch": "64", "threads": 2}})):
        memory.write_text(damage)
        assert make_runner().way(patches).batch == 64
        assert tried, damage
        tried.clear()


def test_measuring_ends_in_time(monkeypatch):
    tried = []
    monkeypatch.setattr(Runner, "describe_in", lambda self, way, patches: tried.append(way))
    monkeypatch.setattr(runner, "REPAYS_COMPILING", 2)
    monkeypatch.setattr(runner, "REPAYS_MEASURING", 4)
    monkeypatch.setattr(runner, "MEASURING_SECONDS", -1.0)
    made = make_runner()
    assert made.way(np.zeros((4, 8, 8), np.uint8)) == tried[0]
    assert len(set(tried)) == 1


def test_backends_are_checked(monkeypatch):
    with pytest.raises(InputError, match="unknown backend 'onnx': choose from jax, onnx"):
        make_runner(backend="onnx")
    monkeypatch.setenv(runner.VARIABLE, "torch")
    with pytest.raises(InputError, match="unknown backend 'torch'"):
        make_runner()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match="needs onnxruntime: pip install onnxruntime"):
        make_runner(backend=ONNXRUNTIME)
