"""Measure training speed on one device, input included, beside PyTorch.

    python benchmarks/train.py                       # on a GPU; a few minutes
    python benchmarks/train.py --heads hardnet --precisions bf16 --no-torch
    python benchmarks/train.py --heads hardnet --precisions fp32 --pairs 8 --steps 2 --patches 200

Like `run_train.py`, kjax keeps the set on the device, which samples, gathers and augments the pairs
of every step, many steps per dispatch. PyTorch gets batches that are on the device already: eager
float32 with two passes per step, as the HardNet release does, and variants with autocast,
channels-last and `torch.compile`. Every row is measured in two new processes: with an empty
compilation cache (the cold first step), and with the one that the first has left.

Expected on an H200 with 512 pairs per step in bfloat16: `hardnet` 359,000 pairs/s, 12 times eager
PyTorch and 3.5 times its best; `combined_star` 190,000 pairs/s; 15 s to the first step, 5 s warm.
"""

import time

START = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable, Iterator, Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import program  # noqa: E402

from kjax.interrupts import run_script  # noqa: E402

PAPER_PAIRS = 20_000_000
"""Pairs of the paper's training: ten epochs of two million."""
PATCHES_PER_POINT = 3
SIZE = 32
REPEATS = 3
PRECISIONS = {"bf16": ("bfloat16", "default"), "tf32": ("float32", "tensorfloat32")}
PRECISIONS["fp32"] = ("float32", "highest")
"""The model's dtype, and the precision of float32 matrix products."""
TORCH_VARIANTS = ("eager fp32", "bf16", "bf16 channels-last", "compiled bf16 channels-last")
COLUMNS = ("", "pairs/s", "× torch eager fp32", "× best torch", "peak memory", "20 M pairs")
SECONDS = ("first step, cold", "warm")


