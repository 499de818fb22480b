"""Input pipelines: the pairs of a step, from the device's memory or streamed by tf.data.

`resident`: the whole set lies in the accelerator's memory, and a step draws and gathers its own
pairs inside jit. `tfdata`: for sets that do not fit. TensorFlow is imported when a dataset is first
made, and never sees a GPU. Both yield uint8; the training step augments them on the device.
"""

import collections
import contextlib
import functools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt8, UInt32

from kjax.data.cutting.patches import PATCH_SIDE
from kjax.data.phototour import PatchSet
from kjax.data.sampler import (
    Counter,
    PointTable,
    check_shares,
    check_streams,
    make_point_tables,
    sample_pairs,
    sample_pairs_on_host,
    split_batch,
    stream_seed,
)
from kjax.errors import InputError

if TYPE_CHECKING:
    import tensorflow as tf

SHARE = 0.5
"""Maximum share of a device's free memory that a set takes: the step needs the rest."""
STEPS_PER_DRAW = 32
"""Number of steps whose pairs are sampled per call."""
TENSOR_ALIGNMENT = 64
"""Required alignment of a tensor's address in bytes; otherwise TensorFlow aborts the process."""


# In the device's memory


class ResidentSet(NamedTuple):
    """A set in an accelerator's memory. A pytree: pass it to jitted functions as an argument."""

    # Four bytes to a word: wide loads, and 32-bit offsets up to two million patches.
    words: UInt32[Array, "P 1024"]
    tables: tuple[PointTable, ...]  # one, or one for each part with its own share of a batch


def make_resident(
    patch_set: PatchSet, *, device: jax.Device | jax.sharding.Sharding | None = None
) -> ResidentSet:
    """Copy a set to one device (default: JAX's first), or replicate it across devices."""
    patches = np.ascontiguousarray(patch_set.patches)  # a mapped array stays mapped
    free = _free_bytes(device)
    if free is not None and patches.nbytes > free:
        raise InputError(
            f"the set takes {patches.nbytes / 2**30:.1f} GiB and the device has "
            f"{free / 2**30:.1f} GiB free: use the tf.data pipeline, or a smaller set"
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
    return int(SHARE * (min(known) if known else host() // len(devices)))


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
    """Return the rows of one shard of a step's `pairs`, which `check_streams` has validated.

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


# Through tf.data


def pair_dataset(
    patch_set: PatchSet,
    *,
    seed: int,
    pairs: int,
    group: int = 1,
    shares: Sequence[float] = (1.0,),
    start_step: int = 0,
    steps: int | None = None,
    devices: int = 1,
    process: int = 0,
    processes: int = 1,
) -> "tf.data.Dataset":
    """Return one process's share of the pairs of every step, [devices, per_device, 2, 64, 64].

    `devices` counts those of each process, `pairs` those of all; see `draw_rows` for the others.
    """
    tf = host_tensorflow()
    tables = make_point_tables(patch_set.point_ids, patch_set.parts)
    check_shares(pairs, devices * processes)
    check_streams(tables, pairs, shares, seed=seed, group=group)
    seeds = [stream_seed(seed, number) for number in range(len(tables))]
    streams = list(zip(seeds, tables, split_batch(pairs, shares), strict=True))
    layout = (STEPS_PER_DRAW * processes, devices, pairs // processes // devices, 2)

    def draw(first: np.int64) -> np.ndarray:
        numbers = first + np.arange(STEPS_PER_DRAW)
        drawn = [
            sample_pairs_on_host(table, int(own_seed), numbers, pairs=own, group=group)
            for own_seed, table, own in streams
        ]
        return np.concatenate(drawn, axis=1).reshape(layout)

    starts = tf.data.Dataset.range(start_step, np.iinfo(np.int64).max, STEPS_PER_DRAW)
    drawn = starts.map(
        lambda first: tf.ensure_shape(tf.numpy_function(draw, [first], tf.int32), layout)
    ).prefetch(1)  # the next steps are drawn while these are gathered
    rows = drawn.unbatch().shard(processes, process).take(-1 if steps is None else steps)
    patches = as_tensor(patch_set.patches)
    options = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
    batches = rows.map(lambda numbers: tf.gather(patches, numbers), **options)
    return batches.prefetch(tf.data.AUTOTUNE)


def as_tensor(patches: UInt8[np.ndarray, "P 64 64"]) -> "tf.Tensor":
    """Return the patches as a tensor; memory-mapped ones are not copied."""
    tf = host_tensorflow()
    unaligned = patches.ctypes.data % TENSOR_ALIGNMENT
    if unaligned or not isinstance(patches, np.memmap) or not isinstance(patches.base, mmap.mmap):
        return tf.constant(patches)
    # NumPy does not export read-only memory. In copy-on-write mode nothing reaches the file either.
    shared = np.memmap(patches.filename, np.uint8, "c", patches.offset, patches.shape)
    return tf.experimental.dlpack.from_dlpack(shared.__dlpack__())


def prefetch_to_device(
    batches: Iterable[UInt8[np.ndarray, "devices per_device 2 H W"]],
    *,
    devices: Sequence[jax.Device] | None = None,
    ahead: int = 2,
) -> Iterator[UInt8[Array, "devices per_device 2 H W"]]:
    """Copy batches to devices (default: all local ones), one per row, `ahead` of their use."""
    mesh = jax.sharding.Mesh(np.asarray(devices or jax.local_devices()), ("devices",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    waiting: collections.deque[jax.Array] = collections.deque()
    for batch in batches:
        waiting.append(jax.device_put(batch, sharding))  # returns before the copy is done
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


@functools.cache
def host_tensorflow() -> ModuleType:
    """Import TensorFlow without GPUs: it would take all of their memory from JAX."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"the tf.data pipeline needs TensorFlow ({error}): pip install 'kjax[tfds]', "
            "or use the resident pipeline"
        ) from error
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        raise InputError(
            "TensorFlow has already taken the GPU: make the kjax dataset before any other use of "
            "TensorFlow, or call tf.config.set_visible_devices([], 'GPU') first"
        ) from error
    return tf
