"""`kjax export`: a model for use without kjax."""

import argparse
from pathlib import Path

from kjax.cli.checks import check_count, check_weights
from kjax.errors import InputError

HELP = "write a model for use elsewhere: StableHLO, ONNX, or weights for PyTorch; or a matcher"
EXAMPLES = """examples:
  kjax export out/first --to descriptor.onnx
  kjax export hardnet --to hardnet.onnx
  kjax export out/first --seed 1 --to descriptor.stablehlo --input uint8
  kjax export best --to descriptor.onnx --batch 64
  kjax export out/nested --to short.onnx --dimension 64
  kjax export weights.npz:polar,s=1 --to polar.pth
  kjax export out/matcher --to matcher.onnx
  kjax export best --matcher --to matcher.stablehlo --keypoints 2048

SOURCE is the name of shipped weights (`kjax info` lists them), the workdir of a training run, or a
weights file; if its weights fit several heads, with the head and its fields behind a colon. The
suffix of FILE tells the format:

  .stablehlo                    the function from patches [B,N,N] to descriptors, for jax.export
  .onnx                         the same for onnxruntime, OpenCV 4.10 and later, and others; input
                                "patches", output "descriptors"
  .pth, .pt, …                  a PyTorch state dict
  .safetensors                  the same weights, without PyTorch, with the head, s, patch size,
                                extent and origin as metadata
  .npz                          the same weights alone

Functions take any number of patches, or --batch of them, and have BatchNorm folded into their
weights. A file is kept only if, read back and run, it gives what JAX gives: to 1e-4 in every entry,
on random patches.

OpenCV takes float32 patches of any range, with an axis for the one colour:

  net = cv2.dnn.readNetFromONNX("descriptor.onnx")
  net.setInput(patches[:, None])    # [B,1,N,N]; or cv2.dnn.blobFromImages(list(patches))
  descriptors = net.forward()       # [B,128]

A learned matcher, by its matcher.npz or workdir or with --matcher, becomes .stablehlo or .onnx, and
is kept only if it gives the matches that kjax gives: see docs/howto/matcher.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a shipped name, a workdir, or FILE[:head,s=…]"
    )
    parser.add_argument("--to", required=True, metavar="FILE", help="what to write")
    parser.add_argument(
        "--input",
        metavar="DTYPE",
        help="of the patches that a function takes: float32 (the default) or uint8",
    )
    parser.add_argument(
        "--batch",
        type=int,
        metavar="B",
        help="how many patches a function takes at once, for programs that must know; otherwise "
        "any number",
    )
    parser.add_argument(
        "--matcher", action="store_true", help="the matcher that ships under the name"
    )
    parser.add_argument(
        "--keypoints",
        type=int,
        metavar="N",
        help="of each photograph that a matcher takes; otherwise any number",
    )
    parser.add_argument("--seed", type=int, help="which model of a run with several")
    parser.add_argument(
        "--dimension", type=int, metavar="D", help="fewer numbers, of weights trained for it"
    )


def run(args: argparse.Namespace) -> int:
    """Exports, and tells how well the result agrees with JAX."""
    check_weights(args.source)
    if args.keypoints is not None:
        check_count("--keypoints", args.keypoints)

    from kjax.matcher.weights import holds_matcher

    if args.matcher or holds_matcher(args.source):
        return _export_matcher(args)
    if args.keypoints is not None:
        raise InputError("--keypoints is for matchers: descriptors have --batch")
    return _export_descriptor(args)


def _export_matcher(args: argparse.Namespace) -> int:
    from kjax.export.matcher import export_matcher
    from kjax.matcher.weights import find_matcher, read_matcher

    for option in ("input", "batch", "seed", "dimension"):
        if getattr(args, option) is not None:
            raise InputError(f"--{option} is for descriptors, and {args.source} is a matcher")
    path = Path(args.to)
    weights = read_matcher(find_matcher(args.source))
    difference = export_matcher(path, weights, keypoints=args.keypoints)
    print(
        f"wrote {path}: a matcher of {weights.about.described_with.name}, "
        f"{path.stat().st_size / 1e6:.1f} MB, within {difference:.0e} of kjax"
    )
    return 0


def _export_descriptor(args: argparse.Namespace) -> int:
    from kjax.export.model import FUNCTIONS, export_model
    from kjax.weights.facts import remarks
    from kjax.weights.identify import display_name
    from kjax.weights.source import load_source

    path = Path(args.to)
    for option, value in (("--input", args.input), ("--batch", args.batch)):
        if value is not None and path.suffix not in FUNCTIONS:
            raise InputError(
                f"{option} is for {' and '.join(FUNCTIONS)}: other files hold weights only"
            )
    source = load_source(args.source, seed=args.seed, dimension=args.dimension)
    difference = export_model(
        path,
        source.model,
        source.variables,
        input_dtype=args.input or "float32",
        batch=args.batch,
        extent=source.known_extent,
        nested=source.nested,
        ratio=source.known_ratio,
        remarks=remarks(source),
    )
    size = source.model.patch_size
    print(
        f"wrote {path}: {display_name(source.model)}, {size}×{size} patches, "
        f"{path.stat().st_size / 1e6:.1f} MB, within {difference:.0e} of JAX"
    )
    return 0
