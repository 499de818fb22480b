"""The whole set in the accelerator's memory: a step draws and gathers its own pairs, inside jit.

Needs no TensorFlow, and no host between steps: many steps can run in one dispatch.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt8, UInt32

from kjax.data.cutting.patches import PATCH_SIDE
from kjax.data.phototour import PatchSet
from kjax.data.sampler import (
    Counter,
    PointTable,
    make_point_tables,
    sample_pairs,
    split_batch,
    stream_seed,
)
from kjax.errors import InputError

SHARE = 0.5
"""Maximum share of a device's free memory that a set takes: the step needs the rest."""


class ResidentSet(NamedTuple):
    """A set in an accelerator's memory. A pytree: pass it to jitted functions as an argument."""

    # The patches' bytes, four to a word: wide loads, and offsets that fit 32 bits up to two
    # million patches.
    words: UInt32[Array, "P 1024"]
    tables: tuple[PointTable, ...]  # one, or one for each part with its own share of a batch


def make_resident(
    patch_set: PatchSet, *, device: jax.Device | jax.sharding.Sharding | None = None
) -> ResidentSet:
    """Copy a set to one device (default: JAX's first), or replicate it across devices."""
    patches = np.ascontiguousarray(patch_set.patches)  # a mapped array stays mapped
    size, free = patches.nbytes, _free_bytes(device)
    if free is not None and size > free:
        raise InputError(
            f"the set takes {size / 2**30:.1f} GiB and the device has {free / 2**30:.1f} GiB free: "
            "use the tf.data pipeline (kjax.data.tfdata), or a smaller set"
        )
    words = patches.reshape(-1, PATCH_SIDE**2).view(np.uint32)
    tables = make_point_tables(patch_set.point_ids, patch_set.parts)
    return ResidentSet(*jax.device_put((words, tables), device))


def _free_bytes(device: jax.Device | jax.sharding.Sharding | None) -> int | None:
    """Return the free bytes of a device, or None if it has no memory of its own."""
    if isinstance(device, jax.sharding.Sharding):
        device = next(iter(device.addressable_devices))
    stats = (device or jax.local_devices()[0]).memory_stats()
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else None


def host_memory() -> int:
    """Return the bytes that the host can still give to this process."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if "MemAvailable:" in line)
    with contextlib.suppress(OSError, ValueError):  # no limit
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return free


def room_for_set(devices: Sequence[jax.Device], *, host: Callable[[], int] = host_memory) -> int:
    """Return the bytes that a set may take on each of this process's devices."""
    known = [free for free in map(_free_bytes, devices) if free is not None]
    # Devices without memory of their own share the host's, each with its copy of the set.
    free = min(known) if known else host() // len(devices)
    return int(SHARE * free)


def draw_rows(
    resident: ResidentSet,
    seed: Counter,
    step: Counter,
    *,
    pairs: int,
    group: int = 1,
    shares: Sequence[float] = (1.0,),
    shard: Counter = 0,
    shards: int = 1,
) -> Int32[Array, "local_pairs 2"]:
    """Return the rows of the pairs of one step, or of one shard of them.

    `pairs` counts the whole batch, over all shards; validate it with `check_streams` beforehand.
    Each of the set's tables has one of the `shares` of the batch. `step` and `shard` may be traced.
    """
    own = zip(resident.tables, split_batch(pairs, shares), strict=True)
    drawn = [
        sample_pairs(table, stream_seed(seed, number), step, pairs=count, group=group)
        for number, (table, count) in enumerate(own)
    ]
    rows = pairs // shards
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate(drawn), shard * rows, rows)


def gather_pairs(
    resident: ResidentSet, rows: Int32[Array, "local_pairs 2"]
) -> UInt8[Array, "local_pairs 2 64 64"]:
    """Return the patches of the rows from `draw_rows`."""
    words = resident.words.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)
    patches = jax.lax.bitcast_convert_type(words, jnp.uint8)
    return patches.reshape(*rows.shape, PATCH_SIDE, PATCH_SIDE)
