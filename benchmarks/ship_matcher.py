r"""Put a trained matcher into the package, where `kjax.load_matcher("NAME")` finds it.

    python benchmarks/ship_matcher.py best --matcher out/matcher --views views.npz \
        --card card.json

NAME is the name of the shipped weights whose descriptors it matches, or sift. With -kjax at the
end, the matcher is for the keypoints of the detector kjax. Writes NAME.npz (in half precision),
NAME.json and NAME.md to kjax/weights/trained/matchers, and the checksums of all cards to
SHA256SUMS; commit all of them. --views are the files it was trained on, or sets cut from
the same photos, all of which must be in the ledger; a matcher of map_matcher.py has those of its
base. card.json holds:

    {"summary": "…", "command": "…", "commit": "…", "seed": 0, "pairs": 768000,
     "hardware": "NVIDIA H200", "results": {"precision": 0.9, "recall": 0.8}, "evaluation": "…",
     "limits": ["…"], "licence": "Apache-2.0"}
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import program
from map_matcher import with_map
from model_card import MATCHER_FIELDS, matcher_page
from ship import check_name, photographs_of, read_facts, write_part

from kjax.data.phototour import SetPhotograph
from kjax.data.sets import read_photographs
from kjax.errors import InputError
from kjax.images.describer import weights_sha256
from kjax.interrupts import run_script
from kjax.matcher.view_set import read_view_set
from kjax.matcher.weights import MatcherWeights, find_matcher, read_matcher, save_matcher
from kjax.weights import shipped
from kjax.weights.source import LoadedModel, load_source

SIFT = "sift"
"""Name of the matcher of RootSIFT, for which there are no weights."""
TURN_ERROR = 1e-4
"""Maximum relative difference from a rotation; float32 rounds at 6e-8."""


def run(args: argparse.Namespace) -> None:
    """Write the three files, and load them as a check."""
    check_name(args.name)
    weights = read_matcher(find_matcher(args.matcher))
    described = args.name.removesuffix("-kjax")
    if args.trained_for:
        before, after = load_source(args.trained_for), load_source(described)
        weights = turned(weights, before, after, described)
    own = "" if args.name == SIFT else shipped.card(described).sha256
    if weights.described_with.sha256 != own:
        raise InputError(f"the matcher is for other weights than the shipped {described}")
    if weights.base:
        base = json.loads(shipped.matcher_file(weights.base).with_suffix(".json").read_bytes())
        listed = {name: base[name] for name in ("photographs", "ledger_sha256")}
    else:
        listed = photographs_of({str(path): photographs_in(path) for path in args.views})
    facts = read_facts(args.card) | listed | {"described_with": weights.described_with.name}
    how = {"fields": MATCHER_FIELDS, "page": matcher_page, "save": save_matcher}
    write_part(args.name, shipped.MATCHERS, weights, facts, **how)
    read_matcher(shipped.matcher_file(args.name))


def photographs_in(path: Path) -> Sequence[SetPhotograph]:
    """Return the photos of a view set's file, or of a patch set's folder."""
    return read_photographs(str(path)) if path.is_dir() else read_view_set(path).photographs


def turned(
    weights: MatcherWeights, before: LoadedModel, after: LoadedModel, name: str
) -> MatcherWeights:
    """Return the same matcher for rotated descriptors: its first layer rotates them back.

    Args:
        weights: of a matcher.
        before: weights that it was trained for.
        after: weights whose descriptors are rotated.
        name: of these weights.
    """
    if weights.described_with.sha256 != weights_sha256(before):
        raise InputError("the matcher was trained for other weights than --trained-for")
    old, new = (
        np.asarray(one.variables["params"]["head"]["kernel"], "f8") for one in (before, after)
    )
    if old.shape != new.shape:
        raise InputError("the shipped weights have another head than --trained-for: retrain it")
    turn = np.linalg.lstsq(old, new, rcond=None)[0]
    apart = np.abs(old @ turn - new).max() / np.abs(new).max()
    if max(apart, np.abs(turn.T @ turn - np.eye(len(turn))).max()) > TURN_ERROR:
        raise InputError("the shipped weights are not rotated --trained-for: retrain it")
    origin = dataclasses.replace(weights.described_with, name=name, sha256=weights_sha256(after))
    return dataclasses.replace(with_map(weights, turn.T), described_with=origin)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    add = parser.add_argument
    add("name", help="shipped weights that the matcher is for")
    add("--matcher", required=True, help="workdir or file")
    add("--views", type=Path, nargs="*", default=[], help="training views, or sets")
    add("--card", type=Path, required=True, help="JSON file with the facts about the matcher")
    add("--trained-for", metavar="WEIGHTS", help="weights of which NAME's are a rotation")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main)
