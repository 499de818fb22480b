import contextlib

import numpy as np
import pytest
from refusals import assert_refused

from kjax.baselines import BASELINES, load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.data.embedded import stereo_patch_pairs

LEARNED = ("mkd-lw", "mkd-pca", "mkd-pcaws", "mkd-pcawt", "tfeat", "l2net", "deepcompare", "ddesc")


@pytest.fixture(scope="module")
def baselines():
    found = {}
    for name in BASELINES:
        with contextlib.suppress(Unavailable):
            found[name] = load_baseline(name)
    assert {"sift", "rootsift", "orb", "mkd"} <= found.keys(), "these need nothing"
    return found


@pytest.mark.parametrize("name", [*LEARNED, "hardnet", "hardtfeat"])
def test_missing_and_other_files_are_refused(name, tmp_path):
    with pytest.raises(Unavailable, match=f"--baseline {name}=FILE, from https://github"):
        load_baseline(name)
    for suffix in (".npz", ".mat", ".t7", ".bin", ".pth"):
        path = tmp_path / f"junk{suffix}"
        path.write_bytes(b"no weights at all")
        assert_refused("junk", load_baseline, name, path)
        assert_refused("", load_baseline, name, tmp_path / f"absent{suffix}")


def test_refused_arguments():
    assert_refused("takes no weights", load_baseline, "sift", "some.npz")
    assert_refused("mkd takes no weights", load_baseline, "mkd", "some.npz")
    assert_refused("did you mean 'rootsift'", load_baseline, "rotsift")


def test_descriptors_are_what_the_baseline_says(baselines):
    patches = stereo_patch_pairs(3, size=64)[:, 0]
    larger = np.pad(patches, ((0, 0), (0, 1), (0, 1)), mode="edge")
    for baseline in baselines.values():
        assert baseline.describe(patches[:0]).shape == (0, baseline.dimension)
        for some in (patches, larger):
            found = baseline.describe(some)
            assert found.shape == (3, baseline.dimension)
            assert found.dtype == np.float32
            if baseline.distance == "L1":
                assert set(np.unique(found)) == {0, 1}
        alone = np.concatenate([baseline.describe(larger[i : i + 1]) for i in range(3)])
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_matching_patches_are_nearer_than_others(baselines):
    first, second = stereo_patch_pairs(40, size=64).swapaxes(0, 1)
    for baseline in baselines.values():
        a, b = baseline.describe(first), baseline.describe(second)
        order = 1 if baseline.distance == "L1" else 2
        distances = np.linalg.norm(a[:, None] - b[None], ord=order, axis=-1)
        found = (distances.argmin(axis=1) == np.arange(40)).mean()
        assert found > 0.6, baseline.name


def test_constant_patches_are_no_trouble(baselines):
    patches = np.stack([np.full((65, 65), grey, np.uint8) for grey in (0, 1, 77, 255)])
    for baseline in baselines.values():
        found = baseline.describe(patches)
        assert np.isfinite(found).all(), baseline.name
        if baseline.name == "BBoost":
            # Its sums of gradients are zero up to OpenCV's rounding, of which it keeps the sign.
            assert set(np.unique(found)) <= {0, 1}
            continue
        np.testing.assert_array_equal(found, found[:1].repeat(4, axis=0), err_msg=baseline.name)
    assert not baselines["sift"].describe(patches).any()
    assert not baselines["rootsift"].describe(patches).any()


@pytest.mark.parametrize("name", ["sift", "mkd"])
def test_other_patches_are_refused(baselines, name):
    for shape, dtype, complaint in (
        ((2, 65, 65), np.float32, "uint8 patches, not float32"),
        ((2, 65, 65), np.int64, "not int64"),
        ((65, 65), np.uint8, r"not \[65, 65\]"),
        ((2, 65, 64), np.uint8, r"not \[2, 65, 64\]"),
        ((2, 32, 32), np.uint8, r"not \[2, 32, 32\]"),
        ((2, 64, 64, 1), np.uint8, r"not \[2, 64, 64, 1\]"),
    ):
        assert_refused(complaint, baselines[name].describe, np.zeros(shape, dtype))
