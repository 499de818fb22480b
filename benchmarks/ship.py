r"""Puts trained weights into the package, where `kjax.load("NAME")` finds them.

    python benchmarks/ship.py hardnet --weights weights.npz --card card.json \
        --sets data/liberty data/yosemite

Writes NAME.npz, NAME.json and NAME.md into kjax/weights/trained, and the hashes of all cards into
SHA256SUMS; commit all of them. The sets are those that the weights, and a teacher of theirs,
learned from: all of their photographs must be in the ledger (ledger.py). card.json holds, with
everything a value and nothing else (`model_card.Card` says what each means):

    {"summary": "…", "model": {the group of that name in the run's config.json},
     "data": [{"name": "liberty", "origin": "…"}, {"name": "yosemite", "origin": "…"}],
     "command": "…", "commit": "…", "seed": 0, "pairs": 20000000, "hardware": "NVIDIA H200",
     "results": {"fpr95/notredame": 0.0049, "hpatches/full/python/matching": 0.52},
     "evaluation": "run_eval.py … on …", "limits": ["…"], "licence": "Apache-2.0"}

and "nested": [32, 64] if the training had config.loss.nested=(32, 64). The rest is
measured. A NAME.json that ships already is a card, too, for new weights in its stead.
"""

import argparse
import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ledger import find_photographs, scenes_digest, seal_folder, summarize
from model_card import Card, make_card, model_card

from kjax.data.phototour import SetPhotograph
from kjax.data.sets import read_photographs
from kjax.errors import InputError, exit_code
from kjax.files.atomic import sha256, write_json, write_text, write_whole
from kjax.interrupts import run_script
from kjax.model.descriptor import parameter_count
from kjax.weights import shipped
from kjax.weights.files import load_variables, save_variables
from kjax.weights.source import load_shipped, model_of

LARGEST = 6_000_000
"""Bytes of a weights file: the package must stay quick to install."""
PRECISION = "float32"


def main(argv: Sequence[str] | None = None) -> int:
    """Ships one model; bad input is one line on stderr and exit code 2."""
    args = make_parser().parse_args(argv)
    return exit_code("ship", lambda: run(args))


def run(args: argparse.Namespace) -> None:
    """Ships what is asked for, and says so."""
    card = ship(args.name, args.weights, args.card, args.sets)
    size = (shipped.FOLDER / f"{card.name}.npz").stat().st_size / 1e6
    print(f"{card.name} ships: {card.parameters:,} parameters, {size:.1f} MB")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="small letters, digits and dashes")
    parser.add_argument("--weights", type=Path, help="file of the weights")
    parser.add_argument("--card", type=Path, help="JSON file: what is known about them")
    parser.add_argument("--sets", nargs="+", default=[], help="folders of all training sets")
    return parser


def ship(name: str, weights: Path | None, card_file: Path | None, sets: Sequence[str] = ()) -> Card:
    """Writes the three files of a model, and loads them to see that they work.

    Raises:
        InputError: the name, the weights or the card will not do. Nothing has been written.
    """
    check_name(name)
    if weights is None or card_file is None or not sets:
        raise InputError("give --weights FILE, --card FILE and --sets SET…")
    given = read_card(card_file) | photographs_of({name: read_photographs(name) for name in sets})
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / f"{name}.npz"
        begun = _card(name, given)
        _check_sets(begun, sets)
        variables = _store(stored, weights, begun)
        card = dataclasses.replace(
            begun,
            parameters=parameter_count(variables),
            sha256=sha256(stored),
        )
        page = model_card(card)
        write_whole(shipped.FOLDER / stored.name, lambda partial: shutil.copyfile(stored, partial))
    write_json(shipped.FOLDER / f"{name}.json", dataclasses.asdict(card))
    write_text(shipped.FOLDER / f"{name}.md", page)
    seal_folder()
    load_shipped(name)
    return card


def check_name(name: str) -> None:
    """Refuses a name that cannot be a file's everywhere."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or name.startswith(shipped.PREFIX):
        raise InputError(
            f"{name!r} will not do: small letters, digits and single dashes, and no "
            f"{shipped.PREFIX} in front"
        )


def read_card(path: Path) -> dict[str, Any]:
    """What a JSON file tells."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object")
    return content


def photographs_of(sets: Mapping[str, Sequence[SetPhotograph]]) -> dict[str, Any]:
    """What a card tells about the photographs of sets."""
    ledger = shipped.photographs()
    found = []
    for name, listed in sets.items():
        known, strangers = find_photographs(listed, ledger)
        if strangers:
            raise InputError(
                f"{name}: {strangers[0].name} is not in the ledger: add it with "
                "benchmarks/ledger.py"
            )
        found += known
    groups = summarize(found)
    return {
        "photographs": [dataclasses.asdict(group) for group in groups],
        "ledger_sha256": scenes_digest(groups, ledger),
    }


def _check_sets(card: Card, sets: Sequence[str]) -> None:
    given = {Path(name).name for name in sets}
    if odd := given ^ {one["name"] for one in card.data}:
        raise InputError(f"--sets and data of the card must name the same sets: see {min(odd)}")


def _card(name: str, given: dict[str, Any]) -> Card:
    """The card as far as it is known before the weights are stored."""
    measured = {"name": name, "parameters": 0, "precision": PRECISION, "sha256": "unknown"}
    return make_card(Card, given | measured)


def _store(path: Path, weights: Path, card: Card) -> Any:
    """Writes the weights as they ship, and returns them."""
    variables = load_variables(weights, model_of(card.model))
    variables = jax.tree.map(lambda leaf: np.asarray(leaf, np.dtype(PRECISION)), variables)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(variables)):
        raise InputError(f"{weights} holds numbers that are not finite")
    save_variables(path, variables)
    size = path.stat().st_size
    if size > LARGEST:
        raise InputError(
            f"{weights} would ship as {size / 1e6:.1f} MB: at most {LARGEST / 1e6:g} MB are allowed"
        )
    return variables


if __name__ == "__main__":
    run_script(main)
