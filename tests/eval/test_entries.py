"""Names of descriptors on the command line, and the cache of descriptors."""

import errno
from unittest.mock import Mock

import numpy as np
import pytest
from models import make_model, random_patches
from refusals import assert_refused, refused

import kjax
from kjax.eval import entries
from kjax.eval.entries import cached, find_entry, identity_of, model_describer
from kjax.weights.files import save_variables
from kjax.weights.info import ModelInfo, fields_of
from kjax.weights.shipped import no_surroundings

PATCHES = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)


@pytest.fixture
def describe():
    """A descriptor that counts its calls."""
    return Mock(side_effect=lambda patches: patches.reshape(len(patches), -1).astype(np.float32))


def test_context_needs_photographs(tmp_path):
    model, variables = make_model("xy", patch_size=8, context=(1, 4))
    path = tmp_path / "fast-context.npz"
    save_variables(path, variables, info=ModelInfo(fields_of(model)))
    with refused(r"context\.npz describes points with .* lack: use best, or describe_image"):
        find_entry(str(path))
    with refused("^xy s=1 N=8 context=1,4 describes points with their surroundings"):
        model_describer(model, variables)
    assert "which these patches lack: use fast, or" in str(no_surroundings("fast-context"))


def test_patches_are_described_once_and_damaged_files_replaced(describe, tmp_path):
    for identity, patches in (("one", PATCHES[::-1]), ("two", PATCHES), ("two", PATCHES)):
        found = cached(describe, identity, cache_dir=tmp_path / "first")(patches)
        np.testing.assert_array_equal(found, patches.reshape(3, -1))
    cached(describe, "one", cache_dir=tmp_path / "first")(PATCHES)
    assert describe.call_count == 3
    cached(describe, "one", cache_dir=tmp_path)(PATCHES)
    (file,) = (tmp_path / "descriptors").iterdir()
    whole = file.read_bytes()
    first = whole.index(PATCHES.reshape(3, -1).astype(np.float32).tobytes())
    flipped = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in (first, first + 51)]
    for number, content in enumerate([whole[:60], *flipped]):
        file.write_bytes(content)
        again = cached(describe, "one", cache_dir=tmp_path)(PATCHES)
        np.testing.assert_array_equal(again, PATCHES.reshape(3, -1))
        assert describe.call_count == 5 + number


def test_full_disk_is_one_line(describe, tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(entries, "write_npz", Mock(side_effect=full))
    assert_refused("set KJAX_CACHE", cached(describe, "one", cache_dir=tmp_path), PATCHES)


def test_identity_depends_on_settings_and_every_value():
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


def test_stored_forms(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    save_variables("weights.npz", make_model("hardnet", patch_size=16)[1])
    forms = ("", ":hardnet,patch_size=16:uint8", ":binary", ":int8")
    found = [find_entry(f"weights.npz{form}", cache_dir="cache") for form in forms]
    assert [one.name for one in found] == [
        f"hardnet N=16{form}" for form in ("", ", uint8", ", binary", " int8")
    ]
    assert [one.distance for one in found] == ["L2", "L2", "L1", "L2"]
    assert len({one.identity for one in found}) == 4
    patches = random_patches(rng, 6, 16)
    described = (one.describe[0](patches, progress=False) for one in found)
    whole, in_bytes, in_bits, computed_in_bytes = described
    assert 0 < np.abs(computed_in_bytes - whole).max() < 0.03
    np.testing.assert_array_equal(in_bytes, kjax.quantize(whole, "uint8"))
    np.testing.assert_array_equal(in_bits, np.unpackbits(kjax.quantize(whole, "binary"), axis=1))
    for name, message in (
        ("weights.npz:64", "has descriptors of 128 numbers, not 64"),
        ("rootsift:64", "only kjax models have shorter descriptors"),
        ("orb:binary", "cannot become binary"),
        ("rootsift:int8", "only kjax models have shorter descriptors, or int8"),
    ):
        assert_refused(message, find_entry, name)


def test_names_of_models_in_weights_files(tmp_path):
    star, polar = tmp_path / "star.npz", tmp_path / "polar.npz"
    save_variables(star, make_model("combined_star", s=2, patch_size=16)[1])
    save_variables(polar, make_model("polar", s=1, patch_size=16)[1])
    assert find_entry(str(star)).name == "combined_star s=2"
    assert find_entry(f"{polar}:polar,s=1,patch_size=16").name == "polar s=1 N=16"
