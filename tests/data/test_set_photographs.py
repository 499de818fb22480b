"""The list of photographs that a set was cut from."""

import numpy as np
import pytest

from kjax.data.phototour import write_phototour
from kjax.data.set_photographs import SetPhotograph, read_set_photographs, write_set_photographs
from kjax.errors import InputError

LIST = [SetPhotograph(0, 'a "b", c.jpg', "0a" * 32), SetPhotograph(2, "d.jpg", "0b" * 32)]


@pytest.fixture
def folder(tmp_path):
    """A set of patches from the photographs 0 and 2."""
    interest = np.tile([[0.0, 1, 1, 0, 1], [2.0, 1, 1, 0, 1]], (2, 1))
    patches = np.zeros((4, 64, 64), np.uint8)
    return write_phototour(tmp_path / "set", patches, np.array([0, 0, 1, 1]), interest=interest)


def test_a_list_reads_back(folder):
    write_set_photographs(folder, LIST)
    assert read_set_photographs(folder) == LIST


def test_a_set_that_does_not_tell_is_refused(folder):
    with pytest.raises(InputError, match=r"does not tell which photographs.*kjax build-patches"):
        read_set_photographs(folder)
    write_set_photographs(folder, LIST)
    (folder / "interest.txt").unlink()
    with pytest.raises(InputError, match="does not tell which photographs"):
        read_set_photographs(folder)


def test_patches_of_another_photograph_are_refused(folder):
    write_set_photographs(folder, LIST[:1])
    with pytest.raises(InputError, match="patches of photograph 2, which"):
        read_set_photographs(folder)


@pytest.mark.parametrize(
    "text", ["", "number,name\n0,a\n", "number,name,sha256\n0,a\n", "number,name,sha256\nx,a,b\n"]
)
def test_a_damaged_list_is_refused(folder, text):
    (folder / "photographs.csv").write_text(text)
    with pytest.raises(InputError, match=r"photographs\.csv is damaged"):
        read_set_photographs(folder)


def test_a_photograph_without_a_hash_is_refused(folder):
    (folder / "photographs.csv").write_text("number,name,sha256\n0,a,\n2,b,\n")
    with pytest.raises(InputError, match="a has no SHA-256"):
        read_set_photographs(folder)
