"""How damage to derived files is noticed."""

import functools
import os

import numpy as np
import pytest

from kjax.data import cache

fingerprint = functools.partial(cache.fingerprint, block_bytes=100)
is_intact = functools.partial(cache.is_intact, block_bytes=100)


@pytest.fixture
def file(tmp_path, rng):
    """A file of 1000 blocks and a half."""
    path = tmp_path / "patches.npy"
    path.write_bytes(rng.integers(0, 256, 100_050, np.uint8).tobytes())
    return path


def damage(path, place, *, keep_time):
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    stamp = status.st_mtime_ns if keep_time else status.st_mtime_ns + 1
    os.utime(path, ns=(stamp, stamp))


def test_a_whole_file_is_intact_wherever_it_is_moved(file, tmp_path):
    known = fingerprint(file)
    assert is_intact(file, known)
    os.utime(file)
    assert is_intact(file, known)
    assert is_intact(file.rename(tmp_path / "other"), known)


def test_writing_to_a_file_is_always_noticed(file):
    known = fingerprint(file)
    damage(file, 77_777, keep_time=False)
    assert not is_intact(file, known)


def test_another_length_is_always_noticed(file):
    known = fingerprint(file)
    for content in (file.read_bytes()[:-1], file.read_bytes() + b"x", b""):
        file.write_bytes(content)
        assert not is_intact(file, known)


def test_rot_is_looked_for_in_other_places_every_time(file):
    known = fingerprint(file)
    for place in range(0, 100_000, 200):  # every second block, as a bad disk might
        damage(file, place, keep_time=True)
    assert not is_intact(file, known)  # 64 blocks miss half of 1000 once in 10¹⁹ times
    assert not is_intact(file, known, sampled_blocks=2000)


def test_small_files_are_read_whole(file):
    file.write_bytes(bytes(6400))  # 64 blocks
    known = fingerprint(file)
    for place in (0, 3333, 6399):
        damage(file, place, keep_time=True)
        assert not is_intact(file, known)
        damage(file, place, keep_time=True)
    assert is_intact(file, known)
