"""NumPy files: what comes back, and what is refused."""

import io
import zipfile

import numpy as np
import pytest
from refusals import assert_refused

from kjax.files.npz import read_described, read_npy, read_npz, write_described


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


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_they_were(tmp_path, rng, save):
    arrays = {
        "a": rng.normal(size=(3, 4)).astype(np.float32),
        "columns": np.asfortranarray(rng.normal(size=(3, 4))),
        "empty": np.zeros((0, 7)),
        "one": np.array(3),
        "text": np.array(["a", "bcd"]),
        "group/b": rng.integers(0, 9, 2_000, np.uint8),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), array, strict=True)


def refused(path, read=read_npz):
    assert_refused(rf"^not a plain \{path.suffix} file, or a damaged one$", read, path)


WRONG_SHAPES = ((10**14,), (-1,), (-2, -2), (2**40, 2**40), (9,))
WRONG = [npy(np.ones(4, np.float32), shape) for shape in WRONG_SHAPES]


@pytest.mark.parametrize("content", [b"", b"hello", *WRONG, npy(np.array([{}], object))])
def test_other_files_and_wrong_headers_are_refused(tmp_path, content):
    for path, read in ((tmp_path / "a.npz", read_npz), (tmp_path / "a.npy", read_npy)):
        path.write_bytes(content)
        refused(path, read)
    for member in ({"a.npy": content}, {"a.txt": b"x"}, {}):
        pack(tmp_path / "a.npz", member)
        refused(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(npy(np.ones(3)))
    refused(tmp_path / "a.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damage_is_noticed(tmp_path, rng, method):
    path = tmp_path / "a.npz"
    pack(path, {"a.npy": npy(rng.integers(0, 256, 100, np.uint8))}, method)
    whole = path.read_bytes()
    for place in range(40, 40 + 150, 7):  # zlib's errors among them
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        refused(path)


def test_archives_with_a_description(tmp_path):
    path = tmp_path / "new" / "a.npz"
    write_described(path, {"a": np.ones(2)}, {"format": "toy 1", "more": [1]})
    arrays, about = read_described(path, "toy 1")
    assert list(arrays) == ["a"]
    assert about["more"] == [1]
    assert_refused("its format is 'toy 1', not 'toy 2'", read_described, path, "toy 2")
    np.savez(path, a=np.ones(2))
    assert_refused("its format is None", read_described, path, "toy 1")
