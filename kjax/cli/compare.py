"""`kjax compare`: JAX against PyTorch on the same weights and patches."""

import argparse
from typing import TYPE_CHECKING

from kjax.errors import InputError
from kjax.extras import require

if TYPE_CHECKING:
    from kjax.parity.compare import Difference

HELP = "compare the JAX implementation with PyTorch: layers, descriptor, loss, gradient, training"
EXAMPLES = """examples:
  kjax compare                                        combined_star, s=2, random weights
  kjax compare --head hardnet --weights checkpoint.pth
  kjax compare --head hardnet --weights hardnet       weights that ship with kjax
  kjax compare --head polar --s 1 --steps 100

Each difference is given in float32 and in float64. Training amplifies rounding by orders of
magnitude within a few steps (the hardest negative is an arg min), so trained parameters are judged
in float64; everything before them in float32. The exit code is 1 if a limit is passed.
"""

LIMITS = {"layer": 1e-5, "descriptor": 1e-5, "loss": 1e-5, "gradient": 1e-4}
"""Largest difference allowed in float32: absolute, for gradients relative."""
TRAINED_LIMIT = 1e-3
"""Largest relative difference allowed in float64 after training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--head", default="combined_star", help="one of kjax.HEADS (%(default)s)")
    parser.add_argument("--s", type=int, default=2, help="number of frequencies (%(default)s)")
    parser.add_argument("--patch-size", type=int, default=32, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--weights", metavar="FILE", help="or a shipped name (kjax info); otherwise random weights"
    )
    parser.add_argument("--pairs", type=int, default=8, help="pairs in a batch (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="training steps (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=10.0, help="(%(default)s)")
    parser.add_argument("--anchor-swap", action="store_true", help="HardNet's mining rule")
    parser.add_argument("--seed", type=int, default=0, help="of weights and patches (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Prints the table and a verdict."""
    import jax
    import numpy as np
    from tqdm import tqdm

    from kjax.data.samples import stereo_patch_pairs
    from kjax.model.descriptor import build
    from kjax.train.losses import LossConfig
    from kjax.train.step import StepConfig
    from kjax.weights.files import load_state_dict
    from kjax.weights.source import weights_path
    from kjax.weights.torch_names import from_torch, to_torch

    require("torch", "the comparison")
    from kjax.parity.compare import Settings, compare, random_state_dict

    if args.pairs < 2 or args.steps < 1:
        raise InputError(
            "--pairs must be at least 2 (mining needs another pair), --steps at least 1"
        )
    jax.config.update("jax_enable_x64", True)
    model = build(args.head, s=args.s, patch_size=args.patch_size)
    settings = {
        dtype: Settings(
            head=args.head,
            s=args.s,
            patch_size=args.patch_size,
            dtype=dtype,
            learning_rate=args.learning_rate,
            steps=args.steps,
            step=StepConfig(loss=LossConfig(anchor_swap=args.anchor_swap)),
        )
        for dtype in ("float32", "float64")
    }
    if args.weights:
        weights = to_torch(from_torch(load_state_dict(weights_path(args.weights)), model))
    else:
        weights = random_state_dict(settings["float32"], seed=args.seed)
    pairs = stereo_patch_pairs(args.pairs * args.steps, size=args.patch_size, seed=args.seed)
    batches = np.split(pairs, args.steps)
    columns = {
        dtype: list(tqdm(compare(settings[dtype], weights, batches), desc=dtype, unit=" rows"))
        for dtype in settings
    }
    return _print_table(columns["float32"], columns["float64"])


def _print_table(single: "list[Difference]", double: "list[Difference]") -> int:
    """Prints the table of both precisions and returns the exit code."""
    width = max(len(row.quantity) for row in single)
    print(f"{'':{width}}   {'float32':^21}   {'float64':^21}")
    print(f"{'JAX − PyTorch':{width}}" + f"   {'largest':>9}   {'relative':>9}" * 2)
    failed = []
    for low, high in zip(single, double, strict=True):
        numbers = (low.largest, low.relative, high.largest, high.relative)
        passed = _within_limits(low, high)
        print(f"{low.quantity:{width}}   " + "   ".join(f"{x:9.1e}" for x in numbers), end="")
        print("" if passed else "   too large")
        failed += [] if passed else [low.quantity]
    print(f"{len(single) - len(failed)} of {len(single)} rows within their limits")
    return 1 if failed else 0


def _within_limits(single: "Difference", double: "Difference") -> bool:
    """Whether a row is as small as it should be."""
    kind = single.quantity.split()[0]
    if kind not in LIMITS:
        return double.relative <= TRAINED_LIMIT
    return (single.relative if kind == "gradient" else single.largest) <= LIMITS[kind]
