"""`kjax convert`: weights from one file format to another."""

import argparse
from pathlib import Path

from kjax.cli.checks import check_weights
from kjax.errors import unknown_name

HELP = "convert weights between PyTorch's formats, .safetensors and .npz"
EXAMPLES = """examples:
  kjax convert checkpoint_liberty.pth hardnet.npz        HardNet's released weights
  kjax convert weights.npz:polar,s=1 polar.safetensors   checked against that head
  kjax convert out/first first.pth                       the weights of a training run
  kjax convert hardnet hardnet.pth                       weights that ship with kjax

All formats hold the same names (those of HardNet's release) and numbers, so nothing is lost either
way. Weights that fit several heads are converted without asking which they are for. Of weights of
which more is known, .safetensors also holds the head, s, patch size and extent, as metadata: such a
file needs nothing behind its name.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "source", metavar="IN", help="a weights file, FILE:head,s=…, a workdir, or a shipped name"
    )
    parser.add_argument("target", metavar="OUT", help="a weights file; its suffix is the format")
    parser.add_argument("--seed", type=int, help="which model of a run with several")


def run(args: argparse.Namespace) -> int:
    """Converts, and tells what was found."""
    check_weights(args.source)

    from kjax.cli.info import print_facts
    from kjax.weights.facts import facts, metadata_of
    from kjax.weights.files import SUFFIXES, save_variables
    from kjax.weights.source import load_source

    target = Path(args.target)
    if target.suffix not in SUFFIXES:
        raise unknown_name("file type", target.suffix, SUFFIXES)
    source = load_source(args.source, seed=args.seed)
    save_variables(target, source.variables, metadata=metadata_of(source))
    print_facts(facts([source]))
    print(f"wrote {target}")
    return 0
