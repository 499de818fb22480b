"""The twin for use in PyTorch: the descriptors of JAX, without JAX."""

import jax
import numpy as np
import pytest
from models import ENCODED, UNUSUAL, make_model, narrow, random_patches, without_means
from refusals import assert_refused
from scripts import output_of

torch = pytest.importorskip("torch")

import kjax  # noqa: E402
from kjax.model import HEADS  # noqa: E402
from kjax.parity.torch_twin import load, load_reference  # noqa: E402
from kjax.weights.files import save_variables  # noqa: E402
from kjax.weights.info import ModelInfo, fields_of  # noqa: E402

SIZE = 16
# Of unit vectors. Seven layers that each round (2^-24) sums of up to 10^4 terms: if errors are
# independent, 7 · 100 · 6e-8 = 4e-5 at the very worst, a tenth of it where terms shrink as here.
LIMIT = 1e-5

WITHOUT_JAX = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"no {{name}} here")

sys.meta_path.insert(0, Missing())
import numpy as np
import torch
from kjax.parity.torch_twin import load

np.save("found.npy", load("best")(torch.from_numpy(np.load("patches.npy"))).numpy())
"""


def largest_difference(found, expected):
    return np.linalg.norm(np.asarray(found) - np.asarray(expected), axis=1).max()


@pytest.mark.slow
def test_best_without_jax(tmp_path, rng):
    patches = random_patches(rng, 4, 32)
    patches[1] = 7
    np.save(tmp_path / "patches.npy", patches)
    missing = ("jax", "jaxlib", "flax", "jaxtyping", "ml_collections", "optax", "orbax")
    output_of(WITHOUT_JAX.format(missing=missing), cwd=tmp_path)
    expected = kjax.load("best").describe(patches)
    assert largest_difference(np.load(tmp_path / "found.npy"), expected) < LIMIT


@pytest.mark.parametrize(
    ("head", "context"), [*((head, (1,)) for head in HEADS), ("polar", (1, 2.5))]
)
def test_every_head_from_a_file(head, context, tmp_path, rng):
    pytest.importorskip("safetensors")
    options = {"context": context} | (UNUSUAL if head in ENCODED else {})
    model, variables = make_model(head, patch_size=SIZE, **narrow(head), **options)
    path = tmp_path / "weights.safetensors"
    save_variables(path, variables, info=ModelInfo(model=fields_of(model)))
    patches = random_patches(rng, 6, SIZE)
    patches[1] = 7
    patches = patches.reshape(-1, *model.patch_shape)
    by_point = patches if model.has_context else patches[:, None]
    twin = load(path)
    with jax.default_matmul_precision("highest"):
        expected = model.apply(variables, patches)
    for given in (patches, by_point, patches.astype(np.float32), patches / 255):
        assert largest_difference(twin(torch.from_numpy(given)), expected) < LIMIT
    unfolded = load_reference(path)(torch.from_numpy(by_point.astype(np.float32)))
    assert largest_difference(unfolded.detach(), expected) < LIMIT


def test_it_is_for_inference_only():
    twin = load("tiny")
    assert not twin.training
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert not any("Norm" in type(module).__name__ for module in twin.modules())


def test_a_descriptor_without_direction_is_uniform(tmp_path):
    _, variables = make_model("sum", patch_size=SIZE)
    save_variables(tmp_path / "sum.npz", without_means(variables))
    found = load(f"{tmp_path / 'sum.npz'}:sum,patch_size=16")(torch.ones(1, SIZE, SIZE))
    np.testing.assert_allclose(found, np.full((1, 128), 128**-0.5), rtol=1e-6)


def test_half_precision(rng):
    twin = load("hardnet")
    patches = torch.from_numpy(random_patches(rng, 2, 32))
    expected = twin(patches)
    found = twin.to(torch.bfloat16)(patches)
    assert found.dtype == torch.bfloat16
    # Eight bits a number: each layer adds 2^-9, and half of what BatchNorm passed on is lost.
    assert largest_difference(found.float(), expected) < 0.05


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("besst", r"did you mean 'best'"),
        ("best:hardnet", "omit ':hardnet'"),
        ("nowhere.npz", "nowhere.npz: no such file"),
        ("xy.npz", r"fits several heads, xy and polar: name one, as in xy.npz:xy,s=1"),
        ("xy.npz:hardnet", "does not fit"),
        ("xy.npz:polr,s=1", "did you mean 'polar'"),
        ("xy.npz:xy,s=1,patch_size=30", "multiple of 4"),
    ],
)
def test_bad_sources(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_variables("xy.npz", make_model("xy")[1])
    assert_refused(message, load, source)


def test_bad_patches():
    for patches, message in (
        (torch.zeros(2, 16, 16), r"\[B,32,32\] or \[B,1,32,32\], not \[2, 16, 16\]"),
        (torch.zeros(32, 32), r"not \[32, 32\]"),
        (torch.zeros(2, 32, 32, dtype=torch.int32), r"not torch\.int32"),
    ):
        assert_refused(message, load("hardnet"), patches)


def test_other_widths_follow_from_the_weights(tmp_path, rng):
    model, variables = make_model("hardnet", patch_size=SIZE, **narrow("hardnet"))
    path = tmp_path / "weights.npz"
    save_variables(path, variables)
    patches = random_patches(rng, 4, SIZE)
    expected = model.apply(variables, patches)
    assert largest_difference(load(path)(torch.from_numpy(patches)), expected) < LIMIT
    assert largest_difference(kjax.load(str(path)).describe(patches), expected) < LIMIT
