"""`kjax info`: what weights, matchers, a file or a run hold, and which weights ship with kjax."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from kjax.weights import shipped as pretrained
from kjax.weights.matchers import matcher_card, matcher_names

HELP = "tell what weights, a training run or an exported file are: head, size, training, scores"
EXAMPLES = """examples:
  kjax info                       the weights that ship with kjax
  kjax info hardnet               one of them: origin, licence, training, results, limits
  kjax info out/first             a workdir, of a run that is finished or still going on
  kjax info checkpoint.pth        a weights file; :head,s=… behind it checks that it fits
  kjax info best.safetensors      the same; such files of kjax tell their head and origin themselves
  kjax info descriptor.onnx       an exported file
  kjax info out/matcher           a trained matcher; also its matcher.npz
  kjax info best --matcher        the matcher that ships for these weights
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="a shipped name, a workdir, a weights file, or an exported file; none lists the names",
    )
    parser.add_argument(
        "--matcher", action="store_true", help="of the matcher that ships under the name"
    )


def run(args: argparse.Namespace) -> int:
    """Prints one fact per line, or one shipped model."""
    if args.source is None:
        return _list_shipped()

    from kjax.export.model import FUNCTIONS, read_about
    from kjax.matcher.weights import holds_matcher, matcher_facts
    from kjax.weights.facts import facts
    from kjax.weights.source import load_sources

    if args.matcher or holds_matcher(args.source):
        print_facts(matcher_facts(args.source))
    elif Path(args.source).suffix in FUNCTIONS:
        print_facts(read_about(args.source))
    else:
        print_facts(facts(load_sources(args.source)))
    return 0


def _list_shipped() -> int:
    """Prints the names of the weights that ship with kjax, and what they are."""
    cards = {name: pretrained.card(name) for name in pretrained.list_weights()}
    if not cards:
        print("no weights ship with this version of kjax")
        return 0
    about = {
        name: card.summary if card.name == name else f"the same as {card.name}"
        for name, card in cards.items()
    }
    told = {name: f"{text}; for {cards[name].use}" for name, text in about.items()}
    for name in matcher_names():
        card = matcher_card(name)
        told[f"{name} --matcher"] = f"{card.summary}; for {card.use}"
    print_facts(told)
    return 0


def print_facts(facts: Mapping[str, str]) -> None:
    """Prints labels in one column and texts in the next."""
    width = max(len(label) for label in facts)
    for label, text in facts.items():
        print(f"{label:{width}}  {text}")
