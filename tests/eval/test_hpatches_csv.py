"""Descriptors of HPatches sequences: their CSV files, and warnings about useless ones."""

import numpy as np
import pytest

from kjax.data.hpatches import IMAGES, Sequence
from kjax.errors import InputError
from kjax.eval.hpatches.descriptors import (
    SetDescriptors,
    describe_sequences,
    read_descriptors,
    write_descriptors,
)
from kjax.files import atomic as whole_files

QUIET = {"progress": False}


@pytest.fixture
def descriptors(rng):
    scale = 10.0 ** rng.integers(-30, 30, (16, 4, 7))
    return SetDescriptors.from_sequences(
        {
            "v_b": (rng.normal(size=(16, 4, 7)) * scale).astype(np.float32),
            "i_a": rng.normal(size=(16, 3, 7)).astype(np.float32),
        }
    )


@pytest.fixture
def folder(tmp_path, descriptors):
    write_descriptors(descriptors, tmp_path, **QUIET)
    return tmp_path


# The container


def test_sequences_come_out_as_they_went_in(rng):
    arrays = {"a": rng.normal(size=(16, 3, 2)), "b": rng.normal(size=(16, 1, 2))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    descriptors = SetDescriptors.from_sequences(arrays)
    assert descriptors.patches == {"a": 3, "b": 1}
    assert descriptors.dimension == 2
    for some in (descriptors, descriptors.on_device()):
        for name, array in arrays.items():
            np.testing.assert_array_equal(some[name], array)
    with pytest.raises(InputError, match="unknown sequence 'c'"):
        descriptors["c"]


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="a has 15 images, not 16"):
        SetDescriptors.from_sequences({"a": np.zeros((15, 2, 2), np.float32)})
    with pytest.raises(InputError, match="descriptors of 2 and 3 values"):
        SetDescriptors.from_sequences(
            {name: np.zeros((16, 2, dim), np.float32) for name, dim in (("a", 2), ("b", 3))}
        )
    with pytest.raises(InputError, match="no sequence"):
        SetDescriptors.from_sequences({})
    with pytest.raises(InputError, match="17 descriptors, but the sequences have 16"):
        SetDescriptors({"a": 1}, np.zeros((17, 2), np.float32))


def test_patches_are_described_sequence_by_sequence(rng):
    patches = rng.integers(0, 256, (16, 3, 65, 65), dtype=np.uint8)
    asked = []

    def corners(given):
        asked.append(given.shape)
        return given[:, :2, 0].astype(np.float64)

    found = describe_sequences(corners, [Sequence("a", patches), Sequence("b", patches[:, :1])])
    np.testing.assert_array_equal(found["a"], patches[:, :, :2, 0])
    np.testing.assert_array_equal(found["b"], patches[:, :1, :2, 0])
    assert asked == [(48, 65, 65), (16, 65, 65)]
    with pytest.raises(InputError, match=r"describing 48 patches gave an array of \(2, 65, 65\)"):
        describe_sequences(lambda given: given[:2], [Sequence("a", patches)])


# Files


def test_written_values_are_read_back_exactly(folder, descriptors):
    found = read_descriptors(folder, **QUIET)
    assert found.patches == {"i_a": 3, "v_b": 4}
    for name in found.patches:
        np.testing.assert_array_equal(found[name], descriptors[name])
    chosen = read_descriptors(folder, names=["v_b"], patches={"v_b": 4}, **QUIET)
    np.testing.assert_array_equal(chosen.rows, descriptors["v_b"].reshape(-1, 7))


def test_files_are_laid_out_as_the_benchmark_wants(tmp_path):
    values = np.arange(16 * 2 * 3, dtype=np.float32).reshape(16, 2, 3) / 2
    write_descriptors(SetDescriptors.from_sequences({"v_x": values}), tmp_path, **QUIET)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.csv"))
    assert names == sorted(f"v_x/{image}.csv" for image in IMAGES)
    assert (tmp_path / "v_x" / "ref.csv").read_text() == "0,0.5,1\n1.5,2,2.5\n"
    assert (tmp_path / "v_x" / "e1.csv").read_text().startswith("3,3.5,4\n")


