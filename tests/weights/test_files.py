import json
import os
import pickle
import struct

import jax
import numpy as np
import pytest
from models import make_model
from refusals import assert_refused

import kjax
from kjax.baselines import mkd, tfeat
from kjax.errors import InputError
from kjax.parity.torch_reference import TorchDescriptor
from kjax.weights.files import load_variables, save_variables
from kjax.weights.info import ModelInfo, display_name, fields_of
from kjax.weights.source import facts, load_source
from kjax.weights.torch_names import to_arrays, to_torch

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
NARROW = {"patch_size": 16, "channels": (8, 8, 8, 8, 16, 16)}
UNUSUAL = {"kappa_xy": 2.1, "scale_rho": 1 / 3, "corner_radius": 1.5, "head_bias": False}


class Malicious:
    """Runs code when a naive reader unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_round_trip_and_truncation(tmp_path, suffix):
    model, variables = make_model("polar", **NARROW)
    path = tmp_path / f"weights{suffix}"
    save_variables(path, variables)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name], "temporary files left"
    jax.tree.map(np.testing.assert_array_equal, load_variables(path, model), variables)
    path.write_bytes(path.read_bytes()[:1000])
    assert_refused(f"weights{suffix}: ", load_variables, path)


def test_pickles_are_refused_and_not_run(tmp_path):
    trap = tmp_path / "trap"
    np.savez(tmp_path / "a.npz", **{"features.0.weight": np.array([Malicious(trap)], object)})
    torch.save({"features.0.weight": Malicious(trap)}, tmp_path / "a.pth")
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Malicious(trap)))
    for path in tmp_path.glob("a.*"):
        assert_refused(f"{path.name}: ", load_variables, path)
    assert not trap.exists()


def test_missing_files_and_unknown_types(tmp_path):
    assert_refused("no such file", load_variables, tmp_path / "nowhere.npz")
    assert_refused(r"unknown file type '\.onnx'", load_variables, tmp_path / "weights.onnx")
    assert_refused("unknown file type", save_variables, tmp_path / "weights.txt", {})


def save_arrays(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pth":
        torch.save({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, path)
    else:
        pytest.importorskip("safetensors.numpy").save_file(arrays, path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, suffix):
    arrays = to_arrays(make_model("sum", **NARROW)[1])
    for name, value in (("features.0.weight", np.nan), ("features.16.running_var", np.inf)):
        spoiled = arrays[name].copy()
        spoiled.flat[3] = value
        path = tmp_path / f"weights{suffix}"
        save_arrays(path, arrays | {name: spoiled})
        assert_refused(f"{name} is not finite", load_variables, str(path))
        assert_refused(f"{name} is not finite", load_source, str(path))
        assert_refused(f"{name} is not finite", kjax.load, str(f"{path}:sum"))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_what_is_not_an_array_is_named(tmp_path):
    state = to_torch(make_model("sum", **NARROW)[1])
    path = tmp_path / "weights.pth"
    for odd in (torch.zeros(32, 1, 3, 3, dtype=torch.bfloat16), torch.zeros(3).to_sparse()):
        torch.save(state | {"features.0.weight": odd}, path)
        assert_refused(r"weights\.pth: features\.0\.weight holds torch", load_variables, path)
    circle: dict = {}
    circle["a"] = circle
    shared: list = [1.0]
    for _ in range(40):
        shared = [shared, shared]
    odd_names = {3: torch.zeros(2)}
    for content in (odd_names, [1, 2], {"features.0.weight": "x"}, 7, circle, {"a": shared}):
        torch.save(content, path)
        for load in (load_variables, tfeat.load_params, lambda p: mkd.load_whitening(p, "pca")):
            assert_refused(r".", load, path)
    header = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    path = tmp_path / "weights.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert_refused(r"weights\.safetensors: ", load_variables, path)


def test_other_floating_point_numbers(tmp_path):
    model, variables = make_model("sum", **NARROW)
    arrays = to_arrays(variables)
    swapped = {n: a.astype(a.dtype.newbyteorder(">")) for n, a in arrays.items()}
    np.savez(tmp_path / "big.npz", **swapped)
    found = load_variables(tmp_path / "big.npz", model)
    jax.tree.map(np.testing.assert_array_equal, found, variables)
    np.savez(tmp_path / "half.npz", **{n: a.astype("f2") for n, a in arrays.items()})
    half = load_variables(tmp_path / "half.npz")
    assert all(leaf.dtype == "f4" for leaf in jax.tree.leaves(half))
    np.savez(tmp_path / "whole.npz", **{n: a.astype("i4") for n, a in arrays.items()})
    assert_refused("holds int32, not", load_variables, tmp_path / "whole.npz", model)


def texts_of(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata()


def change_texts(path, **changes):
    """Rewrites the header: 8 bytes of length, then JSON."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] |= changes
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])


