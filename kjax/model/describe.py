"""Describe many patches in batches of one shape, in bounded device memory."""

import collections
import contextlib
import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32, Num
from tqdm import tqdm

from kjax.errors import InputError
from kjax.extras import jax
from kjax.model.patches import resize_patches

COPYING_THREADS = 8
"""Batches in flight to, on, or from an accelerator. On an H200, 8 were 1.5 times as fast as 4 for
patches of 64×64 pixels, and no slower for smaller ones."""
USUAL = 2**-7, 2**20
"""Range of a patch's largest value; others are scaled, since float32 has a smallest variance."""

Item = TypeVar("Item")


def describe(
    apply: Callable[[Any], Any],
    patches: Num[np.ndarray, "patches *context height width"],
    *,
    size: int,
    batch: int | None = None,
    dimension: int | None = None,
    threads: int | None = None,
    compiles: bool = True,
    rounded: bool = True,
    progress: bool = True,
) -> Float32[np.ndarray, "patches dim"]:
    """Return one float32 descriptor per patch, in order.

    The last batch is padded with copies of the last patch, so that all batches have one shape and
    compile once. The device holds few batches: each thread takes batch after batch from host to
    host, so that copies overlap with computation. Patches are copied in their own type.

    Args:
        apply: from [batch, size, size] float32 patches, 0 to 255, to [batch, dim] descriptors. Jit
            it, with its weights as arguments: then later calls with new weights compile nothing.
        patches: any numeric type, in memory or memory-mapped; [count, C, height, width] if `apply`
            takes C patches per point.
        size: side of the patches that `apply` takes; others are resized as in HardNet's tests.
        batch: patches per call of `apply` (default: `preferred_batch()`).
        dimension: descriptor size (default: inferred).
        threads: number of threads that call `apply` (default: `default_threads()`).
        compiles: whether the first call of `apply` compiles it, as JAX functions do.
        rounded: whether resized patches are rounded to integers.
        progress: whether to show a progress bar.

    Raises:
        InputError: patches have NaN or infinite pixels. The pixels are checked, not the
            descriptors: on some machines a compiled ReLU turns NaN into 0.
    """
    batch = preferred_batch() if batch is None else batch
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    if dimension is None:
        seen = jax.ShapeDtypeStruct((batch, *patches.shape[1:-2], size, size), np.float32)
        shape = jax.eval_shape(apply, seen).shape
        if len(shape) != 2 or shape[0] != batch:
            raise InputError(f"`apply` returned an array of {shape}, not [{batch}, dim]")
        dimension = shape[1]
    count = len(patches)
    descriptors = np.empty((count, dimension), np.float32)
    bar = tqdm(total=count, desc="describing", unit="patch", disable=not progress)
    counting = threading.Lock()
    resize: Any = resize_patches if on_cpu() else _resized()
    unchanged = on_cpu() and patches.shape[-2:] == (size, size)

    def describe_block(start: int) -> None:
        block = patches[start : start + batch]
        if "float" in block.dtype.name:
            largest = np.abs(block).max(axis=(-2, -1), keepdims=True, initial=0).astype(np.float64)
            if not np.isfinite(largest).all():
                bad = start + int(np.argwhere(~np.isfinite(largest))[0, 0])
                raise InputError(f"patch {bad} has NaN or infinite pixels: fix or omit it")
            far = (largest < USUAL[0]) | (largest > USUAL[1])
            if far.any():
                block = np.ldexp(block.astype("f8"), np.where(far, 8 - np.frexp(largest)[1], 0))
        if missing := batch - len(block):
            block = np.pad(block, [(0, missing), *[(0, 0)] * (block.ndim - 1)], mode="edge")
        kept = descriptors[start : start + batch]
        block = block.astype(np.float32) if unchanged else resize(block, size, rounded=rounded)
        kept[:] = np.asarray(apply(block))[: len(kept)]
        with counting:
            bar.update(len(kept))

    with bar:
        in_threads(describe_block, range(0, count, batch), threads=threads, first_alone=compiles)
    return descriptors


def on_cpu(device: Any = None) -> bool:
    """Whether a device, by default the one that JAX computes on, is a CPU.

    JAX is not imported to find out if it has no plugin for accelerators.
    """
    if device is None and "jax" not in sys.modules:
        chosen = os.environ.get("JAX_PLATFORMS")
        plugins = any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
        if chosen == "cpu" or not (chosen or plugins):
            return True
    device = device or jax.config.jax_default_device  # type: ignore[attr-defined]
    return (getattr(device, "platform", device) or jax.default_backend()) == "cpu"


def preferred_batch() -> int:
    """Return the fastest batch size of the device.

    On CPUs a batch's feature maps should stay in the cache; on accelerators a batch should be large
    compared with the cost of launching it.
    """
    from kjax.model.kernels.cpu_convolution import WINOGRAD_BATCH  # brings JAX

    return WINOGRAD_BATCH if on_cpu() else 4096


def default_threads() -> int:
    """Return the number of threads that describe batches.

    XLA runs most of a network on one CPU core, so CPUs need one thread per core. For accelerators,
    some threads copy patches and descriptors while one waits for the computation.
    """
    return cores() if on_cpu() else COPYING_THREADS


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(
    work: Callable[[Item], Any],
    items: Iterable[Item],
    *,
    threads: int | None = None,
    first_alone: bool = True,
) -> None:
    """Process all items in threads; the first one alone, if it compiles what the others share.

    All threads, including the caller's, have the caller's `jax.default_matmul_precision` and
    `default_device`. The exception of the first failing item is raised again; later items may then
    be skipped.
    """
    left = collections.deque(enumerate(items))
    if left and first_alone:
        work(left.popleft()[1])
    failures: list[tuple[int, Exception]] = []
    settings = ("default_matmul_precision", "default_device") if "jax" in sys.modules else ()
    own = {name: getattr(jax.config, f"jax_{name}") for name in settings}

    def drain() -> None:
        with contextlib.ExitStack() as stack:
            for name, value in own.items():
                stack.enter_context(getattr(jax, name)(value))
            while True:
                try:
                    index, item = left.popleft()
                except IndexError:
                    return
                try:
                    work(item)
                except Exception as error:
                    failures.append((index, error))
                    left.clear()

    count = min(threads or default_threads(), len(left))
    with ThreadPoolExecutor(max(count, 1)) as pool:
        try:
            others = [pool.submit(drain) for _ in range(count - 1)]
            drain()
            wait(others)
        finally:
            left.clear()  # if interrupted
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]


@functools.cache
def _resized() -> Callable[..., Any]:
    def resize(patches: Any, size: int, *, rounded: bool) -> Any:
        if patches.shape[-2:] == (size, size):
            return patches.astype(np.float32)
        return resize_patches(patches, size, rounded=rounded)

    return jax.jit(resize, static_argnames=("size", "rounded"))
