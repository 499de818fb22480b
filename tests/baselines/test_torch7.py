import numpy as np
import pytest
from torch7_files import Function, Module, convolution, dumps, sequential

from kjax.baselines.torch7 import TorchObject, read_torch7
from kjax.errors import InputError


def read(tmp_path, value):
    path = tmp_path / "file.t7"
    path.write_bytes(value if isinstance(value, bytes) else dumps(value))
    return read_torch7(path)


def test_plain_values_and_shared_ones(tmp_path):
    inner = {"x": 1.0}
    value = {"text": "grüße", "number": 2.5, 1: "first", "yes": True, "nothing": None}
    found = read(tmp_path, value | {"a": inner, "b": inner})
    assert found == value | {"a": inner, "b": inner}
    assert found["a"] is found["b"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tensors_keep_shape_and_order(tmp_path, rng, dtype):
    array = rng.normal(size=(2, 3, 4)).astype(dtype)
    found = read(tmp_path, {"a": array, "turned": array.T.copy().T})
    np.testing.assert_array_equal(found["a"], array)
    # Column-major in the file: its strides count, not the order of the numbers.
    np.testing.assert_array_equal(found["turned"], array)
    assert found["a"].dtype == dtype


def test_functions_are_skipped(tmp_path):
    for kind in (6, 7, 8):
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
    kinds = ["nn.SpatialConvolution", "nn.Sequential", "nn.SpatialSubtractiveNormalization"]
    assert [one.kind for one in found.modules()] == kinds
    assert [one.kind for one in found.flat_modules()][3] == "nn.Tanh"
    ((kernel, offset),) = found.convolutions()
    np.testing.assert_array_equal(kernel, weight)
    np.testing.assert_array_equal(offset, bias)


def test_broken_files_are_refused(tmp_path, rng):
    good = dumps({"a": rng.normal(size=(3, 3))})
    # Nesting without end: the opening of a table, again and again.
    nested = dumps({"in": {}})
    start, end = nested[:4], nested[8 : nested.index(b"in") + 2]
    deep = b"".join(start + n.to_bytes(4, "little") + end for n in range(9999))
    for bad in (b"", b"PK\x03\x04 zip", good[:-9], b"\x63" + good[1:], deep):
        with pytest.raises(InputError, match="not a binary Torch7 file"):
            read(tmp_path, bad)
    with pytest.raises(InputError, match="no such file"):
        read_torch7(tmp_path / "absent.t7")


# Small files that would be large, or without end


def tensor_bytes(shape, strides, length):
    """A tensor of float64 over a storage, with strides as they please."""
    storage = {"a": np.arange(float(length))}
    whole = dumps(storage)
    old = np.array([length, 1], "<i8").tobytes()
    new = np.array([*shape, *strides], "<i8").tobytes()
    axes = (1).to_bytes(4, "little")
    assert whole.count(axes + old) == 1
    return whole.replace(axes + old, len(shape).to_bytes(4, "little") + new)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((10**9,), (0,)),
        ((10**5, 10**5), (0, 0)),
        ((6, 3), (1, 1)),
        ((11,), (1,)),
        ((3, 300), (3, 1)),
    ],
)
def test_strides_cannot_make_more_of_a_storage_than_it_holds(tmp_path, shape, strides):
    with pytest.raises(InputError, match="larger than its storage"):
        read(tmp_path, tensor_bytes(shape, strides, 10))


def test_odd_but_harmless_strides(tmp_path):
    assert read(tmp_path, tensor_bytes((0, 2**62), (2**62, 2**62), 10))["a"].size == 0
    found = read(tmp_path, tensor_bytes((1, 3), (2**62, 1), 10))["a"]
    np.testing.assert_array_equal(found, [[0.0, 1.0, 2.0]])
    shared = read(tmp_path, tensor_bytes((3, 3), (1, 3), 10))["a"]
    np.testing.assert_array_equal(shared, np.arange(9.0).reshape(3, 3).T)
    assert shared.base is not None, "the storage is not copied"
    assert not shared.flags.writeable


def test_shared_children_circles_and_text_are_refused(tmp_path):
    network = sequential(Module("nn.Tanh", {}))
    for _ in range(20):  # 4²⁰ = 2⁴⁰ ways down
        network = sequential(network, network, network, network)
    circle = sequential(Module("nn.Tanh", {}))
    circle.fields["modules"][2] = circle
    text = Module("nn.SpatialConvolution", {"weight": "text"})
    for value, message in (
        (network, "more than 10,000 modules"),
        (circle, "more than 10,000 modules"),
        (text, r"weight of a nn\.SpatialConvolution is not a tensor"),
    ):
        found = read(tmp_path, value)
        with pytest.raises(InputError, match=message):
            found.convolutions()


def test_a_branch_that_is_used_twice_is_there_twice(tmp_path, rng):
    layer = convolution(rng.normal(size=(4, 1, 3, 3)), rng.normal(size=4))
    assert len(read(tmp_path, sequential(layer, sequential(layer))).convolutions()) == 2
