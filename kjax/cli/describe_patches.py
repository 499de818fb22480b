"""`kjax describe-patches`: HPatches' patches to the official CSV files of descriptors."""

import argparse
from pathlib import Path

from kjax.counts import counted
from kjax.errors import InputError
from kjax.files.atomic import write_json
from kjax.files.json_text import parse_json
from kjax.version import __version__

HELP = "describe the patches of an HPatches folder, as CSV files that the official toolbox reads"
EXAMPLES = """examples:
  kjax describe-patches hpatches-release --source out/first --out results/mine
  kjax describe-patches hpatches-release --source kjax-hardnet --out results/kjax-hardnet
  kjax describe-patches hpatches-release --source rootsift --out results/rootsift
  kjax describe-patches hpatches-release --source tfeat --weights tfeat.params --out results/tfeat
      (or --weights tfeat=tfeat.params, as run_eval.py has it)

A name that a rival has too stands for the rival: kjax-hardnet is kjax's own, hardnet the release's.
The same command goes on where it stopped; into the files of another descriptor it refuses to write,
unless with --overwrite.
"""
RECORD = "kjax-describe-patches.json"
"""Name of the file, in the folder of results, that tells which descriptor they are of."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("folder", type=Path, help="holds one folder per sequence")
    parser.add_argument(
        "--source",
        required=True,
        help="shipped name (kjax info lists them), workdir, weights file[:head,s=…], or rival",
    )
    parser.add_argument("--weights", help="file of a learned rival, or RIVAL=FILE")
    parser.add_argument("--out", type=Path, required=True, help="folder of the CSV files")
    parser.add_argument("--overwrite", action="store_true", help="make what is there anew")


def run(args: argparse.Namespace) -> int:
    """Describes sequence after sequence; those that are there already are left alone."""
    from tqdm import tqdm

    from kjax.data.hpatches import IMAGES, list_sequences, read_sequence

    sequences = list_sequences(args.folder)

    from kjax.eval.entries import find_entry
    from kjax.eval.hpatches.descriptors import describe_sequences, write_descriptors

    entry = find_entry(args.source, weights=rival_weights(args.source, args.weights))
    if entry.missing is not None:
        raise InputError(entry.missing)
    if len(entry.members) != 1:
        raise InputError(f"{args.source} has {len(entry.members)} sets of weights: choose one")
    describe, identity = entry.members[0].describe, entry.members[0].identity
    check_same_source(args.out, args.source, identity, overwrite=args.overwrite)
    for path in tqdm(sequences, desc=entry.name, unit="sequence"):
        if all((args.out / path.name / f"{image}.csv").exists() for image in IMAGES):
            continue
        described = describe_sequences(
            lambda patches: describe(patches, progress=False), [read_sequence(path)]
        )
        write_descriptors(described, args.out, progress=False)
    are = "is" if len(sequences) == 1 else "are"
    print(f"{counted(len(sequences), 'sequence')} {are} in {args.out}")
    return 0


def check_same_source(out: Path, source: str, identity: str, *, overwrite: bool) -> None:
    """Refuses to add to what another descriptor made; leaves a record of this one.

    The official toolbox looks at the folders of sequences only, so the record may lie beside them.
    """
    files = sorted(out.glob("*/*.csv"))
    if overwrite:
        # First, so that what an interrupted run leaves is never of two descriptors.
        for file in files:
            file.unlink()
    elif files and (before := _recorded(out / RECORD)).get("identity") != identity:
        made = f"was made by {before['source']}" if before else "does not say what made it"
        raise InputError(f"{out} {made}: --overwrite makes it anew, or give another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RECORD, {"source": source, "identity": identity, "kjax": __version__})


def _recorded(path: Path) -> dict[str, str]:
    """A record with all its texts; empty if there is none."""
    try:
        record = parse_json(path.read_bytes())
        return {name: str(record[name]) for name in ("source", "identity")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def rival_weights(source: str, word: str | None) -> dict[str, str]:
    """The file that --weights names, by the rival that it is for."""
    from kjax.baselines.load import RIVALS, rival_file

    if word is None:
        return {}
    if source not in RIVALS:
        raise InputError(f"--weights is for learned rivals, and {source} is none: leave it out")
    named = word if word.startswith(f"{source}=") else f"{source}={word}"
    return dict([rival_file(named)])
