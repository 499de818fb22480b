"""Measure the CPU time per described patch on one core, on a machine that others use as well.

    python benchmarks/one_core.py                    # hardnet, best, fast and tiny; two minutes
    python benchmarks/one_core.py tiny --seconds 30

kornia's HardNet, files that `kjax export` writes and kjax take turns, each with four batches in one
thread, from uint8 to descriptors. The table shows the lower quartile of their CPU time, which other
processes disturb little. `benchmarks/bench.py` measures all cores of an idle machine.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import program
import torch
from speed import torch_inference
from speed.inference import blocks_of, onnx_session, run_session

from kjax.images.runner import ONNX_BATCH, ONNXRUNTIME, Runner
from kjax.interrupts import run_script
from kjax.model.folding import fold
from kjax.weights.source import load_source

SIZE, BATCHES = 32, 4


def make_runs(sources: Sequence[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the functions to measure, with their names."""
    blocks = blocks_of(BATCHES * ONNX_BATCH, ONNX_BATCH, SIZE)
    torch.set_num_threads(1)
    name, describe = torch_inference.make_hardnet(torch_inference.ON_CPU[0], "cpu")
    yield name, lambda: [describe(torch.from_numpy(each)[:, None]).numpy() for each in blocks]
    for source in sources:
        found = load_source(source)
        session = onnx_session(found.model, found.variables, threads=1)
        yield f"exported {source}", functools.partial(run_session, session, blocks)
        patches = np.concatenate(blocks)
        for dtype in ("float32", "int8"):
            folded = fold(found.model.clone(dtype=jnp.dtype(dtype)), found.variables)
            runner = Runner(*folded, backend=ONNXRUNTIME)
            name = f"kjax {source}" + (", int8" if dtype == "int8" else "")
            yield name, functools.partial(runner.describe, patches, threads=1)


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    runs = dict(make_runs(args.sources))
    spent: dict[str, list[float]] = {name: [] for name in runs}
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        for name, describe in runs.items():
            begun = time.process_time()
            describe()
            spent[name].append((time.process_time() - begun) / (BATCHES * ONNX_BATCH))
    peer, *_ = lowest = {name: np.percentile(each, 25) for name, each in spent.items()}
    rows = [
        (name, f"{1e6 * seconds:.1f}", f"{lowest[peer] / seconds:.2f}")
        for name, seconds in lowest.items()
    ]
    print(f"{len(spent[peer])} rounds\n\n" + program.table(("", "µs", f"× {peer}"), rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("sources", nargs="*", default=("hardnet", "best", "fast", "tiny"))
    add("--seconds", type=float, default=100, help="duration (default: 100)")


if __name__ == "__main__":
    run_script(main)
