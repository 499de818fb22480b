import numpy as np
import pytest
from refusals import assert_refused
from torch7_files import Function, Module, convolution, dumps, sequential

from kjax.baselines.torch7 import TorchObject, read_torch7


def read(tmp_path, value):
    path = tmp_path / "file.t7"
    path.write_bytes(value if isinstance(value, bytes) else dumps(value))
    return read_torch7(path)


@pytest.mark.parametrize("kind", [6, 7, 8])
def test_plain_values_and_shared_ones_but_no_functions(tmp_path, kind):
    inner = {"x": 1.0}
    value = {"text": "grüße", "number": 2.5, 1: "first", "yes": True, "nothing": None}
    value |= {"a": inner, "b": inner}
    found = read(tmp_path, {"f": Function(b"\x1bLJ code", kind)} | value)
    assert found == {"f": None} | value
    assert found["a"] is found["b"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tensors_keep_shape_and_order(tmp_path, rng, dtype):
    array = rng.normal(size=(2, 3, 4)).astype(dtype)
    found = read(tmp_path, {"a": array, "turned": array.T.copy().T})
    np.testing.assert_array_equal(found["a"], array)
    # Column-major in the file: its strides count, not the order of the numbers.
    np.testing.assert_array_equal(found["turned"], array)
    assert found["a"].dtype == dtype


def test_modules_in_order(tmp_path, rng):
    weight, bias = rng.normal(size=(4, 1, 3, 3)), rng.normal(size=4)
    norm = Module("nn.SpatialSubtractiveNormalization", {"meanestimator": sequential()})
    network = sequential(convolution(weight, bias), sequential(Module("nn.Tanh", {})), norm)
    found = read(tmp_path, network)
    assert isinstance(found, TorchObject)
    kinds = ["nn.SpatialConvolution", "nn.Sequential", "nn.SpatialSubtractiveNormalization"]
    assert [one.kind for one in found.modules()] == kinds
    assert [one.kind for one in found.flat_modules()][3] == "nn.Tanh"
    ((kernel, offset),) = found.convolutions()
    np.testing.assert_array_equal(kernel, weight)
    np.testing.assert_array_equal(offset, bias)
    twice = sequential(network, sequential(network))
    assert len(read(tmp_path, twice).convolutions()) == 2, "a branch that is used twice"


def tensor_bytes(shape, strides, length=10):
    """A tensor of float64 over a storage, with strides as they please."""
    whole = dumps({"a": np.arange(float(length))})
    old = (1).to_bytes(4, "little") + np.array([length, 1], "<i8").tobytes()
    assert whole.count(old) == 1
    new = np.array([*shape, *strides], "<i8").tobytes()
    return whole.replace(old, len(shape).to_bytes(4, "little") + new)


def deep():
    """Nesting without end: the opening of a table, again and again."""
    nested = dumps({"in": {}})
    start, end = nested[:4], nested[8 : nested.index(b"in") + 2]
    return b"".join(start + n.to_bytes(4, "little") + end for n in range(9999))


GOOD = dumps({"a": np.ones((3, 3))})
BROKEN = (b"", b"PK\x03\x04 zip", GOOD[:-9], b"\x63" + GOOD[1:], deep())
STRIDES = (((10**9,), (0,)), ((10**5, 10**5), (0, 0)), ((6, 3), (1, 1)), ((11,), (1,)))


def test_broken_files_and_those_larger_than_they_are_refused(tmp_path):
    for content, message in (
        *((content, "not a binary Torch7 file") for content in BROKEN),
        *((tensor_bytes(*pair), "larger than its storage") for pair in STRIDES),
        (tensor_bytes((3, 300), (3, 1)), "larger than its storage"),
    ):
        assert_refused(message, read, tmp_path, content)
        assert_refused("no such file", read_torch7, tmp_path / "absent.t7")


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
        *((endless, "more than 10,000 modules") for endless in (network, circle)),
        (text, r"weight of a nn\.SpatialConvolution is not a tensor"),
    ):
        found = read(tmp_path, value)
        assert_refused(message, found.convolutions)
