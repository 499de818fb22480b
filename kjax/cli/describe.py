"""`kjax describe`: write keypoints and descriptors of photographs."""

import argparse
import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

from kjax.cli import options
from kjax.cli.options import HDF5, add_option
from kjax.errors import InputError, plural
from kjax.extras import require
from kjax.files.atomic import sha256

HELP = "write keypoints and descriptors of photographs, for hloc, COLMAP or NumPy"
EXAMPLES = """examples:
  kjax describe photos --out features.h5                            # hloc's HDF5
  kjax describe a.jpg --out a.npz                                   # one photograph
  kjax describe a.jpg 'shots/*.png' --weights hardnet.pth --out features     # one .npz each
  kjax describe photos --weights out/first --out features --format colmap    # one .txt each
  kjax describe photos --out small.h5 --quantize binary             # 32 bytes per descriptor

Names in the output are paths below the folder, or below the common parent of several files or
folders: photos/a photos/b gives a/000.jpg and b/000.jpg.

Descriptors are float32. --quantize stores bytes, compared by L2 (uint8), or bits, compared by
Hamming distance (binary). COLMAP's text has bytes for COLMAP's own matcher: run colmap
feature_importer, then colmap exhaustive_matcher.

Run the same command to resume. An output of other settings or photographs is refused; --overwrite
replaces it. Photographs that cannot be read are reported and skipped; the exit code is then 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    text = "files, folders or glob patterns"
    parser.add_argument("photographs", nargs="+", metavar="IMAGE", help=text)
    text = ".h5 file, a folder, or .npz for one photograph"
    add_option(parser, "--out", Path, "PATH", text, required=True)
    text = "format of files in a folder"
    add_option(parser, "--format", ("npz", "colmap"), "NAME", text, default="npz")
    options.add_features(parser, advanced, detector="SIFT-steady")
    text = "replace an output of other settings"
    parser.add_argument("--overwrite", action="store_true", help=text)
    options.add_shared(advanced, "--quantize")


def run(args: argparse.Namespace) -> int:
    """Describe the photographs that are not in the output yet."""
    options.check_features(args)
    stored = args.quantize or "float32"
    one_file = args.out.suffix == ".npz" and not args.out.is_dir()
    if args.out.suffix.lower() in HDF5:
        require("h5py", f"--out {args.out}")
        options.check_output_file(args.out)
    elif one_file:
        options.check_output_file(args.out)
    else:
        if args.out.suffix and not args.out.exists():
            raise InputError(
                f"--out {args.out}: use a name that ends with .h5 or .npz, or a folder; if "
                f"{args.out} is meant as a folder, create it first"
            )
        options.check_output_folder(args.out)
        if args.format == "colmap":
            if args.quantize:
                raise InputError("--format colmap has its own bytes: omit --quantize")
            stored = "COLMAP's bytes"
    photographs = options.named_photographs(args.photographs)
    if one_file and (len(photographs) > 1 or args.format != "npz"):
        raise InputError(f"--out {args.out} holds one photograph: give a folder, or .h5")

    from tqdm import tqdm

    from kjax.data.cutting.keypoints import SIFT_PIXELS
    from kjax.data.cutting.photographs import grey_values, in_order, read_reduced
    from kjax.images.describer import load
    from kjax.images.exchange.outputs import Output, check_same_settings
    from kjax.images.runner import keep_compiled_programs

    keep_compiled_programs()
    describer = load(args.weights, **options.model_options(args))
    describer.max_side, describer.upright = args.max_side, args.upright
    settings = describer.feature_settings(args.keypoints, stored=stored)
    output = Output(args.out, list(photographs), form=args.format, overwrite=args.overwrite)
    check_same_settings(output, args.out, settings)
    for name, path in photographs.items():
        recorded = output.recorded.get(name)
        if recorded and path.is_file() and recorded["photograph"] != sha256(path):
            raise InputError(
                f"{args.out} has another photograph as {name} than {path}: use --overwrite, or "
                "another --out"
            )
    missing = {name: path for name, path in photographs.items() if name not in output.recorded}

    def detect(photograph: tuple[str, Path]) -> Any:
        own = settings | {"photograph": sha256(photograph[1])}
        pixels, size = read_reduced(photograph[1], args.max_side)
        grey = grey_values(pixels)
        with alone if grey.size > SIFT_PIXELS // 2 else contextlib.nullcontext():
            describe = describer.detected(grey, max_keypoints=args.keypoints, upright=args.upright)
        return own, size, describe

    failed, alone = 0, threading.Lock()  # detection and description both need much memory
    # A second thread detects keypoints of the next photograph while this one is described.
    detected = in_order(detect, missing.items(), threads=1)
    bar = tqdm(detected, desc="describing", unit="photo", total=len(missing), disable=not missing)
    with output:
        for (name, path), future in bar:
            try:
                own, size, describe = future.result()
                with alone:
                    features = describe().resized(size)
            except (InputError, OSError) as error:
                tqdm.write(f"kjax describe: left out: {error}", file=sys.stderr)
                failed += 1
                continue
            if args.quantize:
                features = features.quantized(args.quantize)
            if not len(features):
                tqdm.write(f"kjax describe: no keypoints in {path}", file=sys.stderr)
            output.add(name, features, own)
    count, before = len(photographs), len(photographs) - len(missing)
    done = count - failed
    there = f"{plural('photograph', count)} {'is' if done == 1 else 'are'} in {args.out}"
    print(f"{done} of {count} {there}" + (f", {before} of them from before" if before else ""))
    return 1 if failed else 0
