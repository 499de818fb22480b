import pickle

import jax
import numpy as np
import pytest
from models import make_model

import kjax
from kjax.baselines import mkd, tfeat
from kjax.errors import InputError
from kjax.eval.entries import find_entry
from kjax.weights import files
from kjax.weights.files import load_variables, save_variables
from kjax.weights.source import load_source
from kjax.weights.torch_names import to_arrays, to_torch


class Malicious:
    """Runs code when a naive reader unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_there_and_back(tmp_path, suffix):
    pytest.importorskip("torch")
    model, variables = make_model("polar")
    path = tmp_path / f"weights{suffix}"
    save_variables(path, variables)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name], "temporary files left"
    jax.tree.map(np.testing.assert_array_equal, load_variables(path, model), variables)


@pytest.mark.parametrize("suffix", [".pth", ".npz"])
def test_a_malicious_file_is_refused_and_not_run(tmp_path, suffix):
    torch = pytest.importorskip("torch")
    trap, path = tmp_path / "trap", tmp_path / f"weights{suffix}"
    payload = {"features.0.weight": Malicious(trap)}
    if suffix == ".npz":
        np.savez(path, **{"features.0.weight": np.array([Malicious(trap)], dtype=object)})
    else:
        torch.save(payload, path)
    with pytest.raises(InputError, match=r"weights\.") as error:
        load_variables(path)
    assert "\n" not in str(error.value)
    assert not trap.exists()


def test_a_bare_pickle_is_refused_and_not_run(tmp_path):
    pytest.importorskip("torch")
    trap, path = tmp_path / "trap", tmp_path / "weights.pt"
    path.write_bytes(pickle.dumps(Malicious(trap)))
    with pytest.raises(InputError, match="weights only"):
        load_variables(path)
    assert not trap.exists()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_a_truncated_file_is_refused(tmp_path, suffix):
    pytest.importorskip("torch")
    path = tmp_path / f"weights{suffix}"
    save_variables(path, make_model("sum")[1])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=f"weights{suffix}: "):
        load_variables(path)


def test_missing_files_and_unknown_types(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_variables(tmp_path / "nowhere.npz")
    (tmp_path / "weights.onnx").touch()
    with pytest.raises(InputError, match=r"unknown file type '\.onnx'"):
        load_variables(tmp_path / "weights.onnx")
    with pytest.raises(InputError, match="unknown file type"):
        save_variables(tmp_path / "weights.txt", {})


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "weights.npz"
    save_variables(path, make_model("sum")[1])
    before = path.read_bytes()

    def fail(temporary, **arrays):
        with open(temporary, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(files.np, "savez", fail)
    with pytest.raises(KeyboardInterrupt):
        save_variables(path, make_model("sum")[1])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


# Weights that are no use


def spoiled(value, name="features.0.weight"):
    arrays = to_arrays(make_model("sum")[1])
    arrays[name] = arrays[name].copy()
    arrays[name].flat[3] = value
    return arrays


def save_arrays(path, arrays):
    torch = pytest.importorskip("torch")
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pth":
        torch.save({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, path)
    else:
        pytest.importorskip("safetensors.numpy").save_file(arrays, path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, suffix, value):
    path = tmp_path / f"weights{suffix}"
    save_arrays(path, spoiled(value))
    for load, word in ((load_variables, path), (load_source, path), (kjax.load, f"{path}:sum")):
        with pytest.raises(InputError, match=r"features\.0\.weight is not finite") as error:
            load(str(word))
        assert "\n" not in str(error.value)


def test_a_candidate_whose_weights_are_not_finite_is_refused(tmp_path):
    path = tmp_path / "weights.npz"
    save_arrays(path, spoiled(np.nan, "features.16.running_var"))
    with pytest.raises(InputError, match=r"features\.16\.running_var is not finite"):
        find_entry(f"{path}:sum")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_tensors_that_numpy_does_not_know_are_named(tmp_path):
    torch = pytest.importorskip("torch")
    state = to_torch(make_model("sum")[1])
    for odd in (torch.zeros(32, 1, 3, 3, dtype=torch.bfloat16), torch.zeros(3).to_sparse()):
        torch.save(state | {"features.0.weight": odd}, tmp_path / "weights.pth")
        with pytest.raises(InputError, match=r"weights\.pth: features\.0\.weight holds torch"):
            load_variables(tmp_path / "weights.pth")
    for content in ({3: torch.zeros(2)}, [1, 2], {"features.0.weight": "text"}, 7):
        torch.save(content, tmp_path / "weights.pth")
        with pytest.raises(InputError, match=r"weights\.pth: "):
            load_variables(tmp_path / "weights.pth")


def test_safetensors_of_numbers_that_numpy_does_not_know_are_refused(tmp_path):
    pytest.importorskip("safetensors")
    header = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    path = tmp_path / "weights.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(InputError, match=r"weights\.safetensors: "):
        load_variables(path)


def without_end():
    circle = {}
    circle["a"] = circle
    return circle


def shared_dictionaries():
    value = {"a": 1.0}
    for _ in range(40):
        value = {"a": value, "b": value}
    return value


def shared_lists():
    value = [1.0]
    for _ in range(40):
        value = [value, value]
    return {"features.0.weight": value}


@pytest.mark.parametrize("make", [without_end, shared_dictionaries, shared_lists])
def test_state_dicts_without_end_are_refused(tmp_path, make):
    torch = pytest.importorskip("torch")
    path = tmp_path / "weights.pth"
    torch.save(make(), path)
    for load in (load_variables, tfeat.load_params, lambda path: mkd.load_whitening(path, "pca")):
        with pytest.raises(InputError, match=r"weights\.pth: "):
            load(path)


def test_other_floating_point_numbers(tmp_path):
    model, variables = make_model("sum")
    arrays = to_arrays(variables)
    turned = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in arrays.items()}
    np.savez(tmp_path / "turned.npz", **turned)
    jax.tree.map(
        np.testing.assert_array_equal, load_variables(tmp_path / "turned.npz", model), variables
    )
    if np.dtype(np.longdouble).itemsize > 8:
        np.savez(tmp_path / "long.npz", **{n: a.astype("g") for n, a in arrays.items()})
        with pytest.raises(InputError, match=r"holds float\d+, not"):
            load_variables(tmp_path / "long.npz", model)
