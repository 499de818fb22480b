import numpy as np
import pytest
from torch7_files import Function, Module, convolution, dumps, sequential

from kjax.baselines.torch7 import (
    TorchObject,
    convolutions_of,
    flatten_modules,
    modules_of,
    read_torch7,
)
from kjax.errors import InputError


def read(tmp_path, value):
    path = tmp_path / "file.t7"
    path.write_bytes(value if isinstance(value, bytes) else dumps(value))
    return read_torch7(path)


def test_plain_values(tmp_path):
    value = {"text": "grüße", "number": 2.5, 1: "first", "yes": True, "nothing": None}
    assert read(tmp_path, value) == value


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tensors_keep_shape_and_order(tmp_path, rng, dtype):
    array = rng.normal(size=(2, 3, 4)).astype(dtype)
    found = read(tmp_path, {"a": array, "turned": array.T.copy().T})
    np.testing.assert_array_equal(found["a"], array)
    # Column-major in the file: its strides count, not the order of the numbers.
    np.testing.assert_array_equal(found["turned"], array)
    assert found["a"].dtype == dtype


def test_what_is_shared_is_read_once(tmp_path):
    inner = {"x": 1.0}
    found = read(tmp_path, {"a": inner, "b": inner})
    assert found["a"] is found["b"]


@pytest.mark.parametrize("kind", [6, 7, 8])
def test_functions_are_skipped(tmp_path, kind):
    found = read(tmp_path, {"f": Function(b"\x1bLJ code", kind), "after": 7.0})
    assert found == {"f": None, "after": 7.0}


def test_modules_in_order(tmp_path, rng):
    weight, bias = rng.normal(size=(4, 1, 3, 3)), rng.normal(size=4)
    normalization = Module("nn.SpatialSubtractiveNormalization", {"meanestimator": sequential()})
    network = sequential(
        convolution(weight, bias), sequential(Module("nn.Tanh", {})), normalization
    )
    found = read(tmp_path, network)
    assert isinstance(found, TorchObject)
    assert [one.kind for one in modules_of(found)] == [
        "nn.SpatialConvolution",
        "nn.Sequential",
        "nn.SpatialSubtractiveNormalization",
    ]
    assert [one.kind for one in flatten_modules(found, tmp_path)][3] == "nn.Tanh"
    ((kernel, offset),) = convolutions_of(found, tmp_path)
    np.testing.assert_array_equal(kernel, weight)
    np.testing.assert_array_equal(offset, bias)


def test_broken_files_are_refused(tmp_path, rng):
    good = dumps({"a": rng.normal(size=(3, 3))})
    for bad in (b"", b"PK\x03\x04 zip", good[:-9], b"\x63" + good[1:]):
        with pytest.raises(InputError, match="not a binary Torch7 file"):
            read(tmp_path, bad)
    with pytest.raises(InputError, match="no such file"):
        read_torch7(tmp_path / "absent.t7")


def test_a_tensor_cannot_reach_beyond_its_storage(tmp_path):
    array = np.arange(9.0).reshape(3, 3)
    content = dumps(array)
    shape = np.array([3, 3], "<i8").tobytes()
    assert content.count(shape) >= 1
    with pytest.raises(InputError, match="larger than its storage"):
        read(tmp_path, content.replace(shape, np.array([3, 300], "<i8").tobytes(), 1))


def test_nesting_without_end_is_refused(tmp_path):
    value: dict = {}
    for _ in range(400):
        value = {"in": value}
    deep = dumps(value)
    # Each level opens two more objects than the file holds: the same prefix, ten times over.
    opening = deep[: deep.index(b"in") + 2]
    with pytest.raises(InputError, match="not a binary Torch7 file"):
        read(
            tmp_path,
            b"".join(opening[:4] + n.to_bytes(4, "little") + opening[8:] for n in range(9999)),
        )
