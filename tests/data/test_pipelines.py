"""The input pipelines: pairs in the device's memory and through tf.data are those of the stream."""

import dataclasses
import importlib.util
import os
import sys
import types
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from kjax.data import pipelines
from kjax.data.phototour import PatchSet
from kjax.data.sampler import make_point_table, sample_pairs_on_host

PAIRS, SEED, STEPS = 8, 11, 50
absent = not importlib.util.find_spec("tensorflow")
needs_tensorflow = pytest.mark.skipif(absent, reason="TensorFlow is not installed")


@pytest.fixture(scope="module")
def patch_set():
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (90, 64, 64), dtype=np.uint8)
    return PatchSet("random", patches, rng.integers(0, 30, 90), Path())


@pytest.fixture(scope="module")
def expected(patch_set):
    """The pairs of the first steps, gathered by NumPy."""
    table = make_point_table(patch_set.point_ids)
    return patch_set.patches[sample_pairs_on_host(table, SEED, np.arange(STEPS), pairs=PAIRS)]


# In the device's memory


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_resident_pairs_are_those_of_the_stream(patch_set, expected, shards):
    data = pipelines.make_resident(patch_set)

    @jax.jit
    def scan(data, shard):
        def body(carry, step):
            where = {"shard": shard, "shards": shards}
            rows = pipelines.draw_rows(data, SEED, step, pairs=PAIRS, **where)
            return carry, pipelines.gather_pairs(data, rows)

        return jax.lax.scan(body, None, jnp.arange(10))[1]

    got = np.concatenate([scan(data, shard) for shard in range(shards)], axis=1)
    assert got.dtype == jnp.uint8
    np.testing.assert_array_equal(got, expected[:10])


def test_a_mapped_set_is_copied_unchanged(patch_set, tmp_path):
    np.save(tmp_path / "patches.npy", patch_set.patches)
    mapped = np.load(tmp_path / "patches.npy", mmap_mode="r")
    on_disk = dataclasses.replace(patch_set, patches=mapped)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for device in (jax.devices()[0], sharding):  # a CPU reports no memory, so nothing is refused
        on_device = pipelines.make_resident(on_disk, device=device)
        assert on_device.words.shape == (90, 1024)
        assert np.asarray(on_device.words).tobytes() == patch_set.patches.tobytes()
    assert on_device.words.sharding == sharding


def device_with(free: int) -> jax.Device:
    """Return a device with 10 bytes in use."""
    stats = {"bytes_limit": free + 10, "bytes_in_use": 10}
    return mock.Mock(spec=jax.Device, memory_stats=lambda: stats)


def test_a_set_larger_than_the_device_is_refused(patch_set):
    device = device_with(patch_set.patches.nbytes - 1)
    message = r"GiB free: use the tf\.data pipeline"
    assert_refused(message, pipelines.make_resident, patch_set, device=device)


def test_a_set_may_take_half_of_the_free_memory():
    devices = [device_with(free) for free in (1000, 800, 900, 1000)]
    assert pipelines.room_for_set(devices) == 400
    # Devices without memory share the host's.
    assert pipelines.room_for_set(jax.devices()[:3], host=lambda: 1200) == 200
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < pipelines.host_memory() <= total


def test_every_part_has_its_share_and_its_own_stream(patch_set):
    data = pipelines.make_resident(dataclasses.replace(patch_set, parts=(60, 30)))
    shares = (0.25, 0.75)
    draw = jax.vmap(lambda step: pipelines.draw_rows(data, SEED, step, pairs=PAIRS, shares=shares))
    drawn = np.asarray(jax.jit(draw)(jnp.arange(40)))
    first, second = (drawn[:, rows] for rows in (slice(0, 2), slice(2, 8)))
    assert first.max() < 60 <= second.min()
    for rows, (start, end) in ((first, (0, 60)), (second, (60, 90))):
        points = patch_set.point_ids[rows]
        assert (points[..., 0] == points[..., 1]).all()
        ids, counts = np.unique(patch_set.point_ids[start:end], return_counts=True)
        visits = [np.sum(points[..., 0] == point) for point in ids[counts >= 2]]
        assert max(visits) - min(visits) <= 1
        assert all(len(set(batch)) == len(batch) for batch in points[..., 0])


# Through tf.data


def batches_of(patch_set, **options):
    batches = pipelines.pair_dataset(patch_set, seed=SEED, pairs=PAIRS, **options)
    return list(batches.as_numpy_iterator())