def measure_kjax(head: str, precision: str, args: argparse.Namespace) -> dict[str, float]:
    """Return seconds to the first step, pairs per second and peak memory, in this process."""
    import jax

    jax.config.update("jax_compilation_cache_dir", args.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_default_matmul_precision", PRECISIONS[precision][1])

    from kjax.train.parallel import initial_state, make_resident_run

    making_data, data = program.timed(lambda: jax.block_until_ready(synthetic_set(args.patches)))
    made = make_program(head, PRECISIONS[precision][0], args)
    run = make_resident_run(made)
    state, metrics = jax.block_until_ready(run(initial_state(made), data, 1))
    found = {"first_step": time.perf_counter() - START - making_data}
    if args.only_first_step:
        return found
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        state, metrics = jax.block_until_ready(run(state, data, args.steps))
        times.append(time.perf_counter() - begun)
    if not np.isfinite(metrics["loss"]):
        raise RuntimeError("the loss is not finite: the steps cannot be compared")
    memory = jax.local_devices()[0].memory_stats() or {}
    found["rate"] = args.pairs * args.steps / min(times)
    found["memory"] = memory.get("peak_bytes_in_use", 0)
    return found


def make_program(head: str, dtype: str, args: argparse.Namespace) -> Any:
    """Return the paper's training program, on one device."""
    import jax

    import kjax
    from kjax.runs.config import AugmentConfig
    from kjax.train.optim import linear_decay, torch_sgd
    from kjax.train.parallel import DescriptorProgram
    from kjax.train.step import StepConfig

    return DescriptorProgram(
        model=kjax.build(head, s=2, patch_size=SIZE, dtype=dtype),
        optimizer=torch_sgd(linear_decay(10.0, PAPER_PAIRS // args.pairs)),
        pairs=args.pairs,
        step=StepConfig(),
        augment=AugmentConfig(),
        devices=(jax.devices()[0],),
    )


def synthetic_set(count: int) -> Any:
    """Return random patches on the device, three per point."""
    from kjax.data.phototour import PatchSet
    from kjax.data.pipelines import make_resident

    patches = np.random.default_rng(0).integers(0, 256, (count, 64, 64), dtype=np.uint8)
    points = np.arange(count) // PATCHES_PER_POINT
    return make_resident(PatchSet("synthetic", patches, points, Path()))


def measure_torch(head: str, variant: str, args: argparse.Namespace) -> dict[str, float]:
    """Return PyTorch's pairs per second on one resident batch, in this process."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and variant != TORCH_VARIANTS[0]:
        raise SystemExit("this variant is measured on GPUs only")
    step = make_torch_step(head, variant, args.pairs, device)

    def run(steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    run(min(args.steps, 20))
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    steps = min(args.steps, 100)
    return {"rate": args.pairs * steps / min(run(steps) for _ in range(REPEATS)), "memory": memory}


def make_torch_step(head: str, variant: str, pairs: int, device: str) -> Callable[[], None]:
    """Return one SGD step of the reference model."""
    import torch

    from kjax.parity.torch_reference import TorchDescriptor, hardest_in_batch_loss, make_sgd

    layout = torch.channels_last if "channels-last" in variant else torch.contiguous_format
    model = TorchDescriptor(head, s=2, patch_size=SIZE, dropout=0.3)
    model = model.to(device).to(memory_format=layout)
    views = torch.rand(2, pairs, 1, SIZE, SIZE, device=device)
    anchors, positives = (view.to(memory_format=layout) for view in views)
    optimizer = make_sgd(model, 10.0)

    def loss_of(anchors: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled="bf16" in variant):
            described = model(anchors), model(positives)
        return hardest_in_batch_loss(*(view.float() for view in described))

    if "compiled" in variant:
        loss_of = torch.compile(loss_of)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(anchors, positives).backward()
        optimizer.step()

    return step


def in_child(
    measurement: list[str], args: argparse.Namespace, **options: Any
) -> dict[str, float] | None:
    """Measure in a new process; None if it fails, with its last line on stderr."""
    command = [sys.executable, __file__, "--child", *measurement]
    for name in ("steps", "patches", "pairs"):
        command += [f"--{name}", str(getattr(args, name))]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        print(f"{' '.join(measurement)}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(head: str, args: argparse.Namespace) -> Iterator[list[str]]:
    """Measure a head in PyTorch and in kjax; what fails is left out."""

    def gibibytes(found: Mapping[str, float]) -> str:
        return f"{found['memory'] / 2**30:.2f} GiB" if found["memory"] else "–"

    torch: dict[str, float] = {}
    for variant in TORCH_VARIANTS if args.torch and head in args.torch_heads else ():
        if found := in_child(["torch", head, variant], args):
            torch[variant] = found["rate"]
            cells = [f"{found['rate']:,.0f}", "–", "–", gibibytes(found), *3 * "–"]
            yield [f"torch {head}, {variant}", *cells]
    peers = torch.get(TORCH_VARIANTS[0]), max(torch.values(), default=None)
    for precision in args.precisions:
        measurement = ["kjax", head, precision]
        with tempfile.TemporaryDirectory() as cache:
            cold = in_child(measurement, args, cache=cache, only_first_step=True)
            warm = in_child(measurement, args, cache=cache)
        if cold and warm:
            rate = warm["rate"]
            ratios = [f"{rate / other:.1f}" if other else "–" for other in peers]
            seconds = (PAPER_PAIRS / rate, cold["first_step"], warm["first_step"])
            cells = [f"{rate:,.0f}", *ratios, gibibytes(warm), *(f"{one:.1f} s" for one in seconds)]
            yield [f"kjax {head}, {precision}", *cells]


def run(args: argparse.Namespace) -> None:
    """Print the table, or measure one of its numbers for the process that does."""
    if args.child:
        framework, head, how = args.child
        measure = measure_kjax if framework == "kjax" else measure_torch
        print(json.dumps(measure(head, how, args)))
        return
    code = "import jax; d = jax.devices()[0]; print(d.device_kind, 'jax', jax.__version__)"
    device = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    print(f"{device.strip()}: {args.pairs} pairs per step, a set of {args.patches:,} patches\n")
    rows = []
    for row in (row for head in args.heads for row in rows_of(head, args)):
        rows.append(row)
        print(": ".join(row[:2]), "pairs/s", file=sys.stderr, flush=True)
    print(program.table((*COLUMNS, *SECONDS), rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("--heads", nargs="+", default=["hardnet", "combined_star"])
    add("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    add("--torch-heads", nargs="*", default=["hardnet"], help="heads to measure in PyTorch")
    add("--steps", type=int, default=500, help="timed steps, in one dispatch (default: 500)")
    add("--patches", type=int, default=100_000, help="size of the set (default: 100000)")
    add("--pairs", type=int, default=512, help="per step (default: 512)")
    add("--torch", action=argparse.BooleanOptionalAction, default=True)
    add("--child", nargs="+", help=argparse.SUPPRESS)
    add("--cache", help=argparse.SUPPRESS)
    add("--only-first-step", action="store_true", help=argparse.SUPPRESS)


if __name__ == "__main__":
    run_script(main)
