"""`kjax export`: write a model for use elsewhere, or convert weights."""

import argparse
from pathlib import Path

from kjax.cli import options
from kjax.cli.options import add_option, at_least, path_ending
from kjax.errors import InputError
from kjax.weights import shipped

HELP = "write a model as ONNX or StableHLO, or its weights as .npz, .safetensors or .pth"
EXAMPLES = """examples:
  kjax export best --out descriptor.onnx
  kjax export out/first --seed 1 --out descriptor.stablehlo --input uint8
  kjax export best --out descriptor.onnx --batch 64
  kjax export out/nested --out short.onnx --dimension 64
  kjax export fast --out fast.onnx --dtype int8             # for onnxruntime on CPUs
  kjax export checkpoint_liberty.pth --out hardnet.npz      # HardNet's released weights
  kjax export weights.npz:polar,s=1 --out polar.safetensors
  kjax export out/matcher --out matcher.onnx
  kjax export best --part matcher --out matcher.stablehlo --keypoints 2048
  kjax export best --part matcher --for colmap --out colmap.onnx    # or opencv
  kjax export kjax --part detector --out detector.onnx --size 1024 768

The suffix of --out chooses the format:

  .stablehlo          function from patches [B,N,N] to descriptors, for jax.export
  .onnx               the same for onnxruntime, OpenCV 4.10 and later, and others; input "patches",
                      output "descriptors"
  .npz, .safetensors  weights, with the names of HardNet's release
  .pth, .pt, …        the same as a PyTorch state dict; needs torch

Weights files keep the model, its patch extent, its matching ratio and its origin as metadata.
Functions have BatchNorm folded into their weights. They are read back and compared with JAX on
random patches; a file that differs by more than 1e-4 (int8: 0.1) is not kept.

OpenCV takes float32 patches of any range, with a channel axis:

  net = cv2.dnn.readNetFromONNX("descriptor.onnx")
  net.setInput(patches[:, None])    # [B,1,N,N]; or cv2.dnn.blobFromImages(list(patches))
  descriptors = net.forward()       # [B,128]

Learned matchers are exported to .stablehlo or .onnx: see docs/howto/matcher.md. --for writes the
.onnx file that COLMAP 4 or OpenCV 5 runs in place of LightGlue: see docs/howto/colmap.md.
"""
FUNCTIONS = (".onnx", ".stablehlo")
PROGRAMS = ("colmap", "opencv")
WEIGHTS = (".npz", ".safetensors", ".pth", ".pt", ".params", ".ckpt", ".bin")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    advanced = parser.add_argument_group("advanced options")
    text = "shipped weights, workdir, or FILE[:head,s=…]"
    parser.add_argument("source", metavar="NAME", help=text)
    text = "file to write; its suffix chooses the format"
    add_option(parser, "--out", path_ending(*FUNCTIONS, *WEIGHTS), "PATH", text, required=True)
    add_option(parser, "--part", options.PARTS, "PART", "what to export", default="descriptor")
    text = "type of a function's patches"
    add_option(advanced, "--input", ("float32", "uint8"), "DTYPE", text, unset="float32")
    add_option(advanced, "--batch", at_least(1), "N", "fixed number of patches", unset="any")
    text = "fixed number of keypoints per image, for matchers and detectors"
    add_option(advanced, "--keypoints", at_least(1), "N", text, unset="any; detectors: 2048")
    text = "width and height of a detector's photographs (default: 1024 768)"
    advanced.add_argument("--size", type=at_least(1), nargs=2, metavar=("W", "H"), help=text)
    text = "program that runs a matcher in place of LightGlue"
    add_option(advanced, "--for", PROGRAMS, "NAME", text, unset="kjax's own inputs")
    text = "precision of an .onnx file"
    add_option(advanced, "--dtype", ("float32", "int8"), "NAME", text, unset="float32")
    options.add_shared(advanced, "--seed", "--dimension")


def run(args: argparse.Namespace) -> int:
    """Export, and print how well the result agrees with JAX."""
    listed = {"matcher": shipped.list_matchers, "detector": shipped.list_detectors}
    if args.part == "descriptor" or args.source not in listed[args.part]():
        options.check_weights(args.source)

    from kjax.keypoints.weights import find_file, holds_detector, read_detector
    from kjax.matcher.weights import find_matcher, holds_matcher, read_matcher

    path: Path = args.out
    is_detector = args.part == "detector" or holds_detector(args.source)
    is_matcher = args.part == "matcher" or holds_matcher(args.source)
    is_descriptor = not is_matcher and not is_detector
    is_function = path.suffix.lower() in FUNCTIONS
    if is_matcher and not is_function:
        raise InputError(f"{path}: matchers are exported to {' or '.join(FUNCTIONS)}")
    for option, applies, users in (
        ("keypoints", is_matcher or is_detector, "matchers and detectors"),
        ("size", is_detector, "detectors"),
        ("for", is_matcher and path.suffix.lower() == ".onnx", "matchers as .onnx"),
        ("seed", is_descriptor, "descriptors"),
        ("dimension", is_descriptor, "descriptors"),
        ("input", is_descriptor and is_function, "descriptors as .onnx or .stablehlo"),
        ("batch", is_descriptor and is_function, "descriptors as .onnx or .stablehlo"),
        ("dtype", is_descriptor and path.suffix.lower() == ".onnx", "descriptors as .onnx"),
    ):
        if getattr(args, option) is not None and not applies:
            raise InputError(f"--{option} is only for {users}: omit it")
    if is_matcher:
        from kjax.export.matcher import export_matcher

        weights = read_matcher(find_matcher(args.source))
        difference = export_matcher(
            path, weights, keypoints=args.keypoints, program=getattr(args, "for")
        )
        what = f"matcher of {weights.described_with.name}"
    elif is_detector:
        from kjax.export.detector import export_detector

        (width, height), keypoints = args.size or (1024, 768), args.keypoints or 2048
        found = read_detector(find_file(args.source))
        difference = export_detector(path, found, (width, height), keypoints)
        what = f"detector of {keypoints} keypoints in {width}×{height} pixels"
    else:
        from kjax.export.model import export_model
        from kjax.weights.files import save_variables
        from kjax.weights.info import display_name
        from kjax.weights.source import load_source

        source = load_source(args.source, seed=args.seed, dimension=args.dimension)
        what = " or ".join(display_name(model) for model in source.candidates)
        if not is_function:
            save_variables(path, source.variables, info=source.info)
            print(f"wrote {path}: weights of {what}")
            return 0
        difference = export_model(
            path,
            source.model,
            source.variables,
            input_dtype=args.input or "float32",
            batch=args.batch,
            dtype=args.dtype or "float32",
            info=source.info,
        )
    size = path.stat().st_size / 1e6
    print(f"wrote {path}: {what}, {size:.1f} MB, within {difference:.0e} of JAX")
    return 0
