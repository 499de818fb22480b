"""Measure data input: decoding, memory, tf.data, and the resident path beside a training step.

    python benchmarks/input.py                       # everything, on a set of 450,000 patches
    python benchmarks/input.py decode --patches 50000
    python benchmarks/input.py tfdata                # from a folder
    python benchmarks/input.py resident              # on an accelerator: needs no disk

Expected: at least 20,000 patches decoded per second and core; a peak memory of at most 1.3 times
the set's uint8 size; more than 359,000 patches per second through tf.data on two cores; and, on an
H200, a resident path (sample, gather, augment 1024 patches to 32×32) of at most 10 % of HardNet's
training step in bfloat16.
"""

import argparse
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import program

import kjax
from kjax.data.phototour import (
    PatchSet,
    decode_folder,
    read_phototour,
    sample_test_pairs,
    write_phototour,
)
from kjax.data.pipelines import (
    ResidentSet,
    draw_rows,
    gather_pairs,
    make_resident,
    pair_dataset,
    prefetch_to_device,
)
from kjax.data.sampler import sample_pairs
from kjax.errors import InputError
from kjax.interrupts import run_script
from kjax.runs.config import AugmentConfig
from kjax.train.augment import augment_pairs
from kjax.train.optim import linear_decay, torch_sgd
from kjax.train.step import StepConfig, create_state, train_step

PAIRS = 512
PATCHES_PER_POINT = 3
SIZE = 32
SEED = 1
PARTS = ("decode", "tfdata", "resident")


