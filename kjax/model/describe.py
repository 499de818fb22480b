"""Descriptors of many patches, in batches of one shape, in bounded device memory."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Num
from tqdm import tqdm

from kjax.errors import InputError
from kjax.model.resampling import resize_patches


def describe(
    apply: Callable[[Array], Array],
    patches: Num[np.ndarray, "patches height width"],
    *,
    size: int,
    batch: int | None = None,
    progress: bool = True,
) -> Float32[np.ndarray, "patches dim"]:
    """One descriptor per patch, in the order given.

    The last batch is filled up with copies of the last patch, whose descriptors are left out: all
    batches have one shape and compile once. The device holds few batches, however many there are.

    Args:
        apply: from [batch, size, size] float32 patches, 0 to 255, to [batch, dim] descriptors. Jit
            it, with its weights as arguments: then later calls with new weights compile nothing.
        patches: of any type, in memory or mapped from a file.
        size: side of the patches that `apply` sees, resized as HardNet does at test time.
        batch: patches per call of `apply`, by default `preferred_batch()`.
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
    count = len(patches)
    descriptors = np.empty((count, _dimension(apply, batch, size)), np.float32)
    pending: list[tuple[int, Callable[[], Array]]] = []
    bar = tqdm(total=count, desc="describing", unit="patch", disable=not progress)
    with bar, in_flight(apply) as begin:

        def collect() -> None:
            start, finish = pending.pop(0)
            kept = descriptors[start : start + batch]
            kept[:] = np.asarray(finish())[: len(kept)]
            bar.update(len(kept))

        for start in range(0, count, batch):
            pending.append((start, begin(_resized(_block(patches, start, batch), size=size))))
            # The others compute while one is fetched.
            if len(pending) > programs():
                collect()
        while pending:
            collect()
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
    return 64 if jax.default_backend() == "cpu" else 4096


def programs() -> int:
    """How many a device should run at a time.

    XLA runs most of a network on one core of a CPU, so there it takes as many as there are cores.
    """
    return cores() if jax.default_backend() == "cpu" else 1


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def in_flight(
    apply: Callable[[Array], Array],
) -> Iterator[Callable[[Array], Callable[[], Array]]]:
    """A function that begins to apply another and returns at once, with one that finishes.

    On CPUs threads do it, which see none of JAX's context managers; precision means nothing there.

    Examples:
        >>> with in_flight(apply) as begin:
        ...     results = [finish() for finish in [begin(block) for block in blocks]]
    """

    def begin_here(block: Array) -> Callable[[], Array]:
        result = apply(block)
        return lambda: result

    if programs() == 1:
        yield begin_here
        return
    compiling = threading.Lock()

    def run(block: Array) -> Array:
        # JAX returns before the result is there, but not before the program is: only one thread
        # shall make it.
        with compiling:
            result = apply(block)
        return jax.block_until_ready(result)

    with ThreadPoolExecutor(programs()) as pool:
        yield lambda block: pool.submit(run, block).result


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
