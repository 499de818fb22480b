"""`kjax bench`: how fast weights describe patches on this machine, beside HardNet in PyTorch."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speed.inference import Candidate, RateRow

KJAX, ONNX_FILE = "kjax", "exported"
"""How the names of rows begin; PyTorch's begin otherwise."""
HELP = "measure how many patches a second weights describe here, beside HardNet in PyTorch"
EXAMPLES = """examples:
  kjax bench                                  all that ships, against kornia's HardNet
  kjax bench best --channels 16,16,32,32,64,64
  kjax bench out/first --dtypes float32 --json speed.json
  kjax bench hardnet --batches 1024 4096 16384 --patches 262144 --repeats 10

All take turns, and the best time of each counts. "in memory": patches and descriptors stay on the
device; "end to end": from uint8 NumPy arrays to float32 ones. Ratios are to PyTorch at its best
batch size, in the same place, and to onnxruntime with the file that `kjax export` writes, where it
is installed. On a CPU, kjax runs a batch on one core or little more, and as many batches at a time
as there are cores: fewer batches than cores leave some idle.
"""

DTYPES = ("float32", "bfloat16")
ON_CPU = {"dtypes": DTYPES[:1], "batches": (16, 64)}
PATCHES_PER_CORE = 256
ON_ACCELERATORS = {"dtypes": DTYPES, "batches": (1024, 4096), "patches": 65536}
"""What is measured by default. As a rule, CPUs have no arithmetic of their own for bfloat16."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="*",
        help="shipped names, workdirs or weights files (default: all that ships)",
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, help="(float32; on accelerators both)"
    )
    parser.add_argument(
        "--batches", nargs="+", type=int, metavar="N", help="(16 64; on accelerators 1024 4096)"
    )
    parser.add_argument(
        "--patches", type=int, metavar="N", help="in a run (256 a core; on accelerators 65536)"
    )
    parser.add_argument(
        "--channels",
        action="append",
        default=[],
        type=channels,
        metavar="C,C,C,C,C,C",
        help="of an untrained light model, to measure as well",
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="kjax alone")
    parser.add_argument("--json", metavar="FILE", help="also write all figures there")


def channels(text: str) -> tuple[int, ...]:
    """Six numbers with commas between them."""
    return tuple(int(part) for part in text.split(","))


def run(args: argparse.Namespace) -> int:
    """Measures, and prints a Markdown table."""
    import dataclasses
    from pathlib import Path

    from kjax.cli.checks import check_weights

    for source in args.sources:
        check_weights(source)

    import jax
    from speed.inference import kjax_candidates, measure, surroundings, untrained

    from kjax.errors import InputError
    from kjax.files.atomic import write_json
    from kjax.model.describe import cores
    from kjax.weights.shipped import list_weights
    from kjax.weights.source import load_source

    defaults: dict[str, Any] = ON_ACCELERATORS
    if jax.default_backend() == "cpu":
        defaults = ON_CPU | {"patches": PATCHES_PER_CORE * cores()}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if min(*args.batches, args.patches, args.repeats) < 1:
        raise InputError("--batches, --patches and --repeats must be at least 1")
    notes: list[str] = []
    candidates = _torch_candidates(args.batches, args.patches, notes) if args.torch else []
    models = {}
    for source in args.sources or list_weights():
        found = load_source(source)
        models[source] = found.model, found.variables
    for widths in args.channels:
        models[f"combined {'-'.join(map(str, widths))}"] = untrained(widths)
    for source, model in models.items():
        candidates += kjax_candidates(source, *model, args.dtypes, args.batches, args.patches)
        candidates += _onnx_candidates(source, *model, args.batches, args.patches)
    rows = measure(candidates, repeats=args.repeats)
    about = surroundings()
    compared = with_ratios(rows)
    _print_report(about, compared, notes)
    if args.json:
        settings = {"patches": args.patches, "repeats": args.repeats}
        figures = [dataclasses.asdict(row) | ratios for row, ratios in compared]
        report = {"surroundings": about, "settings": settings, "rows": figures, "notes": notes}
        write_json(Path(args.json), report)
    return 0


def _torch_candidates(batches: Sequence[int], patches: int, notes: list[str]) -> "list[Candidate]":
    """The candidates in PyTorch, or a note that there are none."""
    from kjax.errors import InputError
    from kjax.extras import require

    try:
        require("torch", "the comparison with HardNet")
    except InputError as error:
        notes.append(f"nothing to compare with: {error}")
        return []
    import jax
    import torch
    from speed import torch_inference

    device = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend())
    if device is None or (device == "cuda" and not torch.cuda.is_available()):
        notes.append("nothing to compare with: this PyTorch does not see the accelerator")
        return []
    found = list(torch_inference.torch_candidates(batches, patches, notes, device=device))
    if any(candidate.name == torch_inference.TWIN for candidate in found):
        notes.append("kornia is not installed: kjax's own HardNet in PyTorch stands in for it")
    return found


def _onnx_candidates(
    source: str, model: Any, variables: Any, batches: Sequence[int], patches: int
) -> "list[Candidate]":
    """The exported file's candidates, on CPUs where its packages are installed."""
    import importlib.util

    import jax
    from speed.inference import onnx_candidates

    packages = ("onnx", "onnxruntime")
    if jax.default_backend() != "cpu" or not all(map(importlib.util.find_spec, packages)):
        return []
    return list(onnx_candidates(source, model, variables, batches, patches))


def with_ratios(rows: "Sequence[RateRow]") -> list[tuple["RateRow", dict[str, float]]]:
    """Each row with its rate over others' in the same place.

    They are PyTorch's eager float32, its best, and the exported file of the same weights.
    """
    compared = []
    for row in rows:
        torch = [other for other in rows if is_torch(other) and other.place == row.place]
        eager = max((other.rate for other in torch if other.variant == "float32"), default=None)
        best = max((other.rate for other in torch), default=None)
        ratios = {"× torch float32": eager}
        if len({other.variant for other in torch}) > 1:
            ratios["× best torch"] = best
        own = row.name.replace(KJAX, ONNX_FILE, 1)
        if own != row.name:
            exported = (each for each in rows if (each.name, each.place) == (own, row.place))
            ratios["× exported"] = max((each.rate for each in exported), default=None)
        compared.append((row, {name: row.rate / rate for name, rate in ratios.items() if rate}))
    return compared


def is_torch(row: "RateRow") -> bool:
    """Whether a row is PyTorch's."""
    return not row.name.startswith((f"{KJAX} ", f"{ONNX_FILE} "))


def _print_report(
    about: dict[str, Any],
    compared: "Sequence[tuple[RateRow, dict[str, float]]]",
    notes: Sequence[str],
) -> None:
    """Prints what was measured where, and the table."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    print(
        f"{about['device']}, {about['processor']}, {about['cores']} cores and threads; {versions}\n"
    )
    columns = list(dict.fromkeys(name for _, ratios in compared for name in ratios))
    print("| " + " | ".join(["", "precision", "", "batch", "patches/s", *columns]) + " |")
    print("|---" * (5 + len(columns)) + "|")
    for row, ratios in compared:
        cells = [row.name, row.variant, row.place, f"{row.batch}", f"{row.rate:,.0f}"]
        cells += [f"{ratios[name]:.2f}" if name in ratios else "–" for name in columns]
        print("| " + " | ".join(cells) + " |")
    for note in notes:
        print(f"\n{note}")
