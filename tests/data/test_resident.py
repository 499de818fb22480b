"""The set on the accelerator: the gathered pairs are those of the stream, byte for byte."""

import dataclasses
import os
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_set import PAIRS, SEED, gathered_by_numpy, random_set

from kjax.data import resident
from kjax.data.phototour import PatchSet
from kjax.errors import InputError


@pytest.fixture(scope="module")
def patch_set():
    return random_set()


@pytest.fixture(scope="module")
def expected(patch_set):
    return gathered_by_numpy(patch_set, 10)


def test_pairs_are_those_of_the_stream(patch_set, expected):
    on_device = resident.make_resident(patch_set)

    def scan_steps(data, steps):
        def body(carry, step):
            rows = resident.draw_rows(data, SEED, step, pairs=PAIRS)
            return carry, resident.gather_pairs(data, rows)

        return jax.lax.scan(body, None, steps)[1]

    got = jax.jit(scan_steps)(on_device, jnp.arange(10))
    assert got.dtype == jnp.uint8
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shards", [2, 4])
def test_shards_are_the_rows_of_the_batch(patch_set, expected, shards):
    on_device = resident.make_resident(patch_set)

    @jax.jit
    def part(data, step, shard):
        where = {"shard": shard, "shards": shards}
        rows = resident.draw_rows(data, SEED, step, pairs=PAIRS, **where)
        return resident.gather_pairs(data, rows)

    got = np.concatenate([part(on_device, 6, shard) for shard in range(shards)])
    np.testing.assert_array_equal(got, expected[6])


def test_a_mapped_set_is_copied_as_it_is(patch_set, tmp_path):
    np.save(tmp_path / "patches.npy", patch_set.patches)
    mapped = np.load(tmp_path / "patches.npy", mmap_mode="r")
    on_device = resident.make_resident(
        PatchSet("mapped", mapped, patch_set.point_ids, tmp_path), device=jax.devices()[0]
    )

    assert on_device.words.shape == (90, 1024)
    assert np.asarray(on_device.words).tobytes() == patch_set.patches.tobytes()


def device_with(free: int) -> jax.Device:
    """One of which 10 bytes are in use."""
    stats = {"bytes_limit": free + 10, "bytes_in_use": 10}
    return mock.Mock(spec=jax.Device, memory_stats=lambda: stats)


def test_a_set_larger_than_the_device_is_refused(patch_set):
    device = device_with(patch_set.patches.nbytes - 1)
    with pytest.raises(InputError, match=r"GiB free: use the tf\.data pipeline") as caught:
        resident.make_resident(patch_set, device=device)
    assert "\n" not in str(caught.value)


def test_free_memory_is_what_the_device_reports(patch_set):
    """A CPU shares the host's memory and reports none, so that nothing is refused there."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert resident._free_bytes(None) is None
    assert resident._free_bytes(sharding) is None
    on_device = resident.make_resident(patch_set, device=sharding)
    assert on_device.words.sharding == sharding


def test_a_set_may_take_half_of_what_the_fullest_device_has_free():
    devices = [device_with(free) for free in (1000, 800, 900, 1000)]
    assert resident.room_for_set(devices) == 400


def test_devices_without_memory_share_the_hosts():
    assert resident.room_for_set(jax.devices()[:3], host=lambda: 1200) == 200


def test_the_hosts_memory_is_no_more_than_it_has():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < resident.host_memory() <= total


def test_every_part_has_its_share_and_a_stream_of_its_own(patch_set):
    parts = (60, 30)
    data = resident.make_resident(dataclasses.replace(patch_set, parts=parts))
    shares = (0.25, 0.75)

    @jax.jit
    def draw(steps):
        return jax.vmap(
            lambda step: resident.draw_rows(data, SEED, step, pairs=PAIRS, shares=shares)
        )(steps)

    drawn = np.asarray(draw(jnp.arange(40)))
    first, second = (drawn[:, rows] for rows in (slice(0, 2), slice(2, 8)))
    assert first.max() < 60 <= second.min()
    for rows, (start, end) in ((first, (0, 60)), (second, (60, 90))):
        points = patch_set.point_ids[rows]
        assert (points[..., 0] == points[..., 1]).all()
        ids, counts = np.unique(patch_set.point_ids[start:end], return_counts=True)
        usable = ids[counts >= 2]
        visits = [np.sum(points[..., 0] == point) for point in usable]
        assert max(visits) - min(visits) <= 1
        assert all(len(set(batch)) == len(batch) for batch in points[..., 0])
