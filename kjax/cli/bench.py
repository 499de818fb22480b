"""`kjax bench`: how fast weights describe patches on this machine, beside HardNet in PyTorch."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kjax.speed.inference import Contender, RateRow

HELP = "measure how many patches a second weights describe here, beside HardNet in PyTorch"
EXAMPLES = """examples:
  kjax bench                                  hardnet and combined-star, against kornia's HardNet
  kjax bench out/first --dtypes float32 --json speed.json
  kjax bench hardnet --batches 1024 4096 16384 --patches 262144 --repeats 10

All take turns, and the best time of each counts. "in memory": patches and descriptors stay on the
device; "end to end": from uint8 NumPy arrays to float32 ones. Ratios are to PyTorch at its best
batch size, in the same place. On a CPU, kjax runs a batch on one core or little more, and as many
batches at a time as there are cores: fewer batches than cores leave some idle.
"""

SOURCES = ("hardnet", "combined-star")
DTYPES = ("float32", "bfloat16")
ON_CPU = {"dtypes": DTYPES[:1], "batches": (64, 256)}
PATCHES_PER_CORE = 128
ON_ACCELERATORS = {"dtypes": DTYPES, "batches": (1024, 4096), "patches": 65536}
"""What is measured by default. As a rule, CPUs have no arithmetic of their own for bfloat16."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="*",
        help=f"shipped names, workdirs or weights files (default: {' '.join(SOURCES)})",
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, help="(float32; on accelerators both)"
    )
    parser.add_argument(
        "--batches", nargs="+", type=int, metavar="N", help="(64 256; on accelerators 1024 4096)"
    )
    parser.add_argument(
        "--patches", type=int, metavar="N", help="in a run (128 a core; on accelerators 65536)"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="kjax alone")
    parser.add_argument("--json", metavar="FILE", help="also write all figures there")


def run(args: argparse.Namespace) -> int:
    """Measures, and prints a Markdown table."""
    import dataclasses
    from pathlib import Path

    from kjax.cli.checks import check_weights

    for source in args.sources:
        check_weights(source)

    import jax

    from kjax.errors import InputError
    from kjax.files.atomic import write_json
    from kjax.model.describe import cores
    from kjax.speed.inference import kjax_contenders, measure, surroundings

    defaults: dict[str, Any] = ON_ACCELERATORS
    if jax.default_backend() == "cpu":
        defaults = ON_CPU | {"patches": PATCHES_PER_CORE * cores()}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if min(*args.batches, args.patches, args.repeats) < 1:
        raise InputError("--batches, --patches and --repeats must be at least 1")
    notes: list[str] = []
    contenders = _torch_contenders(args.batches, args.patches, notes) if args.torch else []
    for source in args.sources or SOURCES:
        contenders += kjax_contenders(source, args.dtypes, args.batches, args.patches)
    rows = measure(contenders, repeats=args.repeats)
    about = surroundings()
    compared = with_ratios(rows)
    _print_report(about, compared, notes)
    if args.json:
        settings = {"patches": args.patches, "repeats": args.repeats}
        figures = [dataclasses.asdict(row) | ratios for row, ratios in compared]
        report = {"surroundings": about, "settings": settings, "rows": figures, "notes": notes}
        write_json(Path(args.json), report)
    return 0


def _torch_contenders(batches: Sequence[int], patches: int, notes: list[str]) -> "list[Contender]":
    """The contenders in PyTorch, or a note that there are none."""
    from kjax.errors import InputError
    from kjax.extras import require

    try:
        require("torch", "the comparison with HardNet")
    except InputError as error:
        notes.append(f"nothing to compare with: {error}")
        return []
    import jax
    import torch

    from kjax.speed import torch_inference

    device = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend())
    if device is None or (device == "cuda" and not torch.cuda.is_available()):
        notes.append("nothing to compare with: this PyTorch does not see the accelerator")
        return []
    found = list(torch_inference.torch_contenders(batches, patches, notes, device=device))
    if any(contender.name == torch_inference.TWIN for contender in found):
        notes.append("kornia is not installed: kjax's own HardNet in PyTorch stands in for it")
    return found


def with_ratios(rows: "Sequence[RateRow]") -> list[tuple["RateRow", dict[str, float]]]:
    """Each row with its rate over PyTorch's in the same place: eager float32's, and the best."""
    compared = []
    for row in rows:
        torch = [other for other in rows if is_torch(other) and other.place == row.place]
        eager = max((other.rate for other in torch if other.variant == "float32"), default=None)
        best = max((other.rate for other in torch), default=None)
        ratios = {"× torch float32": eager}
        if len({other.variant for other in torch}) > 1:
            ratios["× best torch"] = best
        compared.append((row, {name: row.rate / rate for name, rate in ratios.items() if rate}))
    return compared


def is_torch(row: "RateRow") -> bool:
    """Whether a row is PyTorch's."""
    return not row.name.startswith("kjax ")


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
