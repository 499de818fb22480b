import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from kjax.errors import InputError
from kjax.model import describe as module
from kjax.model.describe import describe, in_threads

WEIGHTS = np.random.default_rng(1).normal(size=(32 * 32, 5)).astype(np.float32)


@jax.jit
def project(patches):
    return jnp.matmul(patches.reshape(len(patches), -1), WEIGHTS, precision="highest")


@pytest.fixture
def patches(rng):
    return rng.integers(0, 256, (11, 64, 64), np.uint8)


def halved(patches):
    """64 to 32 as OpenCV does it: means of 2×2 grey values, halves up."""
    blocks = patches.reshape(-1, 32, 2, 32, 2).astype(np.float32)
    return np.floor(blocks.mean(axis=(2, 4)) + 0.5)


@pytest.mark.parametrize("batch", [1, 4, 11, 16])
def test_every_patch_is_described_once_whatever_the_batch(patches, batch):
    descriptors = describe(project, patches, size=32, batch=batch, progress=False)
    expected = halved(patches).reshape(11, -1) @ WEIGHTS
    assert descriptors.dtype == np.float32
    np.testing.assert_allclose(descriptors, expected, rtol=1e-4, atol=0.05)


def test_all_batches_have_one_shape_and_trace_once(patches):
    shapes = []

    @jax.jit
    def spy(patches):
        shapes.append(patches.shape)
        return patches[:, 0]

    for _ in range(2):
        describe(spy, patches, size=32, batch=4, progress=False)
    assert shapes == [(4, 32, 32)]


def test_patches_of_the_right_size_pass_unchanged_and_half_precision_gives_float32(patches):
    def fifth_row(patches):
        return patches[:, 5].astype(jnp.bfloat16)  # exact up to 256

    rows = describe(fifth_row, patches, size=64, batch=4, progress=False)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, patches[:, 5])


def test_a_mapped_file_and_an_empty_set(patches, tmp_path):
    np.save(tmp_path / "patches.npy", patches)
    mapped = np.load(tmp_path / "patches.npy", mmap_mode="r")
    options = {"size": 32, "batch": 4, "progress": False}
    found, expected = (describe(project, one, **options) for one in (mapped, patches))
    np.testing.assert_array_equal(found, expected)
    assert describe(project, patches[:0], size=32, progress=False).shape == (0, 5)


def test_the_bar_counts_patches(patches, capsys):
    describe(project, patches, size=32, batch=4)
    assert "11/11" in capsys.readouterr().err


def test_bad_input_is_refused(patches):
    assert_refused("batch must be at least 1", describe, project, patches, size=32, batch=0)
    with pytest.raises(InputError, match=r"returned an array of \(4, 32, 32\), not \[4, dim\]"):
        describe(lambda x: x, patches, size=32, batch=4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("first", "batch"), [(9, 4), (3, 1)])
def test_the_first_patch_without_numbers_is_named(patches, dtype, first, batch, monkeypatch):
    monkeypatch.setattr(module, "default_threads", lambda: 3)
    patches = patches.astype(dtype)
    patches[first:, 0, 5] = np.nan
    with pytest.raises(InputError, match=f"patch {first} has NaN or infinite pixels"):
        describe(lambda x: jnp.zeros((len(x), 5)), patches, size=32, batch=batch, progress=False)


def test_threads_share_the_work_and_keep_the_callers_precision(monkeypatch):
    monkeypatch.setattr(module, "default_threads", lambda: 3)
    together, seen = threading.Barrier(3, timeout=10), []

    def work(item):
        if item:  # the first is alone
            together.wait()
        seen.append((item, jax.config.jax_default_matmul_precision))

    with jax.default_matmul_precision("highest"):
        in_threads(work, range(7))
    assert seen[0][0] == 0
    assert sorted(seen) == [(item, "highest") for item in range(7)]


def test_what_is_compiled_already_goes_to_all_threads_at_once():
    together = threading.Barrier(2, timeout=10)
    in_threads(lambda _: together.wait(), range(2), threads=2, first_alone=False)