def test_a_failed_write_leaves_the_old_file(folder, descriptors, monkeypatch):
    before = (folder / "v_b" / "ref.csv").read_text()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(whole_files.os, "replace", fail)
    changed = SetDescriptors(descriptors.patches, np.zeros_like(descriptors.rows))
    with pytest.raises(OSError, match="no space left"):
        write_descriptors(changed, folder, **QUIET)
    assert (folder / "v_b" / "ref.csv").read_text() == before
    assert len(list((folder / "v_b").iterdir())) == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1;2;3\n4;5;6\n7;8;9\n", "has semicolons between its values: write commas"),
        ("1,5;2,5;3\n", "has semicolons between its values"),
        ("1 2 3\n4 5 6\n7 8 9\n", "has spaces between its values"),
        ("1\t2\t3\n", "has tabs between its values"),
        ("1\n2\n3\n", "has one value per row"),
        ("", "is empty"),
        ("1,2,3,4,5,6,7\n" * 2, "has 2 rows, but its sequence has 3 patches"),
        ("1,2,3,4,5,6,7\n" * 4, "has 4 rows, but its sequence has 3 patches"),
        ("1,2,3,4,5,6\n" * 3, "has 6 columns and ref.csv 7"),
        ("1,2,3,4,5,6,7\n1,2,3,4,5,6\n", "is no table of numbers .*columns changed from 7 to 6"),
        ("a,b,c,d,e,f,g\n1,2,3,4,5,6,7\n", "is no table of numbers .*could not convert string 'a'"),
        ("1,2,3,4,5,6,\n" * 3, "is no table of numbers .*could not convert string ''"),
        ("1,2,3,4,5,6,7\n1,2,nan,4,5,6,7\n1,2,3,4,5,6,7\n", "1 of 3 descriptors .* in row 2"),
        ("1,2,3,4,5,6,7\n1,2,3,4,5,6,7\n1,2,3,4,5,6,inf\n", "1 of 3 descriptors .* in row 3"),
    ],
)
def test_bad_files_are_refused_in_one_line(folder, content, message):
    path = folder / "i_a" / "h2.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as error:
        read_descriptors(folder, **QUIET)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_files_that_are_no_text_are_refused(folder):
    (folder / "i_a" / "ref.csv").write_bytes(b"\x80\xff,\x00\n")
    with pytest.raises(InputError, match=r"ref\.csv is no table of numbers"):
        read_descriptors(folder, **QUIET)


def test_missing_files_and_folders_are_named(folder):
    (folder / "i_a" / "t5.csv").unlink()
    with pytest.raises(InputError, match=r"cannot read .*t5\.csv .*needs the sixteen files"):
        read_descriptors(folder, **QUIET)
    with pytest.raises(InputError, match="holds no descriptors: give the folder above"):
        read_descriptors(folder / "i_a", **QUIET)
    with pytest.raises(InputError, match=r"cannot read .*v_none"):
        read_descriptors(folder, names=["v_none"], **QUIET)


def test_counts_and_dimensions_must_be_those_expected(folder, descriptors):
    with pytest.raises(InputError, match=r"v_b.ref\.csv has 4 rows, but its sequence has 5"):
        read_descriptors(folder, names=["v_b"], patches={"v_b": 5}, **QUIET)
    other = SetDescriptors.from_sequences({"v_c": descriptors["v_b"][:, :, :3]})
    write_descriptors(other, folder, **QUIET)
    with pytest.raises(InputError, match="v_c have 3 values and those of i_a 7"):
        read_descriptors(folder, **QUIET)


def test_progress_is_shown(tmp_path, descriptors, capfd):
    write_descriptors(descriptors, tmp_path)
    read_descriptors(tmp_path)
    shown = capfd.readouterr().err
    assert "writing descriptors: 100%" in shown
    assert "reading descriptors: 100%" in shown
