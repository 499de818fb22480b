"""Measure description from host memory to host memory, by batch size and number of threads.

    python benchmarks/describe.py                     # hardnet and best; two minutes on a GPU
    python benchmarks/describe.py hardnet --sides 32 --batches 16 64 --threads 1 2 --patches 2048

uint8 patches of 64×64 pixels are copied as they are and resized on the device; those of 32×32 are
the models' input size. "in memory": the same batches, on the device before and after. All runs of a
model take turns, and the best time counts. Expected on an H200: 5.5 M patches/s with `hardnet` in
memory, 2.7 M with `best`. `benchmarks/bench.py` compares with PyTorch and onnxruntime.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
import program
from speed.inference import print_surroundings

from kjax.interrupts import run_script
from kjax.model.describe import describe
from kjax.model.folding import fold, fold_head
from kjax.weights.source import load_source

ON_CPU = {"dtype": "float32", "batches": (8, 16, 64), "threads": (1, 2), "patches": 1024}
ON_ACCELERATORS = {"dtype": "bfloat16", "batches": (4096, 16384), "threads": (1, 2, 4, 8)}
ON_ACCELERATORS["patches"] = 262144


def measure(source: str, args: argparse.Namespace) -> list[list[str]]:
    """Return the rows of one model."""
    found = load_source(source)
    exact = found.model.clone(dtype=jnp.dtype(args.dtype))
    folded, weights = fold_head(*fold(exact, found.variables))
    apply = functools.partial(jax.jit(folded.apply), weights)
    size = exact.patch_size
    rng, runs = np.random.default_rng(0), {}
    for side in args.sides:
        patches = rng.integers(0, 256, (args.patches, side, side), dtype=np.uint8)
        for batch in args.batches:
            for threads in args.threads:
                options = {"size": size, "batch": batch, "threads": threads, "progress": False}
                runs[side, batch, threads] = functools.partial(describe, apply, patches, **options)
    for batch in args.batches:
        block, times = jnp.zeros((batch, size, size)), -(-args.patches // batch)
        runs["in memory", batch, "–"] = lambda block=block, times=times: jax.block_until_ready(
            [apply(block) for _ in range(times)]
        )
    seconds, _ = program.take_turns(runs, args.repeats)
    return [
        [source, args.dtype, *map(str, key), f"{args.patches / min(times):,.0f}"]
        for key, times in seconds.items()
    ]


def run(args: argparse.Namespace) -> None:
    """Print hardware and the table."""
    program.fill_defaults(args, ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATORS)
    print_surroundings()
    rows = [row for source in args.sources for row in measure(source, args)]
    header = ("", "precision", "side", "batch", "threads", "patches/s")
    print(program.table(header, rows, text=2))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("sources", nargs="*", default=["hardnet", "best"], help="weights (default: hardnet best)")
    add("--sides", nargs="+", type=int, default=[32, 64], help="of patches (default: 32 64)")
    add("--batches", nargs="+", type=int)
    add("--threads", nargs="+", type=int)
    add("--patches", type=int, help="number of patches")
    add("--dtype", choices=("float32", "bfloat16"))
    add("--repeats", type=int, default=3, help="rounds (default: 3)")


if __name__ == "__main__":
    run_script(main)
