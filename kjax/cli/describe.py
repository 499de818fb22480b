"""`kjax describe`: photographs to files of keypoints and descriptors."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.cli.checks import check_output_file, check_output_folder, check_quantization
from kjax.cli.feature_options import add_features, check_features
from kjax.counts import plural
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.checksum import sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from kjax.images.describer import Describer
    from kjax.images.exchange.outputs import Output, Settings

HDF5 = (".h5", ".hdf5")
HELP = "describe photographs: keypoints and descriptors for hloc, COLMAP or NumPy"
EXAMPLES = """examples:
  kjax describe photos --out features.h5                            # hloc's HDF5
  kjax describe a.jpg 'shots/*.png' --weights hardnet.pth --out features     # one .npz each
  kjax describe photos --weights out/first --out features --format colmap    # one .txt each
  kjax describe photos --out small.h5 --quantize binary             # 32 bytes a descriptor

Folders are searched for photographs. Of a single folder, names in the output are paths below it; of
several files or folders, paths below the folder that they have in common: photos/a photos/b gives
a/000.jpg and b/000.jpg. What is given twice counts once.

Descriptors are float32, unless --quantize makes them bytes that are compared by L2 (uint8), or bits
that are compared by Hamming distance (binary): see kjax.quantize. The files say which distance.
COLMAP's text has bytes that COLMAP's own matcher compares: colmap feature_importer, then
colmap exhaustive_matcher.

The output says what it was made with: weights, keypoints, extent, patch size, precision, version.
The same command goes on where it stopped. With other settings, or where another photograph has the
name now, it refuses before any work; --overwrite then makes the output anew. Of a folder, only the
files of the given photographs are replaced.

A photograph that cannot be read is reported and left out, and the exit code is then 1. One without
keypoints is reported, and written as such.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("photographs", nargs="+", help="files, folders or patterns")
    parser.add_argument("--out", type=Path, required=True, help="file .h5 or .hdf5, or a folder")
    parser.add_argument("--format", choices=("npz", "colmap"), default="npz", help="in a folder")
    add_features(parser, keypoints=8000, detector="SIFT-steady")
    parser.add_argument("--quantize", metavar="FORM", help="uint8 or binary (float32)")
    parser.add_argument("--overwrite", action="store_true", help="make what is there anew")


def run(args: argparse.Namespace) -> int:
    """Describes photograph after photograph."""
    from kjax.cli.photographs import named_photographs

    check_features(args)
    check_quantization(args.quantize)
    _check_output(args.out)
    stored = _stored(args)
    photographs = named_photographs(args.photographs)

    from kjax.images.compiled_programs import keep_compiled_programs
    from kjax.images.describer import load
    from kjax.images.exchange.outputs import check_same_settings, open_output

    keep_compiled_programs()
    describer = load(args.weights, seed=args.seed, dimension=args.dimension, detector=args.detector)
    settings = describer.feature_settings(args.keypoints, stored=stored)
    output = open_output(args.out, list(photographs), form=args.format, overwrite=args.overwrite)
    check_same_settings(output, args.out, settings)
    missing = _still_missing(output, photographs, args.out)
    with output:
        failed = _describe_into(output, missing, describer, settings)
    _print_summary(
        args.out, len(photographs), failed=failed, before=len(photographs) - len(missing)
    )
    return 1 if failed else 0


def _stored(args: argparse.Namespace) -> str:
    """What descriptors become in the output."""
    if args.format != "colmap" or args.out.suffix.lower() in HDF5:
        return args.quantize or "float32"
    if args.quantize:
        raise InputError("COLMAP's text files have bytes of their own kind: leave out --quantize")
    return "COLMAP's bytes"


def _print_summary(out: Path, count: int, *, failed: int, before: int) -> None:
    """Prints how many of the photographs are there now, and how many were."""
    done = count - failed
    there = f"{plural('photograph', count)} {'is' if done == 1 else 'are'} in {out}"
    print(f"{done} of {count} {there}" + (f", {before} of them from before" if before else ""))


def _check_output(out: Path) -> None:
    """Refuses, before any work, an output that cannot be."""
    if out.suffix.lower() in HDF5:
        require("h5py", f"--out {out}")
        check_output_file(out)
        return
    if out.suffix and not out.exists():
        raise InputError(
            f"--out {out}: features go into a file .h5, or into a folder; if {out} is to be a "
            "folder, make it first"
        )
    check_output_folder(out)


def _still_missing(
    output: "Output", photographs: "Mapping[str, Path]", out: Path
) -> dict[str, Path]:
    """The photographs that are not in the output yet.

    Raises:
        InputError: the output has another photograph by the name of one.
    """
    for name, path in photographs.items():
        recorded = output.recorded.get(name)
        if recorded is None or not path.is_file():
            continue
        if recorded["photograph"] != sha256(path):
            raise InputError(
                f"{out} has another photograph as {name} than {path}: --overwrite makes it anew, "
                "or give another --out"
            )
    return {name: path for name, path in photographs.items() if name not in output.recorded}


def _describe_into(
    output: "Output",
    photographs: "Mapping[str, Path]",
    describer: "Describer",
    settings: "Settings",
) -> int:
    """Adds photographs to the output; returns how many had to be left out."""
    from tqdm import tqdm

    from kjax.data.cutting.grey import grey_values
    from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
    from kjax.data.cutting.photographs import in_order, read_photograph
    from kjax.model.quantization import FORMS

    def find(photograph: tuple[str, Path]) -> "tuple[Settings, np.ndarray, Keypoints]":
        own = settings | {"photograph": sha256(photograph[1])}
        grey = grey_values(read_photograph(photograph[1], upright=False))
        keypoints = detect_in_grey(
            grey, max_keypoints=settings["max_keypoints"], detector=describer.detector
        )
        return own, grey, keypoints

    failed = 0
    # Keypoints of the next photograph are found, in one thread, while this one is described.
    found = in_order(find, photographs.items(), threads=1)
    bar = tqdm(
        found, desc="describing", unit="photo", total=len(photographs), disable=not photographs
    )
    for (name, path), finding in bar:
        try:
            own, grey, keypoints = finding.result()
            features = describer.describe_grey(grey, keypoints)
        except (InputError, OSError) as error:
            tqdm.write(f"kjax describe: left out: {error}", file=sys.stderr)
            failed += 1
            continue
        if settings["stored"] in FORMS:
            features = features.quantized(settings["stored"])
        if not len(features):
            tqdm.write(f"kjax describe: no keypoints in {path}", file=sys.stderr)
        output.add(name, features, own)
    return failed
