"""How fast descriptors are computed: contenders that take turns, and the best time of each.

Taking turns shares out whatever else the machine does; the best time is the one it disturbed least.
"""

import dataclasses
import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8
from tqdm import tqdm

from kjax.images.describer import Describer
from kjax.model.describe import cores, in_flight, preferred_batch
from kjax.model.folding import fold
from kjax.sources import load_source

IN_MEMORY, END_TO_END = "in memory", "end to end"
"""Patches and descriptors stay on the device, in float32; or both are NumPy arrays, from bytes."""
PACKAGES = ("kjax", "jax", "jaxlib", "torch", "kornia")


@dataclasses.dataclass(frozen=True)
class Contender:
    """Something that describes patches.

    Attributes:
        name: e.g. "kjax hardnet".
        variant: e.g. "bfloat16".
        place: `IN_MEMORY` or `END_TO_END`.
        batch: patches in a call.
        patches: that a run describes.
        run: describes them all and waits for the last.
    """

    name: str
    variant: str
    place: str
    batch: int
    patches: int
    run: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class RateRow:
    """What was measured of one contender, in patches a second."""

    name: str
    variant: str
    place: str
    batch: int
    rate: float


def measure(
    contenders: Sequence[Contender], *, repeats: int, progress: bool = True
) -> list[RateRow]:
    """Rates, best of `repeats` rounds in which each runs once; a round before them compiles."""
    best = [float("inf")] * len(contenders)
    total = (1 + repeats) * len(contenders)
    with tqdm(total=total, desc="measuring", disable=not progress) as bar:
        for attempt in range(1 + repeats):
            for i, contender in enumerate(contenders):
                begun = time.perf_counter()
                contender.run()
                if attempt:
                    best[i] = min(best[i], time.perf_counter() - begun)
                bar.update()
    return [
        RateRow(each.name, each.variant, each.place, each.batch, each.patches / seconds)
        for each, seconds in zip(contenders, best, strict=True)
    ]


def kjax_contenders(
    source: str, dtypes: Sequence[str], batches: Sequence[int], patches: int
) -> Iterator[Contender]:
    """Weights with BatchNorm folded: on the device in batches of given sizes, and by a `Describer`.

    Args:
        source: as `kjax.load` has it.
        dtypes: precisions of the computation.
        batches: sizes to try.
        patches: that a run describes, rounded up to whole batches.
    """
    found = load_source(source)
    name, size, own = f"kjax {source}", found.model.patch_size, min(preferred_batch(), patches)
    images = np.concatenate(blocks_of(patches, own, size))
    resident = [
        [jnp.asarray(block, jnp.float32) for block in blocks_of(patches, batch, size)]
        for batch in batches
    ]
    for dtype in dtypes:
        folded, weights = fold(found.model.clone(dtype=jnp.dtype(dtype)), found.variables)
        apply = functools.partial(jax.jit(folded.apply), weights)
        for batch, blocks in zip(batches, resident, strict=True):
            in_memory = functools.partial(_apply_to_all, apply, blocks)
            yield Contender(name, dtype, IN_MEMORY, batch, batch * len(blocks), in_memory)
        describer = Describer(found.model, found.variables, dtype=dtype)
        end_to_end = functools.partial(describer.describe, images)
        yield Contender(name, dtype, END_TO_END, own, len(images), end_to_end)


def _apply_to_all(apply: Callable[[Array], Array], blocks: Sequence[Array]) -> None:
    """Describes all batches, which are in flight at once."""
    with in_flight(apply) as begin:
        jax.block_until_ready([finish() for finish in [begin(block) for block in blocks]])


def blocks_of(patches: int, batch: int, size: int) -> list[UInt8[np.ndarray, "batch size size"]]:
    """Random patches in as many whole batches as it takes."""
    rng = np.random.default_rng(0)
    count = -(-patches // batch)
    return list(rng.integers(0, 256, (count, batch, size, size), dtype=np.uint8))


def surroundings() -> dict[str, Any]:
    """Hardware and versions, as far as they tell about speed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "device": jax.devices()[0].device_kind,
        "platform": jax.default_backend(),
        "processor": _processor(),
        "cores": cores(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    """The model's name where Linux tells it, and the architecture."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return " ".join([*names[:1], platform.machine()])
