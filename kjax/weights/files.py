"""Weights files. Reading never runs code from a file: pickles are not trusted.

All formats hold the names of `kjax.weights.torch_names`: `.npz`, `.safetensors`, and torch's own
`.pt`, `.pth`, `.params`, `.ckpt`, `.bin` (these need torch).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjax.errors import InputError, first_line, unknown_name
from kjax.extras import require
from kjax.files.atomic import write_whole
from kjax.files.npz import read_npz, write_npz
from kjax.weights.info import ModelInfo, make_metadata, parse_metadata
from kjax.weights.torch_names import from_torch, to_arrays, to_torch

if TYPE_CHECKING:
    from kjax.model.descriptor import Descriptor

TORCH_SUFFIXES = (".pt", ".pth", ".params", ".ckpt", ".bin")
TORCH_FILES, SAFETENSORS_FILES = "a PyTorch file", "a .safetensors file"
SUFFIXES = (".npz", ".safetensors", *TORCH_SUFFIXES)


def load_variables(
    path: str | Path, model: "Descriptor | None" = None
) -> dict[str, dict[str, Any]]:
    """Load variables from a weights file, checked against `model` or the names in the file."""
    try:
        return from_torch(load_state_dict(path), model)
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
    """Read what a `.safetensors` file written by kjax says about its model; None for others."""
    path = Path(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    safetensors = require("safetensors", SAFETENSORS_FILES)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return parse_metadata(file.metadata() or {})
    except (InputError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: {first_line(error)}") from None


def save_variables(
    path: str | Path, variables: Mapping[str, Any], *, info: ModelInfo | None = None
) -> None:
    """Write a weights file, whole or not at all.

    Args:
        path: a new file, or one to replace; the suffix is the format.
        variables: not folded.
        info: stored as metadata in a `.safetensors` file. The other formats have no place for it:
            PyTorch refuses a state dict with more than weights.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise unknown_name("file type", path.suffix, SUFFIXES)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        write_npz(path, to_arrays(variables))
    elif path.suffix == ".safetensors":
        save_file = require("safetensors.numpy", SAFETENSORS_FILES).save_file
        tensors, texts = to_arrays(variables), make_metadata(info or ModelInfo()) or None
        write_whole(path, lambda partial: save_file(tensors, partial, metadata=texts))
    else:
        torch = require("torch", TORCH_FILES)
        state_dict = to_torch(variables)
        write_whole(path, lambda partial: torch.save(state_dict, partial))
