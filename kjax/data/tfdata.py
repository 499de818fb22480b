"""The stream of pairs through tf.data, for sets that do not fit the accelerator's memory.

TensorFlow is imported when a dataset is first made, and never sees a GPU. Batches are uint8:
augmentation happens on the device, in the training step.
"""

import collections
import functools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, UInt8

from kjax.data.phototour import PatchSet
from kjax.data.sampler import (
    check_shares,
    check_streams,
    make_point_tables,
    sample_pairs_on_host,
    split_batch,
    stream_seed,
)
from kjax.errors import InputError

if TYPE_CHECKING:
    import tensorflow as tf

STEPS_PER_DRAW = 32
"""Number of steps whose pairs are sampled per call."""
TENSOR_ALIGNMENT = 64
"""Required alignment of a tensor's address in bytes; otherwise TensorFlow aborts the process."""


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

    A batch has `pairs` pairs over all devices of all processes, which have `devices` devices each.
    See `kjax.data.resident.draw_rows` for the other arguments.
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
    assert patches.filename is not None  # there is a map
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
            f"the tf.data pipeline needs TensorFlow ({error}): pip install tensorflow, "
            "or use the resident pipeline (kjax.data.resident)"
        ) from error
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        raise InputError(
            "TensorFlow has already taken the GPU: make the kjax dataset before any other use of "
            "TensorFlow, or call tf.config.set_visible_devices([], 'GPU') first"
        ) from error
    return tf
