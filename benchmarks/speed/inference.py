"""Runs of kjax and of exported files that describe random patches, for timing."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8
from program import take_turns

from kjax.images.runner import JAX, Runner
from kjax.model.describe import cores, in_threads
from kjax.model.descriptor import Descriptor
from kjax.model.folding import fold, fold_head
from kjax.model.onnx_graph import onnx_model

IN_MEMORY, END_TO_END = "in memory", "end to end"
"""Float32 patches and descriptors stay on the device; or both are NumPy arrays, from uint8."""
PACKAGES = ("kjax", "jax", "jaxlib", "onnxruntime", "torch", "kornia")


@dataclasses.dataclass(frozen=True)
class TimedRun:
    """A way to describe patches: `run` describes all of them and waits for the last."""

    name: str
    variant: str
    """E.g. "bfloat16"."""
    place: str
    """`IN_MEMORY` or `END_TO_END`."""
    batch: int
    patches: int
    """Number of patches that a run describes."""
    run: Callable[[], Any]


def measure(runs: Sequence[TimedRun], *, repeats: int) -> list[dict[str, Any]]:
    """Return a row with the rate (patches per second) of each run, by its best time."""
    seconds, _ = take_turns(dict(enumerate(one.run for one in runs)), repeats, progress=True)
    fields = ("name", "variant", "place", "batch")
    return [
        {name: getattr(one, name) for name in fields} | {"rate": one.patches / min(seconds[index])}
        for index, one in enumerate(runs)
    ]


def kjax_runs(
    source: str,
    model: Descriptor,
    variables: Any,
    dtypes: Sequence[str],
    batches: Sequence[int],
    patches: int,
) -> Iterator[TimedRun]:
    """Yield runs of weights with folded BatchNorm: on the device, and by a `Describer`'s runner.

    The number of patches is rounded up to whole batches.
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
            yield TimedRun(name, dtype, IN_MEMORY, batch, batch * len(blocks), in_memory)
        runner = Runner(*fold(exact, variables))
        variant = dtype if runner.backend == JAX else f"{dtype}, {runner.backend}"
        end_to_end = functools.partial(runner.describe, images)
        batch = runner.batch_size(len(images))
        yield TimedRun(name, variant, END_TO_END, batch, patches, end_to_end)


def onnx_runs(
    source: str, model: Descriptor, variables: Any, batches: Sequence[int], patches: int
) -> Iterator[TimedRun]:
    """Yield runs of the graph that `kjax export` writes, on CPUs with onnxruntime."""
    packages = ("onnx", "onnxruntime")
    if jax.default_backend() != "cpu" or not all(map(importlib.util.find_spec, packages)):
        return
    session = onnx_session(model, variables)
    for batch in batches:
        blocks = blocks_of(patches, batch, model.patch_size)
        run = functools.partial(run_session, session, blocks)
        yield TimedRun(f"exported {source}", "float32", END_TO_END, batch, batch * len(blocks), run)


def onnx_session(model: Descriptor, variables: Any, threads: int = 0) -> Any:
    """Return an onnxruntime session of a model; 0 threads means onnxruntime's default."""
    import onnxruntime

    folded = fold(model.clone(dtype=jnp.dtype("float32")), variables)
    graph = onnx_model(*folded, dtype="uint8").SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Describe all blocks."""
    return np.concatenate([session.run(None, {"patches": block})[0] for block in blocks])


def _apply_to_all(apply: Callable[[Array], Array], blocks: Sequence[Array]) -> None:
    """Describe all batches: an accelerator queues them, each CPU core takes one at a time."""
    if jax.default_backend() == "cpu":
        in_threads(lambda block: jax.block_until_ready(apply(block)), blocks)
    else:
        jax.block_until_ready([apply(block) for block in blocks])


def blocks_of(patches: int, batch: int, size: int) -> list[UInt8[np.ndarray, "batch size size"]]:
    """Return random patches in as many whole batches as needed."""
    shape = (-(-patches // batch), batch, size, size)
    return list(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def processor() -> str:
    """Return the CPU's name, where Linux has it, and the architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return " ".join([*names[:1], platform.machine()])


def print_surroundings() -> None:
    """Print the hardware, and the versions that matter for speed, on one line."""
    installed = filter(importlib.util.find_spec, PACKAGES)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed)
    device = jax.devices()[0].device_kind
    print(f"{device}, {processor()}, {cores()} cores; {versions}\n")
