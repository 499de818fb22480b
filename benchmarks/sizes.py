"""What a smaller descriptor costs: bytes against matching mAP on a folder in HPatches' format.

    python benchmarks/sizes.py best --hpatches data/oxford --out out/sizes.md

The model's numbers, all or the first of them, as float32, bytes and bits (`kjax.quantize`), beside
PCA of the same descriptors, learned on the embedded training set, RootSIFT, and OpenCV's binary
descriptors. What it should print for `best` on the Oxford sequences: bytes within 0.2 points of
float32, and 256 bits above 55 points, where OpenCV's stay below 20.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kjax.baselines import load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.data.embedded import embedded_train
from kjax.errors import exit_code
from kjax.eval.descriptor_cache import cached
from kjax.eval.entries import find_entry
from kjax.eval.hpatches.benchmark import Benchmark, open_benchmark, read_sequences
from kjax.eval.hpatches.descriptors import SetDescriptors, describe_sequences
from kjax.eval.hpatches.protocol import matching
from kjax.eval.stored_forms import as_numbers
from kjax.files.atomic import write_text
from kjax.interrupts import run_script
from kjax.model.quantization import quantize
from kjax.weights.source import load_sources

LENGTHS = (64, 32)
BITS = (512, 256, 128)
PCA_PATCHES = 20_000
"""Of the embedded training set, evenly chosen."""
SIFT_UNIT = 512
"""The length that SIFT's vectors have as bytes."""
BINARY_RIVALS = ("teblid", "bboost", "brief", "orb")

Rows = np.ndarray


class Form(NamedTuple):
    """A way to store a descriptor."""

    name: str
    bytes: int
    rows: Rows
    distance: str = "L2"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints and writes the table; bad input is one line on stderr and exit code 2."""
    args = make_parser().parse_args(argv)
    return exit_code("sizes", lambda: run(args))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="shipped name, workdir, or file[:head,s=…]")
    parser.add_argument("--hpatches", type=Path, required=True, help="folder of sequences")
    parser.add_argument("--out", type=Path, default=Path("out/sizes.md"), help="(%(default)s)")
    parser.add_argument("--no-rivals", dest="rivals", action="store_false", help="the model alone")
    return parser


def run(args: argparse.Namespace) -> None:
    """Scores one form after the other."""
    benchmark = open_benchmark(args.hpatches, progress=False)
    lines = ["| descriptor | bytes | matching mAP, % |", "|---|---|---|"]
    print("\n".join(lines))
    for form in forms(args.source, benchmark, rivals=args.rivals):
        lines.append(f"| {form.name} | {form.bytes:,} | {score(form, benchmark):.2f} |")
        print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.out, "\n".join(lines) + "\n")
    print(f"wrote {args.out}")


def score(form: Form, benchmark: Benchmark) -> float:
    """Matching mAP by the official Python rules, in percent."""
    tasks = benchmark.splits[0].tasks
    described = SetDescriptors(tasks.patches, form.rows)
    options = {"distance": form.distance, "progress": False}
    return 100 * float(matching(described, tasks, **options).mean())


def forms(source: str, benchmark: Benchmark, *, rivals: bool) -> Iterator[Form]:
    """All rows of the table, computed one at a time."""
    entry = find_entry(source)
    member = entry.members[0]
    describe = cached(lambda patches: member.describe(patches, progress=False), member.identity)
    rows = described(describe, benchmark)
    yield from stored_forms(entry.name, rows)
    nested = load_sources(source)[0].nested
    for length in LENGTHS:
        trained = "" if length in nested else " (not trained for it)"
        yield from stored_forms(f"{entry.name}, first {length}{trained}", unit(rows[:, :length]))
    patches = embedded_train(progress=False).patches
    known = describe(np.asarray(patches[:: max(1, len(patches) // PCA_PATCHES)]))
    mean, axes = principal_axes(known)
    for length in LENGTHS:
        projected = unit((rows - mean) @ axes[:length].T)
        yield from stored_forms(f"{entry.name}, PCA to {length}", projected)
    if rivals:
        yield from rival_forms(benchmark)


def stored_forms(name: str, rows: Rows) -> Iterator[Form]:
    """Numbers, bytes and bits."""
    length = rows.shape[1]
    yield Form(name, 4 * length, rows)
    yield Form(f"{name}, uint8", length, as_numbers(rows, "uint8"))
    for bits in BITS:
        if bits % length == 0:
            stored = np.unpackbits(quantize(rows, "binary", bits=bits), axis=1).astype(np.float32)
            yield Form(f"{name}, {bits} bits", bits // 8, stored, "L1")


def rival_forms(benchmark: Benchmark) -> Iterator[Form]:
    """RootSIFT, as numbers and as bytes in SIFT's own units; and OpenCV's bits."""
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
    """Descriptors of all sequences."""
    sequences = read_sequences(benchmark, name="sizes", progress=False)
    return np.asarray(describe_sequences(describe, sequences).rows)


def principal_axes(rows: Rows) -> tuple[Rows, Rows]:
    """The mean, and the axes of largest variance first, as rows."""
    mean = rows.mean(axis=0, keepdims=True)
    _, axes = np.linalg.eigh(np.cov((rows - mean).T, dtype=np.float64))
    return mean, axes[:, ::-1].T.astype(np.float32)


def unit(rows: Rows) -> Rows:
    """Rows of length 1."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


if __name__ == "__main__":
    run_script(main)
