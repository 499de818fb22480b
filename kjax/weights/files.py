"""Weights files. Reading never runs code from a file: pickles are not trusted.

All formats hold the names of `kjax.weights.torch_names`: `.npz`, `.safetensors`, and torch's own
`.pt`, `.pth`, `.params`, `.ckpt`, `.bin` (these need torch). Metadata is where readers of bare
arrays do not see it: a zip comment in `.npz`, `_metadata` of the state dict in torch's files.
"""

import contextlib
import json
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjax.errors import InputError, first_line, unknown_name
from kjax.extras import require
from kjax.files.atomic import write_whole
from kjax.files.json import parse_json
from kjax.files.npz import read_npz, write_npz
from kjax.weights.info import MARK, ModelInfo, make_metadata, parse_metadata
from kjax.weights.torch_names import from_torch, to_arrays, to_torch

if TYPE_CHECKING:
    from kjax.model.architecture import Architecture

TORCH_SUFFIXES = (".pt", ".pth", ".params", ".ckpt", ".bin")
TORCH_FILES, SAFETENSORS_FILES = "a PyTorch file", "a .safetensors file"
SUFFIXES = (".npz", ".safetensors", *TORCH_SUFFIXES)


def load_variables(
    path: str | Path, model: "Architecture | None" = None, *, on_host: bool = False
) -> dict[str, dict[str, Any]]:
    """Load variables, see `from_torch`, checked against `model` or the names in the file."""
    try:
        return from_torch(load_state_dict(path), model, on_host=on_host)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def load_state_dict(path: str | Path) -> Mapping[str, Any]:
    """Return the raw mapping in a weights file. Error messages do not name the file."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise unknown_name("file type", path.suffix, SUFFIXES)
    if not path.is_file():
        raise InputError("no such file")
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".safetensors":
        load_file = require("safetensors.numpy", SAFETENSORS_FILES).load_file
        try:
            return load_file(path)
        except Exception as error:  # its own type, and NumPy's for unknown number formats
            raise InputError(f"not a safetensors file ({first_line(error)})") from None
    torch = require("torch", TORCH_FILES)
    try:
        # weights_only refuses pickles with anything but tensors and plain containers.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen types for damaged files
        raise InputError(
            f"not a torch file that holds weights only ({first_line(error)})"
        ) from None
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise InputError("not a state dict: expected a mapping from names to arrays")
    return content


def read_metadata(path: str | Path) -> ModelInfo | None:
    """Read what a file written by kjax says about its model; None for other files."""
    path = Path(path)
    if path.suffix not in SUFFIXES or not path.is_file():
        return None
    texts: Any = None
    try:
        if path.suffix == ".safetensors":
            safetensors = require("safetensors", SAFETENSORS_FILES)
            with safetensors.safe_open(path, framework="numpy") as file:
                texts = file.metadata()
        elif path.suffix != ".npz":
            texts = getattr(load_state_dict(path), "_metadata", None)
            texts = texts.get(MARK) if isinstance(texts, Mapping) else None
        else:
            # Damage of a dozen types, to be reported when the arrays are read.
            with contextlib.suppress(Exception), zipfile.ZipFile(path) as file:
                texts = parse_json(file.comment)
        return parse_metadata(texts)
    except Exception as error:  # ours, and safetensors' own type
        raise InputError(f"{path}: {first_line(error)}") from None


def save_variables(
    path: str | Path, variables: Mapping[str, Any], *, info: ModelInfo | None = None
) -> None:
    """Write a weights file, whole or not at all.

    Args:
        path: a new file, or one to replace; the suffix is the format.
        variables: not folded.
        info: stored as metadata.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise unknown_name("file type", path.suffix, SUFFIXES)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = make_metadata(info or ModelInfo())
    if path.suffix == ".npz":
        write_npz(path, to_arrays(variables), comment=json.dumps(texts) if texts else "")
    elif path.suffix == ".safetensors":
        # `save_file` would give the file to its owner only.
        save = require("safetensors.numpy", SAFETENSORS_FILES).save
        content = save(to_arrays(variables), metadata=texts or None)
        write_whole(path, lambda partial: partial.write_bytes(content))
    else:
        torch = require("torch", TORCH_FILES)
        state_dict = OrderedDict(to_torch(variables))
        vars(state_dict)["_metadata"] = {MARK: texts}
        write_whole(path, lambda partial: torch.save(state_dict, partial))
