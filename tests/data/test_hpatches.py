"""HPatches folders: read, split; and what is wrong with bad ones."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from kjax.data import hpatches
from kjax.data.hpatches import SEQUENCES, SPLITS
from kjax.errors import InputError


def write_sequence(folder, patches):
    """Columns of patches [16, n, 65, 65], one PNG file each."""
    folder.mkdir(parents=True)
    for image, column in zip(hpatches.IMAGES, patches, strict=True):
        Image.fromarray(column.reshape(-1, 65)).save(folder / f"{image}.png")


def random_patches(seed, count=3):
    return np.random.default_rng(seed).integers(0, 256, (16, count, 65, 65), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(["v_wall", "i_books"]):
        write_sequence(tmp_path / name, random_patches(seed))
    return tmp_path


def read_all(folder, **options):
    return list(hpatches.read_hpatches(folder, progress=False, **options))


def test_what_was_written_is_read(folder):
    books, wall = read_all(folder)

    assert [books.name, wall.name] == ["i_books", "v_wall"]
    np.testing.assert_array_equal(wall.patches, random_patches(0))
    np.testing.assert_array_equal(books.patches, random_patches(1))
    assert hpatches.IMAGES[0] == "ref"
    assert hpatches.IMAGES[6:9] == ("h1", "h2", "h3")


def test_sequences_cut_by_another_program(tmp_path, shared_data):
    script = [sys.executable, "cut_hpatches.py", "oxford/leuven", "--out", tmp_path]
    subprocess.run(
        [*script, "--max-patches", "50"], cwd=shared_data, check=True, capture_output=True
    )

    (sequence,) = read_all(tmp_path)
    assert sequence.name == "i_leuven"
    assert sequence.patches.shape == (16, 50, 65, 65)
    reference, easy, tough = sequence.patches[[0, 1, 11]].reshape(3, 50, -1).astype(float)
    similar = [np.corrcoef(a, b)[0, 1] for a, b in zip(reference, easy, strict=True)]
    noisy = [np.corrcoef(a, b)[0, 1] for a, b in zip(reference, tough, strict=True)]
    assert np.mean(similar) > max(0.6, np.mean(noisy))  # the same points, in the same order


def test_splits_have_their_published_sizes():
    assert {name: len(tested) for name, tested in SPLITS.items()} == {
        "a": 40,
        "b": 40,
        "c": 40,
        "full": 116,
        "illum": 57,
        "view": 59,
    }
    assert list(SEQUENCES) == sorted(set(SEQUENCES))
    assert all(set(tested) <= set(SEQUENCES) for tested in SPLITS.values())


def test_splits_are_the_published_ones(shared_data):
    published = json.loads((shared_data / "hpatches" / "splits.json").read_text())
    assert {name: set(tested) for name, tested in SPLITS.items()} == {
        name: set(split["test"]) for name, split in published.items()
    }


def test_a_split_reads_its_own_sequences(tmp_path):
    for name in SEQUENCES:
        write_sequence(tmp_path / name, random_patches(0, count=1))

    assert [path.name for path in hpatches.list_sequences(tmp_path, split="b")] == list(SPLITS["b"])
    assert len(hpatches.list_sequences(tmp_path, split="full")) == 116


def test_the_hash_is_of_names_and_grey_values(folder):
    digest = hpatches.decoded_hash(read_all(folder))

    assert digest == hpatches.decoded_hash(read_all(folder))
    (folder / "v_wall").rename(folder / "v_bark")
    assert digest != hpatches.decoded_hash(read_all(folder))
    (folder / "v_bark").rename(folder / "v_wall")
    with Image.open(folder / "v_wall" / "t5.png") as image:
        image.putpixel((3, 3), image.getpixel((3, 3)) ^ 1)
        image.save(folder / "v_wall" / "t5.png")
    assert digest != hpatches.decoded_hash(read_all(folder))


def refused(folder, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        read_all(folder, **options)
    assert "\n" not in str(caught.value)


def test_a_height_that_is_no_multiple_of_65(folder):
    Image.new("L", (65, 3 * 65 - 1)).save(folder / "v_wall" / "h2.png")
    refused(folder, r"h2\.png has 65×194 pixels; .* a multiple of 65 high")


def test_a_wrong_width(folder):
    Image.new("L", (64, 3 * 65)).save(folder / "v_wall" / "h2.png")
    refused(folder, r"h2\.png has 64×195 pixels; a column of patches is 65 wide")


def test_columns_of_different_length(folder):
    Image.new("L", (65, 2 * 65)).save(folder / "v_wall" / "t1.png")
    refused(folder, r"v_wall: t1\.png has 2 patches and ref\.png 3")


def test_a_sequence_that_lacks_a_file(folder):
    (folder / "v_wall" / "e4.png").unlink()
    refused(folder, r"v_wall lacks e4\.png")


@pytest.mark.parametrize("damage", ["truncated", "corrupt"])
def test_a_damaged_file(folder, damage):
    path = folder / "v_wall" / "e4.png"
    if damage == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.write_bytes(b"not an image")
    refused(folder, r"cannot decode .*e4\.png")


def test_a_split_that_is_not_all_there(folder):
    refused(folder, "lacks 39 of the 40 sequences of split a, e.g. i_ajuntament", split="a")


def test_an_unknown_split(folder):
    refused(folder, "unknown HPatches split 'ilum': did you mean 'illum'", split="ilum")


@pytest.mark.parametrize("name", ["nowhere", "i_books"])
def test_no_sequences(folder, name):
    refused(folder / name, "no such folder|holds no sequence")
