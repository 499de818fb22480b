"""Descriptors of many patches, in batches of one shape, in bounded device memory."""

import collections
import functools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Num
from tqdm import tqdm

from kjax.errors import InputError
from kjax.model.kernels.cpu_convolution import WINOGRAD_BATCH
from kjax.model.resampling import resize_patches

COPYING_THREADS = 8
"""Batches that are on their way to, on, or from an accelerator at a time: on an H200, 8 were faster
than 4 by half from patches of 64×64 pixels, and no slower from smaller ones."""

Item = TypeVar("Item")


def describe(
    apply: Callable[[Any], Any],
    patches: Num[np.ndarray, "patches height width"],
    *,
    size: int,
    batch: int | None = None,
    dimension: int | None = None,
    threads: int | None = None,
    compiles: bool = True,
    progress: bool = True,
) -> Float32[np.ndarray, "patches dim"]:
    """One descriptor per patch, in the order given.

    The last batch is filled up with copies of the last patch, whose descriptors are left out: all
    batches have one shape and compile once. The device holds few batches, however many there are:
    each of some threads takes batch after batch from host to host, so that copies overlap with
    computing. Patches travel in the type they have.

    Args:
        apply: from [batch, size, size] float32 patches, 0 to 255, to [batch, dim] descriptors. Jit
            it, with its weights as arguments: then later calls with new weights compile nothing.
        patches: of any type, in memory or mapped from a file.
        size: side of the patches that `apply` sees, resized as HardNet does at test time.
        batch: patches per call of `apply`, by default `preferred_batch()`.
        dimension: of a descriptor; JAX is asked for it if it is not given.
        threads: that call `apply`, by default `default_threads()`.
        compiles: whether `apply` does so when it is called first, as functions of JAX do.
        progress: whether to show a bar.

    Returns:
        float32 descriptors, whatever precision `apply` works in.

    Raises:
        InputError: patches have NaN or infinite pixels. They are looked at themselves: descriptors
            do not tell, as on some machines a compiled ReLU makes 0 of NaN.
    """
    batch = preferred_batch() if batch is None else batch
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    count, dimension = len(patches), dimension or _dimension(apply, batch, size)
    descriptors = np.empty((count, dimension), np.float32)
    bar = tqdm(total=count, desc="describing", unit="patch", disable=not progress)
    counting = threading.Lock()

    def describe_block(start: int) -> None:
        block = _block(patches, start, batch)
        kept = descriptors[start : start + batch]
        on_host = jax.default_backend() == "cpu" and block.shape[1:] == (size, size)
        seen = np.asarray(block, np.float32) if on_host else _resized(block, size=size)
        kept[:] = np.asarray(apply(seen))[: len(kept)]
        with counting:
            bar.update(len(kept))

    with bar:
        in_threads(describe_block, range(0, count, batch), threads=threads, first_alone=compiles)
    return descriptors


def _block(
    patches: Num[np.ndarray, "patches height width"], start: int, batch: int
) -> Num[np.ndarray, "batch height width"]:
    """A view of whole batches; the last one is filled up."""
    block = patches[start : start + batch]
    _check_finite(block, start)
    missing = batch - len(block)
    return np.pad(block, [(0, missing), (0, 0), (0, 0)], mode="edge") if missing else block


def _check_finite(block: Num[np.ndarray, "n height width"], start: int) -> None:
    """Refuses NaN and infinite pixels; integers have none."""
    if not jnp.issubdtype(block.dtype, jnp.floating) or np.isfinite(block).all():
        return
    bad = ~np.isfinite(block).all(axis=(1, 2))
    raise InputError(
        f"patch {start + int(bad.argmax())} has NaN or infinite pixels: mend or leave it out"
    )


def preferred_batch() -> int:
    """Patches that the device describes fastest at a time.

    On CPUs the feature maps of a batch should stay in the cache, on accelerators the batch should
    make up for starting it.
    """
    return WINOGRAD_BATCH if jax.default_backend() == "cpu" else 4096


def default_threads() -> int:
    """How many should describe at a time, each its own batches, from host to host.

    XLA runs most of a network on one core of a CPU, so there it takes one for each core. To feed an
    accelerator, some copy patches and descriptors while one waits for it to compute.
    """
    return cores() if jax.default_backend() == "cpu" else COPYING_THREADS


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(
    work: Callable[[Item], Any],
    items: Iterable[Item],
    *,
    threads: int | None = None,
    first_alone: bool = True,
) -> None:
    """Does the work on all items, on the first alone if that compiles what the others share.

    The caller's thread is one of those that share it. In the others, too, its
    `jax.default_matmul_precision` and `default_device` hold.

    Raises:
        Exception: the work's own, on the first item for which there was one; those that follow it
            may be left undone.
    """
    left = collections.deque(enumerate(items))
    if left and first_alone:
        work(left.popleft()[1])
    failures: list[tuple[int, Exception]] = []
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    def drain() -> None:
        with jax.default_matmul_precision(precision), jax.default_device(device):
            while True:
                try:
                    place, item = left.popleft()
                except IndexError:
                    return
                try:
                    work(item)
                except Exception as error:
                    failures.append((place, error))
                    left.clear()

    count = min(threads or default_threads(), len(left))
    with ThreadPoolExecutor(max(count, 1)) as pool:
        try:
            others = [pool.submit(drain) for _ in range(count - 1)]
            drain()
            wait(others)
        finally:
            left.clear()  # when interrupted
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]


@functools.partial(jax.jit, static_argnames="size")
def _resized(
    patches: Num[Array, "batch height width"], *, size: int
) -> Float32[Array, "batch {size} {size}"]:
    if patches.shape[1:] == (size, size):
        return patches.astype(jnp.float32)
    return resize_patches(patches, size, rounded=True)


def _dimension(apply: Callable[[Array], Array], batch: int, size: int) -> int:
    shape = jax.eval_shape(apply, jax.ShapeDtypeStruct((batch, size, size), jnp.float32)).shape
    if len(shape) != 2 or shape[0] != batch:
        raise InputError(f"describing {batch} patches gave an array of {shape}, not [{batch}, dim]")
    return shape[1]
