"""Descriptors of many patches, in batches of one shape, in bounded device memory."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Num
from tqdm import tqdm

from kjax.augment import resize_patches
from kjax.errors import InputError


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
    batches have one shape and compile once. The device holds two batches, however many there are.

    Args:
        apply: from [batch, size, size] float32 patches, 0 to 255, to [batch, dim] descriptors. Jit
            it, with its weights as arguments: then later calls with new weights compile nothing.
        patches: of any type, in memory or mapped from a file.
        size: side of the patches that `apply` sees, resized as HardNet does at test time.
        batch: patches per call of `apply`, by default `preferred_batch()`.
        progress: whether to show a bar.

    Returns:
        float32 descriptors, whatever precision `apply` works in.
    """
    batch = preferred_batch() if batch is None else batch
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    count = len(patches)
    descriptors = np.empty((count, _dimension(apply, batch, size)), np.float32)
    pending: list[tuple[int, Array]] = []
    with tqdm(total=count, desc="describing", unit="patch", disable=not progress) as bar:

        def collect() -> None:
            start, block = pending.pop(0)
            kept = descriptors[start : start + batch]
            kept[:] = np.asarray(block)[: len(kept)]
            bar.update(len(kept))

        for start in range(0, count, batch):
            rows = np.minimum(np.arange(start, start + batch), count - 1)
            pending.append((start, apply(_resized(patches[rows], size=size))))
            # One batch computes while the other is fetched.
            if len(pending) == 2:
                collect()
        if pending:
            collect()
    return descriptors


def preferred_batch() -> int:
    """Patches that the device describes fastest at a time.

    On CPUs the feature maps of a batch should stay in the cache, on accelerators the batch should
    fill the device.
    """
    return 64 if jax.default_backend() == "cpu" else 1024


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
