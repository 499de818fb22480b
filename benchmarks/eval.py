"""Measure how fast HPatches' three tasks are scored, beside the official evaluator.

    python benchmarks/eval.py                    # the Oxford sequences under ../shared/data
    python benchmarks/eval.py --synthetic-full   # the whole benchmark's size, on an accelerator

Expected: on an idle CPU, verification and retrieval 50 times faster than the official evaluator;
with --synthetic-full on an H200, splits a, b and c in at most 60 seconds, compilation included.
"""

import argparse
import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import program

from kjax.data.hpatches import IMAGES, SPLITS, read_hpatches
from kjax.eval.hpatches import protocol as hpatches
from kjax.eval.hpatches import tasks as hpatches_tasks
from kjax.eval.hpatches.descriptors import SetDescriptors, describe_sequences
from kjax.eval.hpatches.tasks import Pairs, Tasks
from kjax.interrupts import run_script

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
DIMENSION = 128
REPEATS = 10
TASKS = {
    run.__name__: run for run in (hpatches.verification, hpatches.matching, hpatches.retrieval)
}
RULES = {"protocol": "python", "distance": "L2", "progress": False}
PATCH_QUARTILES = (258, 790, 1506, 1991, 2000)
"""Quartiles of the number of patches in HPatches' sequences, from the official task files."""


def coarse_pixels(patches: np.ndarray) -> np.ndarray:
    """Return normalised means of 16×8 blocks: a cheap descriptor of the usual size."""
    blocks = patches[:, :64, :64].reshape(-1, 16, 4, 8, 8).mean(axis=(2, 4), dtype=np.float32)
    rows = blocks.reshape(len(blocks), DIMENSION)
    rows -= rows.mean(axis=1, keepdims=True)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


def measure_oxford() -> None:
    """Print times of the three tasks, beside the official evaluator's recorded ones."""
    golden = json.loads((SHARED / "golden" / "oxford.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        photos = sorted(map(str, (SHARED / "oxford").iterdir()))
        command = [sys.executable, "cut_hpatches.py", *photos, "--out", folder]
        subprocess.run(command, cwd=SHARED, check=True, stdout=subprocess.DEVNULL)
        on_host = describe_sequences(coarse_pixels, read_hpatches(folder))
    tasks = hpatches_tasks.read_tasks(SHARED / "golden" / "oxford_tasks", "oxford", on_host.patches)
    descriptors = on_host.on_device()
    official = golden["descriptors"]["tfeat_liberty"]["seconds"]  # 128 float32 values, as here
    runs = {
        name: functools.partial(run, descriptors, tasks, **RULES) for name, run in TASKS.items()
    }
    seconds, _ = program.take_turns(runs, REPEATS)
    rows = []
    for task, times in seconds.items():
        faster = f"{official[task] / min(times):.0f}×"
        rows.append([task, f"{1e3 * min(times):.0f} ms", f"{official[task]:.1f} s", faster])
    print("\n" + program.table(("task", "kjax", "official evaluator", "faster"), rows))


def synthetic_patches() -> dict[str, int]:
    """Return numbers of patches per sequence like HPatches'."""
    random = np.random.default_rng(0)
    counts = np.interp(random.random(len(SPLITS["full"])), np.linspace(0, 1, 5), PATCH_QUARTILES)
    return dict(zip(SPLITS["full"], counts.astype(int).tolist(), strict=True))


def synthetic_tasks(patches: dict[str, int]) -> Tasks:
    """Return random tasks of the official sizes."""
    pairs = hpatches_tasks.PAIRS
    random = np.random.default_rng(0)
    counts = np.array(list(patches.values()))
    sequence = random.integers(0, len(counts), (pairs, 2)).astype(np.int16)
    within = sequence[:, [0, 0]]
    image = random.integers(0, 5, (pairs, 2)).astype(np.int8)
    patch = random.integers(0, counts[sequence]).astype(np.int32)
    other = random.integers(0, counts[within[:, 1]]).astype(np.int32)
    queries = hpatches_tasks.QUERIES
    generated = hpatches_tasks.generate_tasks(patches, pairs=1, queries=queries, progress=False)
    return dataclasses.replace(
        generated,
        positives=Pairs(within, image, patch[:, [0, 0]]),
        intra=Pairs(within, image, np.stack([patch[:, 0], other], axis=1)),
        inter=Pairs(sequence, image, patch),
        origin="synthetic",
    )


@functools.partial(jax.jit, static_argnames="patches")
def noisy_rows(places: jax.Array, noise: jax.Array, *, patches: int) -> jax.Array:
    """Return unit vectors: one direction per patch, with noise in every image."""
    key, other = jax.random.split(jax.random.key(0))
    directions = jax.random.normal(key, (patches, DIMENSION))
    rows = jax.random.normal(other, (len(places), DIMENSION)) * noise[:, None] + directions[places]
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def synthetic_descriptors(patches: dict[str, int]) -> SetDescriptors:
    """Return descriptors with more noise in hard and tough targets, made on the device."""
    places, noise, start = [], [], 0
    for count in patches.values():
        places.append(np.tile(np.arange(start, start + count), len(IMAGES)))
        noise.append(np.repeat([0.0] + [0.7] * 5 + [1.2] * 5 + [1.8] * 5, count))
        start += count
    columns = np.concatenate(places).astype(np.int32), np.concatenate(noise).astype(np.float32)
    return SetDescriptors(patches, noisy_rows(*columns, patches=start))


def measure_full() -> None:
    """Print times of the three tasks on splits a, b and c, compilation included."""
    patches = synthetic_patches()
    descriptors = synthetic_descriptors(patches)
    jax.block_until_ready(descriptors.rows)
    tasks = {
        split: synthetic_tasks({name: patches[name] for name in SPLITS[split]}) for split in "abc"
    }
    print(f"\n{len(descriptors.rows):,} descriptors of {DIMENSION} on {jax.devices()[0]}")
    total, rows = 0.0, []
    for split, task in [*tasks.items(), ("a again", tasks["a"])]:
        runs = [functools.partial(run, descriptors, task, **RULES) for run in TASKS.values()]
        seconds = [program.timed(run)[0] for run in runs]
        total += sum(seconds) if split in tasks else 0
        rows.append([split, *(f"{value:.2f} s" for value in (*seconds, sum(seconds)))])
    print("\n" + program.table(("split", *TASKS, "sum"), rows))
    print(f"\nSplits a, b and c, compilation included: {total:.1f} s (target 60 s on an H200)")


def run(args: argparse.Namespace) -> None:
    """Run one of the two measurements."""
    (measure_full if args.synthetic_full else measure_oxford)()


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("--synthetic-full", action="store_true", help="the whole benchmark's size")


if __name__ == "__main__":
    run_script(main)
