import errno

import numpy as np
import pytest

from kjax.errors import InputError
from kjax.eval import descriptor_cache
from kjax.eval.descriptor_cache import cached, identity_of

PATCHES = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)


class Counting:
    """A descriptor that counts how often it is asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, patches):
        self.calls += 1
        return patches.reshape(len(patches), -1).astype(np.float32)


def test_patches_are_described_once(tmp_path):
    describe = Counting()
    first = cached(describe, "one", cache_dir=tmp_path)(PATCHES)
    again = cached(describe, "one", cache_dir=tmp_path)(PATCHES)
    np.testing.assert_array_equal(first, again)
    assert describe.calls == 1


def test_other_patches_or_another_descriptor_are_described_anew(tmp_path):
    describe = Counting()
    cached(describe, "one", cache_dir=tmp_path)(PATCHES)
    cached(describe, "one", cache_dir=tmp_path)(PATCHES[::-1])
    cached(describe, "two", cache_dir=tmp_path)(PATCHES)
    assert describe.calls == 3


def test_a_damaged_entry_is_replaced(tmp_path):
    describe = Counting()
    cached(describe, "one", cache_dir=tmp_path)(PATCHES)
    (entry,) = (tmp_path / "descriptors").iterdir()
    entry.write_bytes(entry.read_bytes()[:60])
    again = cached(describe, "one", cache_dir=tmp_path)(PATCHES)
    assert describe.calls == 2
    np.testing.assert_array_equal(again, PATCHES.reshape(3, -1))


def test_every_damaged_value_is_noticed(tmp_path):
    describe = Counting()
    cached(describe, "one", cache_dir=tmp_path)(PATCHES)
    (entry,) = (tmp_path / "descriptors").iterdir()
    whole = entry.read_bytes()
    first = whole.index(PATCHES.reshape(3, -1).astype(np.float32).tobytes())
    for number, place in enumerate(range(first, first + 3 * 16 * 4, 17)):
        entry.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        again = cached(describe, "one", cache_dir=tmp_path)(PATCHES)
        np.testing.assert_array_equal(again, PATCHES.reshape(3, -1))
        assert describe.calls == 2 + number


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def refuse(path, write):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(descriptor_cache, "write_npz", refuse)
    with pytest.raises(InputError, match="set KJAX_CACHE"):
        cached(Counting(), "one", cache_dir=tmp_path)(PATCHES)


def test_an_identity_is_about_settings_and_every_value():
    weights = {"a": np.zeros(3), "b": np.ones(2)}
    same = identity_of("kind", ["x", 1], weights)
    assert same == identity_of("kind", ["x", 1], {"b": np.ones(2), "a": np.zeros(3)})
    others = [
        identity_of("other", ["x", 1], weights),
        identity_of("kind", ["x", 2], weights),
        identity_of("kind", ["x", 1], {**weights, "b": np.array([1.0, 2.0])}),
        identity_of("kind", ["x", 1], {"a": np.zeros(3), "c": np.ones(2)}),
    ]
    assert len({same, *others}) == 5
