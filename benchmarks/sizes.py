"""Measure matching mAP of smaller descriptors by their size in bytes.

    python benchmarks/sizes.py best --hpatches data/oxford

Compares the model's descriptors, whole or truncated, as float32, bytes and bits (`kjax.quantize`),
with PCA learned on the embedded training set, RootSIFT, and OpenCV's binary descriptors. Expected
for `best` on the Oxford sequences: bytes within 0.2 points of float32, and more than 55 points with
256 bits, where OpenCV's have less than 20.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import program

from kjax.baselines import load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.data.embedded import embedded_train
from kjax.eval.entries import as_numbers, find_entry
from kjax.eval.hpatches.descriptors import SetDescriptors, describe_sequences
from kjax.eval.hpatches.protocol import matching
from kjax.eval.hpatches.tasks import Benchmark, open_benchmark, read_sequences
from kjax.interrupts import run_script
from kjax.model.quantization import quantize
from kjax.weights.source import load_sources

LENGTHS = (64, 32)
BITS = (512, 256, 128)
PCA_PATCHES = 20_000
"""Number of patches of the embedded training set."""
SIFT_UNIT = 512
"""Norm of SIFT's vectors as bytes."""
BINARY_RIVALS = ("teblid", "bboost", "brief", "orb")

Rows = np.ndarray


class Form(NamedTuple):
    """Descriptors in one storage format."""

    name: str
    bytes: int
    rows: Rows
    distance: str = "L2"


def run(args: argparse.Namespace) -> None:
    """Score all formats."""
    benchmark = open_benchmark(args.hpatches, progress=False)
    rows = []
    for form in forms(args.source, benchmark):
        rows.append([form.name, f"{form.bytes:,}", f"{score(form, benchmark):.2f}"])
        print(": ".join(rows[-1]), file=sys.stderr, flush=True)
    print(program.table(("descriptor", "bytes", "matching mAP, %"), rows))


def score(form: Form, benchmark: Benchmark) -> float:
    """Return matching mAP by HPatches' Python rules, in percent."""
    (tasks,) = benchmark.splits.values()
    described = SetDescriptors(tasks.patches, form.rows)
    options = {"protocol": "python", "distance": form.distance, "progress": False}
    return 100 * float(matching(described, tasks, **options).mean())


def forms(source: str, benchmark: Benchmark) -> Iterator[Form]:
    """Yield all rows of the table."""
    entry = find_entry(source)
    describe = functools.partial(entry.describe[0], progress=False)
    rows = described(describe, benchmark)
    yield from stored_forms(entry.name, rows)
    nested = load_sources(source)[0].nested
    for length in LENGTHS:
        trained = "" if length in nested else " (not trained for it)"
        yield from stored_forms(f"{entry.name}, first {length}{trained}", unit(rows[:, :length]))
    patches = embedded_train(progress=False).patches
    known = describe(np.asarray(patches[:: max(1, len(patches) // PCA_PATCHES)]))
    _, axes = np.linalg.eigh(np.cov(known.T, dtype=np.float64))
    axes = axes[:, ::-1].astype(np.float32)  # largest variance first
    for length in LENGTHS:
        projected = unit((rows - known.mean(axis=0)) @ axes[:, :length])
        yield from stored_forms(f"{entry.name}, PCA to {length}", projected)
    yield from rival_forms(benchmark)


def stored_forms(name: str, rows: Rows) -> Iterator[Form]:
    """Yield float32, bytes and bits."""
    length = rows.shape[1]
    yield Form(name, 4 * length, rows)
    yield Form(f"{name}, uint8", length, as_numbers(rows, "uint8"))
    for bits in BITS:
        if bits % length == 0:
            stored = np.unpackbits(quantize(rows, "binary", bits=bits), axis=1).astype(np.float32)
            yield Form(f"{name}, {bits} bits", bits // 8, stored, "L1")


def rival_forms(benchmark: Benchmark) -> Iterator[Form]:
    """Yield RootSIFT, as float32 and as bytes in SIFT's own units, and OpenCV's binary ones."""
    rows = described(load_baseline("rootsift").describe, benchmark)
    yield Form("RootSIFT", 4 * rows.shape[1], rows)
    yield Form("RootSIFT, uint8", rows.shape[1], np.clip(np.rint(SIFT_UNIT * rows), 0, 255))
    for name in BINARY_RIVALS:
        try:
            rival = load_baseline(name)
        except Unavailable as unavailable:
            print(f"without {name}: {unavailable}", file=sys.stderr)
            continue
        bits = described(rival.describe, benchmark)
        yield Form(f"{rival.name}, {rival.dimension} bits", rival.dimension // 8, bits, "L1")


def described(describe: Callable[[np.ndarray], Rows], benchmark: Benchmark) -> Rows:
    """Return the descriptors of all sequences."""
    sequences = read_sequences(benchmark, name="sizes", progress=False)
    return np.asarray(describe_sequences(describe, sequences).rows)


def unit(rows: Rows) -> Rows:
    """Normalise rows."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("source", help="shipped name, workdir, or file[:head,s=…]")
    add("--hpatches", type=Path, required=True, help="folder of sequences")


if __name__ == "__main__":
    run_script(main)
