"""`kjax info`: details of weights, matchers, training runs and exported files."""

import argparse
from pathlib import Path

from kjax.weights import shipped

HELP = "show details of weights, a training run or an exported file"
EXAMPLES = """examples:
  kjax info                       list the shipped weights
  kjax info hardnet               one of them: origin, licence, training, results, limits
  kjax info out/first             a workdir, of a finished or a running training
  kjax info checkpoint.pth        a weights file; append :head,s=… to check that it fits
  kjax info best.safetensors      a weights file with its head and origin as metadata
  kjax info descriptor.onnx       an exported file
  kjax info out/matcher           a trained matcher; also its matcher.npz
  kjax info best --matcher        the shipped matcher of these weights
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "shipped name, workdir, weights file or exported file (default: list shipped names)"
    parser.add_argument("source", metavar="NAME", nargs="?", help=text)
    parser.add_argument("--matcher", action="store_true", help="show the shipped matcher instead")


def run(args: argparse.Namespace) -> int:
    """Print one fact per line, or one shipped model per line."""
    if args.source is None:
        cards = {name: shipped.card(name) for name in shipped.list_weights()}
        for name in shipped.list_matchers():
            cards[f"{name} --matcher"] = shipped.matcher_card(name)
        facts = {name: f"{card.summary}; for {card.use}" for name, card in cards.items()}
    else:
        from kjax.export.files import ONNX, STABLEHLO, read_facts
        from kjax.matcher.weights import holds_matcher, matcher_facts
        from kjax.weights import source

        if args.matcher or holds_matcher(args.source):
            facts = matcher_facts(args.source)
        elif Path(args.source).suffix in (ONNX, STABLEHLO):
            facts = read_facts(args.source)
        else:
            facts = source.facts(source.load_sources(args.source))
    width = max(len(label) for label in facts)
    for label, text in facts.items():
        print(f"{label:{width}}  {text}")
    return 0
