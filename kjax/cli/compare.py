"""`kjax compare`: JAX against PyTorch on the same weights and patches."""

import argparse

from kjax.cli.options import add_option, at_least, positive
from kjax.extras import require
from kjax.model import HEADS

HELP = "compare the JAX implementation with PyTorch: layers, descriptor, loss, gradient, training"
EXAMPLES = """examples:
  kjax compare                                        combined_star, s=2, random weights
  kjax compare --head hardnet --weights checkpoint.pth
  kjax compare --head hardnet --weights hardnet       shipped weights
  kjax compare --head polar --s 1 --steps 100

The table has differences in float32 and in float64. Training amplifies rounding by orders of
magnitude within a few steps (the hardest negative is an arg min), so trained parameters are judged
in float64, all other rows in float32. The exit code is 1 if a difference is too large.
"""
LIMITS = {"layer": 1e-5, "descriptor": 1e-5, "loss": 1e-5, "gradient": 1e-4}
"""Maximum difference in float32: relative for gradients, otherwise absolute."""
TRAINED_LIMIT = 1e-3
"""Maximum relative difference in float64 after training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    add_option(parser, "--head", HEADS, "NAME", "model", default="combined_star")
    add_option(parser, "--s", at_least(1), "N", "number of frequencies", default=2)
    add_option(parser, "--patch-size", at_least(1), "PX", "side of the patches", default=32)
    text = "widths of concentric patches, e.g. 1 4"
    add_option(parser, "--context", positive(), "X", text, unset="one patch", nargs="+")
    text = "weights file or shipped name"
    add_option(parser, "--weights", str, "NAME", text, unset="random weights")
    add_option(parser, "--steps", at_least(1), "N", "number of training steps", default=20)
    add_option(advanced, "--pairs", at_least(2), "N", "pairs per batch", default=8)
    add_option(advanced, "--learning-rate", positive(), "X", "initial learning rate", default=10.0)
    advanced.add_argument("--anchor-swap", action="store_true", help="HardNet's mining rule")
    add_option(advanced, "--seed", int, "N", "random seed", default=0)


def run(args: argparse.Namespace) -> int:
    """Print the table and a verdict."""
    import jax
    import numpy as np
    from tqdm import tqdm

    from kjax.data.embedded import stereo_patch_pairs
    from kjax.runs.config import LossConfig
    from kjax.train.step import StepConfig
    from kjax.weights.files import load_state_dict
    from kjax.weights.source import weights_path
    from kjax.weights.torch_names import from_torch, to_torch

    require("torch", "the comparison")
    from kjax.parity.compare import Comparison, compare, random_state_dict

    jax.config.update("jax_enable_x64", True)
    context = tuple(args.context or (1.0,))
    single, double = (
        Comparison(
            head=args.head,
            s=args.s,
            patch_size=args.patch_size,
            dtype=dtype,
            learning_rate=args.learning_rate,
            steps=args.steps,
            step=StepConfig(loss=LossConfig(anchor_swap=args.anchor_swap)),
            context=context,
        )
        for dtype in ("float32", "float64")
    )
    if args.weights:
        state = load_state_dict(weights_path(args.weights))
        weights = to_torch(from_torch(state, single.jax_model()))
    else:
        weights = random_state_dict(single, seed=args.seed)
    count = args.pairs * args.steps * len(context)
    pairs = stereo_patch_pairs(count, size=args.patch_size, seed=args.seed)
    if len(context) > 1:
        pairs = pairs.reshape(-1, len(context), *pairs.shape[1:]).swapaxes(1, 2)
    batches = np.split(pairs, args.steps)
    in_single, in_double = (
        list(tqdm(compare(each, weights, batches), desc=each.dtype, unit=" rows"))
        for each in (single, double)
    )
    width = max(len(row.quantity) for row in in_single)
    print(f"{'':{width}}   {'float32':^21}   {'float64':^21}")
    print(f"{'JAX − PyTorch':{width}}" + f"   {'largest':>9}   {'relative':>9}" * 2)
    failed = 0
    for low, high in zip(in_single, in_double, strict=True):
        kind = low.quantity.split()[0]
        if kind in LIMITS:
            passed = (low.relative if kind == "gradient" else low.largest) <= LIMITS[kind]
        else:
            passed = high.relative <= TRAINED_LIMIT
        numbers = (low.largest, low.relative, high.largest, high.relative)
        line = f"{low.quantity:{width}}   " + "   ".join(f"{x:9.1e}" for x in numbers)
        print(line + ("" if passed else "   too large"))
        failed += not passed
    print(f"{len(in_single) - failed} of {len(in_single)} rows within their limits")
    return 1 if failed else 0
