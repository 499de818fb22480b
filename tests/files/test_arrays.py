"""NumPy's files: what is refused, and before memory is taken for it."""

import io
import zipfile

import numpy as np
import pytest

from kjax.errors import InputError
from kjax.files.arrays import read_npy, read_npz
from kjax.images.exchange.npz import read_npz as read_features
from kjax.weights.files import load_variables


def npy(array, shape=None):
    """An .npy file, perhaps with another shape in its header."""
    file = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def pack(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def refused(path, message, read=read_npz):
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)
    assert "allow_pickle" not in str(error.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_they_were(tmp_path, rng, save):
    arrays = {
        "a": rng.normal(size=(3, 4)).astype(np.float32),
        "columns": np.asfortranarray(rng.normal(size=(3, 4))),
        "empty": np.zeros((0, 7)),
        "one": np.array(3),
        "text": np.array(["a", "bcd"]),
        "group/b": rng.integers(0, 9, 2_000_000, np.uint8),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
        assert found[name].flags.writeable
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), array, strict=True)


@pytest.mark.parametrize("read", [read_npz, read_features, load_variables])
@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_archive_gets_no_advice_to_trust_it(tmp_path, read, content):
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path / "a.npz", "not a plain .npz file", read)


@pytest.mark.parametrize("shape", [(10**12,), (-1,), (-2, -2), (2,), (2**40, 2**40), (0, 10**30)])
def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path, monkeypatch, shape):
    content = npy(np.ones(4, np.float32), shape)
    monkeypatch.setattr(np, "empty", None)
    pack(tmp_path / "a.npz", {"a.npy": content})
    refused(tmp_path / "a.npz", "not a plain .npz file")
    (tmp_path / "a.npy").write_bytes(content)
    refused(tmp_path / "a.npy", "not a plain .npy file", read_npy)


def test_zeros_that_unpack_to_gigabytes_are_refused(tmp_path):
    pack(tmp_path / "a.npz", {"a.npy": npy(np.zeros(150 << 20, np.uint8))}, zipfile.ZIP_DEFLATED)
    refused(tmp_path / "a.npz", "would unpack to")


def test_objects_other_members_and_encryption_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}], object))
    refused(tmp_path / "a.npz", "Python objects")
    pack(tmp_path / "a.npz", {"a.txt": b"x"})
    refused(tmp_path / "a.npz", "'a.txt' is no array")
    pack(tmp_path / "a.npz", {"a.npy": npy(np.ones(4))})
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path / "a.npz", "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_damaged_byte_is_noticed(tmp_path, rng, method):
    array = rng.integers(0, 256, 100, np.uint8)
    path = pack(tmp_path / "a.npz", {"a.npy": npy(array)}, method)
    whole = path.read_bytes()
    for place in range(40, 40 + 150, 7):  # zlib's errors among them
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        refused(path, "not a plain .npz file")


def test_texts_of_impossible_signs_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array("text"))
    assert str(read_npy(path)) == "text"
    path.write_bytes(path.read_bytes()[:-4] + b"\xff\xff\xff\x7f")
    refused(path, "signs that no text has", read_npy)
