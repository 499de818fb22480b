"""Descriptors of HPatches' patches as the CSV files that the official toolbox reads."""

from pathlib import Path

from tqdm import tqdm

from kjax.baselines import BASELINES, baseline_file
from kjax.data.hpatches import IMAGES, list_sequences, read_sequence
from kjax.errors import InputError
from kjax.eval.entries import find_entry
from kjax.eval.hpatches.descriptors import describe_sequences, write_descriptors
from kjax.files.atomic import write_json
from kjax.files.json import parse_json
from kjax.version import __version__

RECORD = "kjax-describe-patches.json"
"""Name of the file beside the sequences that says which descriptor they are of."""


def describe_patches(
    folder: Path,
    source: str,
    out: Path,
    *,
    weights: str | None = None,
    overwrite: bool = False,
) -> int:
    """Write one CSV file per image and return the number of sequences; finished ones are skipped.

    Args:
        folder: HPatches' folder, one subfolder per sequence.
        source: shipped name, workdir, weights file[:head,s=…], or rival. A rival's name wins: use
            kjax-hardnet for kjax's own.
        out: folder of the CSV files.
        weights: FILE or RIVAL=FILE of a learned rival.
        overwrite: replace files of another descriptor.
    """
    sequences = list_sequences(folder)
    rival_weights = {}
    if weights is not None:
        if source not in BASELINES:
            raise InputError(f"weights are for learned rivals, and {source} is not one: omit them")
        named = weights if weights.startswith(f"{source}=") else f"{source}={weights}"
        rival_weights = dict([baseline_file(named)])
    entry = find_entry(source, weights=rival_weights)
    if entry.missing is not None:
        raise InputError(entry.missing)
    if len(entry.members) != 1:
        raise InputError(f"{source} has {len(entry.members)} sets of weights: choose one")
    describe, identity = entry.members[0].describe, entry.members[0].identity
    check_same_source(out, source, identity, overwrite=overwrite)
    for path in tqdm(sequences, desc=entry.name, unit="sequence"):
        if all((out / path.name / f"{image}.csv").exists() for image in IMAGES):
            continue
        described = describe_sequences(
            lambda patches: describe(patches, progress=False), [read_sequence(path)]
        )
        write_descriptors(described, out, progress=False)
    return len(sequences)


def check_same_source(out: Path, source: str, identity: str, *, overwrite: bool) -> None:
    """Raise if another descriptor's files are in `out`; record this descriptor otherwise.

    The official toolbox looks at the folders of sequences only, so the record may lie beside them.
    """
    files = sorted(out.glob("*/*.csv"))
    try:
        before = parse_json((out / RECORD).read_bytes())
        recorded, made = before["identity"], f"was made by {before['source']}"
    except (OSError, ValueError, KeyError, TypeError):
        recorded, made = None, "does not say what made it"
    if overwrite:
        # Before anything is written: an interrupted run never leaves files of two descriptors.
        for file in files:
            file.unlink()
    elif files and recorded != identity:
        raise InputError(f"{out} {made}: overwrite it, or choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RECORD, {"source": source, "identity": identity, "kjax": __version__})
