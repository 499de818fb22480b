r"""Puts a trained matcher into the package, where `kjax.load_matcher("NAME")` finds it.

    python benchmarks/ship_matcher.py best --matcher out/matcher --views views.npz \
        --card card.json

NAME is that of the shipped weights whose descriptors it matches. Writes NAME.npz, in half
precision, NAME.json and NAME.md into kjax/weights/trained/matchers, and the hashes of all cards
into SHA256SUMS; commit all of them. The views are those that it learned from, or folders that list
the same photographs as sets do: all of them must be in the ledger. card.json holds
(`model_card.MatcherCard` says what each means):

    {"summary": "…", "command": "…", "commit": "…", "seed": 0, "pairs": 768000,
     "hardware": "NVIDIA H200", "results": {"precision": 0.9, "recall": 0.8}, "evaluation": "…",
     "limits": ["…"], "licence": "Apache-2.0"}
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from ledger import seal_folder
from model_card import MatcherCard, make_card, photographs_table, table
from ship import LARGEST, check_name, photographs_of, read_card

from kjax.data.phototour import SetPhotograph
from kjax.data.sets import read_photographs
from kjax.errors import InputError, exit_code
from kjax.files.atomic import sha256, write_json, write_text
from kjax.images.weights_checksum import weights_sha256
from kjax.interrupts import run_script
from kjax.matcher.view_set import read_view_set
from kjax.matcher.weights import MatcherWeights, find_matcher, read_matcher, save_matcher
from kjax.weights import shipped
from kjax.weights.source import LoadedModel, load_source

TURN_ERROR = 1e-4
"""By which weights may differ from a turn of others: float32 rounds at 6e-8."""


def main(argv: Sequence[str] | None = None) -> int:
    """Ships one matcher; bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the weights that it is for")
    parser.add_argument("--matcher", required=True, help="workdir or file")
    parser.add_argument("--views", type=Path, nargs="+", required=True, help="it learned from")
    parser.add_argument("--card", type=Path, required=True, help="JSON file: what is known of it")
    parser.add_argument(
        "--trained-for", metavar="WEIGHTS", help="of which NAME's are a turn (kjax refit)"
    )
    args = parser.parse_args(argv)
    return exit_code("ship_matcher", lambda: run(args))


def run(args: argparse.Namespace) -> None:
    """Writes the three files, and reads them to see that they work."""
    check_name(args.name)
    weights = read_matcher(find_matcher(args.matcher))
    if args.trained_for:
        before, after = load_source(args.trained_for), load_source(args.name)
        weights = turned(weights, before, after, args.name)
    _check(args.name, weights)
    told = photographs_of({str(path): _photographs(path) for path in args.views})
    measured = {
        "name": args.name,
        "described_with": args.name,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(weights.params)),
        "sha256": "unknown",
    }
    card = make_card(MatcherCard, read_card(args.card) | told | measured)
    folder = shipped.FOLDER / shipped.MATCHERS
    half = jax.tree.map(lambda leaf: leaf.astype(np.float16), weights.params)
    save_matcher(folder / f"{args.name}.npz", dataclasses.replace(weights, params=half))
    card = dataclasses.replace(card, sha256=sha256(folder / f"{args.name}.npz"))
    write_json(folder / f"{args.name}.json", dataclasses.asdict(card))
    write_text(folder / f"{args.name}.md", page(card))
    seal_folder()
    read_matcher(shipped.matcher_file(args.name))
    print(f"the matcher {card.name} ships: {card.parameters:,} parameters")


def turned(
    weights: MatcherWeights, before: LoadedModel, after: LoadedModel, name: str
) -> MatcherWeights:
    """The same matcher for descriptors that were turned: its first layer turns them back.

    Args:
        weights: of a matcher.
        before: what it was trained for.
        after: of descriptors that are those, turned.
        name: of these weights.

    Raises:
        InputError: it was trained for others, or these are no turn of them.
    """
    if weights.about.described_with.sha256 != weights_sha256(before):
        raise InputError("the matcher was trained for other weights than --trained-for")
    old, new = (
        np.asarray(one.variables["params"]["head"]["kernel"], "f8") for one in (before, after)
    )
    if old.shape != new.shape:
        raise InputError("the shipped weights are of another head than --trained-for: train anew")
    turn = np.linalg.lstsq(old, new, rcond=None)[0]
    apart = np.abs(old @ turn - new).max() / np.abs(new).max()
    if max(apart, np.abs(turn.T @ turn - np.eye(len(turn))).max()) > TURN_ERROR:
        raise InputError("the shipped weights are no turn of --trained-for: train anew")
    embedding = weights.params["embedding"]
    kernel = np.asarray(embedding["input"]["kernel"], "f8")
    back = np.concatenate([turn.T @ kernel[: len(turn)], kernel[len(turn) :]]).astype(np.float32)
    params = {
        **weights.params,
        "embedding": {**embedding, "input": {**embedding["input"], "kernel": back}},
    }
    origin = dataclasses.replace(
        weights.about.described_with, name=name, sha256=weights_sha256(after)
    )
    return MatcherWeights(dataclasses.replace(weights.about, described_with=origin), params)


def _photographs(views: Path) -> Sequence[SetPhotograph]:
    return read_photographs(str(views)) if views.is_dir() else read_view_set(views).photographs


def _check(name: str, weights: MatcherWeights) -> None:
    """Refuses a matcher of other weights than the name's, or one that is broken or too large."""
    own = shipped.card(name)
    if weights.about.described_with.sha256 != own.sha256:
        raise InputError(f"the matcher is for other weights than the shipped {name}: train anew")
    leaves = jax.tree.leaves(weights.params)
    if not all(np.isfinite(leaf.astype(np.float16)).all() for leaf in leaves):
        raise InputError("the matcher has numbers that half precision cannot hold")
    if (size := 2 * sum(leaf.size for leaf in leaves)) > LARGEST:
        raise InputError(f"the matcher would ship as {size / 1e6:.1f} MB: at most 6 are allowed")


def page(card: MatcherCard) -> str:
    """The card for people."""
    parts = [
        f"# The matcher {card.name}",
        card.summary,
        f"A learned matcher for the descriptors of [`{card.described_with}`]"
        f"(../{card.described_with}.md), with {card.parameters:,} parameters in half precision.",
        f"```bash\nkjax match a.jpg b.jpg --weights {card.described_with} --method learned\n```",
        f"SHA-256 of `{card.name}.npz`, checked at every loading: `{card.sha256}`",
        "## Data and licence",
        photographs_table(card.photographs),
        f"Licence of the weights: {card.licence}. Use: {card.use}.",
        "## Training",
        f"{card.pairs:,} pairs, seed {card.seed}, on {card.hardware}; kjax at commit "
        f"`{card.commit}`:",
        f"```bash\n{card.command}\n```",
        "## Results",
        table(("metric", "value"), shipped.readable_results(card.results).items()),
        card.evaluation,
        "## Limits",
        "\n".join(f"- {limit}" for limit in card.limits),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    run_script(main)
