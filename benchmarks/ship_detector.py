r"""Put a trained detector into the package, where `kjax.load(detector="NAME")` finds it.

    python benchmarks/ship_detector.py kjax --detector out/detector --photos photos \
        --card card.json

Writes NAME.npz (in half precision), NAME.json and NAME.md to kjax/weights/trained/detectors, and
the checksums of all cards to SHA256SUMS; commit all of them. --photos are the folders that it was
trained on, all of whose photos must be in the ledger. card.json is as for ship_matcher.py.
"""

import argparse
from pathlib import Path

import program
from model_card import COMMON_FIELDS, detector_page
from ship import check_name, photographs_of, read_facts, write_part

from kjax.data.photo_points import photographs_in
from kjax.interrupts import run_script
from kjax.keypoints.weights import find_file, read_detector, save_detector
from kjax.weights import shipped


def run(args: argparse.Namespace) -> None:
    """Write the three files, and load them as a check."""
    check_name(args.name)
    weights = read_detector(find_file(args.detector))
    photographs = photographs_of({str(one): photographs_in(one) for one in args.photos})
    how = {"fields": COMMON_FIELDS, "page": detector_page, "save": save_detector}
    write_part(args.name, shipped.DETECTORS, weights, read_facts(args.card) | photographs, **how)
    read_detector(shipped.detector_file(args.name))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("name", help="lower-case letters, digits and dashes")
    add("--detector", required=True, help="workdir or file")
    add("--photos", type=Path, nargs="+", required=True, help="folders of the training photos")
    add("--card", type=Path, required=True, help="JSON file with the facts about the detector")


if __name__ == "__main__":
    run_script(main)
