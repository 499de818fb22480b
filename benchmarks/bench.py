"""Measure how many patches per second weights describe, beside HardNet in PyTorch.

    python benchmarks/bench.py                    all shipped weights and kornia's HardNet
    python benchmarks/bench.py out/first --dtypes float32
    python benchmarks/bench.py hardnet --batches 1024 4096 16384 --patches 262144 --repeats 10

All take turns, and the best time of each counts. "in memory": patches and descriptors stay on the
device. "end to end": from uint8 NumPy arrays to float32 ones. Ratios are to PyTorch at its best
batch size in the same place, and to onnxruntime with the file that `kjax export` writes. On a CPU,
kjax runs one batch per core: fewer batches than cores leave some idle.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jax
import program
from speed import inference

from kjax.errors import InputError
from kjax.extras import require
from kjax.interrupts import run_script
from kjax.model.describe import cores
from kjax.weights.shipped import list_weights
from kjax.weights.source import load_source

DTYPES = ("float32", "bfloat16")
ON_CPU = {"dtypes": DTYPES[:1], "batches": (16, 64)}
PATCHES_PER_CORE = 256
ON_ACCELERATORS = {"dtypes": DTYPES, "batches": (1024, 4096), "patches": 65536}
"""Default measurements. CPUs rarely have bfloat16 arithmetic."""


def run(args: argparse.Namespace) -> None:
    """Measure, and print a Markdown table."""
    defaults: dict[str, Any] = ON_ACCELERATORS
    if jax.default_backend() == "cpu":
        defaults = ON_CPU | {"patches": PATCHES_PER_CORE * cores()}
    program.fill_defaults(args, defaults)
    models = {}
    for source in args.sources or list_weights():
        found = load_source(source)
        models[source] = found.model, found.variables
    runs = torch_runs(args.batches, args.patches) if args.torch else []
    for source, model in models.items():
        runs += inference.kjax_runs(source, *model, args.dtypes, args.batches, args.patches)
        runs += inference.onnx_runs(source, *model, args.batches, args.patches)
    rows = inference.measure(runs, repeats=args.repeats)
    inference.print_surroundings()
    ratios = [ratios_of(row, rows) for row in rows]
    columns = list(dict.fromkeys(name for each in ratios for name in each))
    cells = [
        [
            *(row[name] for name in ("name", "variant", "place", "batch")),
            f"{row['rate']:,.0f}",
            *(f"{own[name]:.2f}" if name in own else "–" for name in columns),
        ]
        for row, own in zip(rows, ratios, strict=True)
    ]
    print(program.table(("", "precision", "", "batch", "patches/s", *columns), cells, text=3))


def torch_runs(batches: Sequence[int], patches: int) -> list[inference.TimedRun]:
    """Return the runs of PyTorch; if there are none, report why."""
    try:
        torch = require("torch", "the comparison with HardNet")
    except InputError as error:
        print(f"nothing to compare with: {error}", file=sys.stderr)
        return []
    from speed import torch_inference

    device = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend())
    if device is None or (device == "cuda" and not torch.cuda.is_available()):
        print("nothing to compare with: PyTorch does not see the accelerator", file=sys.stderr)
        return []
    return list(torch_inference.torch_runs(batches, patches, device))


def ratios_of(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return a row's rate over those of PyTorch and of its exported file in the same place."""
    here = [other for other in rows if other["place"] == row["place"]]
    torch = [other for other in here if not other["name"].startswith(("kjax ", "exported "))]
    eager = [other for other in torch if other["variant"] == "float32"]
    groups = {"× torch float32": eager}
    if len({other["variant"] for other in torch}) > 1:
        groups["× best torch"] = torch
    if row["name"].startswith("kjax "):
        own = row["name"].replace("kjax", "exported", 1)
        groups["× exported"] = [other for other in here if other["name"] == own]
    return {
        name: row["rate"] / max(other["rate"] for other in others)
        for name, others in groups.items()
        if others
    }


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("sources", metavar="SOURCE", nargs="*", help="shipped names, workdirs or weights files")
    add("--dtypes", nargs="+", choices=DTYPES, help="(default: float32; on accelerators both)")
    add("--batches", nargs="+", type=int, metavar="N", help="(default: 16 64; accelerators 1024…)")
    add("--patches", type=int, metavar="N", help="per run (default: 256 per core; 65536)")
    add("--repeats", type=int, default=3, metavar="N", help="rounds (default: 3)")
    add("--no-torch", dest="torch", action="store_false", help="measure kjax alone")


if __name__ == "__main__":
    run_script(main)
