"""`kjax info`: details of weights, matchers, training runs and exported files."""

import argparse
from pathlib import Path

from kjax.cli.options import PARTS, add_option
from kjax.weights import shipped

HELP = "show details of weights, a training run or an exported file"
EXAMPLES = """examples:
  kjax info                       list the shipped weights
  kjax info hardnet               one of them: licence, size, score, training
  kjax info hardnet --verbose     also its limits, photographs and training command
  kjax info out/first             a workdir, of a finished or a running training
  kjax info checkpoint.pth        a weights file; append :head,s=… to check that it fits
  kjax info descriptor.onnx       an exported file
  kjax info out/matcher           a trained matcher; also its matcher.npz
  kjax info best --part matcher   the shipped matcher of these weights
"""
DETAILS = {"command", "commit", "evaluated", "limits", "photographs", "sets", "sha256 of npz"}
"""Labels of long texts, shown by --verbose."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "shipped name, workdir, weights file or exported file (default: list shipped names)"
    parser.add_argument("source", metavar="NAME", nargs="?", help=text)
    add_option(parser, "--part", PARTS, "PART", "what to show", default="descriptor")
    parser.add_argument("--verbose", action="store_true", help="show all that is known")


def run(args: argparse.Namespace) -> int:
    """Print one fact per line, or one shipped model per line."""
    if args.source is None:
        cards = {name: shipped.card(name) for name in shipped.list_weights()}
        for name in shipped.list_matchers():
            cards[f"{name} --part matcher"] = shipped.matcher_card(name)
        for name in shipped.list_detectors():
            cards[f"{name} --part detector"] = shipped.detector_card(name)
        facts = {name: card.summary.partition(";")[0] for name, card in cards.items()}
        facts["use"] = "; ".join(sorted({card.use for card in cards.values()}))
    else:
        from kjax.export.files import ONNX, STABLEHLO, read_facts
        from kjax.keypoints.weights import detector_facts, holds_detector
        from kjax.matcher.weights import holds_matcher, matcher_facts
        from kjax.weights import source

        if args.part == "matcher" or holds_matcher(args.source):
            facts = matcher_facts(args.source)
        elif args.part == "detector" or holds_detector(args.source):
            facts = detector_facts(args.source)
        elif Path(args.source).suffix in (ONNX, STABLEHLO):
            facts = read_facts(args.source)
        else:
            found = source.load_sources(args.source)
            facts = source.facts(found)
            if len(found) == len(found[0].candidates) == 1:
                facts["load"] = f'kjax.load("{args.source}"), or --weights {args.source}'
    if not args.verbose and DETAILS & facts.keys():
        facts = {label: text for label, text in facts.items() if label not in DETAILS}
        facts["more"] = "--verbose shows everything"
    width = max(len(label) for label in facts)
    for label, text in facts.items():
        print(f"{label:{width}}  {text}")
    return 0
