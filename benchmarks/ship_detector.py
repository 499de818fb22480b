r"""Put a trained detector into the package, where `kjax.load(detector="NAME")` finds it.

    python benchmarks/ship_detector.py kjax --detector out/detector --photos photos \
        --card card.json

Writes NAME.npz (in half precision), NAME.json and NAME.md to kjax/weights/trained/detectors, and
the checksums of all cards to SHA256SUMS; commit all of them. --photos are the folders that it was
trained on, all of whose photos must be in the ledger. card.json is as for ship_matcher.py.
"""

import argparse
import dataclasses
from pathlib import Path

import jax
import numpy as np
import program
from ledger import seal_folder
from model_card import COMMON_FIELDS, check_card, detector_page
from ship import check_arrays, check_name, photographs_of, read_facts

from kjax.data.photo_points import photographs_in
from kjax.files.atomic import sha256, write_json, write_text
from kjax.interrupts import run_script
from kjax.keypoints.weights import find_file, read_detector, save_detector
from kjax.weights import shipped


def run(args: argparse.Namespace) -> None:
    """Write the three files, and load them as a check."""
    check_name(args.name)
    weights = read_detector(find_file(args.detector))
    check_arrays(weights.params, np.float16)
    facts = read_facts(args.card) | photographs_of(
        {str(folder): photographs_in(folder) for folder in args.photos}
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    measured = {"name": args.name, "parameters": count, "sha256": "unknown"}
    card = check_card(facts | measured, COMMON_FIELDS)
    folder = shipped.FOLDER / shipped.DETECTORS
    half = jax.tree.map(lambda leaf: leaf.astype(np.float16), weights.params)
    save_detector(folder / f"{args.name}.npz", dataclasses.replace(weights, params=half))
    card["sha256"] = sha256(folder / f"{args.name}.npz")
    write_json(folder / f"{args.name}.json", card)
    write_text(folder / f"{args.name}.md", detector_page(card))
    seal_folder()
    read_detector(shipped.detector_file(args.name))
    print(f"the detector {args.name} ships: {card['parameters']:,} parameters")


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("name", help="lower-case letters, digits and dashes")
    add("--detector", required=True, help="workdir or file")
    add("--photos", type=Path, nargs="+", required=True, help="folders of the training photos")
    add("--card", type=Path, required=True, help="JSON file with the facts about the detector")


if __name__ == "__main__":
    run_script(main)
