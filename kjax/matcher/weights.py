"""The file of a trained matcher: its parameters, and which descriptors it is for."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax

from kjax.errors import InputError
from kjax.files.npz import as_parameters, has_format, read_described, write_described
from kjax.files.typed_values import Schema
from kjax.matcher.network import MatcherConfig, init_params
from kjax.weights import shipped
from kjax.weights.info import Provenance

WEIGHTS_FILE = "matcher.npz"
"""Name of the file in the workdir of a training."""
_DESCRIPTORS = "embedding.input.kernel"
"""The first layer's parameter that sees descriptors: every matcher has its own."""
FORMAT = "kjax matcher 1"


@dataclasses.dataclass(frozen=True)
class MatcherWeights:
    """A trained matcher, the weights whose descriptors it matches, and notes on its training.

    `base` is the shipped matcher that has all parameters but the ones that see descriptors; then
    the file holds these alone.
    """

    model: MatcherConfig
    described_with: Provenance
    remarks: dict[str, str]
    params: Any = None
    base: str = ""


def find_matcher(source: str | Path) -> Path:
    """Resolve a file, a training's workdir, or a shipped name to a path; it need not exist."""
    path = Path(source)
    if path.is_dir():
        return path / WEIGHTS_FILE
    if path.exists() or path.suffix or str(source) not in shipped.list_matchers():
        return path
    return shipped.matcher_file(str(source))


def holds_matcher(source: str | Path) -> bool:
    """Return whether a file, or a training's workdir, is a matcher's; it may still be damaged."""
    path = Path(source)
    return (path / WEIGHTS_FILE).is_file() or has_format(path, FORMAT)


def matcher_facts(source: str) -> dict[str, str]:
    """Return labels and short texts about a matcher, in order, for `kjax info`."""
    path = find_matcher(source)
    weights = read_matcher(path)
    model, origin = weights.model, weights.described_with
    parameters = sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    heads = f"{model.heads} heads of {model.size}"
    if model.self_every > 1:
        heads += f", self-attention to one in {model.self_every} keypoints"
    ships = path.parent == shipped.FOLDER / shipped.MATCHERS
    return {
        "matcher of": f"descriptors of {origin.name}, {origin.dimension} numbers",
        "layers": f"at most {model.layers}, {model.width} wide, {heads}",
        "parameters": f"{parameters:,}",
        **(shipped.matcher_card(path.stem).facts() if ships else weights.remarks),
    }


def save_matcher(path: Path, weights: MatcherWeights) -> None:
    """Write a file, atomically."""
    named = flax.traverse_util.flatten_dict(jax.device_get(weights.params), sep=".")
    about = {
        "format": FORMAT,
        "model": dataclasses.asdict(weights.model),
        "described_with": dataclasses.asdict(weights.described_with),
        "remarks": weights.remarks,
    }
    if weights.base:
        named, about["base"] = {_DESCRIPTORS: named[_DESCRIPTORS]}, weights.base
    write_described(path, named, about)


def read_matcher(path: Path) -> MatcherWeights:
    """Read a file, or raise InputError."""
    if not path.is_file():
        names = ", ".join(shipped.list_matchers()) or "none in this version"
        raise InputError(f"no such matcher: {path} (shipped matchers: {names})")
    try:
        arrays, values = read_described(path, FORMAT)
        del values["format"]
        about = Schema(MatcherWeights, "description").read(values)
        shapes = jax.eval_shape(lambda: init_params(about.model, jax.random.key(0)))
        expected = flax.traverse_util.flatten_dict(shapes, sep=".")
        if about.base:
            expected = {_DESCRIPTORS: expected[_DESCRIPTORS]}
        plain = as_parameters(arrays, expected)
    except ValueError as error:
        raise InputError(f"{path} is damaged or not a matcher's file ({error})") from None
    if about.base:
        base = read_matcher(shipped.matcher_file(about.base))
        if base.model != about.model:
            raise InputError(f"{path} is for another version of the matcher {about.base}")
        plain = flax.traverse_util.flatten_dict(base.params, sep=".") | plain
    params = flax.traverse_util.unflatten_dict(plain, sep=".")
    return dataclasses.replace(about, params=params)
