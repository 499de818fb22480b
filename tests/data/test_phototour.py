import errno
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from refusals import assert_refused, refused

from kjax.data import cache, phototour
from kjax.data.cache import cache_root
from kjax.data.phototour import SetPhotograph, TestPairs, read_phototour, write_phototour
from kjax.data.sampler import make_point_table, sample_pairs_on_host
from kjax.data.sets import by_photograph

PAIRS = TestPairs(np.array([0, 5]), np.array([1, 500]), np.array([True, False]))
INTEREST = np.random.default_rng(0).uniform(0, 9, (600, 5))
INTEREST[:, 0] = np.arange(600) // 300 * 2
LIST = [SetPhotograph(0, 'a "b", c.jpg', "0a" * 32), SetPhotograph(2, "b/c ü.jpg", "0b" * 32)]


def random_set(count=600):
    rng = np.random.default_rng(count)
    patches = rng.integers(0, 256, (count, 64, 64), dtype=np.uint8)
    point_ids = np.sort(rng.integers(0, count // 3, count)) + 7
    point_ids[:2] = 3
    return patches, point_ids


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "somewhere"
    more = {"pairs": PAIRS, "interest": INTEREST}
    photographs = [*LIST, SetPhotograph(3, "d.jpg", "")]
    return write_phototour(folder, *random_set(), **more, photographs=photographs)


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "somewhere")


def read(folder, tmp_path):
    return read_phototour(folder, cache_dir=tmp_path / "cache", progress=False)


def test_a_written_set_reads_back(written, tmp_path):
    patches, point_ids = random_set()
    mosaics = [f"patches000{number}.bmp" for number in range(3)]
    texts = ["images.txt", "info.txt", "interest.txt", "m50_1_1_0.txt"]
    assert sorted(os.listdir(written)) == [*texts, *mosaics, "photographs.csv"]
    got = phototour.read_with_pairs(written, cache_dir=tmp_path / "cache", progress=False)
    assert got.name == "somewhere"
    np.testing.assert_array_equal(got.patches, patches)
    np.testing.assert_array_equal(got.point_ids, point_ids)
    np.testing.assert_array_equal(got.pairs, PAIRS)
    read_back = phototour.read_interest(written, patch_count=600)
    np.testing.assert_allclose(read_back, INTEREST, atol=5.1e-4)
    assert (written / "images.txt").read_text() == '0 a "b", c.jpg\n2 b/c ü.jpg\n3 d.jpg\n'
    assert phototour.read_set_photographs(written) == LIST
    digest = phototour.decoded_hash(*phototour.decode_folder(written, progress=False))
    assert digest == phototour.decoded_hash([patches], point_ids)
    assert digest != phototour.decoded_hash([patches], point_ids + 1)
    patches[-1, -1, -1] ^= 1
    assert digest != phototour.decoded_hash([patches], point_ids)


@pytest.mark.parametrize("real", [False, True])
def test_patches_are_laid_out_row_by_row(tmp_path, rng, request, real):
    """Without our writer: the bytes of a BMP file, bottom row first, after its palette."""
    palette = bytes(byte for grey in range(256) for byte in (grey, grey, grey, 0))
    sizes = [40, 1024, 1024, 1 | 8 << 16, 0, 0, 0, 0, 256, 0]
    header = b"BM" + np.array([54 + 1024 + 1024**2, 0, 54 + 1024, *sizes], "<u4").tobytes()
    (tmp_path / "info.txt").write_text("".join(f"{n // 2} 0\n" for n in range(512)))
    for name in ("patches0000.bmp", "patches0001.bmp"):
        data = header + palette + rng.bytes(1024**2)
        if real:
            folder = request.getfixturevalue("shared_data") / "ubc_notredame"
            data = (folder / name).read_bytes()
        (tmp_path / name).write_bytes(data)
    start = int.from_bytes(data[10:14], "little")
    pixels = np.frombuffer(data, np.uint8, 1024**2, start).reshape(1024, 1024)[::-1]
    got = read(tmp_path, tmp_path)
    assert got.patches.shape == (512, 64, 64)
    np.testing.assert_array_equal(got.patches[256 + 35], pixels[128:192, 192:256])
    np.testing.assert_array_equal(got.point_ids, np.arange(512) // 2)
    assert 20 < got.patches.std() < 100  # neither constant nor black and white


@pytest.mark.slow
def test_a_set_cut_by_another_program(tmp_path, shared_data):
    script = [sys.executable, "cut_phototour.py", "--out", tmp_path, "--sets", "entry=entry"]
    options = ["--max-patches", "700", "--pairs", "40"]
    subprocess.run(script + options, cwd=shared_data, check=True, capture_output=True)

    got = phototour.read_with_pairs(tmp_path / "entry", cache_dir=tmp_path, progress=False)
    assert 500 < len(got.patches) <= 700
    assert np.bincount(got.point_ids).min() >= 2
    assert got.pairs.matching.sum() == 40
    same = got.point_ids[got.pairs.first] == got.point_ids[got.pairs.second]
    np.testing.assert_array_equal(same, got.pairs.matching)
    interest = phototour.read_interest(got.folder, patch_count=len(got.patches))
    assert interest is not None
    assert interest[:, 0].max() == 9  # ten photographs


# The cache


def test_the_cache_is_mapped_until_the_set_changes(folder, tmp_path):
    first = read(folder, tmp_path)
    decoded = os.stat(first.patches.filename)
    second = read(folder, tmp_path)
    assert os.path.samestat(os.stat(second.patches.filename), decoded)
    assert isinstance(second.patches, np.memmap)
    assert not second.patches.flags.writeable
    np.testing.assert_array_equal(second.patches, first.patches)
    before, status = np.array(first.patches), (folder / "patches0001.bmp").stat()
    shutil.copyfile(folder / "patches0000.bmp", folder / "patches0001.bmp")
    os.utime(folder / "patches0001.bmp", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    np.testing.assert_array_equal(read(folder, tmp_path).patches[256:512], before[:256])


DAMAGES = {
    "truncated": lambda entry: os.truncate(entry / "patches.npy", 100_000),
    "overwritten": lambda entry: (entry / "patches.npy").write_bytes(bytes(2_457_728)),
    "no marker": lambda entry: (entry / "whole.json").unlink(),
    "garbled marker": lambda entry: (entry / "whole.json").write_text('{"version": 1, "sour'),
    "no labels": lambda entry: (entry / "point_ids.npy").unlink(),
}


def test_a_damaged_cache_is_replaced_or_named(folder, tmp_path, monkeypatch):
    first = read(folder, tmp_path)
    expected, labels = np.array(first.patches), first.point_ids
    (entry,) = (tmp_path / "cache" / "phototour").iterdir()
    for name, damage in DAMAGES.items():
        damage(entry)
        again = read(folder, tmp_path)
        np.testing.assert_array_equal(again.patches, expected, name)
        np.testing.assert_array_equal(again.point_ids, labels, name)
    (entry / "point_ids.npy").write_bytes(b"rot")
    monkeypatch.setattr(cache.shutil, "rmtree", lambda *_, **__: None)
    assert_refused(f"{entry}: delete that folder", read, folder, tmp_path)


@pytest.mark.parametrize("overtaken", ["while decoding", "while replacing a stale entry"])
def test_the_entry_of_a_faster_process_is_kept(folder, tmp_path, monkeypatch, overtaken):
    """A process that has just written an entry opens it, so it must not disappear."""
    entries = tmp_path / "cache" / "phototour"
    if overtaken == "while decoding":
        module, name = phototour, "decode_folder"
    else:
        read(folder, tmp_path)
        os.utime(folder / "info.txt", (0, 0))
        module, name = cache.shutil, "rmtree"
    original, faster = getattr(module, name), []

    def slow(*args, **options):
        monkeypatch.undo()
        result = original(*args, **options)
        read(folder, tmp_path)
        whole = (path for path in entries.iterdir() if path.name[0] != ".")
        faster.extend((path, path.stat().st_ino) for path in whole)
        return result

    monkeypatch.setattr(module, name, slow)
    assert len(read(folder, tmp_path).patches) == 600
    assert [(path, path.stat().st_ino) for path in entries.iterdir()] == faster


def test_an_interrupted_decoding_leaves_nothing(written, tmp_path, monkeypatch):
    mosaic = phototour.decode_mosaic(written / "patches0000.bmp")
    interrupted = mock.Mock(side_effect=[mosaic, mosaic, KeyboardInterrupt])
    monkeypatch.setattr(phototour, "decode_mosaic", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(written, tmp_path)
    monkeypatch.undo()
    assert not list((tmp_path / "cache" / "phototour").iterdir())
    assert len(read(written, tmp_path).patches) == 600


def test_a_cache_folder_that_cannot_be_written_is_named(written, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("")
    assert_refused(r"cannot write to .*cache.*KJAX_CACHE", read, written, tmp_path)

    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS))
    monkeypatch.setattr(Path, "mkdir", mock.Mock(side_effect=read_only))
    with refused(rf"{tmp_path / 'other'}.*Read-only file system.*KJAX_CACHE"):
        read_phototour(written, cache_dir=tmp_path / "other", progress=False)


def test_the_cache_folder_comes_from_the_environment(monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "KJAX_CACHE"):
        monkeypatch.delenv(name, raising=False)
    settings = {"HOME": "/a/.cache/kjax", "XDG_CACHE_HOME": "/a/kjax", "KJAX_CACHE": "/a"}
    for name, expected in settings.items():
        monkeypatch.setenv(name, "/a")
        assert cache_root() == Path(expected)
    assert cache_root(tmp_path) == tmp_path


# Bad sets


def halve(folder):
    with Image.open(folder / "patches0001.bmp") as image:
        image.crop((0, 0, 1024, 512)).save(folder / "patches0001.bmp")


def write(name, content):
    return lambda folder: (folder / name).write_text(content)


def remove(name):
    return lambda folder: (folder / name).unlink()


def write_match(text):
    return write("m50_1_1_0.txt", text)


def write_list(text):
    return write("photographs.csv", text)


SET_DAMAGES = [
    (lambda folder: os.truncate(folder / "patches0001.bmp", 500_000), "cannot decode .*1.bmp"),
    (write("patches0001.bmp", "this is not an image" * 100), r"cannot decode .*patches0001\.bmp"),
    (halve, r"patches0001\.bmp has 1024×512 pixels"),
    (remove("patches0001.bmp"), r"lacks patches0001\.bmp"),
    (remove("info.txt"), r"lacks info\.txt"),
    *((write("info.txt", "1 0\n" * n), f"{n} lines for 3") for n in (512, 769)),
    *(
        (write("info.txt", text), r"cannot read .*info\.txt")
        for text in ("", "1 0\nx y\n", "1.5 0\n" * 600)
    ),
    (lambda folder: [path.unlink() for path in folder.iterdir()], r"has no patches0000\.bmp"),
    (shutil.rmtree, "no such folder"),
    (write_match("0 3 0 1 3 0 0\n5 3 0 600 3 0 0\n"), "line 2: patch 5 or 600 .* patches 0 to 599"),
    (write_match("0 3 0 -1 3 0 0\n"), "line 1: patch -1 or 0 "),
    (write_match("0 3 0\n"), "cannot read"),
    (write("m50_2_2_0.txt", "0 3 0 1 3 0 0\n"), r"found m50_1_1_0\.txt, m50_2_2_0\.txt"),
]
LIST_DAMAGES = [
    *(
        (write_list(text), r"photographs\.csv is damaged")
        for text in ("", "number,name,sha256\n0,a\n", "number,name,sha256\nx,a,b\n")
    ),
    (write_list("number,name,sha256\n0,a,\n2,b,\n"), "has no SHA-256"),
    (lambda folder: phototour.write_set_photographs(folder, LIST[:1]), "of photograph 2, which"),
    (remove("photographs.csv"), "does not list .*build-patches"),
    (remove("interest.txt"), "does not list the photographs"),
]


@pytest.mark.parametrize(
    ("read", "damage", "message"),
    [
        *((phototour.read_with_pairs, *case) for case in SET_DAMAGES),
        *((phototour.read_set_photographs, *case) for case in LIST_DAMAGES),
    ],
)
def test_a_damaged_set_is_refused(folder, tmp_path, monkeypatch, read, damage, message):
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path / "cache"))
    damage(folder)
    with warnings.catch_warnings(), refused(message):
        warnings.simplefilter("error")
        read(folder)


def test_the_standard_match_file_is_preferred(tmp_path):
    write_match("0 3 0 1 3 0 0\n")(tmp_path)
    (tmp_path / phototour.STANDARD_MATCH_FILE).write_text("2 3 0 4 5 0 0\n")
    assert phototour.read_pairs(tmp_path, patch_count=6).first.tolist() == [2]


# Writing


@pytest.mark.parametrize(
    ("patches", "point_ids", "pairs", "message"),
    [
        (np.zeros((4, 32, 32), np.uint8), np.zeros(4, int), None, "uint8 "),
        (np.zeros((4, 64, 64), np.float32), np.zeros(4, int), None, "patches float32"),
        (np.zeros((4, 64, 64), np.uint8), np.zeros(5, int), None, "with 5 point_ids"),
        (np.zeros((0, 64, 64), np.uint8), np.zeros(0, int), None, "least one patch"),
        (*random_set(), PAIRS._replace(matching=~PAIRS.matching), "disagrees with point_ids"),
    ],
)
def test_a_refused_write_leaves_the_old_set(folder, tmp_path, patches, point_ids, pairs, message):
    before = sorted(os.listdir(folder))
    for target in (folder, tmp_path / "new"):
        with refused(message):
            write_phototour(target, patches, point_ids, pairs=pairs, overwrite=True)
    assert sorted(os.listdir(folder)) == before
    assert os.listdir(tmp_path) == ["somewhere"]


def test_only_patch_sets_are_overwritten_and_only_on_demand(folder, tmp_path):
    small = random_set(20)
    with refused("already exists: choose another folder, or add --overwrite"):
        write_phototour(folder, *small)
    write_phototour(folder, *small, overwrite=True)
    assert sorted(os.listdir(folder)) == ["info.txt", "patches0000.bmp"]
    (folder / "holiday.jpg").touch()
    with refused(r"not just a patch set \(it holds holiday.jpg\)"):
        write_phototour(folder, *small, overwrite=True)
    assert (folder / "info.txt").exists()
    (file := tmp_path / "info.txt").touch()
    assert_refused("info.txt is a file", phototour.check_output, file, overwrite=True)


def test_test_pairs_are_correct_distinct_and_repeatable():
    point_ids = np.random.default_rng(0).permutation(np.repeat(np.arange(50), [2, 3, 4, 5, 6] * 10))
    pairs = phototour.sample_test_pairs(point_ids, matching=150, non_matching=400, seed=3)
    assert (pairs.matching.sum(), len(pairs.matching)) == (150, 550)
    same = point_ids[pairs.first] == point_ids[pairs.second]
    np.testing.assert_array_equal(same, pairs.matching)
    assert (pairs.first != pairs.second).all()
    ends = np.sort(np.stack([pairs.first, pairs.second], axis=1), axis=1)
    assert len(np.unique(ends, axis=0)) == 550
    assert 0.05 < pairs.matching[:100].mean() < 0.6  # shuffled
    for seed, same in ((3, True), (4, False)):
        again = phototour.sample_test_pairs(point_ids, matching=150, non_matching=400, seed=seed)
        assert np.array_equal(pairs, again) == same


def test_small_sets_give_all_their_pairs():
    point_ids = np.array([0, 0, 1, 1, 1])
    pairs = phototour.sample_test_pairs(point_ids, matching=99, non_matching=99, seed=0)
    assert (pairs.matching.sum(), (~pairs.matching).sum()) == (4, 6)
    for point_ids in ([0, 1, 2], [0, 0, 0], [5]):
        with refused("need at least two points"):
            phototour.sample_test_pairs(np.array(point_ids), matching=9, non_matching=9, seed=0)


POINTS, VIEWS, PHOTOGRAPHS = 40, 2, 5


def test_groups_come_from_one_photograph_in_a_fixed_random_order(tmp_path):
    """Point p is seen twice, first in photograph p % 5 and then in the next one."""
    points = np.repeat(np.arange(POINTS), VIEWS)
    interest = np.zeros((len(points), 5))
    interest[:, 0] = (points + np.tile(np.arange(VIEWS), POINTS)) % PHOTOGRAPHS
    patches = np.zeros((len(points), 64, 64), np.uint8)
    by_five = read(write_phototour(tmp_path / "set", patches, points, interest=interest), tmp_path)
    table = make_point_table(by_photograph(by_five).point_ids)
    rows = sample_pairs_on_host(table, 3, np.arange(20), pairs=16, group=4)
    points = by_five.point_ids[rows]
    np.testing.assert_array_equal(points[..., 0], points[..., 1])
    photographs = points[..., 0].reshape(20, 4, 4) % PHOTOGRAPHS
    assert (photographs == photographs[..., :1]).all()
    assert all(len(set(batch)) == 16 for batch in points[..., 0].tolist())
    once, again = by_photograph(by_five).point_ids, by_photograph(by_five).point_ids
    np.testing.assert_array_equal(once, again)
    first_photograph = np.argsort(once[::VIEWS])[: POINTS // PHOTOGRAPHS]
    assert (first_photograph % PHOTOGRAPHS == 0).all()
    assert (np.diff(first_photograph) < 0).any()
    (by_five.folder / "interest.txt").unlink()
    assert_refused(r"lacks interest\.txt.*config\.train\.group=1", by_photograph, by_five)
