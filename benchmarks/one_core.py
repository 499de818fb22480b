"""CPU time of a described patch on one core, where others use the machine as well.

    python benchmarks/one_core.py                    # hardnet, best, fast and tiny; two minutes
    python benchmarks/one_core.py tiny --seconds 30

kornia's HardNet, files that `kjax export` writes, and what kjax runs take turns, each with four
batches in one thread, from uint8 to descriptors. The lower quartile of their CPU time is one that
others disturbed little. `kjax bench` tells what all cores make of a quiet machine.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnxruntime
import torch
from speed import torch_inference
from speed.inference import blocks_of

from kjax.errors import exit_code
from kjax.images.runner import ONNX_BATCH, ONNXRUNTIME, Runner, Way
from kjax.interrupts import run_script
from kjax.model.folding import fold
from kjax.model.onnx_graph import onnx_model
from kjax.weights.source import load_source

SIZE, BATCHES = 32, 4
SOURCES = ("hardnet", "best", "fast", "tiny")


def candidates(sources: Sequence[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What describes the batches, with its name."""
    blocks = blocks_of(BATCHES * ONNX_BATCH, ONNX_BATCH, SIZE)
    torch.set_num_threads(1)
    name, describe = torch_inference.make_hardnet(torch_inference.ON_CPU[0], "cpu")
    yield name, lambda: [describe(torch.from_numpy(each)[:, None]).numpy() for each in blocks]
    for source in sources:
        found = load_source(source)
        folded = fold(found.model.clone(dtype=jnp.dtype("float32")), found.variables)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        graph = onnx_model(*folded, dtype="uint8").SerializeToString()
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        yield f"exported {source}", functools.partial(_run, session, blocks)
        way, patches = Way(ONNXRUNTIME, ONNX_BATCH, 1), np.concatenate(blocks)
        yield f"kjax {source}", functools.partial(Runner(*folded).describe_in, way, patches)


def _run(session: Any, blocks: Sequence[np.ndarray]) -> None:
    for block in blocks:
        session.run(None, {"patches": block})


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", default=SOURCES)
    parser.add_argument("--seconds", type=float, default=100)
    args = parser.parse_args()
    runs = dict(candidates(args.sources))
    spent: dict[str, list[float]] = {name: [] for name in runs}
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        for name, run in runs.items():
            begun = time.process_time()
            run()
            spent[name].append((time.process_time() - begun) / (BATCHES * ONNX_BATCH))
    peer, *_ = lowest = {name: np.percentile(each, 25) for name, each in spent.items()}
    print(f"{len(spent[peer])} rounds\n\n| | µs | × {peer} |\n|---|---:|---:|")
    for name, seconds in lowest.items():
        print(f"| {name} | {1e6 * seconds:.1f} | {lowest[peer] / seconds:.2f} |")


if __name__ == "__main__":
    run_script(lambda argv: exit_code("one_core", main))
