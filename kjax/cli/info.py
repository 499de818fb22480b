"""`kjax info`: what a file or a run holds."""

import argparse
from collections.abc import Mapping

HELP = "tell what weights, a training run or an exported file are: head, size, training, scores"
EXAMPLES = """examples:
  kjax info out/first             a workdir, of a run that is finished or still going on
  kjax info checkpoint.pth        a weights file; :head,s=… behind it checks that it fits
  kjax info descriptor.onnx       an exported file
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a workdir, a weights file, or an exported file"
    )


def run(args: argparse.Namespace) -> int:
    """Prints one fact per line."""
    from pathlib import Path

    from kjax.interop.export import FUNCTIONS, read_about
    from kjax.interop.source import facts, load_sources

    if Path(args.source).suffix in FUNCTIONS:
        print_facts(read_about(args.source))
    else:
        print_facts(facts(load_sources(args.source)))
    return 0


def print_facts(facts: Mapping[str, str]) -> None:
    """Labels in one column, texts in the next."""
    width = max(len(label) for label in facts)
    for label, text in facts.items():
        print(f"{label:{width}}  {text}")
