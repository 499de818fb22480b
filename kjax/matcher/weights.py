"""The file of a trained matcher: its parameters, and a text that says what it is and for whom."""

import contextlib
import dataclasses
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from kjax.errors import InputError
from kjax.files.npz import ABOUT, read_described, write_described
from kjax.files.typed_values import Schema
from kjax.matcher.network import MatcherConfig, init_params
from kjax.weights import shipped
from kjax.weights.info import Provenance

WEIGHTS_FILE = "matcher.npz"
"""In the folder of a training."""
_A_PARAMETER = "embedding.frequencies"
FORMAT = "kjax matcher 1"


@dataclasses.dataclass(frozen=True)
class About:
    """What a file tells about its matcher.

    Attributes:
        format: of the file.
        model: how to build the network.
        described_with: the weights whose descriptors it matches.
        remarks: for people, on how it was trained.
    """

    format: str
    model: MatcherConfig
    described_with: Provenance
    remarks: dict[str, str]


@dataclasses.dataclass(frozen=True)
class MatcherWeights:
    """A trained matcher."""

    about: About
    params: Any


def find_matcher(source: str | Path) -> Path:
    """The file that a word stands for: a file, a training's folder, or a shipped name.

    Raises:
        InputError: it stands for nothing.
    """
    path = Path(source)
    if path.is_dir():
        return path / WEIGHTS_FILE
    if path.exists() or path.suffix or str(source) not in shipped.list_matchers():
        return path
    return shipped.matcher_file(str(source))


def holds_matcher(source: str | Path) -> bool:
    """Whether a file, or a training's folder, is a matcher's; whether it is sound is seen later."""
    path = Path(source)
    if path.is_dir():
        return (path / WEIGHTS_FILE).is_file()
    if path.suffix != ".npz" or not zipfile.is_zipfile(path):
        return False
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as file:
        return {f"{name}.npy" for name in (ABOUT, _A_PARAMETER)} <= set(file.namelist())
    return False


def matcher_facts(source: str) -> dict[str, str]:
    """What to tell people about a matcher: labels and short texts, in order.

    Args:
        source: as `find_matcher` takes it.

    Raises:
        InputError: it stands for no matcher.
    """
    path = find_matcher(source)
    weights = read_matcher(path)
    model, origin = weights.about.model, weights.about.described_with
    ships = path.parent == shipped.FOLDER / shipped.MATCHERS
    parameters = sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    heads = f"{model.heads} heads of {model.size}"
    if model.self_every > 1:
        heads += f", self-attention to one in {model.self_every} keypoints"
    return {
        "matcher of": f"descriptors of {origin.name}, {origin.dimension} numbers",
        "layers": f"at most {model.layers}, {model.width} wide, {heads}",
        "parameters": f"{parameters:,}",
        **(shipped.matcher_card(path.stem).facts() if ships else weights.about.remarks),
    }


def shipped_hint() -> str:
    """What matchers ship, for messages."""
    names = ", ".join(shipped.list_matchers())
    return f" (those that ship: {names})" if names else " (none ships with this version: train one)"


def save_matcher(path: Path, weights: MatcherWeights) -> None:
    """Writes a file, whole or not at all."""
    named = flax.traverse_util.flatten_dict(jax.device_get(weights.params), sep=".")
    write_described(path, named, dataclasses.asdict(weights.about))


def read_matcher(path: Path) -> MatcherWeights:
    """Reads a file.

    Raises:
        InputError: it is absent, damaged, or something else.
    """
    if not path.is_file():
        raise InputError(f"no such matcher: {path}{shipped_hint()}")
    try:
        arrays, values = read_described(path, FORMAT)
        about = Schema(About, "description").read(values)
        return MatcherWeights(about, _as_params(arrays, about.model))
    except ValueError as error:
        raise InputError(f"{path} is no file of a matcher, or a damaged one ({error})") from None


def _as_params(arrays: Mapping[str, np.ndarray], model: MatcherConfig) -> dict[str, Any]:
    """The arrays in their places, as float32, if they are those of the model."""
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    wanted = flax.traverse_util.flatten_dict(shapes, sep=".")
    if wanted.keys() != arrays.keys():
        name = sorted(wanted.keys() ^ arrays.keys())[0]
        raise InputError(f"{name} is missing, or too much")
    for name, like in wanted.items():
        if arrays[name].shape != like.shape or arrays[name].dtype.kind != "f":
            raise InputError(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
    plain = {name: array.astype(np.float32) for name, array in arrays.items()}
    return flax.traverse_util.unflatten_dict(plain, sep=".")