def synthetic_set(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random patches that overlap in memory, to save it, and their points."""
    noise = np.random.default_rng(0).integers(0, 256, count + 64 * 64, dtype=np.uint8)
    patches = np.lib.stride_tricks.as_strided(noise, (count, 64, 64), (1, 64, 1), writeable=False)
    return patches, np.arange(count) // PATCHES_PER_POINT


# Decoding and memory

OPEN_SET = """
import sys
from kjax.data.phototour import read_phototour

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

patch_set = read_phototour(sys.argv[1], cache_dir=sys.argv[2], progress=False)
opened = peak()
patch_set.patches.max()  # reads every page
print(opened / patch_set.patches.nbytes, peak() / patch_set.patches.nbytes)
"""


def measure_decoding(folder: Path, cache: Path, count: int) -> None:
    """Print the decoding rate of one core, and the peak memory of opening the set."""
    seconds, decoded = program.timed(
        lambda: sum(len(block) for block in decode_folder(folder, progress=False)[0])
    )
    rate = decoded / seconds
    print(f"decoding                     {rate:12,.0f} patches/s on one core (target 20,000)")
    for state in ("cold, decoding into the cache", "warm, mapping the cache"):
        command = [sys.executable, "-c", OPEN_SET, str(folder), str(cache)]
        run = functools.partial(subprocess.run, command, check=True, capture_output=True, text=True)
        seconds, done = program.timed(run)
        opened, read = map(float, done.stdout.split())
        print(
            f"opening {count:,} patches, {state}: peak memory {opened:.2f}× the set's size, "
            f"{read:.2f}× after reading all of it (target 1.30×), {seconds:.1f} s in all"
        )


# tf.data


def measure_tfdata(patch_set: PatchSet, steps: int) -> None:
    """Print how fast tf.data delivers pairs to the device."""
    try:
        batches = pair_dataset(patch_set, seed=SEED, pairs=PAIRS)
    except InputError as error:
        print(f"tf.data                      skipped: {error}")
        return
    ready = prefetch_to_device(batches.as_numpy_iterator(), devices=jax.local_devices()[:1])
    for _ in range(40):  # compilation and the first draws
        next(ready).block_until_ready()
    start = time.perf_counter()
    for _ in range(steps):
        next(ready).block_until_ready()
    seconds = (time.perf_counter() - start) / steps
    rate = 2 * PAIRS / seconds
    print(f"tf.data                      {rate:12,.0f} patches/s, {1e3 * seconds:.3f} ms a step")


# The resident path


def seconds_per_step(run: Callable[..., Any], *arguments: Any, steps: int) -> float:
    """Return the best of three timings of `run`, which does `steps` steps in one dispatch."""
    runs = {"run": lambda: jax.block_until_ready(run(*arguments))}
    return min(program.take_turns(runs, 3)[0]["run"]) / steps


def total_over_steps(produce: Callable[..., jax.Array], steps: int) -> Callable[..., jax.Array]:
    """Jit a scan that sums the output of every step, so that XLA cannot drop any of it."""

    def run(*arguments: Any) -> jax.Array:
        def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
            return total + produce(step, *arguments).astype(jnp.float32).sum(), None

        return jax.lax.scan(body, jnp.zeros(()), jnp.arange(steps))[0]

    return jax.jit(run)


def gather_only(step: jax.Array, data: ResidentSet) -> jax.Array:
    """Gather as many words as a step, from random rows."""
    rows = jnp.arange(2 * PAIRS) * 7919 + step * 104729
    return data.words[rows % data.words.shape[0]]


def batch_of(step: jax.Array, data: ResidentSet) -> jax.Array:
    """Produce the input of a training step."""
    pairs = gather_pairs(data, draw_rows(data, SEED, step, pairs=PAIRS))
    return augmented(step, pairs)


def augmented(step: jax.Array, pairs: jax.Array) -> jax.Array:
    """Augment pairs."""
    key = jax.random.fold_in(jax.random.key(SEED), step)
    return augment_pairs(key, pairs, size=SIZE, config=AugmentConfig())


def training(steps: int) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """Return a bfloat16 HardNet state, and runs of steps on a fixed batch and on the stream."""
    model = kjax.build("hardnet", dtype="bfloat16")
    optimizer = torch_sgd(linear_decay(10.0, 100_000))
    key = jax.random.key(0)
    variables = model.init(key, jnp.zeros((2, SIZE, SIZE)))
    update = functools.partial(train_step, model=model, optimizer=optimizer, config=StepConfig())

    def on_fixed_batch(state: Any, pairs: jax.Array) -> Any:
        return jax.lax.scan(lambda s, _: update(s, pairs, key), state, None, length=steps)

    def on_stream(state: Any, data: ResidentSet) -> Any:
        def body(state: Any, step: jax.Array) -> Any:
            return update(state, batch_of(step, data), key)

        return jax.lax.scan(body, state, jnp.arange(steps))

    return create_state(optimizer, variables), jax.jit(on_fixed_batch), jax.jit(on_stream)


def measure_resident(patch_set: PatchSet, steps: int) -> None:
    """Print the cost of the resident path, part by part, beside the training step."""
    data = make_resident(patch_set)
    pairs = gather_pairs(data, draw_rows(data, SEED, 0, pairs=PAIRS))
    batch = augmented(jnp.zeros((), jnp.int32), pairs)

    def timed(name: str, produce: Callable[..., jax.Array], argument: Any) -> float:
        seconds = seconds_per_step(total_over_steps(produce, steps), argument, steps=steps)
        print(f"{name:28s} {1e6 * seconds:12,.1f} µs a step")
        return seconds

    print(f"resident path on {jax.devices()[0].device_kind}, {steps} steps a dispatch:")
    timed("  sample", lambda t, d: sample_pairs(d.tables[0], SEED, t, pairs=PAIRS), data)
    timed("  gather", gather_only, data)
    timed("  augment", augmented, pairs)
    whole = timed("  sample, gather, augment", batch_of, data)
    if jax.default_backend() == "cpu":
        print("HardNet step                 skipped: a CPU takes minutes over it in bfloat16")
        return
    state, on_fixed_batch, on_stream = training(steps)
    step = seconds_per_step(on_fixed_batch, state, batch, steps=steps)
    both = seconds_per_step(on_stream, state, data, steps=steps)
    print(f"{'HardNet step, fixed batch':28s} {1e6 * step:12,.1f} µs a step")
    print(f"{'HardNet step on the stream':28s} {1e6 * both:12,.1f} µs a step")
    print(
        f"resident path / training step: {whole / step:.1%} by itself, "
        f"{both / step - 1:+.1%} within the step (target at most 10 % on an H200)"
    )


def run(args: argparse.Namespace) -> None:
    """Measure the selected parts."""
    parts = args.parts or PARTS
    patches, point_ids = synthetic_set(args.patches)
    patch_set = PatchSet("synthetic", patches, point_ids, Path())
    with tempfile.TemporaryDirectory() as scratch:
        if {"decode", "tfdata"} & set(parts):
            pairs = sample_test_pairs(point_ids, matching=1000, non_matching=1000, seed=SEED)
            folder = write_phototour(Path(scratch) / "liberty", patches, point_ids, pairs=pairs)
            cache = Path(scratch) / "cache"
        if "decode" in parts:
            measure_decoding(folder, cache, args.patches)
        if "tfdata" in parts:
            patch_set = read_phototour(folder, cache_dir=cache, progress=False)
            measure_tfdata(patch_set, steps=100)
        if "resident" in parts:
            measure_resident(patch_set, steps=args.steps)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    add("--patches", type=int, default=450_000, help="(default: 450000)")
    add("--steps", type=int, default=200, help="resident steps per dispatch (default: 200)")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main)