@needs_tensorflow
@pytest.mark.parametrize(("processes", "devices"), [(1, 1), (1, 4), (4, 1), (2, 2)])
def test_streamed_pairs_are_those_of_the_stream(patch_set, expected, processes, devices):
    shares = [
        batches_of(patch_set, steps=40, devices=devices, process=process, processes=processes)
        for process in range(processes)
    ]
    for share in shares:
        assert share[0].shape == (devices, PAIRS // processes // devices, 2, 64, 64)
        assert share[0].dtype == np.uint8
    for step in range(40):
        batch = np.concatenate([share[step].reshape(-1, 2, 64, 64) for share in shares])
        np.testing.assert_array_equal(batch, expected[step])


@needs_tensorflow
@pytest.mark.parametrize("start", [1, 31, 47])
def test_a_restart_continues_exactly(patch_set, expected, start):
    got = np.stack(batches_of(patch_set, start_step=start, steps=3, devices=2))
    assert len(got) == 3
    np.testing.assert_array_equal(got.reshape(3, PAIRS, 2, 64, 64), expected[start : start + 3])


@needs_tensorflow
def test_shares_are_those_of_the_resident_path(patch_set):
    mixed, shares = dataclasses.replace(patch_set, parts=(60, 30)), (0.5, 0.5)
    data = pipelines.make_resident(mixed)
    draw = jax.jit(lambda step: pipelines.draw_rows(data, SEED, step, pairs=PAIRS, shares=shares))
    for step, batch in enumerate(batches_of(mixed, shares=shares, steps=3, devices=2)):
        gathered = np.asarray(pipelines.gather_pairs(data, draw(step)))
        np.testing.assert_array_equal(batch, gathered.reshape(2, 4, 2, 64, 64))


@needs_tensorflow
def test_patches_are_gathered_from_any_memory(patch_set, tmp_path):
    import tensorflow as tf

    path, shape = tmp_path / "patches.npy", patch_set.patches.shape
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    mapped = np.load(path, mmap_mode="r")
    tensor = pipelines.as_tensor(mapped)
    file[:] = patch_set.patches  # a mapped set is not copied, so the tensor changes, too
    np.testing.assert_array_equal(tensor.numpy(), patch_set.patches)
    unwritable = patch_set.patches.copy()
    unwritable.flags.writeable = False
    unaligned = np.memmap(path, np.uint8, "r", 100, shape)
    for patches in (mapped[7:], unaligned, unwritable, patch_set.patches[::2]):
        got = tf.gather(pipelines.as_tensor(patches), np.arange(len(patches))[::-1])
        np.testing.assert_array_equal(got.numpy()[::-1], patches)


@needs_tensorflow
def test_a_batch_that_cannot_be_filled_or_shared_is_refused(patch_set):
    for options, message in (
        ({"pairs": 64}, "batch of 64 pairs needs as many different points"),
        ({"pairs": 8, "devices": 2, "processes": 3}, "cannot be shared evenly by 6 devices"),
    ):
        assert_refused(message, pipelines.pair_dataset, patch_set, seed=0, **options)


def test_batches_are_on_the_devices_ahead_of_time():
    batches = iter([np.full((1, 2, 2, 64, 64), number, np.uint8) for number in range(5)])
    ready = pipelines.prefetch_to_device(batches, devices=jax.local_devices()[:1], ahead=2)
    first = next(ready)
    assert isinstance(first, jax.Array)
    assert batches.__length_hint__() == 2  # three have been taken
    assert [int(batch[0, 0, 0, 0, 0]) for batch in [first, *ready]] == list(range(5))


def test_every_device_gets_its_row():
    devices = jax.local_devices()
    batch = np.arange(len(devices) * 3, dtype=np.uint8).reshape(-1, 3)
    (got,) = pipelines.prefetch_to_device([batch.reshape(-1, 3, 1, 1, 1).repeat(2, axis=2)])
    shards = sorted(got.addressable_shards, key=lambda shard: shard.device.id)
    assert [shard.device for shard in shards] == devices
    for row, shard in zip(batch, shards, strict=True):
        np.testing.assert_array_equal(np.asarray(shard.data)[0, :, 0, 0, 0], row)


def test_tensorflow_is_kept_off_the_gpu(monkeypatch):
    module = mock.Mock(spec=types.ModuleType, config=mock.Mock())
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    pipelines.host_tensorflow.__wrapped__()
    module.config.set_visible_devices.assert_called_once_with([], "GPU")
    module.config.set_visible_devices.side_effect = RuntimeError("already initialized")
    assert_refused("already taken the GPU", pipelines.host_tensorflow.__wrapped__)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert_refused(r"pip install 'kjax\[tfds\]'", pipelines.host_tensorflow.__wrapped__)
