import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from refusals import assert_refused

from kjax.data import hpatches
from kjax.data.hpatches import SEQUENCES, SPLITS


def random_patches(seed, count=3):
    return np.random.default_rng(seed).integers(0, 256, (16, count, 65, 65), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(["v_wall", "i_books"]):
        (tmp_path / name).mkdir()
        for image, column in zip(hpatches.IMAGES, random_patches(seed), strict=True):
            Image.fromarray(column.reshape(-1, 65)).save(tmp_path / name / f"{image}.png")
    return tmp_path


def read_all(folder, **options):
    return list(hpatches.read_hpatches(folder, progress=False, **options))


def test_sequences_are_read_in_alphabetical_order(folder):
    books, wall = read_all(folder)
    assert [books.name, wall.name] == ["i_books", "v_wall"]
    np.testing.assert_array_equal(wall.patches, random_patches(0))
    np.testing.assert_array_equal(books.patches, random_patches(1))
    assert hpatches.IMAGES[0] == "ref"
    assert hpatches.IMAGES[6:9] == ("h1", "h2", "h3")


@pytest.mark.slow
def test_sequences_cut_by_another_program(tmp_path, shared_data):
    script = [sys.executable, "cut_hpatches.py", "oxford/leuven", "--out", tmp_path]
    script += ["--max-patches", "50"]
    subprocess.run(script, cwd=shared_data, check=True, capture_output=True)
    (sequence,) = read_all(tmp_path)
    assert sequence.name == "i_leuven"
    assert sequence.patches.shape == (16, 50, 65, 65)
    reference, easy, tough = sequence.patches[[0, 1, 11]].reshape(3, 50, -1).astype(float)
    similar = [np.corrcoef(a, b)[0, 1] for a, b in zip(reference, easy, strict=True)]
    noisy = [np.corrcoef(a, b)[0, 1] for a, b in zip(reference, tough, strict=True)]
    assert np.mean(similar) > max(0.6, np.mean(noisy))  # the same points, in the same order


def test_splits_have_their_published_sizes_and_list_their_own_sequences(tmp_path):
    sizes = {name: len(tested) for name, tested in SPLITS.items()}
    assert sizes == {"a": 40, "b": 40, "c": 40, "full": 116, "illum": 57, "view": 59}
    assert list(SEQUENCES) == sorted(set(SEQUENCES))
    assert all(set(tested) <= set(SEQUENCES) for tested in SPLITS.values())
    for name in SEQUENCES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "ref.png").touch()
    for split in ("b", "full"):
        names = [path.name for path in hpatches.list_sequences(tmp_path, split=split)]
        assert names == list(SPLITS[split])


def test_splits_are_the_published_ones(shared_data):
    published = json.loads((shared_data / "hpatches" / "splits.json").read_text())
    assert published.keys() == SPLITS.keys()
    assert all(set(SPLITS[name]) == set(split["test"]) for name, split in published.items())


def test_the_hash_covers_names_and_grey_values(folder):
    digest = hpatches.decoded_hash(read_all(folder))
    assert digest == hpatches.decoded_hash(read_all(folder))
    (folder / "v_wall").rename(folder / "v_bark")
    assert digest != hpatches.decoded_hash(read_all(folder))
    (folder / "v_bark").rename(folder / "v_wall")
    with Image.open(folder / "v_wall" / "t5.png") as image:
        image.putpixel((3, 3), image.getpixel((3, 3)) ^ 1)
        image.save(folder / "v_wall" / "t5.png")
    assert digest != hpatches.decoded_hash(read_all(folder))


def draw(name, *size):
    return lambda folder: Image.new("L", size).save(folder / "v_wall" / name)


@pytest.mark.parametrize(
    ("change", "message", "options"),
    [
        (draw("h2.png", 65, 194), r"h2\.png has 65×194 pixels; .* a multiple of 65 high", {}),
        (draw("h2.png", 64, 195), r"h2\.png has 64×195 pixels; .* patches is 65 wide", {}),
        (draw("t1.png", 65, 130), "v_wall has columns of different lengths", {}),
        (lambda folder: (folder / "v_wall/e4.png").unlink(), r"v_wall lacks e4\.png", {}),
        (lambda folder: os.truncate(folder / "v_wall/e4.png", 999), r"decode .*e4\.png", {}),
        (lambda folder: (folder / "v_wall/e4.png").write_bytes(b"no"), r"decode .*e4\.png", {}),
        (None, "lacks 39 of the 40 sequences of split a, e.g. i_ajuntament", {"split": "a"}),
        (None, "unknown HPatches split 'ilum': did you mean 'illum'", {"split": "ilum"}),
        ("nowhere", "no such folder", {}),
        ("i_books", "holds no sequence", {}),
    ],
)
def test_a_bad_folder_is_refused(folder, change, message, options):
    if isinstance(change, str):
        folder /= change
    elif change:
        change(folder)
    assert_refused(rf"^[^\n]*{message}[^\n]*$", read_all, folder, **options)
