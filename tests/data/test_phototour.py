"""PhotoTourism folders: read, cached, written; and what is wrong with bad ones."""

import errno
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from kjax.data import phototour
from kjax.data.cache import cache_root
from kjax.data.phototour import TestPairs, read_match_file, read_phototour, write_phototour
from kjax.errors import InputError


def random_set(count=600):
    rng = np.random.default_rng(count)
    patches = rng.integers(0, 256, (count, 64, 64), dtype=np.uint8)
    return patches, np.sort(rng.integers(0, count // 3, count)) + 7


PAIRS = TestPairs(np.array([0, 5]), np.array([1, 500]), np.array([True, False]))


@pytest.fixture
def folder(tmp_path):
    patches, point_ids = random_set()
    point_ids[:2] = 3
    return write_phototour(tmp_path / "somewhere", patches, point_ids, pairs=PAIRS)


def read(folder, tmp_path):
    return read_phototour(folder, cache_dir=tmp_path / "cache", progress=False)


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Whole sets


def test_what_is_written_is_read(tmp_path):
    patches, point_ids = random_set()
    interest = np.random.default_rng(0).uniform(0, 9, (600, 5))
    interest[:, 0] = np.arange(600) // 50
    point_ids[:2] = 3
    folder = write_phototour(tmp_path / "a", patches, point_ids, pairs=PAIRS, interest=interest)

    assert sorted(path.name for path in folder.iterdir()) == [
        "info.txt",
        "interest.txt",
        "m50_1_1_0.txt",
        "patches0000.bmp",
        "patches0001.bmp",
        "patches0002.bmp",
    ]
    got = read(folder, tmp_path)
    assert got.name == "a"
    np.testing.assert_array_equal(got.patches, patches)
    np.testing.assert_array_equal(got.point_ids, point_ids)
    pairs = read_match_file(phototour.find_match_file(folder), patch_count=600)
    for field, expected in zip(pairs, PAIRS, strict=True):
        np.testing.assert_array_equal(field, expected)
    np.testing.assert_allclose(
        phototour.read_interest(folder, patch_count=600), interest, atol=5.1e-4
    )


def test_patches_are_laid_out_row_by_row(tmp_path):
    """Without our writer: the bytes of a BMP file, bottom row first, behind its palette."""
    mosaic = np.random.default_rng(1).integers(0, 256, (1024, 1024), dtype=np.uint8)
    palette = bytes(byte for grey in range(256) for byte in (grey, grey, grey, 0))
    sizes = [40, 1024, 1024, 1 | 8 << 16, 0, 0, 0, 0, 256, 0]
    header = b"BM" + np.array([54 + 1024 + mosaic.size, 0, 54 + 1024, *sizes], "<u4").tobytes()
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "patches0000.bmp").write_bytes(header + palette + mosaic[::-1].tobytes())
    (folder / "info.txt").write_text("".join(f"{n // 2} 0\n" for n in range(20)))

    got = read(folder, tmp_path)
    assert got.patches.shape == (20, 64, 64)
    np.testing.assert_array_equal(got.patches[3], mosaic[:64, 192:256])
    np.testing.assert_array_equal(got.patches[17], mosaic[64:128, 64:128])
    np.testing.assert_array_equal(got.point_ids, np.arange(20) // 2)


def test_real_mosaics(tmp_path, shared_data):
    folder = tmp_path / "notredame"
    folder.mkdir()
    for path in sorted((shared_data / "ubc_notredame").glob("*.bmp")):
        shutil.copyfile(path, folder / path.name)
    (folder / "info.txt").write_text("0 0\n" * 512)
    data = (folder / "patches0001.bmp").read_bytes()
    start = int.from_bytes(data[10:14], "little")
    pixels = np.frombuffer(data, np.uint8, 1024 * 1024, start).reshape(1024, 1024)[::-1]

    got = read(folder, tmp_path)
    assert got.patches.shape == (512, 64, 64)
    np.testing.assert_array_equal(got.patches[256 + 35], pixels[128:192, 192:256])
    assert 20 < got.patches.std() < 100  # photographs, not noise or nothing


def test_a_set_cut_by_another_program(tmp_path, shared_data):
    script = [sys.executable, "cut_phototour.py", "--out", tmp_path, "--sets", "entry=entry"]
    options = ["--max-patches", "700", "--pairs", "40"]
    subprocess.run(script + options, cwd=shared_data, check=True, capture_output=True)

    got = read(tmp_path / "entry", tmp_path)
    pairs = read_match_file(phototour.find_match_file(got.folder), patch_count=len(got.patches))
    assert 500 < len(got.patches) <= 700
    assert np.bincount(got.point_ids).min() >= 2
    assert pairs.matching.sum() == 40
    same = got.point_ids[pairs.first] == got.point_ids[pairs.second]
    np.testing.assert_array_equal(same, pairs.matching)
    interest = phototour.read_interest(got.folder, patch_count=len(got.patches))
    assert interest is not None
    assert interest[:, 0].max() == 9  # ten photographs


def test_the_hash_is_of_what_is_decoded(folder, tmp_path):
    got = read(folder, tmp_path)
    blocks, point_ids = phototour.decode_folder(folder, progress=False)
    digest = phototour.decoded_hash(blocks, point_ids)

    assert digest == phototour.decoded_hash([got.patches], got.point_ids)
    changed = np.array(got.patches)
    changed[-1, -1, -1] ^= 1
    assert digest != phototour.decoded_hash([changed], got.point_ids)
    assert digest != phototour.decoded_hash([got.patches], got.point_ids + 1)


# The cache


def test_the_second_reading_maps_the_cache(folder, tmp_path):
    first = read(folder, tmp_path)
    decoded = os.stat(first.patches.filename)
    second = read(folder, tmp_path)

    assert os.path.samestat(os.stat(second.patches.filename), decoded)
    assert isinstance(second.patches, np.memmap)
    assert not second.patches.flags.writeable
    np.testing.assert_array_equal(second.patches, first.patches)


def test_a_changed_set_is_decoded_again(folder, tmp_path):
    before = np.array(read(folder, tmp_path).patches)
    status = (folder / "patches0001.bmp").stat()
    swapped = (folder / "patches0000.bmp").read_bytes()
    (folder / "patches0001.bmp").write_bytes(swapped)
    os.utime(folder / "patches0001.bmp", ns=(status.st_atime_ns, status.st_mtime_ns + 1))

    after = read(folder, tmp_path).patches
    np.testing.assert_array_equal(after[256:512], before[:256])


@pytest.mark.parametrize("damage", ["truncate", "no marker", "garbled marker", "no labels"])
def test_a_damaged_cache_is_not_taken_for_whole(folder, tmp_path, damage):
    expected = np.array(read(folder, tmp_path).patches)
    (entry,) = (tmp_path / "cache" / "phototour").iterdir()
    if damage == "truncate":
        os.truncate(entry / "patches.npy", 100_000)
    elif damage == "no marker":
        (entry / "whole.json").unlink()
    elif damage == "garbled marker":
        (entry / "whole.json").write_text('{"version": 1, "sour')
    else:
        (entry / "point_ids.npy").unlink()

    np.testing.assert_array_equal(read(folder, tmp_path).patches, expected)


@pytest.mark.parametrize("name", ["patches.npy", "point_ids.npy", "whole.json"])
def test_one_damaged_byte_of_the_cache_is_noticed_and_mended(folder, tmp_path, name):
    first = read(folder, tmp_path)
    expected, labels = np.array(first.patches), first.point_ids
    del first
    (entry,) = (tmp_path / "cache" / "phototour").iterdir()
    whole = (entry / name).read_bytes()
    place = 2 * len(whole) // 3
    (entry / name).write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
    mended = read(folder, tmp_path)
    np.testing.assert_array_equal(mended.patches, expected)
    np.testing.assert_array_equal(mended.point_ids, labels)


def test_a_damaged_cache_that_cannot_be_replaced_is_named(folder, tmp_path, monkeypatch):
    read(folder, tmp_path)
    (entry,) = (tmp_path / "cache" / "phototour").iterdir()
    (entry / "point_ids.npy").write_bytes(b"rot")
    monkeypatch.setattr(phototour.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(InputError, match="delete that folder") as caught:
        read(folder, tmp_path)
    assert str(entry) in one_line(caught)


@pytest.mark.parametrize("overtaken", ["while it decodes", "as it replaces a stale entry"])
def test_the_entry_of_a_faster_process_is_kept(folder, tmp_path, monkeypatch, overtaken):
    """A process that has just written an entry opens it: it must not be gone for a moment."""
    entries = tmp_path / "cache" / "phototour"
    if overtaken == "while it decodes":
        module, name = phototour, "_stream_patches"
    else:
        read(folder, tmp_path)
        os.utime(folder / "info.txt", (0, 0))
        module, name = phototour.shutil, "rmtree"
    original = getattr(module, name)

    def slow(*args, **options):
        monkeypatch.undo()
        original(*args, **options)
        read(folder, tmp_path)
        faster.extend((path, path.stat().st_ino) for path in entries.iterdir() if is_entry(path))

    def is_entry(path):
        return not path.name.startswith(".")

    faster = []
    monkeypatch.setattr(module, name, slow)
    assert len(read(folder, tmp_path).patches) == 600
    assert [(path, path.stat().st_ino) for path in entries.iterdir()] == faster


def test_an_interrupted_decoding_leaves_nothing(folder, tmp_path, monkeypatch):
    original = phototour.decode_mosaic

    def interrupted(path):
        if path.name == "patches0002.bmp":
            raise KeyboardInterrupt
        return original(path)

    with monkeypatch.context() as patched:
        patched.setattr(phototour, "decode_mosaic", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read(folder, tmp_path)
    assert not list((tmp_path / "cache" / "phototour").iterdir())
    assert len(read(folder, tmp_path).patches) == 600


def test_a_read_only_cache_folder_is_named_with_the_remedy(folder, tmp_path, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match="KJAX_CACHE") as caught:
        read(folder, tmp_path)
    assert "Read-only file system" in one_line(caught)
    assert str(tmp_path / "cache") in one_line(caught)


def test_a_cache_folder_that_is_a_file_is_named_with_the_remedy(folder, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(InputError, match=r"cannot write to .*cache.*KJAX_CACHE") as caught:
        read(folder, tmp_path)
    one_line(caught)


def test_the_cache_folder_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("KJAX_CACHE", raising=False)
    assert cache_root() == Path("/home/someone/.cache/kjax")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_root() == Path("/caches/kjax")
    monkeypatch.setenv("KJAX_CACHE", "/big/disk")
    assert cache_root() == Path("/big/disk")
    assert cache_root(tmp_path) == tmp_path


# Bad sets


def test_a_truncated_mosaic(folder, tmp_path):
    os.truncate(folder / "patches0001.bmp", 500_000)
    with pytest.raises(InputError, match=r"cannot decode .*patches0001\.bmp") as caught:
        read(folder, tmp_path)
    one_line(caught)


def test_a_corrupt_mosaic(folder, tmp_path):
    (folder / "patches0001.bmp").write_bytes(b"this is not an image" * 100)
    with pytest.raises(InputError, match=r"cannot decode .*patches0001\.bmp") as caught:
        read(folder, tmp_path)
    one_line(caught)


def test_a_mosaic_of_the_wrong_size(folder, tmp_path):
    with phototour.Image.open(folder / "patches0001.bmp") as image:
        image.crop((0, 0, 1024, 512)).save(folder / "patches0001.bmp")
    with pytest.raises(InputError, match=r"patches0001\.bmp has 1024×512 pixels") as caught:
        read(folder, tmp_path)
    one_line(caught)


def test_a_missing_mosaic(folder, tmp_path):
    (folder / "patches0001.bmp").unlink()
    with pytest.raises(InputError, match=r"lacks patches0001\.bmp") as caught:
        read(folder, tmp_path)
    one_line(caught)


@pytest.mark.parametrize(
    ("lines", "message"), [(512, "too short: 512 lines for 3"), (769, "too long: 769 lines for 3")]
)
def test_labels_that_do_not_fit_the_mosaics(folder, tmp_path, lines, message):
    (folder / "info.txt").write_text("1 0\n" * lines)
    with pytest.raises(InputError, match=message) as caught:
        read(folder, tmp_path)
    one_line(caught)


@pytest.mark.parametrize("text", ["", "1 0\nx y\n"])
def test_labels_that_are_no_numbers(folder, tmp_path, text):
    (folder / "info.txt").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"info\.txt") as caught:
            read(folder, tmp_path)
    one_line(caught)


def test_no_labels(folder, tmp_path):
    (folder / "info.txt").unlink()
    with pytest.raises(InputError, match=r"lacks info\.txt"):
        read(folder, tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_no_set(tmp_path, name):
    with pytest.raises(InputError, match=r"no such folder|no patches0000\.bmp") as caught:
        read(tmp_path / name, tmp_path)
    one_line(caught)


def test_a_match_file_that_names_a_missing_patch(folder):
    path = folder / "m50_1_1_0.txt"
    path.write_text("0 3 0 1 3 0 0\n5 3 0 600 3 0 0\n")
    with pytest.raises(InputError, match=r"line 2: patch 600 .* patches 0 to 599") as caught:
        read_match_file(path, patch_count=600)
    one_line(caught)
    path.write_text("0 3 0 -1 3 0 0\n")
    with pytest.raises(InputError, match="line 1: patch -1 "):
        read_match_file(path, patch_count=600)


def test_a_match_file_with_too_few_columns(folder):
    (folder / "m50_1_1_0.txt").write_text("0 3 0\n")
    with pytest.raises(InputError, match="cannot read") as caught:
        read_match_file(folder / "m50_1_1_0.txt", patch_count=600)
    one_line(caught)


def test_the_standard_match_file_is_preferred_and_a_choice_refused(folder):
    (folder / "m50_2_2_0.txt").write_text("")
    with pytest.raises(InputError, match=r"found m50_1_1_0\.txt, m50_2_2_0\.txt"):
        phototour.find_match_file(folder)
    (folder / phototour.STANDARD_MATCH_FILE).write_text("")
    assert phototour.find_match_file(folder).name == phototour.STANDARD_MATCH_FILE


def test_nothing_is_overwritten_and_nothing_half_written(folder, tmp_path):
    patches, point_ids = random_set(20)
    with pytest.raises(InputError, match="already exists"):
        write_phototour(folder, patches, point_ids)
    wrong = PAIRS._replace(second=np.array([1, 2]), matching=np.array([True, True]))
    point_ids = np.array([3, 3, *range(10, 28)])
    with pytest.raises(InputError, match="disagrees with point_ids"):
        write_phototour(tmp_path / "new", patches, point_ids, pairs=wrong)
    assert not (tmp_path / "new").exists()
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.parametrize(
    ("patches", "point_ids", "message"),
    [
        (np.zeros((4, 32, 32), np.uint8), np.zeros(4, int), "uint8 "),
        (np.zeros((4, 64, 64), np.float32), np.zeros(4, int), "not float32"),
        (np.zeros((4, 64, 64), np.uint8), np.zeros(5, int), "4 integers"),
        (np.zeros((0, 64, 64), np.uint8), np.zeros(0, int), "at least one patch"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, patches, point_ids, message):
    with pytest.raises(InputError, match=message):
        write_phototour(tmp_path / "new", patches, point_ids)
