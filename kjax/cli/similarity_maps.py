"""`kjax similarity-maps`: draws what each position of one patch responds to in another."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.errors import InputError
from kjax.weights import shipped as pretrained

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from kjax.eval.similarity_maps import ComparedModel
    from kjax.model.descriptor import Descriptor

HELP = "draw the paper's similarity-map figure for two patches"
EXAMPLES = """examples:
  kjax similarity-maps                                two patches of a stereo pair, random weights
  kjax similarity-maps a.png b.png --out maps.png
  kjax similarity-maps --weights hardnet=hardnet.pth --weights xy=xy.npz --s 1
  kjax similarity-maps --heads hardnet --weights hardnet=hardnet     weights that ship with kjax

Columns: the receptive field of position p on patch a, patch b, then one heat map per head. Heads
without --weights have random weights, and the figure says so.
"""

TITLES = {
    "xy": r"$\psi^{xy}$",
    "polar": r"$\psi^{\rho\theta}$",
    "combined": r"$\psi^{c}$",
    "combined_star": r"${}^\star\psi^{c}$",
    "hardnet": "HardNet+",
    "sum": r"$\psi^{sum}$",
    "cat": r"$\psi^{cat}$",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("patches", nargs="*", metavar="PATCH", help="two square grey images")
    parser.add_argument(
        "--heads",
        default="xy,polar,combined,hardnet",
        metavar="A,B,…",
        help="columns of the figure (%(default)s)",
    )
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="HEAD=FILE",
        help="weights of one head, also by shipped name (kjax info); may be given several times",
    )
    parser.add_argument("--s", type=int, default=2, help="number of frequencies (%(default)s)")
    parser.add_argument("--patch-size", type=int, default=32, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--positions",
        default="2,2 3,5 5,4",
        metavar="'R,C …'",
        help="rows and columns on the N/4×N/4 grid (%(default)s)",
    )
    parser.add_argument(
        "--out", default="similarity_maps.png", metavar="FILE", help="(%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random weights (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Draws the figure."""
    import jax

    from kjax.eval.similarity_maps import ComparedModel, draw_similarity_maps
    from kjax.model.descriptor import build

    files = dict(_split(item, "=", "--weights takes HEAD=FILE") for item in args.weights)
    heads = args.heads.split(",")
    if unused := sorted(files.keys() - set(heads)):
        raise InputError(f"--weights names {unused[0]!r}, which is not among --heads {args.heads}")
    positions = [_position(item) for item in args.positions.split()]
    patch_a, patch_b = _read_patches(args)
    methods = {}
    for head in heads:
        model = build(head, s=args.s, patch_size=args.patch_size)
        if head in files:
            methods[TITLES[head]] = _trained(files[head], model)
        else:
            variables = jax.jit(model.init)(jax.random.key(args.seed), patch_a[None])
            methods[TITLES[head]] = ComparedModel(model, variables)
    random = [head for head in heads if head not in files]
    caption = f"random weights: {', '.join(random)}" if random else ""
    draw_similarity_maps(methods, patch_a, patch_b, positions, args.out, caption=caption)
    print(f"wrote {args.out}" + (f" ({caption})" if caption else ""))
    return 0


def _trained(word: str, model: "Descriptor") -> "ComparedModel":
    """Weights from a file, for the model as given; or shipped ones, which bring their own."""
    from kjax.eval.similarity_maps import ComparedModel
    from kjax.weights.files import load_variables
    from kjax.weights.source import load_shipped

    name = pretrained.find(word)
    if name is None:
        return ComparedModel(model, load_variables(word, model))
    source = load_shipped(name)
    if (source.model.head, source.model.patch_size) != (model.head, model.patch_size):
        head, size = source.model.head, source.model.patch_size
        raise InputError(
            f"{word} has another head or size: --weights {head}={word} --patch-size {size}"
        )
    return ComparedModel(source.model, source.variables)


def _read_patches(args: argparse.Namespace) -> "tuple[np.ndarray, np.ndarray]":

    from kjax.data.samples import stereo_patch_pairs

    if not args.patches:
        pair = stereo_patch_pairs(1, size=args.patch_size, seed=args.seed)[0]
        return pair[0], pair[1]
    if len(args.patches) != 2:
        raise InputError(f"give two patches, or none for the sample: not {len(args.patches)}")
    first, second = (_read_patch(Path(name), args.patch_size) for name in args.patches)
    return first, second


def _read_patch(path: "Path", size: int) -> "np.ndarray":
    import numpy as np
    from PIL import Image

    from kjax.files.images import open_image

    with open_image(path) as image:
        grey = image.convert("L")
    if grey.width != grey.height:
        raise InputError(f"{path} is {grey.width}×{grey.height}: a patch must be square")
    return np.asarray(grey.resize((size, size), Image.Resampling.BILINEAR))


def _position(text: str) -> tuple[int, int]:

    row, column = _split(text, ",", "--positions takes ROW,COLUMN")
    try:
        return int(row), int(column)
    except ValueError:
        raise InputError(f"--positions takes whole numbers, not {text!r}") from None


def _split(text: str, separator: str, rule: str) -> tuple[str, str]:

    left, found, right = text.partition(separator)
    if not (left and found and right):
        raise InputError(f"{rule}, not {text!r}")
    return left, right
