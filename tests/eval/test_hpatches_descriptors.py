from unittest.mock import Mock

import numpy as np
import pytest
from refusals import assert_refused

from kjax.data.hpatches import IMAGES, Sequence
from kjax.eval.hpatches.descriptors import (
    SetDescriptors,
    describe_sequences,
    read_descriptors,
    write_descriptors,
)
from kjax.files import atomic

QUIET = {"progress": False}


@pytest.fixture
def descriptors(rng):
    scale = 10.0 ** rng.integers(-30, 30, (16, 4, 7))
    large = (rng.normal(size=(16, 4, 7)) * scale).astype(np.float32)
    arrays = {"v_b": large, "i_a": rng.normal(size=(16, 3, 7)).astype(np.float32)}
    return SetDescriptors.from_sequences(arrays)


@pytest.fixture
def folder(tmp_path, descriptors):
    write_descriptors(descriptors, tmp_path)
    return tmp_path


def test_sequences_of_a_set(rng):
    counts = {"a": 3, "b": 1}
    arrays = {k: rng.normal(size=(16, n, 2)).astype(np.float32) for k, n in counts.items()}
    descriptors = SetDescriptors.from_sequences(arrays)
    assert (descriptors.patches, descriptors.dimension) == (counts, 2)
    for some in (descriptors, descriptors.on_device()):
        for name, array in arrays.items():
            np.testing.assert_array_equal(some[name], array)
    for shapes, message in (
        ({"a": (15, 2, 2)}, "a have 2 values in 15 images, not 2 in 16"),
        ({"a": (16, 2, 2), "b": (16, 2, 3)}, "b have 3 values in 16 images, not 2 in 16"),
        ({}, "no sequence"),
    ):
        wrong = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        assert_refused(message, SetDescriptors.from_sequences, wrong)


def test_patches_are_described_sequence_by_sequence(rng):
    patches = rng.integers(0, 256, (16, 3, 65, 65), dtype=np.uint8)
    shapes = []

    def corners(given):
        shapes.append(given.shape)
        return given[:, :2, 0].astype(np.float64)

    found = describe_sequences(corners, [Sequence("a", patches), Sequence("b", patches[:, :1])])
    np.testing.assert_array_equal(found["a"], patches[:, :, :2, 0])
    np.testing.assert_array_equal(found["b"], patches[:, :1, :2, 0])
    assert shapes == [(48, 65, 65), (16, 65, 65)]


def test_written_values_are_read_back_exactly(folder, descriptors, capfd):
    found = read_descriptors(folder)
    assert "reading descriptors: 100%" in capfd.readouterr().err
    assert found.patches == {"i_a": 3, "v_b": 4}
    for name in found.patches:
        np.testing.assert_array_equal(found[name], descriptors[name])
    chosen = read_descriptors(folder, {"v_b": 4}, **QUIET)
    np.testing.assert_array_equal(chosen.rows, descriptors["v_b"].reshape(-1, 7))


def test_files_have_the_official_layout(tmp_path):
    values = np.arange(16 * 2 * 3, dtype=np.float32).reshape(16, 2, 3) / 2
    write_descriptors(SetDescriptors.from_sequences({"v_x": values}), tmp_path)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.csv"))
    assert names == sorted(f"v_x/{image}.csv" for image in IMAGES)
    assert (tmp_path / "v_x" / "ref.csv").read_text() == "0,0.5,1\n1.5,2,2.5\n"
    assert (tmp_path / "v_x" / "e1.csv").read_text().startswith("3,3.5,4\n")


def test_failed_write_leaves_the_old_file(folder, descriptors, monkeypatch):
    before = (folder / "v_b" / "ref.csv").read_text()
    full = OSError("no space left")
    monkeypatch.setattr(atomic.os, "replace", Mock(side_effect=full))
    changed = SetDescriptors(descriptors.patches, np.zeros_like(descriptors.rows))
    with pytest.raises(OSError, match="no space left"):
        write_descriptors(changed, folder)
    assert (folder / "v_b" / "ref.csv").read_text() == before
    assert len(list((folder / "v_b").iterdir())) == 16


ROW = "1,2,3,4,5,6,7\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1;2;3\n4;5;6\n7;8;9\n", "is not a table of numbers"),
        (b"", "is not a table of numbers .the first line is empty"),
        (2 * ROW.encode(), "has 2 rows of 7 values, not 3 of 7"),
        (b"1,2,3,4,5,6\n" * 3, "has 3 rows of 6 values, not 3 of 7"),
        ((ROW + ROW[2:]).encode(), "is not a table of numbers .*columns changed from 7 to 6"),
        (b"a,b,c,d,e,f,g\n" + ROW.encode(), "is not a table .*could not convert string 'a'"),
        (ROW.replace("3", "nan").encode() * 3, "holds NaN or infinity"),
        (b"\x80\xff,\x00\n", "is not a table of numbers"),
        (None, r"cannot read .*h2\.csv .*needs the sixteen files"),
    ],
)
def test_bad_files_are_refused_in_one_line(folder, content, message):
    path = folder / "i_a" / "h2.csv"
    path.unlink() if content is None else path.write_bytes(content)
    assert str(path) in assert_refused(message, read_descriptors, folder, **QUIET)


def test_folders_that_do_not_fit_are_refused(folder, descriptors):
    for read, patches, message in (
        (folder / "i_a", None, "holds no descriptors: give the folder above"),
        (folder, {"v_none": 3}, r"cannot read .*v_none"),
        (folder, {"v_b": 5}, r"v_b.ref\.csv has 4 rows of 7 values, not 5 of 7"),
    ):
        assert_refused(message, read_descriptors, read, patches, **QUIET)
    other = SetDescriptors.from_sequences({"v_c": descriptors["v_b"][:, :, :3]})
    write_descriptors(other, folder)
    assert_refused("v_c have 3 values in 16 images, not 7", read_descriptors, folder, **QUIET)
