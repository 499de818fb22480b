"""Patches described from host memory to host memory, by batch and by threads.

    python benchmarks/describe.py                     # hardnet and best; two minutes on a GPU
    python benchmarks/describe.py hardnet --sides 32 --batches 16 64 --threads 1 2 --patches 2048

uint8 patches of 64×64 pixels travel as they are and are resized on the device; those of 32×32 are
what the models see. Above the table: what copies alone make of the same patches and descriptors,
which no way can exceed. "in memory": the same batches, on the device before and after. All ways of
a model take turns, and the best time counts. To reach on an H200: 3 M patches/s with `hardnet`, 2 M
with `best`. `kjax bench` compares with PyTorch and onnxruntime.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from speed.inference import surroundings

from kjax.errors import exit_code
from kjax.interrupts import run_script
from kjax.model.describe import describe
from kjax.model.folding import fold, fold_head
from kjax.weights.source import load_source

ON_CPU = {"dtype": "float32", "batches": (8, 16, 64), "threads": (1, 2), "patches": 1024}
ON_ACCELERATORS = {
    "dtype": "bfloat16",
    "batches": (4096, 16384),
    "threads": (1, 2, 4, 8),
    "patches": 262144,
}
DESCRIPTOR_BYTES = 4 * 128


def parse_arguments() -> argparse.Namespace:
    """The options, by default those that suit the device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", default=["hardnet", "best"])
    parser.add_argument("--sides", nargs="+", type=int, default=[32, 64])
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--threads", nargs="+", type=int)
    parser.add_argument("--patches", type=int)
    parser.add_argument("--dtype")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    defaults = ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATORS
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def best_seconds(runs: dict[Any, Callable[[], Any]], repeats: int) -> dict[Any, float]:
    """The best time of each, after a round that compiles; they take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for attempt in range(1 + repeats):
        for key, run in runs.items():
            begun = time.perf_counter()
            run()
            if attempt:
                best[key] = min(best[key], time.perf_counter() - begun)
    return best


def print_copies(sides: Sequence[int], batch: int, repeats: int) -> None:
    """What one thread copies, in batches of one size, as patches a second."""
    runs: dict[str, tuple[int, Callable[[], Any]]] = {}
    for side in sides:
        patches = np.zeros((batch, side, side), np.uint8)
        runs[f"to the device, {side}×{side} bytes"] = (
            patches.nbytes,
            functools.partial(_put, patches),
        )
    descriptors = jnp.zeros((batch, DESCRIPTOR_BYTES // 4))
    add_one = jax.jit(lambda x: x + 1)  # a new array: one that was fetched is kept on the host
    back = (batch * DESCRIPTOR_BYTES, lambda: np.asarray(add_one(descriptors)))
    runs["from the device, 128 float32"] = back
    best = best_seconds({name: run for name, (_, run) in runs.items()}, 3 * repeats)
    for name, (size, _) in runs.items():
        rate, speed = batch / best[name], size / best[name]
        print(f"copies {name}: {rate:,.0f} patches/s, {speed / 1e9:.1f} GB/s")


def _put(patches: np.ndarray) -> None:
    jax.block_until_ready(jax.device_put(patches))


def measure(source: str, args: argparse.Namespace) -> None:
    """Prints the rows of one model."""
    found = load_source(source)
    exact = found.model.clone(dtype=jnp.dtype(args.dtype))
    folded, weights = fold_head(*fold(exact, found.variables))
    apply = functools.partial(jax.jit(folded.apply), weights)
    rng, runs = np.random.default_rng(0), {}
    for side in args.sides:
        patches = rng.integers(0, 256, (args.patches, side, side), dtype=np.uint8)
        for batch in args.batches:
            for threads in args.threads:
                runs[side, batch, threads] = functools.partial(
                    describe,
                    apply,
                    patches,
                    size=exact.patch_size,
                    batch=batch,
                    threads=threads,
                    progress=False,
                )
    for batch in args.batches:
        block = jnp.zeros((batch, exact.patch_size, exact.patch_size))
        runs["in memory", batch, "–"] = functools.partial(
            _apply_again, apply, block, -(-args.patches // batch)
        )
    for (side, batch, threads), seconds in best_seconds(runs, args.repeats).items():
        cells = (source, args.dtype, side, batch, threads, f"{args.patches / seconds:,.0f}")
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _apply_again(apply: Callable[[Any], Any], block: Any, times: int) -> None:
    jax.block_until_ready([apply(block) for _ in range(times)])


def main() -> None:
    """Prints what was measured where, copies, and the table."""
    args = parse_arguments()
    about = surroundings()
    print(f"{about['device']}, {about['processor']}, {about['cores']} cores; {about['versions']}\n")
    print_copies(args.sides, max(args.batches), args.repeats)
    print("\n| | precision | side | batch | threads | patches/s |\n|---|---|---|---|---|---|")
    for source in args.sources:
        measure(source, args)


if __name__ == "__main__":
    run_script(lambda argv: exit_code("describe", main))
