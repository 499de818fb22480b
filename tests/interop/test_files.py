import pickle

import jax
import numpy as np
import pytest
from models import make_model

from kjax.errors import InputError
from kjax.interop import files, load_variables, save_variables


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
