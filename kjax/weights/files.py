"""Weights on disk. Reading never runs code from a file: no pickle is ever trusted.

All formats hold the names of `kjax.weights.torch_names`: `.npz`, `.safetensors`, and torch's own
`.pt`, `.pth`, `.params`, `.ckpt`, `.bin` (these need torch).
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kjax.errors import InputError, first_line, unknown_name
from kjax.extras import require
from kjax.files.arrays import read_npz, write_npz
from kjax.files.atomic import write_whole
from kjax.files.unpacking import check_unpacked
from kjax.weights.fields import Fields
from kjax.weights.metadata import Metadata, parse_metadata
from kjax.weights.torch_names import (
    announced_widths,
    from_torch,
    plain_arrays,
    to_arrays,
    to_torch,
)

if TYPE_CHECKING:
    from kjax.model.descriptor import Descriptor

TORCH_SUFFIXES = (".pt", ".pth", ".params", ".ckpt", ".bin")
TORCH_FILES, SAFETENSORS_FILES = "a PyTorch file", "a .safetensors file"
SUFFIXES = (".npz", ".safetensors", *TORCH_SUFFIXES)


def load_variables(
    path: str | Path, model: "Descriptor | None" = None
) -> dict[str, dict[str, Any]]:
    """Variables from a weights file, checked against `model` or against what the names announce."""
    try:
        return from_torch(load_state_dict(path), model)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_widths(path: str | Path) -> Fields:
    """The channels and the dimension of the model that weights in a file are for."""
    try:
        return announced_widths(plain_arrays(load_state_dict(path)))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def load_state_dict(path: str | Path) -> Mapping[str, Any]:
    """The raw mapping in a weights file."""
    path = Path(path)
    if not path.is_file():
        raise InputError("no such file")
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in TORCH_SUFFIXES:
        return _read_torch(path)
    raise unknown_name("file type", path.suffix, SUFFIXES)


def read_metadata(path: str | Path) -> Metadata | None:
    """What a `.safetensors` file of kjax tells of its model; None for all others."""
    path = Path(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    safetensors = require("safetensors", SAFETENSORS_FILES)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            texts = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file ({first_line(error)})") from None
    try:
        return parse_metadata(texts)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def save_variables(
    path: str | Path,
    variables: Mapping[str, Any],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a weights file, whole or not at all.

    Args:
        path: a new file, or one to replace.
        variables: not folded.
        metadata: for a `.safetensors` file, as `kjax.weights.metadata` makes them. The other
            formats have no place for them: PyTorch refuses a state dict with more than weights.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        write_npz(path, to_arrays(variables))
    elif path.suffix == ".safetensors":
        save_file = require("safetensors.numpy", SAFETENSORS_FILES).save_file
        tensors = to_arrays(variables)
        texts = dict(metadata or {}) or None
        write_whole(path, lambda partial: save_file(tensors, partial, metadata=texts))
    elif path.suffix in TORCH_SUFFIXES:
        torch = require("torch", TORCH_FILES)
        state_dict = to_torch(variables)
        write_whole(path, lambda partial: torch.save(state_dict, partial))
    else:
        raise unknown_name("file type", path.suffix, SUFFIXES)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    load_file = require("safetensors.numpy", SAFETENSORS_FILES).load_file
    try:
        return load_file(path)
    except Exception as error:  # its own, and NumPy's for numbers that it does not know
        raise InputError(f"not a safetensors file ({first_line(error)})") from None


def _read_torch(path: Path) -> Mapping[str, Any]:
    torch = require("torch", TORCH_FILES)
    try:
        _check_torch_archive(path)
        # weights_only refuses every pickle that names anything but tensors and plain containers.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen types for files that are not its own
        raise InputError(
            f"refused: not a torch file that holds weights only ({first_line(error)})"
        ) from None
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise InputError("this is no state dict: expected a mapping from names to arrays")
    return content


def _check_torch_archive(path: Path) -> None:
    """Torch's files are archives whose members are not compressed, since its version 1.6."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_unpacked(path.stat().st_size, sum(part.file_size for part in archive.infolist()))
