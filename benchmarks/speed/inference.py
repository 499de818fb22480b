"""How fast descriptors are computed: candidates that take turns, and the best time of each.

Taking turns shares out whatever else the machine does; the best time is the one it disturbed least.
"""

import dataclasses
import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8
from tqdm import tqdm

from kjax.extras import require
from kjax.images.runner import JAX, Runner, processor
from kjax.model.describe import cores, in_threads
from kjax.model.descriptor import Descriptor, build
from kjax.model.folding import fold, fold_head
from kjax.model.onnx_graph import onnx_model

IN_MEMORY, END_TO_END = "in memory", "end to end"
"""Patches and descriptors stay on the device, in float32; or both are NumPy arrays, from bytes."""
PACKAGES = ("kjax", "jax", "jaxlib", "onnxruntime", "torch", "kornia")


@dataclasses.dataclass(frozen=True)
class Candidate:
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
    """What was measured of one candidate, in patches a second."""

    name: str
    variant: str
    place: str
    batch: int
    rate: float


def measure(
    candidates: Sequence[Candidate], *, repeats: int, progress: bool = True
) -> list[RateRow]:
    """Rates, best of `repeats` rounds in which each runs once; a round before them compiles."""
    best = [float("inf")] * len(candidates)
    total = (1 + repeats) * len(candidates)
    with tqdm(total=total, desc="measuring", disable=not progress) as bar:
        for attempt in range(1 + repeats):
            for i, candidate in enumerate(candidates):
                begun = time.perf_counter()
                candidate.run()
                if attempt:
                    best[i] = min(best[i], time.perf_counter() - begun)
                bar.update()
    return [
        RateRow(each.name, each.variant, each.place, each.batch, each.patches / seconds)
        for each, seconds in zip(candidates, best, strict=True)
    ]


def kjax_candidates(
    source: str,
    model: Descriptor,
    variables: Any,
    dtypes: Sequence[str],
    batches: Sequence[int],
    patches: int,
) -> Iterator[Candidate]:
    """Weights with BatchNorm folded: on the device in batches of given sizes, and by a `Describer`.

    Args:
        source: where they come from, for the table.
        model: not folded.
        variables: the same.
        dtypes: precisions of the computation.
        batches: sizes to try.
        patches: that a run describes, rounded up to whole batches.
    """
    name, size = f"kjax {source}", model.patch_size
    images = blocks_of(patches, patches, size)[0]
    resident = [
        [jnp.asarray(block, jnp.float32) for block in blocks_of(patches, batch, size)]
        for batch in batches
    ]
    for dtype in dtypes:
        exact = model.clone(dtype=jnp.dtype(dtype))
        folded, weights = fold_head(*fold(exact, variables))
        apply = functools.partial(jax.jit(folded.apply), weights)
        for batch, blocks in zip(batches, resident, strict=True):
            in_memory = functools.partial(_apply_to_all, apply, blocks)
            yield Candidate(name, dtype, IN_MEMORY, batch, batch * len(blocks), in_memory)
        runner = Runner(*fold(exact, variables))
        way = runner.way(images)
        variant = dtype if way.backend == JAX else f"{dtype}, {way.backend}"
        end_to_end = functools.partial(runner.describe_in, way, images)
        yield Candidate(name, variant, END_TO_END, way.batch, patches, end_to_end)


def onnx_candidates(
    source: str, model: Descriptor, variables: Any, batches: Sequence[int], patches: int
) -> Iterator[Candidate]:
    """The graph that `kjax export` writes, run by onnxruntime as it comes, on all cores."""
    onnxruntime = require("onnxruntime", "the comparison with the exported file")
    exact = model.clone(dtype=jnp.dtype("float32"))
    graph = onnx_model(*fold(exact, variables), dtype="uint8").SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])

    def run(blocks: Sequence[np.ndarray]) -> Any:
        found = [session.run(["descriptors"], {"patches": block})[0] for block in blocks]
        return np.concatenate(found)

    for batch in batches:
        blocks = blocks_of(patches, batch, model.patch_size)
        yield Candidate(
            f"exported {source}",
            "float32",
            END_TO_END,
            batch,
            batch * len(blocks),
            functools.partial(run, blocks),
        )


def untrained(channels: Sequence[int]) -> tuple[Descriptor, Any]:
    """A light model without training, which is as fast as with: `combined`, s = 2."""
    model = build("combined", s=2, channels=tuple(channels))
    blank = np.zeros((1, model.patch_size, model.patch_size), np.float32)
    return model, jax.jit(model.init)(jax.random.key(0), blank)


def _apply_to_all(apply: Callable[[Array], Array], blocks: Sequence[Array]) -> None:
    """Describes all batches: an accelerator is given all at once, a CPU's cores one each."""
    if jax.default_backend() == "cpu":
        in_threads(lambda block: jax.block_until_ready(apply(block)), blocks)
    else:
        jax.block_until_ready([apply(block) for block in blocks])


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
        "processor": processor(),
        "cores": cores(),
        "python": platform.python_version(),
        "versions": versions,
    }
