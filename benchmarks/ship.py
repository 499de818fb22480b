r"""Put trained weights into the package, where `kjax.load("NAME")` finds them.

    python benchmarks/ship.py hardnet --weights weights.npz --card card.json \
        --sets data/liberty data/yosemite

Writes NAME.npz, NAME.json and NAME.md to kjax/weights/trained, and the checksums of all cards to
SHA256SUMS; commit all of them. --sets are all sets that the weights and their teacher were trained
on; their photos must be in the ledger (ledger.py). card.json holds:

    {"summary": "…", "model": {the group of that name in the run's config.json},
     "data": [{"name": "liberty", "origin": "…"}, {"name": "yosemite", "origin": "…"}],
     "command": "…", "commit": "…", "seed": 0, "pairs": 20000000, "hardware": "NVIDIA H200",
     "results": {"fpr95/notredame": 0.0049, "hpatches/full/python/matching": 0.52},
     "evaluation": "run_eval.py … on …", "limits": ["…"], "licence": "Apache-2.0",
     "extent": 12, "ratio": 0.94}

and "nested": [32, 64] if the training had config.loss.nested=(32, 64). All else is measured. The
NAME.json of shipped weights can be the card of their replacement.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import program
from ledger import find_photographs, scenes_digest, seal_folder, summarize
from model_card import DESCRIPTOR_FIELDS, Card, check_card, descriptor_page

from kjax.data.phototour import SetPhotograph
from kjax.data.sets import read_photographs
from kjax.errors import InputError
from kjax.files.atomic import sha256, write_json, write_text
from kjax.interrupts import run_script
from kjax.model.descriptor import parameter_count
from kjax.weights import shipped
from kjax.weights.files import load_variables, save_variables
from kjax.weights.source import load_shipped, model_of

LARGEST = 6_000_000
"""Maximum size of a weights file in bytes."""


def run(args: argparse.Namespace) -> None:
    """Write the three files of a model, and load them as a check; bad input writes nothing."""
    check_name(args.name)
    photographs = photographs_of({name: read_photographs(name) for name in args.sets})
    dtype = np.dtype(np.float16 if args.half else np.float32)
    measured = {"name": args.name, "parameters": 0, "precision": dtype.name, "sha256": "unknown"}
    card = check_card(read_facts(args.card) | photographs | measured, DESCRIPTOR_FIELDS)
    names = {one["name"] for one in card["data"]}
    if odd := {Path(name).name for name in args.sets} ^ names:
        raise InputError(f"--sets and the card's data must name the same sets: see {min(odd)}")
    variables = load_variables(args.weights, model_of(card["model"]))
    variables = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), variables)
    check_arrays(variables, dtype)
    save_variables(shipped.FOLDER / f"{args.name}.npz", variables)
    digest = sha256(shipped.FOLDER / f"{args.name}.npz")
    card |= {"parameters": parameter_count(variables), "sha256": digest}
    write_json(shipped.FOLDER / f"{args.name}.json", card)
    write_text(shipped.FOLDER / f"{args.name}.md", descriptor_page(card))
    seal_folder()
    load_shipped(args.name)
    print(f"{args.name} ships: {card['parameters']:,} parameters")


def write_part(
    name: str,
    part: str,
    weights: Any,
    facts: Mapping[str, Any],
    *,
    fields: Mapping[str, type],
    page: Callable[[Card], str],
    save: Callable[[Path, Any], None],
) -> None:
    """Write the three files of a matcher or detector, in half precision, to the folder `part`."""
    check_arrays(weights.params, np.float16)
    count = sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    measured = {"name": name, "parameters": count, "sha256": "unknown"}
    card = check_card({**facts, **measured}, fields)
    path = shipped.FOLDER / part / f"{name}.npz"
    half = jax.tree.map(lambda leaf: leaf.astype(np.float16), weights.params)
    save(path, dataclasses.replace(weights, params=half))
    card["sha256"] = sha256(path)
    write_json(path.with_suffix(".json"), card)
    write_text(path.with_suffix(".md"), page(card))
    seal_folder()
    print(f"{name} ships in {part}: {count:,} parameters")


def check_name(name: str) -> None:
    """Raise if a name is not a portable file name."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or name.startswith(shipped.PREFIX):
        raise InputError(
            f"unsupported name {name!r}: use lower-case letters, digits and single dashes, without "
            f"the prefix {shipped.PREFIX}"
        )


def check_arrays(variables: Any, dtype: Any) -> None:
    """Raise if arrays are not finite in the precision that ships, or too large."""
    leaves = [leaf.astype(dtype) for leaf in jax.tree.leaves(variables)]
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        raise InputError(f"the weights have values that are not finite as {np.dtype(dtype)}")
    if (size := sum(leaf.nbytes for leaf in leaves)) > LARGEST:
        raise InputError(f"the weights have {size / 1e6:.1f} MB: at most 6 MB are allowed")


def read_facts(path: Path) -> dict[str, Any]:
    """Read a card's JSON object."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a JSON object ({error})") from None


def photographs_of(sets: Mapping[str, Sequence[SetPhotograph]]) -> dict[str, Any]:
    """Return a card's fields about the photos of sets; raise if one is not in the ledger."""
    ledger = shipped.photographs()
    found = []
    for name, listed in sets.items():
        known, strangers = find_photographs(listed, ledger)
        if strangers:
            remedy = "add it with benchmarks/ledger.py"
            raise InputError(f"{name}: {strangers[0].name} is not in the ledger: {remedy}")
        found += known
    groups = summarize(found)
    return {
        "photographs": [dataclasses.asdict(group) for group in groups],
        "ledger_sha256": scenes_digest(groups, ledger),
    }


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("name", help="lower-case letters, digits and dashes")
    add("--weights", type=Path, required=True, help="file of the weights")
    add("--card", type=Path, required=True, help="JSON file with the facts about them")
    add("--half", action="store_true", help="store the weights in half precision")
    add("--sets", nargs="+", required=True, help="folders of all training sets")


if __name__ == "__main__":
    run_script(main)
