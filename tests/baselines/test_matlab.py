"""MATLAB's files against SciPy's writer and reader."""

import struct

import numpy as np
import pytest

from kjax.baselines.matlab import read_mat

scipy_io = pytest.importorskip("scipy.io")


def cells(*items):
    array = np.empty(len(items), object)
    for place, item in enumerate(items):
        array[place] = item
    return array


@pytest.mark.parametrize("compressed", [False, True])
def test_what_scipy_writes_is_read(tmp_path, rng, compressed):
    arrays = {
        kind: rng.uniform(0, 100, (3, 4, 2)).astype(kind)
        for kind in ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8")
    }
    content = {
        **{f"a_{kind}": array for kind, array in arrays.items()},
        "vector": np.arange(5.0),
        "text": "conv",
        "nested": {"layers": cells({"type": "conv", "weights": cells(np.eye(2), np.ones(3))}, "x")},
    }
    scipy_io.savemat(tmp_path / "a.mat", content, do_compression=compressed)
    found = read_mat(tmp_path / "a.mat")
    for kind, array in arrays.items():
        np.testing.assert_array_equal(found[f"a_{kind}"], array, strict=True)
    np.testing.assert_array_equal(found["vector"], np.arange(5.0))
    assert found["text"] == "conv"
    layer, other = found["nested"]["layers"]
    assert (layer["type"], other) == ("conv", "x")
    np.testing.assert_array_equal(layer["weights"][0], np.eye(2))


def test_damage_is_a_value_error(tmp_path, rng):
    path = tmp_path / "a.mat"
    scipy_io.savemat(path, {"net": {"layers": cells({"w": np.ones((2, 3))}, np.eye(2))}})
    whole = path.read_bytes()
    failed = 0
    for place in range(120, len(whole)):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(spoiled)
        try:
            read_mat(path)
        except (ValueError, IndexError, struct.error):
            failed += 1
    assert failed > 20


def test_nesting_without_end_is_refused(tmp_path):
    value = np.ones(1)
    for _ in range(60):
        value = cells(value)
    scipy_io.savemat(tmp_path / "a.mat", {"a": value})
    with pytest.raises(ValueError, match="nested too deeply"):
        read_mat(tmp_path / "a.mat")
