"""Options and checks that several commands share. Nothing here imports JAX."""

import argparse
import glob
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kjax.data.cutting import MAX_SIDE
from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.weights import shipped

HDF5 = (".h5", ".hdf5")
DETECTOR = "SIFT-steady, -largest, SIFT, ORB, BRISK, AKAZE, KAZE, kjax, or a trained one's file"
PARTS = ("descriptor", "matcher", "detector")
RESUMABLE = "new folder, or the folder of an earlier run to resume"

# Types of arguments


def at_least(lowest: int) -> Callable[[str], int]:
    """Return the argparse type of integers that are not below `lowest`."""

    def integer(text: str) -> int:
        value = int(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {value}")
        return value

    return integer


def positive(*, most: float = math.inf, zero: bool = False) -> Callable[[str], float]:
    """Return the argparse type of finite positive numbers (or zero) up to `most`."""

    def number(text: str) -> float:
        value = float(text)
        if not (0 < value <= most or (zero and value == 0)) or math.isinf(value):
            limit = "" if math.isinf(most) else f" and at most {most:g}"
            lowest = "at least 0" if zero else "above 0"
            raise argparse.ArgumentTypeError(f"must be {lowest}{limit}, not {text}")
        return value

    return number


def path_ending(*suffixes: str) -> Callable[[str], Path]:
    """Return the argparse type of paths with one of the suffixes, in any case."""

    def path(text: str) -> Path:
        if Path(text).suffix.lower() not in suffixes:
            known = ", ".join(suffixes)
            raise argparse.ArgumentTypeError(f"{text}: unsupported file type: use {known}")
        return Path(text)

    return path


# Options


def add_option(
    group: argparse._ActionsContainer,
    name: str,
    kind: Callable[[str], Any] | tuple[str, ...],
    metavar: str,
    text: str,
    *,
    default: Any = None,
    unset: str = "",
    **more: Any,
) -> None:
    """Add an option whose help ends with its choices and its default, or what is done `unset`."""
    if isinstance(kind, tuple):
        text = f"{text}: {', '.join(kind)}"
        more["choices"] = kind
    else:
        more["type"] = kind
    shown = unset or ("" if default is None else "%(default)s")
    text += f" (default: {shown})" if shown else ""
    group.add_argument(name, metavar=metavar, default=default, help=text, **more)


SHARED: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "--weights": (
        str,
        "NAME",
        "shipped weights (see kjax info), workdir, or FILE[:head,s=…]",
        {"default": shipped.DEFAULT},
    ),
    "--dimension": (
        at_least(1),
        "N",
        "descriptor size; the weights must support it",
        {"unset": "their full size"},
    ),
    "--max-side": (
        at_least(64),
        "PX",
        "reduce larger photographs to this side; keypoints are in pixels of the original",
        {"default": MAX_SIDE},
    ),
    "--seed": (int, "N", "which model of a run with several seeds", {}),
    "--ratio": (positive(most=1.0), "X", "maximum distance ratio", {"unset": "the weights' own"}),
    "--quantize": (
        ("uint8", "binary"),
        "FORM",
        "reduce descriptors to bytes or bits",
        {"unset": "float32"},
    ),
}
"""Options of several commands: arguments of `add_option`."""


def add_shared(group: argparse._ActionsContainer, *names: str) -> None:
    """Add options of `SHARED`."""
    for name in names:
        kind, metavar, text, more = SHARED[name]
        add_option(group, name, kind, metavar, text, **more)


def add_features(
    parser: argparse.ArgumentParser,
    advanced: argparse._ArgumentGroup,
    *,
    detector: str,
    either: bool = False,
) -> None:
    """Add the options of weights and keypoints; `either`: --no-upright, and neither by default."""
    add_shared(parser, "--weights")
    text = "maximum keypoints per image"
    add_option(parser, "--keypoints", at_least(1), "N", text, default=4000)
    text = "keypoints without orientation, for photographs that are not turned"
    if either:
        text += " (default: if the geometry is weak with orientations)"
    action: Any = argparse.BooleanOptionalAction if either else "store_true"
    parser.add_argument("--upright", action=action, help=text)
    add_detector(advanced, detector)
    text, kinds = "precision; auto: int8 on CPUs where that is faster", "float32 bfloat16 int8 auto"
    default = "auto" if either else "float32"
    add_option(advanced, "--dtype", tuple(kinds.split()), "NAME", text, default=default)
    add_shared(advanced, "--max-side", "--dimension", "--seed")


