"""The file of a trained detector: its parameters and notes on its training."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax

from kjax.errors import InputError
from kjax.files.npz import as_parameters, has_format, read_described, write_described
from kjax.files.typed_values import Schema
from kjax.keypoints.network import DetectorConfig, init_params
from kjax.weights import shipped

WEIGHTS_FILE = "detector.npz"
"""Name of the file in the workdir of a training."""
FORMAT = "kjax detector 2"


@dataclasses.dataclass(frozen=True)
class DetectorWeights:
    """A trained detector and notes on its training."""

    model: DetectorConfig
    remarks: dict[str, str]
    params: Any = None


def holds_detector(source: str | Path) -> bool:
    """Return whether a file, or a training's workdir, is a detector's; it may still be damaged."""
    path = Path(source)
    return (path / WEIGHTS_FILE).is_file() or has_format(path, FORMAT)


def detector_facts(source: str) -> dict[str, str]:
    """Return labels and short texts about a detector, in order, for `kjax info`."""
    weights = read_detector(find_file(source))
    known = source in shipped.list_detectors()
    remarks = shipped.detector_card(source).remarks if known else weights.remarks
    model, count = weights.model, sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    return {
        "detector of": f"keypoints in {model.octaves} octaves",
        "diameters": f"about {model.smallest:g} pixels and more",
        "parameters": f"{count:,}, {' '.join(map(str, model.widths))} channels",
        **remarks,
        "load": f'kjax.load(detector="{source}"), or --detector {source}',
    }


def save_detector(path: Path, weights: DetectorWeights) -> None:
    """Write a file, atomically."""
    named = flax.traverse_util.flatten_dict(jax.device_get(weights.params), sep=".")
    about = {
        "format": FORMAT,
        "model": dataclasses.asdict(weights.model),
        "remarks": weights.remarks,
    }
    write_described(path, named, about)


def find_file(source: str | Path) -> Path:
    """Return the file of a shipped detector, a file or that of a training's workdir."""
    if str(source) in shipped.list_detectors():
        return shipped.detector_file(str(source))
    path = Path(source)
    path = path / WEIGHTS_FILE if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"no such detector: {path}")
    return path


def read_detector(path: Path) -> DetectorWeights:
    """Read a file, or raise InputError."""
    try:
        arrays, values = read_described(path, FORMAT)
        del values["format"]
        about = Schema(DetectorWeights, "description").read(values)
        shapes = jax.eval_shape(lambda: init_params(about.model, jax.random.key(0)))
        expected = flax.traverse_util.flatten_dict(shapes, sep=".")
        plain = as_parameters(arrays, expected)
    except ValueError as error:
        raise InputError(f"{path} is damaged or not a detector's file ({error})") from None
    return dataclasses.replace(about, params=flax.traverse_util.unflatten_dict(plain, sep="."))