@pytest.fixture
def polar(tmp_path, request):
    path = tmp_path / f"polar{getattr(request, 'param', '.safetensors')}"
    model, variables = make_model("polar", patch_size=16, **UNUSUAL)
    remarks = {"trained on": "Straße\nund Weg", "licence": "MIT"}
    info = ModelInfo(fields_of(model), "best", 7.5, 0.93, nested=(32, 64), remarks=remarks)
    save_variables(path, variables, info=info)
    return path


@pytest.mark.parametrize("polar", [".safetensors", ".npz", ".pth"], indirect=True)
def test_metadata_define_the_model(polar):
    source = load_source(str(polar))
    model, variables = make_model("polar", patch_size=16, **UNUSUAL)
    assert source.model == model
    jax.tree.map(np.testing.assert_array_equal, source.variables, variables)
    assert (source.extent, source.ratio, source.nested) == (7.5, 0.93, (32, 64))
    assert source.info.name == "best"
    assert source.info.remarks["trained on"] == "Straße und Weg"
    assert kjax.load(str(polar)).extent == 7.5
    umask = os.umask(0)
    os.umask(umask)
    assert polar.stat().st_mode & 0o777 == 0o666 & ~umask
    if polar.suffix == ".pth":  # PyTorch takes all that is in it
        model, variables = make_model("hardnet", patch_size=16)
        save_variables(polar, variables, info=ModelInfo(fields_of(model)))
        state = torch.load(polar, weights_only=True)
        TorchDescriptor("hardnet", patch_size=16).load_state_dict(state, strict=True)
    if polar.suffix == ".npz":
        assert np.load(polar).files == list(to_arrays(variables)), "arrays only"


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
def test_weights_with_context(suffix, tmp_path):
    path = tmp_path / f"context{suffix}"
    model, variables = make_model("polar", context=(1, 2.5), **NARROW)
    save_variables(path, variables, info=ModelInfo(fields_of(model)))
    source = load_source(str(path))
    assert source.model == model
    assert display_name(model).endswith(" context=1,2.5")
    assert facts([source])["context"] == "concentric patches, 1 and 2.5 times as wide"
    jax.tree.map(np.testing.assert_array_equal, source.variables, variables)
    save_variables(path, variables)
    for name in (str(path), f"{path}:polar,s=1"):
        assert_refused(r"^\S+: context\.weight does not say how wide .*a$", load_source, name)


def test_metadata_of_safetensors(polar):
    source, texts = load_source(str(polar)), texts_of(polar)
    assert (texts["kjax"], texts["format"]) == (kjax.__version__, "pt")
    assert (texts["head"], texts["kappa_xy"], texts["licence"]) == ("polar", "2.1", "MIT")
    save_variables(polar, source.variables, info=source.info)
    again = texts_of(polar)
    assert again.items() >= {k: v for k, v in texts.items() if k != "trained on"}.items()


def test_files_without_metadata_of_kjax(tmp_path):
    path = tmp_path / "other.safetensors"
    _, variables = make_model("polar", **NARROW)
    for metadata in (None, {"head": "of another project"}):
        safetensors.numpy.save_file(to_arrays(variables), path, metadata=metadata)
        with pytest.raises(InputError, match="fits several heads, xy and polar"):
            assert load_source(str(path)).model
    source = load_source(str(path))
    save_variables(path, source.variables, info=source.info)
    assert texts_of(path) is None, "an ambiguous head is not written down"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"s": "2"}, r"head\.weight has shape .* \(its metadata says polar s=2 N=16\)$"),
        ({"head": "hardnet"}, r"missing .* \(its metadata says hardnet N=16\)$"),
        ({"head": "polr"}, "did you mean 'polar'"),
        ({"s": "one"}, "s in the file's metadata is 'one': it is damaged"),
        ({"s": "0"}, "at least 1"),
        ({"patch_size": "18"}, "multiple of 4"),
        ({"kappa_xy": "nan"}, "kappa_xy in the file's metadata is 'nan'"),
        ({"kappa_xy": "-1"}, "kappa_xy must be positive"),
        ({"head_bias": "maybe"}, "head_bias in the file's metadata"),
        ({"head_bias": "True"}, r"missing head\.bias"),
        ({"extent": "-8"}, "extent in the file's metadata is -8"),
        ({"ratio": "1.1"}, "ratio in the file's metadata is 1.1"),
        (":xy", "head polar, not xy"),
        (":polar,s=2", "s 1, not 2"),
    ],
)
def test_wrong_metadata_are_refused(changes, message, polar):
    named = changes if isinstance(changes, str) else ""
    change_texts(polar, **({} if named else changes))
    assert "polar.safetensors" in assert_refused(message, load_source, f"{polar}{named}")


def test_named_fields_are_taken_with_those_of_the_file(polar):
    source = load_source(f"{polar}:polar,s=1,patch_size=32")
    assert source.model.patch_size == 32
    assert source.model.position_kernel.kappa_xy == 2.1