def add_detector(group: argparse._ActionsContainer, default: str) -> None:
    """Add --detector."""
    add_option(group, "--detector", str, "NAME", DETECTOR, default=default)


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `kjax.load` that options of `add_features` give."""
    names = ("dtype", "dimension", "seed", "detector")
    return {name: getattr(args, name) for name in names} | {"max_keypoints": args.keypoints}


def add_matcher(parser: argparse.ArgumentParser, methods: tuple[str, ...]) -> None:
    """Add --matcher."""
    text = f"{', '.join(methods)} (the weights' own), matcher.npz or its workdir"
    add_option(parser, "--matcher", str, "NAME", text, default="mutual_ratio")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add --quiet."""
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


# Checks of files and folders, before any work


def check_weights(source: str) -> None:
    """Raise if no weights have this name; damaged ones are found when they are loaded."""
    name = source.partition(":")[0]
    if shipped.find(name) is not None or any(Path(path).exists() for path in (source, name)):
        return
    if Path(name).suffix:
        raise InputError(f"{name}: no such file")
    unknown = unknown_name("pretrained model", source, shipped.list_weights())
    raise InputError(f"{source} is not a workdir or a weights file; {unknown}")


def check_features(args: argparse.Namespace) -> None:
    """Check the weights, and that OpenCV is installed."""
    check_weights(args.weights)
    require("cv2", "keypoint detection")


def check_matcher(args: argparse.Namespace, methods: tuple[str, ...]) -> tuple[Any, str | None]:
    """Return the method of --matcher, and for "learned" the matcher's name or path."""
    shipping = shipped.list_matchers()
    if args.matcher == "learned":
        weights = shipped.find(args.weights) or args.weights
        return "learned", shipped.matcher_for(weights, args.detector)
    if args.matcher in methods:
        return args.matcher, None
    if args.matcher in shipping or Path(args.matcher).exists():
        return "learned", args.matcher
    unknown = unknown_name("matcher", args.matcher, (*methods, *shipping))
    raise InputError(f"{unknown}, a matcher.npz or its workdir")


def check_folder(path: Path) -> None:
    """Raise if there is no such folder."""
    if path.is_file():
        raise InputError(f"{path} is a file: give a folder of photographs")
    if not path.is_dir():
        raise InputError(f"no such folder: {path}")


def check_output_file(path: Path) -> None:
    """Raise if the file could not be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}; create it first")
    check_output_folder(path.parent)


def check_output_folder(path: Path) -> None:
    """Raise if the folder could not be created or written to."""
    existing = path
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"cannot write into {path}: {existing} is a file, not a folder")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"cannot write into the folder {existing}: {error.strerror}") from None


def named_photographs(arguments: Iterable[str]) -> dict[str, Path]:
    """Return images by name, each once, from files, folders or glob patterns.

    A name is the path below the only folder given, or below the common parent of all files and
    folders given. So images of the same name in two folders stay apart.
    """
    from kjax.data.cutting.photographs import list_photos

    given: list[Path] = []
    for argument in arguments:
        exists = os.path.exists(argument)
        matching = [argument] if exists else sorted(glob.glob(argument, recursive=True))
        if not matching:
            raise InputError(f"no such file, folder or pattern: {argument}")
        given += [Path(os.path.abspath(path)) for path in matching]  # links stay links
    root = os.path.commonpath([path if path.is_dir() else path.parent for path in given])
    files = itertools.chain.from_iterable(
        list_photos(path) if path.is_dir() else [path] for path in given
    )
    named = {file.relative_to(root).as_posix(): file for file in files}
    for name in named:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"{name!r} is not valid UTF-8: rename the file") from None
    return named
